//! Error feedback: what was not sent stays, and goes out later.
//!
//! `r` is the residual of one tensor on one rank, `g` its gradient. Each step `r += g`; a message
//! is taken out of `r`; whatever fails puts it back. So what was sent plus the residual is always
//! the sum of the gradients (Aji and Heafield, EMNLP 2017; Vogels et al., NeurIPS 2019, algorithm 2).

mod gradient;

pub use gradient::Gradient;

use crate::bits::largest_finite;
use crate::error::check_length;
use crate::select::{TopKScratch, top_k};
use crate::{Error, SparseVec, SparseView};

/// A dense residual, finite at all times.
#[derive(Debug, Clone)]
pub struct Residual {
    values: Vec<f32>,
    /// No magnitude in `values` is larger. Raised by what is added, so that additions need not
    /// read `values` twice to know that they can't overflow; never lowered but by looking again.
    ceiling: f64,
}

impl Residual {
    /// A residual of `n` zeros.
    pub fn new(n: usize) -> Self {
        Self { values: vec![0.0; n], ceiling: 0.0 }
    }

    /// The residual.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no elements at all.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The Euclidean norm.
    pub fn norm(&self) -> f64 {
        self.values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
    }

    /// `r += g`. The gradient is read twice: it is checked as a whole before anything is stored.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first gradient value that is not
    /// finite, else the first sum that overflows. The residual is unchanged then, bit for bit.
    pub fn accumulate(&mut self, gradient: &[f32]) -> Result<(), Error> {
        self.check_addition(gradient, 1.0)?;
        self.values.iter_mut().zip(gradient).for_each(|(r, &g)| *r += g);
        Ok(())
    }

    /// `r -= g`: takes a step out again, to rounding.
    ///
    /// # Errors
    /// As [`accumulate`](Self::accumulate).
    pub fn subtract(&mut self, gradient: &[f32]) -> Result<(), Error> {
        self.check_addition(gradient, -1.0)?;
        self.values.iter_mut().zip(gradient).for_each(|(r, &g)| *r -= g);
        Ok(())
    }

    /// Moves the `k` largest entries (see [`top_k`]) to `out`, and leaves zeros in their place.
    ///
    /// # Errors
    /// As [`top_k`]; the residual is unchanged then.
    pub fn select(&mut self, k: usize, out: &mut SparseVec, scratch: &mut TopKScratch) -> Result<(), Error> {
        top_k(&self.values, k, out, scratch)?;
        out.indices().iter().for_each(|&index| self.values[index as usize] = 0.0);
        Ok(())
    }

    /// Adds `entries` back: those that were selected, but not delivered.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first sum that is not finite. The
    /// residual is unchanged then.
    pub fn put_back(&mut self, entries: SparseView<'_>) -> Result<(), Error> {
        check_length(self.values.len(), entries.dim())?;
        let mut largest = 0.0_f32;
        for (index, value) in entries.iter() {
            let sum = self.values[index as usize] + value;
            if !sum.is_finite() {
                return Err(Error::NonFinite { index: index as usize, value: sum });
            }
            largest = largest.max(sum.abs());
        }
        entries.add_to(&mut self.values);
        self.ceiling = self.ceiling.max(f64::from(largest));
        Ok(())
    }

    /// Replaces the residual, for example by a saved one.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; the residual is unchanged then.
    pub fn load(&mut self, values: &[f32]) -> Result<(), Error> {
        check_length(self.values.len(), values.len())?;
        self.ceiling = f64::from(largest_finite(values)?);
        self.values.copy_from_slice(values);
        Ok(())
    }

    /// Sets every element to zero.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
        self.ceiling = 0.0;
    }

    /// Makes sure that `r + sign * g` is finite everywhere, and raises the ceiling for it.
    fn check_addition(&mut self, gradient: &[f32], sign: f32) -> Result<(), Error> {
        check_length(self.values.len(), gradient.len())?;
        let largest = f64::from(largest_finite(gradient)?);
        // Half an ulp of rounding, generously.
        let raised = |ceiling: f64| (ceiling + largest) * (1.0 + f64::from(f32::EPSILON));
        if raised(self.ceiling) > f64::from(f32::MAX) {
            self.ceiling = f64::from(largest_finite(&self.values)?);
            let sums = self.values.iter().zip(gradient).map(|(&r, &g)| r + sign * g);
            if let Some((index, value)) = sums.enumerate().find(|(_, sum)| !sum.is_finite()) {
                return Err(Error::NonFinite { index, value });
            }
        }
        self.ceiling = raised(self.ceiling);
        Ok(())
    }
}

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
        self.compressor.compress(&self.residual.values, message)?;
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
        self.before.copy_from_slice(&self.residual.values);
        let decoded = self.compressor.add_decoded(message, factor, &mut self.residual.values);
        match decoded.and_then(|()| largest_finite(&self.residual.values)) {
            Ok(largest) => {
                self.residual.ceiling = f64::from(largest);
                Ok(())
            }
            Err(error) => {
                std::mem::swap(&mut self.before, &mut self.residual.values);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(values: &[f32]) -> Residual {
        let mut residual = Residual::new(values.len());
        residual.load(values).unwrap();
        residual
    }

    #[test]
    fn failed_accumulation_changes_nothing() {
        let mut residual = loaded(&[1.0, 1e-30, f32::MAX]);
        let before = residual.values().to_vec();
        for (gradient, index) in
            [([1e30, f32::NAN, f32::INFINITY], 1), ([1e30, 1e30, f32::MAX], 2), ([f32::NEG_INFINITY, 0.0, 0.0], 0)]
        {
            let found = residual.accumulate(&gradient);
            assert!(matches!(found, Err(Error::NonFinite { index: i, .. }) if i == index), "{found:?}");
            assert_eq!(residual.values(), before);
        }
        assert_eq!(residual.accumulate(&[0.0]), Err(Error::LengthMismatch { expected: 3, found: 1 }));
        // What overflows one way fits the other way.
        residual.subtract(&[0.0, 0.0, f32::MAX]).unwrap();
        assert_eq!(residual.values(), [1.0, 1e-30, 0.0]);
        residual.accumulate(&[0.0, 0.0, f32::MAX]).unwrap();
        assert_eq!(residual.values(), before);
    }

    #[test]
    fn no_sequence_of_additions_slips_past_the_ceiling() {
        let mut residual = Residual::new(1);
        let step = f32::MAX / 3.0;
        let taken = (0..5).take_while(|_| residual.accumulate(&[step]).is_ok()).count();
        assert_eq!(taken, 3);
        assert!(residual.values()[0].is_finite());
        let entry = SparseVec::from_parts(1, vec![0], vec![step]).unwrap();
        assert!(matches!(residual.put_back(entry.view()), Err(Error::NonFinite { index: 0, .. })));
        residual.clear();
        residual.put_back(entry.view()).unwrap();
        assert_eq!(residual.values(), [step]);
    }

    #[test]
    fn selection_moves_and_put_back_returns() {
        let mut residual = loaded(&[3.0, -5.0, 1.0, 4.0]);
        let mut out = SparseVec::new(0);
        residual.select(2, &mut out, &mut TopKScratch::new()).unwrap();
        assert_eq!(residual.values(), [3.0, 0.0, 1.0, 0.0]);
        residual.put_back(out.view()).unwrap();
        assert_eq!(residual.values(), [3.0, -5.0, 1.0, 4.0]);
        assert_eq!(residual.norm(), 51.0_f64.sqrt());
    }

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
