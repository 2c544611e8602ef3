//! Merges two sorted lists without a branch on the data.
//!
//! A merge is a chain of comparisons, each of which waits for the loads that the previous one selected. So
//! the lists are cut into stretches of equal length, which are merged in parallel: while one chain waits,
//! others proceed. From time to time they pause, and the written entries are inspected while they are in the
//! first-level cache.

use std::hint::select_unpredictable;

use super::{Level, per_level};
use crate::SparseView;

/// Stretches that are merged in parallel.
const CHAINS: usize = 4;

/// With fewer entries in both lists, cutting does not pay.
const WORTH_CUTTING: usize = 256;

/// Entries of a chain that are merged before they are inspected: 2 KiB.
const ROUND: usize = 256;

/// What a merge found while inspecting its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// The smallest magnitude; that of a NaN without entries.
    pub(crate) least: u32,
    /// The largest magnitude.
    pub(crate) most: u32,
    /// Whether an index occurs twice.
    pub(crate) twice: bool,
}

/// A stretch of both lists: from `a` to `a_end` and from `b` to `b_end`. Its output starts at place `a + b`.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    a: usize,
    a_end: usize,
    b: usize,
    b_end: usize,
}

/// Writes all entries of `a` and `b` by rising index to `indices` and `values`. Of two entries with the same
/// index, that of `a` comes first.
///
/// # Panics
/// Unless `indices` and `values` are as long as `a` and `b` together.
pub(crate) fn merge(
    level: Level,
    a: SparseView<'_>,
    b: SparseView<'_>,
    indices: &mut [u32],
    values: &mut [f32],
) -> Look {
    let total = a.len() + b.len();
    assert!(indices.len() == total && values.len() == total, "as much room as entries");
    let mut look = Look { least: 0x7fff_ffff, most: 0, twice: false };
    if total < WORTH_CUTTING {
        finish(level, a, b, Chain { a: 0, a_end: a.len(), b: 0, b_end: b.len() }, indices, values);
        look_over(level, &mut look, 0, 0, indices, values);
        return look;
    }
    let mut chains = cut(a.indices(), b.indices());
    // Where each chain begins, and up to which place it has been inspected.
    let begins = chains.each_ref().map(Chain::place);
    let mut seen = begins;
    loop {
        let steps = chains.iter().map(Chain::safe_steps).min().unwrap_or(0).min(ROUND);
        if steps == 0 {
            break;
        }
        run(level, a, b, &mut chains, steps, indices, values);
        for ((chain, &begin), seen) in chains.iter().zip(&begins).zip(&mut seen) {
            let end = chain.place();
            let from = std::mem::replace(seen, end);
            look_over(level, &mut look, begin, from, &indices[..end], &values[..end]);
        }
    }
    for ((chain, begin), from) in chains.into_iter().zip(begins).zip(seen) {
        let end = chain.a_end + chain.b_end;
        finish(level, a, b, chain, indices, values);
        look_over(level, &mut look, begin, from, &indices[..end], &values[..end]);
    }
    // The pair across the start of a chain is checked here, because the previous chain was not complete then.
    look.twice |= begins[1..].iter().any(|&begin| indices[begin - 1] == indices[begin]);
    look
}

per_level! {
    /// Takes `steps` steps in each of the chains, which are within these lists.
    ///
    /// A separate function: inlined, the compiler packs the chains' places into vectors, which is much
    /// slower.
    fn run(
        a: SparseView<'_>,
        b: SparseView<'_>,
        chains: &mut [Chain; CHAINS],
        steps: usize,
        indices: &mut [u32],
        values: &mut [f32],
    ) {
        let total = a.len() + b.len();
        assert!(indices.len() == total && values.len() == total, "as much room as entries");
        let is_within = |chain: &Chain| chain.a_end <= a.len() && chain.b_end <= b.len();
        assert!(
            chains.iter().all(|chain| is_within(chain) && steps <= chain.safe_steps()),
            "chains are of these lists"
        );
        let mut running = *chains;
        for _ in 0..steps {
            for chain in &mut running {
                // SAFETY: the chains are within these lists, and take no more than their safe steps: asserted
                // above.
                unsafe { chain.step(a, b, indices, values) };
            }
        }
        for (chain, running) in chains.iter_mut().zip(running) {
            (chain.a, chain.b) = (running.a, running.b);
        }
    }
}

