//! The `k` entries of largest magnitude.
//!
//! The total order: larger `|v|` first, equal magnitudes by smaller index. Zeros are never
//! selected. How it is done, for `n` values:
//!
//! 1. guess a lower bound of the `k`-th magnitude from a sample, a few deviations to the safe side;
//! 2. one pass collects the values at or above the bound: *candidates*, somewhat more than `k`;
//! 3. at least `k` candidates prove the bound, and the exact cut is found among them.
//!
//! A bound that lets too few or far too many pass (ties) is dropped, and a radix histogram
//! over the bits of `|v|` finds the exact cut in three more passes,
//! unless a count proves that the bound itself is the cut.

use crate::bits::{INFINITE, check_finite, key_index, magnitude, order_key};
use crate::error::check_addressable;
use crate::{Error, SparseVec};

/// Work space of a selection, to be reused: calls with the same `n` and `k` do not allocate
/// again. About `40 * k` bytes for small `k`, never more than `8 * n`.
#[derive(Debug, Clone, Default)]
pub struct TopKScratch {
    keys: Vec<u64>,
    sorted: Vec<u64>,
    sample: Vec<u32>,
    histogram: Vec<usize>,
}

impl TopKScratch {
    /// An empty work space.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Selects the `k` entries of `values` that come first in the total order into `out`, by rising index.
///
/// `out` is overwritten, dense length included. It gets fewer than `k` entries when fewer values
/// differ from zero. Cost: O(n) expected, about one read of `values`.
///
/// # Errors
/// [`Error::NonFinite`] for the first NaN or infinity anywhere in `values`, [`Error::TooLong`] for
/// more than 2^32 values. `out` is empty then.
pub fn top_k(values: &[f32], k: usize, out: &mut SparseVec, scratch: &mut TopKScratch) -> Result<(), Error> {
    out.reset(values.len());
    check_addressable(values.len())?;
    let k = k.min(values.len());
    if k == 0 {
        return check_finite(values);
    }
    out.reserve(k);
    let guess = guess_bound(values, k, &mut scratch.sample);
    if let Some(guess) = guess
        && select_candidates(values, k, guess, out, scratch)?
    {
        return Ok(());
    }
    check_finite(values)?;
    let (threshold, ties) = guess
        .and_then(|guess| threshold_at(values, k, guess.bound))
        .unwrap_or_else(|| exact_threshold(values, k, &mut scratch.histogram));
    emit(values, threshold, ties, out);
    Ok(())
}

/// The smallest of the `k` largest keys; 0 when there are at most `k`.
pub(crate) fn cut_key(keys: &[u64], k: usize, sorted: &mut Vec<u64>) -> u64 {
    if keys.len() <= k {
        return 0;
    }
    if k == 0 {
        return u64::MAX;
    }
    sorted.clear();
    sorted.extend_from_slice(keys);
    let place = keys.len() - k;
    *sorted.select_nth_unstable(place).1
}

/// Up to here every non-zero value is a candidate.
const SMALL: usize = 4096;
/// Values that are compared together.
const LANES: usize = 16;

/// Selects among candidates; false when the guess was no good, or candidates would be too many.
fn select_candidates(
    values: &[f32],
    k: usize,
    guess: Guess,
    out: &mut SparseVec,
    scratch: &mut TopKScratch,
) -> Result<bool, Error> {
    let Some(count) = collect(values, guess, &mut scratch.keys) else { return Ok(false) };
    let candidates = &scratch.keys[..count];
    // Candidates lie by rising index, so the first one found is the first of all.
    if let Some(&key) = candidates.iter().find(|&&key| (key >> 32) as u32 >= INFINITE) {
        let index = key_index(key) as usize;
        return Err(Error::NonFinite { index, value: values[index] });
    }
    // With a bound of 1 no non-zero value is left out, however few there are.
    if count < k && guess.bound > 1 {
        return Ok(false);
    }
    let cut = cut_key(candidates, k, &mut scratch.sorted);
    for index in candidates.iter().filter(|&&key| key >= cut).map(|&key| key_index(key)) {
        out.push(index, values[index as usize]);
    }
    Ok(true)
}

/// Candidates are the values whose magnitude bits are at least `bound`; `room` of them are planned for.
#[derive(Clone, Copy)]
struct Guess {
    bound: u32,
    room: usize,
}

/// Guesses a bound that `k` values and four deviations more reach; none when that is too large a share.
fn guess_bound(values: &[f32], k: usize, sample: &mut Vec<u32>) -> Option<Guess> {
    let n = values.len();
    if n <= SMALL {
        return Some(Guess { bound: 1, room: n });
    }
    let drawn = ((64.0 * n as f64 / k as f64) as usize).clamp(4096, 65_536).min(n / 4);
    let expected = k as f64 * drawn as f64 / n as f64;
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    let room = (2.0 * rank as f64 * n as f64 / drawn as f64) as usize + 64;
    if rank >= drawn || room > n / 4 {
        return None;
    }
    sample.clear();
    let stratum = n / drawn;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for first in (0..drawn).map(|i| i * stratum) {
        // One place a stratum, jittered so that periodic data do not line up with the strata.
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        sample.push(magnitude(values[first + (state >> 33) as usize % stratum]));
    }
    let place = drawn - rank;
    let bound = *sample.select_nth_unstable(place).1;
    Some(Guess { bound: bound.max(1), room })
}

/// Collects the order keys of all candidates by rising index; `None` when there are more than planned for.
fn collect(values: &[f32], guess: Guess, keys: &mut Vec<u64>) -> Option<usize> {
    let room = guess.room + LANES;
    if keys.len() < room {
        keys.resize(room, 0);
    }
    let mut count = 0;
    let mut first = 0;
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        if any_reaches(block, guess.bound) {
            if count > guess.room {
                return None;
            }
            count += append(block, first, guess.bound, &mut keys[count..count + LANES]);
        }
        first += LANES;
    }
    if count > guess.room {
        return None;
    }
    count += append(rest, first, guess.bound, &mut keys[count..count + LANES]);
    (count <= guess.room).then_some(count)
}

