//! The union of two sorted lists, without a branch on the data.
//!
//! A merge is one chain of comparisons, each waiting for the loads that the one before it has decided on. So the lists are
//! cut at a few places into stretches of even length, which are merged side by side: while one chain waits, others go on.

use super::per_level;
use crate::SparseView;

/// Stretches that are merged side by side. Measured: fewer wait, more do not fit into the registers.
const CHAINS: usize = 4;

/// Entries of both lists for which cutting is worth while.
const WORTH_CUTTING: usize = 256;

/// A stretch of both lists: from `a` to `a_end`, and from `b` to `b_end`. Its sums go from `out` on.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    a: usize,
    a_end: usize,
    b: usize,
    b_end: usize,
    out: usize,
}

per_level! {
    /// Writes the indices of `a` and `b` in rising order, each once, and the sums there to the beginning of `indices` and
    /// `values`, and returns how many there are. Sums that are zero or not finite are written as they are.
    ///
    /// What lies behind the sums may be overwritten, as far as `a` and `b` have entries together: so long must both be.
    pub(crate) fn merge(a: SparseView<'_>, b: SparseView<'_>, indices: &mut [u32], values: &mut [f32]) -> usize {
        let total = a.len() + b.len();
        let (indices, values) = (&mut indices[..total], &mut values[..total]);
        if total < WORTH_CUTTING {
            let chain = Chain { a_end: a.len(), b_end: b.len(), ..Chain::default() };
            return finish(a, b, chain, indices, values);
        }
        let mut chains = cut(a.indices(), b.indices());
        let starts = chains.map(|chain| chain.out);
        run_side_by_side(a, b, &mut chains, indices, values);
        let ends = chains.map(|chain| finish(a, b, chain, indices, values));
        let mut end = ends[0];
        for (start, stop) in starts.into_iter().zip(ends).skip(1) {
            if start != end {
                indices.copy_within(start..stop, end);
                values.copy_within(start..stop, end);
            }
            end += stop - start;
        }
        end
    }
}

/// Cuts both lists into stretches of even length together. No index is in two of them.
fn cut(a: &[u32], b: &[u32]) -> [Chain; CHAINS] {
    let mut chains = [Chain::default(); CHAINS];
    let (mut from_a, mut from_b) = (0, 0);
    for (place, chain) in chains.iter_mut().enumerate() {
        let (a_end, b_end) = place_of(a, b, (a.len() + b.len()) * (place + 1) / CHAINS);
        *chain = Chain { a: from_a, a_end, b: from_b, b_end, out: from_a + from_b };
        (from_a, from_b) = (a_end, b_end);
    }
    chains
}

/// How many of `a` and of `b` are among the first `count` of both together, and one more where that would part equal indices.
fn place_of(a: &[u32], b: &[u32], count: usize) -> (usize, usize) {
    let (mut low, mut high) = (count.saturating_sub(b.len()), count.min(a.len()));
    while low < high {
        let middle = low.midpoint(high);
        if a[middle] < b[count - 1 - middle] { low = middle + 1 } else { high = middle }
    }
    let of_b = count - low;
    let parted = of_b > 0 && a.get(low) == Some(&b[of_b - 1]);
    (low + usize::from(parted), of_b)
}

/// Steps in all chains by turns, until one of them has come to an end of a list.
#[inline(always)]
fn run_side_by_side(
    a: SparseView<'_>,
    b: SparseView<'_>,
    chains: &mut [Chain; CHAINS],
    indices: &mut [u32],
    values: &mut [f32],
) {
    loop {
        let steps = chains.iter().map(Chain::safe_steps).min().unwrap_or(0);
        if steps == 0 {
            return;
        }
        for _ in 0..steps {
            for chain in &mut *chains {
                // SAFETY: no chain takes more than its own safe steps.
                unsafe { chain.step(a, b, indices, values) };
            }
        }
    }
}