per_level! {
    /// Inspects the entries from place `from` on, of a chain that begins at `begin`.
    fn look_over(look: &mut Look, begin: usize, from: usize, indices: &[u32], values: &[f32]) {
        let before = (look.least as i32, look.most as i32);
        let extremes = values[from..].iter().fold(before, |(least, most), value| {
            let magnitude = crate::bits::magnitude(*value) as i32;
            (magnitude.min(least), magnitude.max(most))
        });
        let indices = &indices[from.saturating_sub(1).max(begin)..];
        let behind = indices.get(1..).unwrap_or(&[]);
        let twice = indices.iter().zip(behind).fold(false, |any, (one, next)| any | (one == next));
        *look = Look { least: extremes.0 as u32, most: extremes.1 as u32, twice: look.twice | twice };
    }
}

/// Cuts both lists into stretches of equal total length.
fn cut(a: &[u32], b: &[u32]) -> [Chain; CHAINS] {
    let mut chains = [Chain::default(); CHAINS];
    let (mut from_a, mut from_b) = (0, 0);
    for (place, chain) in chains.iter_mut().enumerate() {
        let (a_end, b_end) = place_of(a, b, (a.len() + b.len()) * (place + 1) / CHAINS);
        *chain = Chain { a: from_a, a_end, b: from_b, b_end };
        (from_a, from_b) = (a_end, b_end);
    }
    chains
}

/// How many entries of `a` and of `b` are among the first `count` of both.
fn place_of(a: &[u32], b: &[u32], count: usize) -> (usize, usize) {
    let (mut low, mut high) = (count.saturating_sub(b.len()), count.min(a.len()));
    while low < high {
        let middle = low.midpoint(high);
        if a[middle] <= b[count - 1 - middle] { low = middle + 1 } else { high = middle }
    }
    (low, count - low)
}

per_level! {
    /// Merges the rest of a chain, which is within these lists.
    fn finish(a: SparseView<'_>, b: SparseView<'_>, rest: Chain, indices: &mut [u32], values: &mut [f32]) {
        let total = a.len() + b.len();
        assert!(indices.len() == total && values.len() == total, "as much room as entries");
        assert!(rest.a_end <= a.len() && rest.b_end <= b.len(), "a chain is of these lists");
        let mut chain = rest;
        loop {
            let steps = chain.safe_steps();
            if steps == 0 {
                break;
            }
            for _ in 0..steps {
                // SAFETY: the chain is within these lists, as asserted, and takes no more than its safe
                // steps.
                unsafe { chain.step(a, b, indices, values) };
            }
        }
        let out = chain.place();
        for (rest, from, to) in [(a, chain.a, chain.a_end), (b, chain.b, chain.b_end)] {
            indices[out..out + to - from].copy_from_slice(&rest.indices()[from..to]);
            values[out..out + to - from].copy_from_slice(&rest.values()[from..to]);
            if to > from {
                return;
            }
        }
    }
}

impl Chain {
    /// The place of the next output entry.
    fn place(&self) -> usize {
        self.a + self.b
    }

    /// Steps that can be taken before the end of either stretch is reached: each step takes one entry.
    #[inline(always)]
    fn safe_steps(&self) -> usize {
        self.a_end.saturating_sub(self.a).min(self.b_end.saturating_sub(self.b))
    }

