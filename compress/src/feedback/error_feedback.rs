//! Error feedback around any compressor.

use std::ops::Range;

use super::selector::add_entries;
use super::{Compressor, Gradient, Residual, add_in_parts};
use crate::error::check_length;
use crate::simd::{Level, codes};
use crate::state::{Reader, State, Writer};
use crate::{Error, SparseView};

/// The definition of a step's error `e`, where `delta = g + e` is the vector to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// `delta` minus what this rank's own message decodes to (the text of Vogels et al., NeurIPS 2019).
    #[default]
    Own,
    /// `delta` minus the average that all ranks received (the rule of the authors' program). For linear
    /// compressors, the mean update of the ranks equals that of [`Own`](Self::Own) up to rounding. Each
    /// rank's error, however, is a random walk and grows beyond what half precision can hold.
    Global,
}

/// Error feedback around any compressor: the difference between the input and what was sent stays in the
/// residual.
///
/// For each step, call [`compress`](Self::compress), send and reduce the message, then call
/// [`settle`](Self::settle) with the average. If sending fails, call [`put_back`](Self::put_back) instead.
/// Holds one dense vector.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::feedback::{ErrorFeedback, TopK};
///
/// let mut feedback = ErrorFeedback::new(3, TopK::new(1));
/// let mut message = SparseVec::new(3);
/// feedback.compress(&[1.0, -4.0, 2.0][..], &mut message)?;
/// assert_eq!((message.indices(), message.values()), (&[1][..], &[-4.0][..]));
/// assert_eq!(feedback.residual().values(), [1.0, 0.0, 2.0]);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ErrorFeedback<C> {
    compressor: C,
    residual: Residual,
    rule: Rule,
    /// Global rule only: `residual` is `delta`, and its message is in transit.
    pending: bool,
}

impl<C: Compressor> ErrorFeedback<C> {
    /// Feedback for a tensor of `n` elements by the own rule.
    pub fn new(n: usize, compressor: C) -> Self {
        Self::with_rule(n, compressor, Rule::Own)
    }

    /// Feedback for a tensor of `n` elements.
    pub fn with_rule(n: usize, compressor: C, rule: Rule) -> Self {
        Self { compressor, residual: Residual::new(n), rule, pending: false }
    }

    /// The rule.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The compressor.
    pub fn compressor(&self) -> &C {
        &self.compressor
    }

    /// The compressor, for changing its settings.
    pub fn compressor_mut(&mut self) -> &mut C {
        &mut self.compressor
    }

    /// The residual. By the global rule, it contains all of `delta` while a message is in transit.
    pub fn residual(&self) -> &Residual {
        &self.residual
    }

    /// The residual, for loading a saved one or putting entries back.
    pub fn residual_mut(&mut self) -> &mut Residual {
        &mut self.residual
    }

    /// Adds `gradient` to the residual and compresses the sum into `message`. By the own rule, the residual
    /// loses at once what the message says. By the global rule, a message that was not settled counts as not
    /// delivered.
    ///
    /// Cost by the own rule: that of [`Compressor::feed`], which is one pass for [`TopK`](super::TopK), and
    /// otherwise a pass to add, the compressor's passes, and a pass to subtract. Cost by the global rule: a
    /// pass to add, the compressor's passes, and a pass to settle.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]: nothing has changed then. [`Error::NonFinite`] for the first element of the
    /// gradient, or the first sum, that is not finite: the residual is unchanged up to rounding. After an
    /// error of the compressor itself, or a message that overflows the residual, the gradient stays in the
    /// residual. `message` must not be sent after any error.
    pub fn compress<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        message: &mut C::Message,
    ) -> Result<(), Error> {
        let gradient = gradient.into();
        self.pending = false;
        match self.rule {
            Rule::Own => self.compressor.feed(&mut self.residual, gradient, message),
            Rule::Global => {
                self.residual.add(gradient)?;
                self.compressor.compress(self.residual.values(), message)?;
                self.pending = true;
                Ok(())
            }
        }
    }

    /// Takes the average of what all ranks' messages decode to. By the global rule, subtracts it from the
    /// residual if a message is in transit. By the own rule, does nothing.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]. By the global rule, [`Error::NonFinite`] for the first element or
    /// difference that is not finite; the residual is then unchanged up to rounding, and the message is still
    /// in transit.
    pub fn settle(&mut self, average: &[f32]) -> Result<(), Error> {
        check_length(self.residual.len(), average.len())?;
        if self.pending {
            let take_out = |sign: f32, range: Range<usize>, part: &mut [f32]| {
                codes::add_scaled(Level::best(), part, -sign, &average[range]);
            };
            self.residual.change(|values| add_in_parts(values, take_out))?;
            self.pending = false;
        }
        Ok(())
    }

    /// Like [`settle`](Self::settle), for a sparse average.
    ///
    /// # Errors
    /// The same as for [`settle`](Self::settle).
    pub fn settle_sparse(&mut self, average: SparseView<'_>) -> Result<(), Error> {
        check_length(self.residual.len(), average.dim())?;
        if self.pending {
            self.residual.change(|values| add_entries(average, -1.0, values))?;
            self.pending = false;
        }
        Ok(())
    }

    /// Puts a message that was not delivered back into the residual. By the global rule, the residual still
    /// contains it.
    ///
    /// # Errors
    /// The same as for [`Compressor::add_decoded`].
    pub fn put_back(&mut self, message: &C::Message) -> Result<(), Error> {
        self.pending = false;
        match self.rule {
            Rule::Own => {
                let Self { compressor, residual, .. } = self;
                residual.change(|values| compressor.add_decoded(message, 1.0, values))
            }
            Rule::Global => Ok(()),
        }
    }
}

