//! Tensors of which all values travel, uncompressed or in few bits: packed into one all-reduce for each
//! bucket.

use std::mem;
use std::ops::Range;

use brevity_collectives::dense::{all_reduce, describe_all_reduce};
use brevity_collectives::quantised::{self, quantised_all_reduce_packed};
use brevity_collectives::{Call, Chunk, Description, Error, ReduceOp, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::quantise::Values;
use brevity_compress::state::{Reader, Writer};

use super::gradient::{GradientMut, add_finite, take_out};
use super::participants::Shares;
use super::room::Lacking;
use super::taking::Taking;
use super::{Ending, room};

/// Dense or quantised tensors that travel together.
#[derive(Default)]
pub(super) struct DenseBucket {
    tensors: Vec<Packed>,
    /// What is sent: the gradients, plus those of earlier steps that failed and what rounding has left of
    /// them.
    pending: Vec<f32>,
    /// The sum over all ranks, once the all-reduce has succeeded.
    sum: Vec<f32>,
    /// Whether `pending` holds something of earlier steps.
    waiting: bool,
    /// In what the values are rounded, if they are.
    rounding: Option<Rounding>,
}

/// Values in few bits.
struct Rounding {
    values: Values,
    packed: Vec<quantised::Packed>,
    /// What it leaves of this step on this rank.
    kept: Vec<f32>,
}

struct Packed {
    tensor: usize,
    range: Range<usize>,
    /// Whether this step's gradient is in `pending`.
    added: bool,
}

impl DenseBucket {
    /// A bucket of tensors whose values are written in this format.
    pub(super) fn quantised(values: Values) -> Self {
        let rounding = Rounding { values, packed: Vec::new(), kept: Vec::new() };
        Self { rounding: Some(rounding), ..Self::default() }
    }

    /// Whether its collective may go over the slots of the host.
    pub(super) fn uses_slots(&self) -> bool {
        self.rounding.is_none()
    }

    /// Adds a tensor. [`allocate`](Self::allocate) makes room for it.
    pub(super) fn add(&mut self, tensor: usize, count: usize) {
        let start = self.count();
        self.tensors.push(Packed { tensor, range: start..start.saturating_add(count), added: false });
        if let Some(rounding) = &mut self.rounding {
            rounding.packed.push(quantised::Packed { tensor: tensor as u32, count });
        }
    }

    /// Makes room for all tensors, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        let count = self.count();
        // Asked for first, because zeros take memory at once.
        self.sum = room::with_room(count)?;
        if let Some(rounding) = &mut self.rounding {
            rounding.kept = room::with_room(count)?;
            // Messages out and in, and what those of the others say of this rank's slice.
            let message = rounding.values.most_bytes(count);
            let others = message.saturating_add(count.saturating_mul(4));
            room::check(message.saturating_add(if world_size > 1 { others } else { 0 }))?;
        }
        self.pending = room::zeros(count)?;
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.tensors.last().map_or(0, |packed| packed.range.end)
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.tensors.iter().map(|packed| packed.tensor)
    }

    /// Adds the gradient of a tensor of the bucket. Returns whether all sums are finite; if not, nothing is
    /// added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Self { tensors, pending, .. } = self;
        let Some(packed) = tensors.iter_mut().find(|packed| packed.tensor == tensor) else { return true };
        packed.added = add_finite(&mut pending[packed.range.clone()], gradient);
        packed.added
    }

    pub(super) fn describe(&self) -> Description {
        match &self.rounding {
            None => describe_all_reduce::<f32>(self.pending.len(), ReduceOp::Sum),
            Some(rounding) => quantised::describe(self.pending.len(), rounding.values),
        }
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        let mut sum = self.outgoing(poisoned);
        if let Some(Rounding { values, packed, kept }) = &mut self.rounding {
            let reduced = quantised_all_reduce_packed(call, &mut sum, packed, *values, kept).await;
            self.sum = sum;
            return reduced;
        }
        let sum = all_reduce(call, Chunk::from(sum), ReduceOp::Sum).await?.into_vec();
        self.arrived(sum)
    }

    /// What this rank sends: a copy, so that `pending` keeps the gradients if the collective fails.
    pub(super) fn outgoing(&mut self, poisoned: bool) -> Vec<f32> {
        let mut sum = mem::take(&mut self.sum);
        sum.clear();
        sum.extend_from_slice(&self.pending);
        if poisoned {
            sum.fill(0.0);
        }
        sum
    }

    /// Takes the sum over all ranks of what they sent. All ranks have the same bits and so the same outcome.
    pub(super) fn arrived(&mut self, sum: Vec<f32>) -> Result<()> {
        self.sum = sum;
        let is_finite =
            |packed: &&Packed| self.sum[packed.range.clone()].iter().all(|value| value.is_finite());
        match self.tensors.iter().find(|packed| !is_finite(packed)) {
            Some(packed) => Err(Error::Overflow { tensor: packed.tensor as u32 }),
            None => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        match ending {
            Ending::Done => {
                for packed in &self.tensors {
                    let sums = &self.sum[packed.range.clone()];
                    gradients[packed.tensor].write(sums, |sum| shares.average(sum));
                }
                match &mut self.rounding {
                    None => self.pending.fill(0.0),
                    Some(rounding) => mem::swap(&mut self.pending, &mut rounding.kept),
                }
                self.waiting = self.rounding.is_some();
            }
            Ending::Failed => self.waiting |= self.tensors.iter().any(|packed| packed.added),
            Ending::Poisoned => self.withdraw(gradients),
        }
        self.tensors.iter_mut().for_each(|packed| packed.added = false);
    }

    /// Takes this step's gradients out of `pending` again.
    fn withdraw(&mut self, gradients: &[GradientMut<'_>]) {
        for packed in self.tensors.iter().filter(|packed| packed.added) {
            take_out(&mut self.pending[packed.range.clone()], gradients[packed.tensor].read());
        }
        if !self.waiting {
            self.pending.fill(0.0);
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let words = match &self.rounding {
            None => "dense".to_owned(),
            Some(rounding) => format!("quantised, {} values", rounding.values),
        };
        self.holds(tensor).then_some(words)
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        let words = if self.rounding.is_some() { "quantised" } else { "dense" };
        self.holds(tensor).then(|| words.to_owned())
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.tensors.iter().any(|packed| packed.tensor == tensor)
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(packed) = self.tensors.iter().find(|packed| packed.tensor == tensor) {
            contents.f32s(&self.pending[packed.range.clone()]);
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        if let Some(packed) = self.tensors.iter().find(|packed| packed.tensor == tensor) {
            let pending = &mut self.pending[packed.range.clone()];
            contents.f32s(pending)?;
            self.waiting |= pending.iter().any(|&value| value != 0.0);
        }
        Ok(())
    }

    /// Adds what another rank has saved of a tensor.
    pub(super) fn take(
        &mut self,
        tensor: usize,
        from: &mut Taking<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        let Some(packed) = self.tensors.iter().find(|packed| packed.tensor == tensor) else { return Ok(()) };
        let pending = &mut self.pending[packed.range.clone()];
        if let Some(sums) = from.sum(pending)? {
            pending.copy_from_slice(sums);
            self.waiting |= sums.iter().any(|&value| value != 0.0);
        }
        Ok(())
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(packed) = self.tensors.iter().find(|packed| packed.tensor == tensor) {
            out.copy_from_slice(&self.pending[packed.range.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum rounds down, so the exact difference would be half a unit above the largest number.
    #[test]
    fn what_waits_is_finite_after_a_gradient_was_taken_out() {
        let mut bucket = DenseBucket::default();
        bucket.add(0, 2);
        bucket.allocate(1).unwrap();
        bucket.pending.copy_from_slice(&[f32::MAX, 1.0]);
        bucket.waiting = true;
        let mut gradient = [-1.5 * 2.0_f32.powi(104), 2.0];
        assert!(bucket.accumulate(0, Gradient::F32(&gradient)));
        bucket.finish(Ending::Poisoned, &mut [GradientMut::F32(&mut gradient)], Shares::all(1));
        assert_eq!(bucket.pending, [f32::MAX, 1.0]);
    }
}
