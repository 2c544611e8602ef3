//! The gradients of one tensor that wait to be sent.

use brevity_compress::Error as Compress;
use brevity_compress::feedback::Gradient;

use super::gradient::{add_finite, take_out};
use super::room::{self, Lacking};
use super::taking::Taking;

/// The gradient of this step, and what earlier steps have not delivered.
pub(super) struct Pending {
    values: Vec<f32>,
    /// Whether there is something of earlier steps.
    is_waiting: bool,
    /// Whether this step's gradient is among the values.
    is_added: bool,
}

impl Pending {
    pub(super) fn new(count: usize) -> Result<Self, Lacking> {
        Ok(Self { values: room::zeros(count)?, is_waiting: false, is_added: false })
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Adds a gradient. Returns whether all sums are finite; if not, nothing is added.
    pub(super) fn add(&mut self, gradient: Gradient<'_>) -> bool {
        self.is_added = add_finite(&mut self.values, gradient);
        self.is_added
    }

    /// Takes this step's gradient out again, up to rounding.
    pub(super) fn withdraw(&mut self, gradient: Gradient<'_>) {
        if std::mem::take(&mut self.is_added) && self.is_waiting {
            take_out(&mut self.values, gradient);
        }
        if !self.is_waiting {
            self.values.fill(0.0);
        }
    }

    /// Keeps everything for a later step.
    pub(super) fn keep(&mut self) {
        self.is_waiting |= std::mem::take(&mut self.is_added);
    }

    /// Ends a step of which all was sent.
    pub(super) fn clear(&mut self) {
        self.values.fill(0.0);
        (self.is_waiting, self.is_added) = (false, false);
    }

    /// Ends a step that has left of the values what `leave` makes of them.
    pub(super) fn leave(&mut self, leave: impl FnOnce(&mut [f32])) {
        leave(&mut self.values);
        (self.is_waiting, self.is_added) = (true, false);
    }

    /// Adds values that another rank has saved.
    pub(super) fn take(&mut self, from: &mut Taking<'_>) -> Result<(), Compress> {
        match from.sum(&self.values)? {
            None => Ok(()),
            Some(sums) => self.load(|values| {
                values.copy_from_slice(sums);
                Ok(())
            }),
        }
    }

    /// Takes over values that were saved.
    pub(super) fn load<E>(&mut self, load: impl FnOnce(&mut [f32]) -> Result<(), E>) -> Result<(), E> {
        load(&mut self.values)?;
        self.is_waiting = self.values.iter().any(|&value| value != 0.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_stays_when_a_gradient_is_taken_out() {
        let mut pending = Pending::new(2).unwrap();
        assert!(pending.add(Gradient::F32(&[0.1, 2.0])));
        pending.withdraw(Gradient::F32(&[0.1, 2.0]));
        assert_eq!(pending.values(), [0.0; 2]);
        assert!(pending.add(Gradient::F32(&[1.0, f32::MAX])));
        pending.keep();
        assert!(!pending.add(Gradient::F32(&[1.0, f32::MAX])), "no number");
        pending.withdraw(Gradient::F32(&[1.0, f32::MAX]));
        assert!(pending.add(Gradient::F32(&[2.0, -1.5 * 2.0_f32.powi(104)])));
        pending.withdraw(Gradient::F32(&[2.0, -1.5 * 2.0_f32.powi(104)]));
        assert_eq!(pending.values(), [1.0, f32::MAX]);
        pending.clear();
        assert_eq!(pending.values(), [0.0; 2]);
    }
}