/// Saves the residual. By the global rule, a message in transit counts as not delivered. The compressor's own
/// state is saved separately.
impl<C> State for ErrorFeedback<C> {
    fn kind(&self) -> [u8; 4] {
        *b"erfb"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.residual.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.residual);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.pending = false;
        contents.part(&mut self.residual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes to a constant from a given index on.
    struct Constant {
        value: f32,
        from: usize,
    }

    impl Compressor for Constant {
        type Message = ();

        fn compress(&mut self, _: &[f32], (): &mut ()) -> Result<(), Error> {
            Ok(())
        }

        fn add_decoded(&self, (): &(), factor: f32, dense: &mut [f32]) -> Result<(), Error> {
            add_in_parts(dense, |sign, range, part| {
                let places = range.zip(part);
                places.filter(|(i, _)| *i >= self.from).for_each(|(_, v)| *v += sign * factor * self.value);
            })
        }
    }

    #[test]
    fn feedback_keeps_what_the_message_misses() {
        let mut feedback = ErrorFeedback::new(2, Constant { value: 2.0, from: 0 });
        feedback.compress(&[3.0, 1.0][..], &mut ()).unwrap();
        assert_eq!(feedback.residual().values(), [1.0, -1.0]);
        feedback.put_back(&()).unwrap();
        assert_eq!(feedback.residual().values(), [3.0, 1.0]);
    }

    #[test]
    fn message_that_breaks_its_promise_does_not_break_the_residual() {
        for (n, from) in [(2, 0), (2, 1), (40_000, 0), (40_000, 8191), (40_000, 39_999)] {
            let mut feedback = ErrorFeedback::new(n, Constant { value: f32::INFINITY, from });
            let gradient = vec![3.0; n];
            let found = feedback.compress(&gradient[..], &mut ());
            assert!(matches!(found, Err(Error::NonFinite { index, .. }) if index == from), "{found:?}");
            assert_eq!(feedback.residual().values(), gradient, "n {n}, from {from}");
        }
    }

    #[test]
    fn parts_before_an_overflow_are_taken_out_again() {
        let n = 20_000;
        let mut feedback = ErrorFeedback::new(n, Constant { value: -1.0e38, from: 0 });
        let mut gradient = vec![0.0; n];
        gradient[n - 1] = 3.0e38;
        let found = feedback.compress(&gradient[..], &mut ());
        assert_eq!(found, Err(Error::NonFinite { index: n - 1, value: f32::INFINITY }));
        assert_eq!(feedback.residual().values(), gradient);
        // The residual takes no gradient that would overflow it.
        assert!(feedback.residual_mut().accumulate(&gradient).is_err());
    }

    #[test]
    fn global_rule_waits_for_what_comes_back() {
        let mut feedback = ErrorFeedback::with_rule(2, Constant { value: 2.0, from: 0 }, Rule::Global);
        feedback.settle(&[9.0, 9.0]).unwrap();
        feedback.compress(&[3.0, 1.0][..], &mut ()).unwrap();
        assert_eq!(feedback.residual().values(), [3.0, 1.0]);
        assert!(feedback.settle(&[f32::NAN, 0.0]).is_err());
        assert_eq!(feedback.settle(&[1.0]), Err(Error::LengthMismatch { expected: 2, found: 1 }));
        feedback.settle(&[2.0, 4.0]).unwrap();
        feedback.settle(&[2.0, 4.0]).unwrap();
        assert_eq!(feedback.residual().values(), [1.0, -3.0]);
        feedback.compress(&[1.0, 1.0][..], &mut ()).unwrap();
        feedback.put_back(&()).unwrap();
        assert_eq!(feedback.residual().values(), [2.0, -2.0]);
    }
}
