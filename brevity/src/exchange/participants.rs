//! Over how many ranks an average is taken.

use brevity_collectives::dense::all_reduce;
use brevity_collectives::{Call, Chunk, ReduceOp, Result};

/// The ranks that take part in a step, and those that are averaged over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    world_size: u32,
    averaged: u32,
}

impl Shares {
    /// An average over all ranks.
    pub(super) fn all(world_size: u32) -> Self {
        Self { world_size, averaged: world_size }
    }

    /// An average over the ranks that have a gradient. All ranks call it.
    pub(super) async fn counted(call: &Call<'_, '_>, has_gradient: bool) -> Result<Self> {
        let own = Chunk::from(vec![u32::from(has_gradient)]);
        let all = all_reduce(call, own, ReduceOp::Sum).await?;
        let counted = all.first().copied().unwrap_or(0);
        let world_size = call.world_size();
        // Without any gradient there are still residuals to be delivered.
        Ok(Self { world_size, averaged: if counted == 0 { world_size } else { counted } })
    }

    /// The average for a sum over all ranks: divided once, everywhere, so that all have the same bits.
    pub(super) fn average(self, sum: f32) -> f32 {
        sum / self.averaged as f32
    }

    /// Makes an average over all ranks one over those that count, up to the largest finite number.
    pub(super) fn correct(self, average: &mut [f32]) {
        if self.averaged != self.world_size {
            let (all, counted) = (f64::from(self.world_size), f64::from(self.averaged));
            average.iter_mut().for_each(|value| {
                let corrected = (f64::from(*value) * all / counted) as f32;
                *value = corrected.clamp(f32::MIN, f32::MAX);
            });
        }
    }
}