/// Writes the keys of the candidates among `block`, whose first index is `first`, and counts them.
fn append(block: &[f32], first: usize, bound: u32, keys: &mut [u64]) -> usize {
    let mut count = 0;
    for (lane, &value) in block.iter().enumerate() {
        // Written always, counted only if a candidate: no branch to mispredict.
        keys[count] = order_key((first + lane) as u32, value);
        count += usize::from(magnitude(value) >= bound);
    }
    count
}

/// Whether a magnitude of the block is at least `bound`, compared signed since SSE2 can do that.
fn any_reaches(block: &[f32; LANES], bound: u32) -> bool {
    block.iter().fold(false, |any, &value| any | (magnitude(value) as i32 >= bound as i32))
}

/// As [`exact_threshold`], if that is `bound`: so it is when many values share one magnitude.
fn threshold_at(values: &[f32], k: usize, bound: u32) -> Option<(u32, usize)> {
    let above = count_reaching(values, bound + 1);
    let fits = above < k && count_reaching(values, bound) >= k;
    fits.then(|| (bound, k - above))
}

fn count_reaching(values: &[f32], bound: u32) -> usize {
    let reaches = |&value: &f32| u32::from(magnitude(value) as i32 >= bound as i32);
    // 32-bit counters fill whole vector registers; a stretch can't overflow them.
    values.chunks(1 << 16).map(|stretch| stretch.iter().map(reaches).sum::<u32>() as usize).sum()
}

/// The magnitude bits of the `k`-th value in the total order, and how many values of just that
/// magnitude belong to the first `k`. Zeros excluded: the threshold is at least 1.
fn exact_threshold(values: &[f32], k: usize, histogram: &mut Vec<usize>) -> (u32, usize) {
    let (mut prefix, mut prefix_mask, mut wanted) = (0_u32, 0_u32, k);
    for (shift, width) in [(20, 11), (10, 10), (0, 10)] {
        let digit_mask = (1_u32 << width) - 1;
        histogram.clear();
        histogram.resize(1 << width, 0);
        for &value in values {
            let bits = magnitude(value);
            if bits & prefix_mask == prefix {
                histogram[((bits >> shift) & digit_mask) as usize] += 1;
            }
        }
        let mut digit = digit_mask as usize;
        while histogram[digit] < wanted {
            wanted -= histogram[digit];
            digit -= 1; // `wanted` never exceeds what the bins hold, so bin 0 ends the loop
        }
        prefix |= (digit as u32) << shift;
        prefix_mask |= digit_mask << shift;
    }
    if prefix == 0 { (1, usize::MAX) } else { (prefix, wanted) }
}

