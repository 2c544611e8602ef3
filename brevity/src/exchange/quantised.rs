//! Tensors whose values travel in few bits: all of one format in one all-reduce.

use std::mem;
use std::ops::Range;

use brevity_collectives::quantised::{Packed, describe, quantised_all_reduce_packed};
use brevity_collectives::{Call, Description, Operation, Result};
use brevity_compress::quantise::Values;
use brevity_compress::state::{Reader, Writer};

use super::room::Lacking;
use super::{Ending, add_finite, room};

/// All quantised tensors of an exchange, in its order.
#[derive(Default)]
pub(super) struct QuantisedLane {
    tensors: Vec<Place>,
    batches: Vec<Batch>,
}

/// Where a tensor is.
struct Place {
    tensor: usize,
    batch: usize,
    range: Range<usize>,
}

/// The tensors of one format, packed.
struct Batch {
    values: Values,
    packed: Vec<Packed>,
    count: usize,
    /// What rounding has left of earlier steps, and their gradients if they failed. A step does not change it
    /// before it ends.
    residual: Vec<f32>,
    /// Residual and gradients, then the undivided sum over all ranks.
    sum: Vec<f32>,
    /// What rounding leaves of this step.
    kept: Vec<f32>,
}

impl QuantisedLane {
    /// Adds a tensor. [`allocate`](Self::allocate) makes room for it.
    pub(super) fn add(&mut self, tensor: usize, count: usize, values: Values) {
        let known = self.batches.iter().position(|batch| batch.values == values);
        let batch = known.unwrap_or_else(|| {
            self.batches.push(Batch::new(values));
            self.batches.len() - 1
        });
        let all = &mut self.batches[batch];
        let range = all.count..all.count.saturating_add(count);
        all.count = range.end;
        all.packed.push(Packed { tensor: tensor as u32, count });
        self.tensors.push(Place { tensor, batch, range });
    }

    /// Makes room for all tensors, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        // Asked for first, because zeros take memory at once.
        for batch in &mut self.batches {
            batch.sum = room::with_room(batch.count)?;
            batch.kept = room::with_room(batch.count)?;
        }
        for batch in &mut self.batches {
            batch.residual = room::zeros(batch.count)?;
        }
        let working = self.batches.iter().map(|batch| batch.working_bytes(world_size));
        room::check(working.max().unwrap_or(0))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        self.batches.iter_mut().for_each(|batch| batch.sum.clear());
        let mut bad = None;
        for place in &self.tensors {
            let Batch { residual, sum, .. } = &mut self.batches[place.batch];
            let residual = residual[place.range.clone()].iter();
            sum.extend(residual.zip(gradients[place.tensor].iter()).map(|(r, g)| r + g));
            if !sum[place.range.clone()].iter().all(|value| value.is_finite()) {
                bad = bad.or(Some(place.tensor as u32));
            }
        }
        bad
    }

    pub(super) fn describe(&self) -> Description {
        let batches = self.batches.iter().map(|batch| describe(batch.count, batch.values).encode().0);
        let plan: Vec<u8> = batches.flatten().collect();
        Description::of_plan(Operation::QUANTISED_ALL_REDUCE, &plan)
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        for Batch { values, packed, sum, kept, .. } in &mut self.batches {
            if poisoned {
                sum.fill(0.0);
            }
            quantised_all_reduce_packed(call, sum, packed, *values, kept).await?;
            // All ranks know of it after a call, and stop here together.
            call.check_poison()?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [&mut [f32]], world_size: u32) {
        match ending {
            Ending::Done => {
                for place in &self.tensors {
                    let sums = &self.batches[place.batch].sum[place.range.clone()];
                    for (gradient, sum) in gradients[place.tensor].iter_mut().zip(sums) {
                        *gradient = sum / world_size as f32;
                    }
                }
                for batch in &mut self.batches {
                    mem::swap(&mut batch.residual, &mut batch.kept);
                }
            }
            Ending::Failed => {
                for place in &self.tensors {
                    let residual = &mut self.batches[place.batch].residual[place.range.clone()];
                    add_finite(residual, gradients[place.tensor]);
                }
            }
            // The residuals are still those before the step.
            Ending::Poisoned => {}
        }
    }

    /// How a tensor travels, with all settings.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let place = self.place(tensor)?;
        Some(format!("quantised, {} values", self.batches[place.batch].values))
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.place(tensor).is_some()
    }

    fn place(&self, tensor: usize) -> Option<&Place> {
        self.tensors.iter().find(|place| place.tensor == tensor)
    }

    /// In the order of tensors, so that formats may be others when it is read.
    pub(super) fn write_state(&self, contents: &mut Writer) {
        for place in &self.tensors {
            contents.f32s(&self.batches[place.batch].residual[place.range.clone()]);
        }
    }

    pub(super) fn read_state(
        &mut self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        let Self { tensors, batches } = self;
        tensors
            .iter()
            .try_for_each(|place| contents.f32s(&mut batches[place.batch].residual[place.range.clone()]))
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(place) = self.place(tensor) {
            out.copy_from_slice(&self.batches[place.batch].residual[place.range.clone()]);
        }
    }
}

impl Batch {
    fn new(values: Values) -> Self {
        let (residual, sum, kept) = Default::default();
        Self { values, packed: Vec::new(), count: 0, residual, sum, kept }
    }

    /// The least bytes of memory that a call needs beside the batch's own: messages out and in, and what the
    /// others' say of this rank's slice, in `f32`.
    fn working_bytes(&self, world_size: u32) -> usize {
        let messages = self.values.most_bytes(self.count);
        if world_size == 1 {
            return messages;
        }
        messages.saturating_mul(2).saturating_add(4 * self.count)
    }
}
