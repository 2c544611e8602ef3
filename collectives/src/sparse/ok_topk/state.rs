//! What the ranks keep from step to step.

use std::ops::Range;

use brevity_compress::select::{TopKScratch, over_threshold, top_k};
use brevity_compress::state::{Fault, Reader, State, Writer};
use brevity_compress::{SparseVec, in_standard_float_mode};

use crate::description::mix;
use crate::error::{Error, Result};

/// Steps from one estimate to the next, at least 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Of a rank's own threshold.
    pub local_threshold: u32,
    /// Of the threshold of the sum.
    pub global_threshold: u32,
    /// Of the partition of the indices.
    pub partition: u32,
}

impl Default for Periods {
    /// The paper's: 32 steps for thresholds, 64 for the partition.
    fn default() -> Self {
        Self { local_threshold: 32, global_threshold: 32, partition: 64 }
    }
}

/// The state of a sequence of Ok-Topk all-reduces: thresholds, the partition of the indices, and the number
/// of the step. Its [state](State) can be saved, and loaded into one with the same settings.
///
/// All ranks make theirs with equal settings, and use one for each tensor. The threshold of the sum and the
/// partition are equal on all ranks; a rank's own threshold is not.
#[derive(Clone, Debug)]
pub struct OkTopk {
    dim: usize,
    k: usize,
    world_size: u32,
    periods: Periods,
    /// 0 before the first estimate.
    local_threshold: f32,
    pub(super) agreed: Agreed,
    scratch: TopKScratch,
}

/// What is equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) step: u64,
    /// The bits of the threshold of the sum; 0 before the first estimate.
    pub(super) threshold: u32,
    pub(super) regions: Regions,
    /// Whether a region had far more than its share of the sum's entries in the last step.
    pub(super) is_uneven: bool,
}

/// The regions of the indices, one for each rank, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Regions {
    dim: usize,
    /// The ends of all but the last.
    ends: Vec<u64>,
}

impl Regions {
    /// Regions with these ends, which rise and are at most `dim`.
    pub(super) const fn new(dim: usize, ends: Vec<u64>) -> Self {
        Self { dim, ends }
    }

    /// Regions of equal lengths.
    fn equal(dim: usize, world_size: u32) -> Self {
        let end = |rank| (u128::from(rank) * dim as u128 / u128::from(world_size)) as u64;
        Self::new(dim, (1..world_size).map(end).collect())
    }

    /// The region of a rank.
    pub(super) fn of(&self, rank: u32) -> Range<usize> {
        let end = |rank: usize| self.ends.get(rank).map_or(self.dim, |end| *end as usize);
        let rank = rank as usize;
        rank.checked_sub(1).map_or(0, end)..end(rank)
    }
}

impl OkTopk {
    /// The state before the first step: of vectors of length `dim`, about `k` entries of whose sum are kept.
    #[must_use]
    pub fn new(dim: usize, k: usize, world_size: u32) -> Self {
        let regions = Regions::equal(dim, world_size);
        Self {
            dim,
            k: k.min(dim),
            world_size,
            periods: Periods::default(),
            local_threshold: 0.0,
            agreed: Agreed { step: 0, threshold: 0, regions, is_uneven: false },
            scratch: TopKScratch::new(),
        }
    }

    /// The same with other periods, equal on all ranks. A period of 0 counts as 1.
    #[must_use]
    pub fn with_periods(self, periods: Periods) -> Self {
        let Periods { local_threshold, global_threshold, partition } = periods;
        let periods = Periods {
            local_threshold: local_threshold.max(1),
            global_threshold: global_threshold.max(1),
            partition: partition.max(1),
        };
        Self { periods, ..self }
    }

    /// The length of the vectors.
    #[must_use]
    pub const fn dim(&self) -> usize {
        self.dim
    }

    /// About so many entries of the sum are kept.
    #[must_use]
    pub const fn k(&self) -> usize {
        self.k
    }

