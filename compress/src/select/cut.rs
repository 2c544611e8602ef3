//! Finds where the first `k` of some candidates end.

use crate::simd::{Level, Mesh, append_band, largest_of_bits};

/// Work space of [`find_cut`].
#[derive(Debug, Clone, Default)]
pub(crate) struct CutScratch {
    counts: Vec<u32>,
    band: Vec<u32>,
}

/// Keeps everything but zeros.
pub(crate) const ALL: Mesh = Mesh { threshold: 0, ties: 0 };

const BINS: u32 = 2048;

/// The cut that keeps `k` of the candidates in `lists`, which are the bits of finite values with magnitudes
/// of at least `low`. [`ALL`] if there are fewer candidates.
///
/// Counts candidates in even bins over the range of magnitudes, then refines only the bin that holds the
/// `k`-th. Cost: O(candidates) expected, about 1 ns each.
pub(crate) fn find_cut<'a>(
    level: Level,
    lists: impl Iterator<Item = &'a [u32]> + Clone,
    low: u32,
    k: usize,
    scratch: &mut CutScratch,
) -> Mesh {
    let CutScratch { counts, band } = scratch;
    if lists.clone().map(<[u32]>::len).sum::<usize>() < k {
        return ALL;
    }
    if k == 0 {
        return Mesh { threshold: u32::MAX, ties: 0 };
    }
    let high = lists.clone().map(|list| largest_of_bits(level, list)).max().unwrap_or(low);
    let shift = ((high - low) / BINS + 1).next_power_of_two().trailing_zeros();
    counts.clear();
    counts.resize(BINS as usize, 0);
    for list in lists.clone() {
        list.iter().for_each(|bits| counts[(((bits & 0x7fff_ffff) - low) >> shift) as usize] += 1);
    }
    let (place, wanted) = bin_of(counts, k);
    band.clear();
    band.reserve(counts[place] as usize);
    lists.for_each(|list| append_band(level, list, low + ((place as u32) << shift), 1 << shift, band));
    let rank = band.len() - wanted;
    let (_, &mut threshold, above) = band.select_nth_unstable(rank);
    let ties = wanted - above.iter().filter(|&&magnitude| magnitude > threshold).count();
    Mesh { threshold, ties }
}

/// The bin that holds the `k`-th candidate from the top, and the candidate's rank in that bin. There must be
/// at least `k`.
fn bin_of(counts: &[u32], k: usize) -> (usize, usize) {
    let mut wanted = k;
    for (place, &count) in counts.iter().enumerate().rev() {
        if count as usize >= wanted {
            return (place, wanted);
        }
        wanted -= count as usize;
    }
    (0, wanted)
}

impl CutScratch {
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.counts.capacity() + self.band.capacity()
    }
}