/// Merges what is left of a chain, and returns where its sums end.
#[inline(always)]
fn finish(a: SparseView<'_>, b: SparseView<'_>, mut chain: Chain, indices: &mut [u32], values: &mut [f32]) -> usize {
    loop {
        let steps = chain.safe_steps();
        if steps == 0 {
            break;
        }
        for _ in 0..steps {
            // SAFETY: no more than the safe steps.
            unsafe { chain.step(a, b, indices, values) };
        }
    }
    for (rest, from, to) in [(a, chain.a, chain.a_end), (b, chain.b, chain.b_end)] {
        indices[chain.out..chain.out + to - from].copy_from_slice(&rest.indices()[from..to]);
        values[chain.out..chain.out + to - from].copy_from_slice(&rest.values()[from..to]);
        chain.out += to - from;
    }
    chain.out
}

impl Chain {
    /// Steps that reach no end of either stretch before the last of them is done: each takes at most one entry of each.
    #[inline(always)]
    fn safe_steps(&self) -> usize {
        (self.a_end - self.a).min(self.b_end - self.b)
    }

    /// Writes the next index of both and the sum there.
    ///
    /// # Safety
    /// The chain has been [`cut`] from these lists or covers them, `indices` and `values` are as long as both together, and
    /// there is a [safe step](Self::safe_steps).
    #[inline(always)]
    unsafe fn step(&mut self, a: SparseView<'_>, b: SparseView<'_>, indices: &mut [u32], values: &mut [f32]) {
        // SAFETY: a safe step means `a < a_end` and `b < b_end`, and a view has as many values as indices.
        let ((left, x), (right, y)) = unsafe {
            (
                (*a.indices().get_unchecked(self.a), a.values().get_unchecked(self.a).to_bits()),
                (*b.indices().get_unchecked(self.b), b.values().get_unchecked(self.b).to_bits()),
            )
        };
        let (takes_a, takes_b) = (left <= right, right <= left);
        // An absent side adds +0: x + 0 is x, and of no zero does the sign matter.
        let masked = |bits: u32, taken: bool| f32::from_bits(bits & u32::from(taken).wrapping_neg());
        let sum = masked(x, takes_a) + masked(y, takes_b);
        // SAFETY: each step writes one and takes one or two, so `out` stays below what has been taken of both.
        unsafe {
            *indices.get_unchecked_mut(self.out) = left.min(right);
            *values.get_unchecked_mut(self.out) = sum;
        }
        self.a += usize::from(takes_a);
        self.b += usize::from(takes_b);
        self.out += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::SparseVec;
    use crate::simd::Level;

    /// Entries whose indices are `stride` apart at most, so that two lists have many in common or few.
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
        fn every_level_merges_as_a_map_does(
            a in prop_oneof![list(900, 3), list(300, 40), list(20, 9)], b in prop_oneof![list(900, 3), list(300, 40), list(20, 9)],
            shift in prop_oneof![Just(0_u32), 0_u32..2000],
        ) {
            let b: Vec<(u32, f32)> = b.into_iter().map(|(index, value)| (index + shift, value)).collect();
            let mut sums = BTreeMap::new();
            a.iter().chain(&b).for_each(|&(index, value)| *sums.entry(index).or_insert(0.0) += value);
            let expected: Vec<(u32, f32)> = sums.into_iter().collect();
            for level in Level::available() {
                for (a, b) in [(&a, &b), (&b, &a)] {
                    let total = a.len() + b.len();
                    let (mut indices, mut values) = (vec![7; total], vec![7.0; total]);
                    let count = merge(level, sparse(a).view(), sparse(b).view(), &mut indices, &mut values);
                    let found: Vec<(u32, f32)> = indices.into_iter().zip(values).take(count).collect();
                    prop_assert_eq!(&found, &expected, "{}", level.name());
                }
            }
        }

        #[test]
        fn a_place_parts_no_equal_indices(a in list(30, 3), b in list(30, 3)) {
            let (a, b) = (sparse(&a), sparse(&b));
            for count in 0..=a.len() + b.len() {
                let (of_a, of_b) = place_of(a.indices(), b.indices(), count);
                prop_assert!(of_a + of_b >= count && of_a + of_b <= count + 1, "{} and {} of {}", of_a, of_b, count);
                let last = a.indices()[..of_a].last().max(b.indices()[..of_b].last());
                let first = a.indices()[of_a..].iter().chain(&b.indices()[of_b..]).min();
                prop_assert!(last.is_none() || first.is_none() || last < first, "{:?} and {:?}", last, first);
            }
        }
    }
}
