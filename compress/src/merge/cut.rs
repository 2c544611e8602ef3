//! Finds where the first `k` of a sum end, for a `k` about half of the entries.

use crate::select::{CutScratch, find_cut};
use crate::simd::{Level, Mesh, SPARE, copy_band};

/// Work space of [`find_half`].
#[derive(Debug, Clone, Default)]
pub(super) struct HalvingScratch {
    sample: Vec<u32>,
    band: Vec<u32>,
    cut: CutScratch,
}

/// Entries of a sample.
const SAMPLE: usize = 8192;

/// With fewer entries, a sample does not pay.
const MANY: usize = 8 * SAMPLE;

/// Like [`find_cut`], for the bits of finite values that are not zero.
///
/// A sample of every few values gives two magnitudes between which the `k`-th should be, four deviations to
/// either side. One pass counts the larger values and copies those in between; the counts prove or refute the
/// guess. If the sample misleads, as it may for periodic values, all values are counted.
pub(super) fn find_half(level: Level, bits: &[u32], k: usize, scratch: &mut HalvingScratch) -> Mesh {
    let HalvingScratch { sample, band, cut } = scratch;
    if k < bits.len() && k > 0 && bits.len() >= MANY {
        let (low, high) = guess(bits, k, sample);
        if band.len() < bits.len() + SPARE {
            band.resize(bits.len() + SPARE, 0);
        }
        let (inside, above) = copy_band(level, bits, low, high, band);
        if above < k && k <= above + inside {
            let wanted = k - above;
            let (_, &mut threshold, larger) = band[..inside].select_nth_unstable(inside - wanted);
            let ties = wanted - larger.iter().filter(|&&magnitude| magnitude > threshold).count();
            return Mesh { threshold, ties };
        }
    }
    find_cut(level, std::iter::once(bits), 1, k, cut)
}

/// The magnitudes between which the `k`-th should be.
fn guess(bits: &[u32], k: usize, sample: &mut Vec<u32>) -> (u32, u32) {
    sample.clear();
    sample.extend(bits.iter().step_by(bits.len() / SAMPLE).map(|bits| bits & 0x7fff_ffff));
    let count = sample.len();
    let share = k as f64 / bits.len() as f64;
    let margin = (4.0 * (share * (1.0 - share) * count as f64).sqrt()) as usize + 2;
    // Ranks are counted from the smallest value here.
    let middle = count - ((share * count as f64) as usize).min(count);
    let (low, high) = (middle.saturating_sub(margin), middle + margin);
    let (_, &mut least, larger) = sample.select_nth_unstable(low.min(count - 1));
    let most = match high.checked_sub(low + 1) {
        Some(place) if place < larger.len() => *larger.select_nth_unstable(place).1,
        _ => 0x7fff_ffff,
    };
    (if low == 0 { 0 } else { least }, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Generator;

    #[test]
    fn all_and_half_and_few_are_those_of_a_sort() {
        let mut generator = Generator::new(1);
        let n = MANY + 77;
        let normal: Vec<u32> = (0..n).map(|_| generator.normal().to_bits()).collect();
        let equal = vec![0x8000_0007; n];
        let few: Vec<u32> = (0..n).map(|_| 1 + generator.below(3) as u32).collect();
        // The sample contains the large values alone.
        let periodic: Vec<u32> = (0..n).map(|i| if i % 8 == 0 { 900_000 } else { 1 + i as u32 }).collect();
        for (name, bits) in [("normal", normal), ("equal", equal), ("few", few), ("periodic", periodic)] {
            let mut sorted: Vec<u32> = bits.iter().map(|bits| bits & 0x7fff_ffff).collect();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            for k in [1, 2, 1000, n / 3, n / 2, n - 1000, n - 1] {
                let mesh = find_half(Level::best(), &bits, k, &mut HalvingScratch::default());
                let threshold = sorted[k - 1];
                let ties = k - sorted.partition_point(|&magnitude| magnitude > threshold);
                assert_eq!(mesh, Mesh { threshold, ties }, "{name}, {k}");
            }
        }
    }
}
