//! The regions of the indices: each rank cuts its own entries in equal parts, and the regions end at the
//! means of these cuts.

use brevity_compress::SparseView;
use ucx_sys_wrap::buffer::Chunk;

use super::state::Regions;
use crate::call::Call;
use crate::data::ReduceOp;
use crate::dense::all_reduce;
use crate::error::Result;

/// Agrees on the regions.
pub(super) async fn agree(call: &Call<'_, '_>, local: SparseView<'_>) -> Result<Regions> {
    agree_on(call, local.dim(), cuts(local, call.world_size())).await
}

/// Likewise, where this rank's cuts are known.
pub(super) async fn agree_on(call: &Call<'_, '_>, dim: usize, cuts: Vec<u64>) -> Result<Regions> {
    let sums = all_reduce(call, Chunk::from(cuts), ReduceOp::Sum).await?;
    Ok(means(dim, call.world_size(), &sums))
}

/// The indices that cut a rank's entries, or all indices if it has none, in equal parts.
fn cuts(local: SparseView<'_>, world_size: u32) -> Vec<u64> {
    let part = |of: usize, rank: u32| of as u128 * u128::from(rank) / u128::from(world_size);
    let cut = |rank: u32| match local.indices().get(part(local.len(), rank) as usize) {
        Some(index) => u64::from(*index),
        None => part(local.dim(), rank) as u64,
    };
    (1..world_size).map(cut).collect()
}

/// The regions that end at the means of cuts with these sums.
fn means(dim: usize, world_size: u32, sums: &[u64]) -> Regions {
    let ends = sums.iter().scan(0, |last, sum| {
        // Those of honest ranks rise, and are below the length.
        *last = (sum / u64::from(world_size)).clamp(*last, dim as u64);
        Some(*last)
    });
    Regions::new(dim, ends.collect())
}

#[cfg(test)]
mod tests {
    use brevity_compress::SparseVec;

    use super::*;

    #[test]
    fn regions_end_at_the_means_of_equal_cuts() {
        let entries = SparseVec::from_parts(100, vec![1, 2, 3, 50, 60, 70], vec![1.0; 6]).unwrap();
        assert_eq!(cuts(entries.view(), 3), [3, 60]);
        assert_eq!(cuts(SparseVec::new(100).view(), 4), [25, 50, 75]);
        assert_eq!(cuts(SparseVec::new(1 << 32).view(), 1), []);
        assert_eq!(cuts(SparseVec::new(1 << 32).view(), 2), [1 << 31]);
        let regions = means(100, 3, &[9 + 3, 180 + 60 + 60]);
        assert_eq!([0, 1, 2].map(|rank| regions.of(rank)), [0..4, 4..100, 100..100]);
    }

    #[test]
    fn regions_cover_all_indices_once_whatever_the_sums() {
        for sums in [[u64::MAX, 0, 7], [0, 0, 0], [40, 20, 400], [4, 40, 80]] {
            let regions = means(10, 4, &sums);
            let mut end = 0;
            for rank in 0..4 {
                let region = regions.of(rank);
                assert!(region.start == end && region.end >= end, "{sums:?}: {region:?}");
                end = region.end;
            }
            assert_eq!(end, 10);
        }
    }
}
