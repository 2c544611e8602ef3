//! Where the first `k` of some candidates end.

/// The end of a selection: values of a magnitude above `threshold` belong to it, and the first `ties` of those at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) threshold: u32,
    pub(super) ties: usize,
}

impl Cut {
    /// Everything but zeros.
    pub(super) const ALL: Self = Self { threshold: 0, ties: 0 };
}

/// Work space of [`find_cut`].
#[derive(Debug, Clone, Default)]
pub(super) struct CutScratch {
    counts: Vec<u32>,
    band: Vec<u32>,
}

impl CutScratch {
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.counts.capacity() + self.band.capacity()
    }
}

const BINS: usize = 2048;

/// The cut that leaves `k` of the candidates in `lists`, given by the bits of finite values; [`Cut::ALL`] when there are
/// fewer.
///
/// Counts candidates in even bins over the magnitudes that there are, and looks closer only at the bin that holds the
/// `k`-th. Cost: O(candidates) expected, about 1.5 ns each.
pub(super) fn find_cut<'a>(
    lists: impl Iterator<Item = &'a [u32]> + Clone,
    k: usize,
    scratch: &mut CutScratch,
) -> Cut {
    let (mut total, mut low, mut high) = (0, u32::MAX, 0);
    for list in lists.clone() {
        total += list.len();
        for magnitude in magnitudes(list) {
            low = low.min(magnitude);
            high = high.max(magnitude);
        }
    }
    if total < k {
        return Cut::ALL;
    }
    if k == 0 {
        return Cut { threshold: u32::MAX, ties: 0 };
    }
    let shift = ((high - low) / BINS as u32 + 1).next_power_of_two().trailing_zeros();
    let bin = |magnitude: u32| ((magnitude - low) >> shift) as usize;
    scratch.counts.clear();
    scratch.counts.resize(BINS, 0);
    lists.clone().flat_map(magnitudes).for_each(|magnitude| scratch.counts[bin(magnitude)] += 1);
    let (place, wanted) = bin_of(&scratch.counts, k);
    scratch.band.clear();
    scratch.band.extend(lists.flat_map(magnitudes).filter(|&magnitude| bin(magnitude) == place));
    let rank = scratch.band.len() - wanted;
    let (_, &mut threshold, above) = scratch.band.select_nth_unstable(rank);
    let ties = wanted - above.iter().filter(|&&magnitude| magnitude > threshold).count();
    Cut { threshold, ties }
}

/// The bin, counted from the top, that holds the `k`-th candidate, and which of that bin's it is. There are at least `k`.
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

fn magnitudes(bits: &[u32]) -> impl Iterator<Item = u32> + '_ {
    bits.iter().map(|&bits| bits & 0x7fff_ffff)
}
