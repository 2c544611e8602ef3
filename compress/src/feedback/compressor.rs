//! Error feedback around any compressor.

use super::residual::Residual;
use crate::bits::largest_finite;
use crate::error::check_length;
use crate::select::{TopKScratch, top_k};
use crate::{Error, SparseVec};

/// Turns a dense vector into a smaller message, and back.
///
/// What a message decodes to is finite, and should be near what it was made from; whatever is
/// missing is the caller's to keep, as [`ErrorFeedback`] does.
pub trait Compressor {
    /// What is sent.
    type Message;

    /// Compresses `dense` into `message`, which is overwritten.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a NaN or an infinity in `dense`, and the compressor's own.
    fn compress(&mut self, dense: &[f32], message: &mut Self::Message) -> Result<(), Error>;

    /// `dense += factor * decoded message`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a `dense` of another length, which is unchanged then.
    fn add_decoded(&self, message: &Self::Message, factor: f32, dense: &mut [f32]) -> Result<(), Error>;
}

/// Keeps the `k` entries of largest magnitude, as they are.
#[derive(Debug, Clone)]
pub struct TopK {
    k: usize,
    scratch: TopKScratch,
}

impl TopK {
    /// Keeps at most `k` entries.
    pub fn new(k: usize) -> Self {
        Self { k, scratch: TopKScratch::new() }
    }
}

impl Compressor for TopK {
    type Message = SparseVec;

    fn compress(&mut self, dense: &[f32], message: &mut SparseVec) -> Result<(), Error> {
        top_k(dense, self.k, message, &mut self.scratch)
    }

    fn add_decoded(&self, message: &SparseVec, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        check_length(message.dim(), dense.len())?;
        message.iter().for_each(|(index, value)| dense[index as usize] += factor * value);
        Ok(())
    }
}

/// Error feedback around any compressor: the difference between what was handed in and what the
/// messages decode to stays in the residual.
///
/// Holds two dense vectors. Where top k is all that is asked for, [`Residual::select`] does with one.
#[derive(Debug, Clone)]
pub struct ErrorFeedback<C> {
    compressor: C,
    residual: Residual,
    /// The residual before a message was added: a sum that overflows can't be undone otherwise.
    before: Vec<f32>,
}

impl<C: Compressor> ErrorFeedback<C> {
    /// Feedback for a tensor of `n` elements.
    pub fn new(n: usize, compressor: C) -> Self {
        Self { compressor, residual: Residual::new(n), before: vec![0.0; n] }
    }

    /// The compressor.
    pub fn compressor(&self) -> &C {
        &self.compressor
    }

    /// The residual.
    pub fn residual(&self) -> &Residual {
        &self.residual
    }

    /// The residual, to load a saved one or to put entries back.
    pub fn residual_mut(&mut self) -> &mut Residual {
        &mut self.residual
    }

    /// Adds `gradient` to the residual and moves to `message` what the compressor can say of it.
    ///
    /// # Errors
    /// As [`Residual::accumulate`]: nothing has changed then. An error of the compressor's leaves the
    /// gradient in the residual and `message` unspecified.
    pub fn compress(&mut self, gradient: &[f32], message: &mut C::Message) -> Result<(), Error> {
        self.residual.accumulate(gradient)?;
        self.compressor.compress(self.residual.values(), message)?;
        self.add_to_residual(message, -1.0)
    }

    /// Puts a message that was not delivered back into the residual.
    ///
    /// # Errors
    /// As [`Compressor::add_decoded`], and [`Error::NonFinite`] when the residual would overflow; it
    /// is unchanged then.
    pub fn put_back(&mut self, message: &C::Message) -> Result<(), Error> {
        self.add_to_residual(message, 1.0)
    }

    fn add_to_residual(&mut self, message: &C::Message, factor: f32) -> Result<(), Error> {
        self.before.copy_from_slice(self.residual.values());
        let decoded = self.compressor.add_decoded(message, factor, self.residual.values_mut());
        match decoded.and_then(|()| largest_finite(self.residual.values())) {
            Ok(largest) => {
                self.residual.set_ceiling(largest);
                Ok(())
            }
            Err(error) => {
                self.before.swap_with_slice(self.residual.values_mut());
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes to whatever it is told.
    struct Constant(f32);

    impl Compressor for Constant {
        type Message = ();

        fn compress(&mut self, _: &[f32], (): &mut ()) -> Result<(), Error> {
            Ok(())
        }

        fn add_decoded(&self, (): &(), factor: f32, dense: &mut [f32]) -> Result<(), Error> {
            dense.iter_mut().for_each(|v| *v += factor * self.0);
            Ok(())
        }
    }

    #[test]
    fn feedback_keeps_what_the_message_misses() {
        let mut feedback = ErrorFeedback::new(2, Constant(2.0));
        feedback.compress(&[3.0, 1.0], &mut ()).unwrap();
        assert_eq!(feedback.residual().values(), [1.0, -1.0]);
        feedback.put_back(&()).unwrap();
        assert_eq!(feedback.residual().values(), [3.0, 1.0]);
    }

    #[test]
    fn message_that_breaks_its_promise_does_not_break_the_residual() {
        let mut feedback = ErrorFeedback::new(2, Constant(f32::INFINITY));
        let found = feedback.compress(&[3.0, 1.0], &mut ());
        assert!(matches!(found, Err(Error::NonFinite { index: 0, .. })));
        assert_eq!(feedback.residual().values(), [3.0, 1.0]);
    }
}