    /// At most so many entries a rank gives, and the result has.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.k.saturating_mul(2).min(self.dim)
    }

    /// The steps that have ended.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.agreed.step
    }

    /// The threshold of the sum, of a magnitude; 0 before the first estimate. Equal on all ranks.
    #[must_use]
    pub const fn threshold(&self) -> f32 {
        f32::from_bits(self.agreed.threshold)
    }

    /// Goes on behind so many steps, with the threshold of the sum that a state had then, perhaps among
    /// another number of ranks; 0, or what is no finite magnitude, counts as none. The partition is agreed
    /// anew in the next step. All ranks call it alike.
    ///
    /// Results are those of that state if the [wire](crate::sparse::Wire::is_exact) is exact. Otherwise a
    /// rank rounds its entries in other ranks' regions, and the regions may be others.
    pub fn resume(&mut self, step: u64, threshold: f32) {
        let is_magnitude = threshold.is_finite() && threshold > 0.0;
        self.agreed = Agreed {
            step,
            threshold: if is_magnitude { threshold.to_bits() } else { 0 },
            regions: Regions::equal(self.dim, self.world_size),
            // In the first step it is agreed anyway.
            is_uneven: step > 0,
        };
    }

    /// Selects a rank's entries for the next step: those of `values` that reach its threshold. It may be
    /// called again for the same step.
    ///
    /// The threshold is the `k`-th magnitude of an earlier step. It is estimated anew when its period has
    /// passed, and when more than `2 k` or fewer than `k / 2` values reach it. Then `out` has the `k` largest
    /// values. Zeros are never selected. Cost: one read of `values`, two for a new estimate.
    ///
    /// # Errors
    /// [`Error::Compress`] if `values` has not the state's length, or a value is not finite.
    pub fn select(&mut self, values: &[f32], out: &mut SparseVec) -> Result<()> {
        if values.len() != self.dim {
            let (expected, found) = (self.dim, values.len());
            return Err(Error::Compress(brevity_compress::Error::LengthMismatch { expected, found }));
        }
        in_standard_float_mode(|| {
            let (tau, limit) = (self.local_threshold, self.limit());
            let may_stay = !is_due(self.agreed.step, self.periods.local_threshold) && tau > 0.0;
            if may_stay && over_threshold(values, tau, limit, out)? && out.len() >= self.k.div_ceil(2) {
                return Ok(());
            }
            top_k(values, self.k, out, &mut self.scratch)?;
            let smallest = out.values().iter().map(|value| value.abs()).reduce(f32::min);
            self.local_threshold = smallest.unwrap_or(0.0);
            Ok(())
        })
    }

    /// Whether the threshold of the sum is to be estimated in this step.
    pub(super) fn global_threshold_is_due(&self) -> bool {
        self.agreed.threshold == 0 || is_due(self.agreed.step, self.periods.global_threshold)
    }

    /// Whether the partition is to be agreed in this step.
    pub(super) fn partition_is_due(&self) -> bool {
        self.agreed.is_uneven || is_due(self.agreed.step, self.periods.partition)
    }

    /// Refuses a group of another size.
    pub(crate) fn check_world_size(&self, world_size: u32) -> Result<()> {
        if world_size == self.world_size {
            return Ok(());
        }
        let (found, expected) = (self.world_size as usize, world_size as usize);
        Err(Error::Length { what: "the number of regions of an Ok-Topk state", found, expected })
    }

    /// A number of all that must be equal on all ranks.
    pub(super) fn digest(&self) -> u64 {
        let Periods { local_threshold, global_threshold, partition } = self.periods;
        let Agreed { step, threshold, regions, is_uneven } = &self.agreed;
        let numbers = [local_threshold, global_threshold, partition, self.world_size, *threshold];
        let numbers = numbers.into_iter().map(u64::from);
        let all = numbers.chain([self.k as u64, *step, u64::from(*is_uneven)]).chain(regions.ends.clone());
        all.fold(0, |digest, word| mix(digest.rotate_left(23) ^ word))
    }
}

/// Whether something with this period is due in a step.
fn is_due(step: u64, period: u32) -> bool {
    step.is_multiple_of(u64::from(period))
}

impl State for OkTopk {
    fn kind(&self) -> [u8; 4] {
        *b"oktk"
    }

    fn shape(&self) -> Vec<u64> {
        let Periods { local_threshold, global_threshold, partition } = self.periods;
        let periods = [self.world_size, local_threshold, global_threshold, partition].map(u64::from);
        [self.dim as u64, self.k as u64].into_iter().chain(periods).collect()
    }