    /// Writes the next entry.
    ///
    /// # Safety
    /// `a_end` and `b_end` are within these lists, `indices` and `values` are as long as both together, and a
    /// [safe step](Self::safe_steps) is left.
    #[inline(always)]
    unsafe fn step(&mut self, a: SparseView<'_>, b: SparseView<'_>, indices: &mut [u32], values: &mut [f32]) {
        // SAFETY: a safe step means `a < a_end` and `b < b_end`, and a view has as many values as indices.
        let ((left, x), (right, y)) = unsafe {
            (
                (*a.indices().get_unchecked(self.a), a.values().get_unchecked(self.a).to_bits()),
                (*b.indices().get_unchecked(self.b), b.values().get_unchecked(self.b).to_bits()),
            )
        };
        let takes_b = right < left;
        let (out, bits) = (self.place(), select_unpredictable(takes_b, y, x));
        // SAFETY: `a` and `b` are places within the lists, so their sum is below the number of all entries.
        unsafe {
            *indices.get_unchecked_mut(out) = left.min(right);
            *values.get_unchecked_mut(out) = f32::from_bits(bits);
        }
        self.a += usize::from(!takes_b);
        self.b += usize::from(takes_b);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::SparseVec;

    /// Entries whose indices are at most `stride` apart, so that two lists have many or few in common.
    fn list(entries: usize, stride: u32) -> impl Strategy<Value = Vec<(u32, f32)>> {
        prop::collection::vec((1..=stride, -9_i8..9), 0..entries).prop_map(|steps| {
            let indices = steps.iter().scan(0, |index, step| {
                *index += step.0;
                Some(*index - 1)
            });
            indices.zip(steps.iter().map(|step| f32::from(step.1))).collect()
        })
    }

    fn sparse(entries: &[(u32, f32)]) -> SparseVec {
        let (indices, values) = entries.iter().copied().unzip();
        SparseVec::from_parts(1 << 20, indices, values).unwrap()
    }

    proptest! {
        #[test]
        fn every_level_merges_as_a_stable_sort_does(
            a in prop_oneof![list(900, 3), list(300, 40), list(20, 9)],
            b in prop_oneof![list(900, 3), list(300, 40), list(20, 9)],
            shift in prop_oneof![Just(0_u32), 0_u32..2000],
        ) {
            let b: Vec<(u32, f32)> = b.into_iter().map(|(index, value)| (index + shift, value)).collect();
            let in_order = |a: &[(u32, f32)], b: &[(u32, f32)]| {
                let mut all = [a, b].concat();
                // A stable sort: entries of `a` stay before those of `b`.
                all.sort_by_key(|entry| entry.0);
                all
            };
            for level in Level::available() {
                for (a, b) in [(&a, &b), (&b, &a)] {
                    let total = a.len() + b.len();
                    let (mut indices, mut values) = (vec![7; total], vec![7.0; total]);
                    let look = merge(level, sparse(a).view(), sparse(b).view(), &mut indices, &mut values);
                    let twice = indices.windows(2).any(|pair| pair[0] == pair[1]);
                    let magnitudes = || values.iter().map(|value| value.abs().to_bits());
                    let (least, most) =
                        (magnitudes().min().unwrap_or(0x7fff_ffff), magnitudes().max().unwrap_or(0));
                    prop_assert_eq!(look, Look { least, most, twice }, "{}", level.name());
                    let found: Vec<(u32, f32)> = indices.into_iter().zip(values).collect();
                    prop_assert_eq!(found, in_order(a, b), "{}", level.name());
                }
            }
        }

        #[test]
        fn a_place_is_where_so_many_come_before(a in list(30, 3), b in list(30, 3)) {
            let (a, b) = (sparse(&a), sparse(&b));
            for count in 0..=a.len() + b.len() {
                let (of_a, of_b) = place_of(a.indices(), b.indices(), count);
                prop_assert_eq!(of_a + of_b, count);
                let (next_a, next_b) = (a.indices().get(of_a), b.indices().get(of_b));
                prop_assert!(
                    of_a == 0 || next_b.is_none_or(|&next| a.indices()[of_a - 1] <= next),
                    "{} and {}",
                    of_a,
                    of_b
                );
                prop_assert!(
                    of_b == 0 || next_a.is_none_or(|&next| b.indices()[of_b - 1] < next),
                    "{} and {}",
                    of_a,
                    of_b
                );
            }
        }
    }
}