/// Emits the values above `threshold`, and the first `ties` of those at it.
fn emit(values: &[f32], threshold: u32, mut ties: usize, out: &mut SparseVec) {
    let (blocks, rest) = values.as_chunks::<LANES>();
    for (block_index, block) in blocks.iter().enumerate() {
        // Once the ties are used up, blocks of nothing else are passed over.
        if any_reaches(block, threshold + u32::from(ties == 0)) {
            emit_block(block, block_index * LANES, threshold, &mut ties, out);
        }
    }
    emit_block(rest, blocks.len() * LANES, threshold, &mut ties, out);
}

fn emit_block(block: &[f32], first: usize, threshold: u32, ties: &mut usize, out: &mut SparseVec) {
    for (lane, &value) in block.iter().enumerate() {
        let bits = magnitude(value);
        if bits > threshold || (bits == threshold && *ties > 0) {
            *ties -= usize::from(bits == threshold);
            out.push((first + lane) as u32, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(values: &[f32], k: usize) -> Vec<(u32, f32)> {
        let mut out = SparseVec::new(0);
        top_k(values, k, &mut out, &mut TopKScratch::new()).unwrap();
        assert_eq!(out.dim(), values.len());
        out.iter().collect()
    }

    #[test]
    fn ties_go_to_the_smaller_index() {
        assert_eq!(select(&[1.0, -2.0, 2.0, -1.0, 1.0], 3), [(0, 1.0), (1, -2.0), (2, 2.0)]);
        assert_eq!(select(&[0.0, -0.0, 1e-45, 0.0], 4), [(2, 1e-45)]);
        assert_eq!(select(&[], 3), []);
        assert_eq!(select(&[1.0], 0), []);
    }

    #[test]
    fn first_non_finite_value_is_reported() {
        for n in [3, 5000, 100_000] {
            for k in [0, 1, n / 100, n] {
                let mut values = vec![0.5_f32; n];
                values[n - 1] = f32::NAN;
                values[n / 2] = f32::NEG_INFINITY;
                let mut out = SparseVec::with_capacity(9, 1);
                out.push(1, 1.0);
                let found = top_k(&values, k, &mut out, &mut TopKScratch::new());
                let expected = Error::NonFinite { index: n / 2, value: f32::NEG_INFINITY };
                assert_eq!((found, out.is_empty()), (Err(expected), true), "n {n}, k {k}");
            }
        }
    }

    #[test]
    fn guess_and_histogram_agree() {
        // A ramp of distinct magnitudes in scrambled order, both signs.
        let n = 50_000_u64;
        let scrambled = |i: u64| ((i * 7919) % n) as f32 * if i.is_multiple_of(3) { -1.0 } else { 1.0 };
        let values: Vec<f32> = (0..n).map(scrambled).collect();
        for k in [1, 50, 500, 5000] {
            let (threshold, ties) = exact_threshold(&values, k, &mut Vec::new());
            let mut exact = SparseVec::new(values.len());
            emit(&values, threshold, ties, &mut exact);
            assert_eq!(select(&values, k), exact.iter().collect::<Vec<_>>(), "k {k}");
            assert_eq!(exact.len(), k);
        }
    }

    #[test]
    fn reused_scratch_does_not_grow() {
        let values: Vec<f32> = (0..100_000_u64).map(|i| ((i * 7919) % 100_003) as f32).collect();
        let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
        top_k(&values, 1000, &mut out, &mut scratch).unwrap();
        let capacities = |s: &TopKScratch| [s.keys.capacity(), s.sample.capacity()];
        let before = capacities(&scratch);
        top_k(&values, 1000, &mut out, &mut scratch).unwrap();
        assert_eq!(capacities(&scratch), before);
    }
}