    fn write_contents(&self, contents: &mut Writer) {
        let Agreed { step, threshold, regions, is_uneven } = &self.agreed;
        contents.u64(*step);
        contents.u64(u64::from(*is_uneven));
        contents.f32s(&[self.local_threshold, f32::from_bits(*threshold)]);
        regions.ends.iter().for_each(|end| contents.u64(*end));
    }

    fn read_contents(
        &mut self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        let step = contents.u64()?;
        let is_uneven = contents.u64()? != 0;
        let mut thresholds = [0.0; 2];
        contents.f32s(&mut thresholds)?;
        let ends =
            (1..self.world_size).map(|_| contents.u64()).collect::<std::result::Result<Vec<_>, _>>()?;
        if !ends.is_sorted() || ends.last().is_some_and(|last| *last > self.dim as u64) {
            return Err(Fault::Contents { what: "regions do not follow each other" }.into());
        }
        if thresholds.iter().any(|threshold| threshold.is_sign_negative()) {
            return Err(Fault::Contents { what: "a threshold is negative" }.into());
        }
        self.local_threshold = thresholds[0];
        let (threshold, regions) = (thresholds[1].to_bits(), Regions::new(self.dim, ends));
        self.agreed = Agreed { step, threshold, regions, is_uneven };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::state::{from_bytes, to_bytes};

    use super::*;

    /// A state of 3 ranks that may be impossible.
    struct Saved {
        ends: [u64; 2],
        thresholds: [f32; 2],
    }

    impl State for Saved {
        fn kind(&self) -> [u8; 4] {
            OkTopk::new(9, 2, 3).kind()
        }

        fn shape(&self) -> Vec<u64> {
            OkTopk::new(9, 2, 3).shape()
        }

        fn write_contents(&self, contents: &mut Writer) {
            contents.u64(7);
            contents.u64(0);
            contents.f32s(&self.thresholds);
            self.ends.iter().for_each(|end| contents.u64(*end));
        }

        fn read_contents(&mut self, _: &mut Reader<'_>) -> std::result::Result<(), brevity_compress::Error> {
            unreachable!("nothing is loaded into it")
        }
    }

    #[test]
    fn impossible_states_are_refused() {
        let load = |ends, thresholds| {
            let mut state = OkTopk::new(9, 2, 3);
            from_bytes(&mut state, &to_bytes(&Saved { ends, thresholds })).map(|()| state)
        };
        let loaded = load([4, 9], [0.5, 2.0]).unwrap();
        assert_eq!((loaded.step(), loaded.local_threshold), (7, 0.5));
        assert_eq!([0, 1, 2].map(|rank| loaded.agreed.regions.of(rank)), [0..4, 4..9, 9..9]);
        for (ends, thresholds) in
            [([5, 4], [1.0; 2]), ([4, 10], [1.0; 2]), ([4, 5], [-1.0, 1.0]), ([4, 5], [1.0, f32::NAN])]
        {
            assert!(load(ends, thresholds).is_err(), "{ends:?}, {thresholds:?}");
        }
    }

    #[test]
    fn a_threshold_stays_until_its_period_ends_or_it_fits_badly() {
        let periods = Periods { local_threshold: 2, ..Periods::default() };
        let mut state = OkTopk::new(8, 2, 1).with_periods(periods);
        let mut out = SparseVec::new(0);
        let mut select = |step, values: [f32; 8]| {
            state.agreed.step = step;
            state.select(&values, &mut out).unwrap();
            (out.indices().to_vec(), state.local_threshold)
        };
        let values = [1.0, -4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(select(0, values), (vec![1, 2], 3.0));
        assert_eq!(select(1, values.map(|value| 2.0 * value)), (vec![1, 2, 3], 3.0));
        assert_eq!(select(1, [3.0; 8]), (vec![0, 1], 3.0), "more than 2 k reach it");
        assert_eq!(select(1, values.map(|value| value / 4.0)), (vec![1, 2], 0.75), "fewer than k / 2 do");
        assert_eq!(select(2, values), (vec![1, 2], 3.0), "the period has ended");
        assert_eq!(select(2, [0.0; 8]), (vec![], 0.0));
        assert!(state.select(&[1.0], &mut out).is_err());
        assert!(state.select(&[f32::NAN; 8], &mut out).is_err());
    }
}
