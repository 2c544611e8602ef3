//! The input of the ranks, and the expected result, computed naively.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

/// An `f32` adds integers up to this exactly over more than 16,000 ranks.
pub const EXACT: u32 = 1000;

/// Magnitudes up to this give few ties.
pub const WIDE: u32 = 1 << 20;

/// The vector of `rank`: integers from `-magnitude` to `magnitude` without a pattern.
pub fn vector(rank: u32, count: usize, magnitude: u32) -> Vec<f32> {
    (0..count as u64).map(|index| value(rank, index, magnitude)).collect()
}

/// The sums of elements of the vectors of all ranks.
pub fn sum(world_size: u32, elements: Range<usize>, magnitude: u32) -> Vec<f32> {
    let of_all = |index| (0..world_size).map(|rank| value(rank, index as u64, magnitude)).sum();
    elements.map(of_all).collect()
}

/// Entries by their index.
pub type Entries = BTreeMap<u32, f32>;

/// The result of a gTop-k all-reduce of these entries of ranks: in round `j`, rank `r` with
/// `r % 2^(j+1) == 0` adds what rank `r + 2^j` has sent to its own and keeps the `k` largest. `said` is what
/// is read of entries that are sent, sums or not, also of the result.
pub fn gtopk(mut ranks: Vec<Entries>, k: usize, said: impl Fn(Entries, bool) -> Entries) -> Entries {
    let mut distance = 1;
    while distance < ranks.len() {
        for rank in (0..ranks.len() - distance).step_by(2 * distance) {
            let has_merged = !has_no_child(rank + distance, ranks.len());
            let incoming = said(std::mem::take(&mut ranks[rank + distance]), has_merged);
            let total = added(std::mem::take(&mut ranks[rank]), incoming);
            ranks[rank] = largest(total.into_iter().collect(), k);
        }
        distance *= 2;
    }
    let is_sum = ranks.len() > 1;
    said(ranks.swap_remove(0), is_sum)
}

/// Whether nobody sends to a rank of this tree.
fn has_no_child(rank: usize, world_size: usize) -> bool {
    rank % 2 == 1 || rank + 1 >= world_size
}

/// The sum of the entries of all ranks in the fixed order, without zeros: with `m` the largest power of two
/// up to `P`, rank `i + m` is added to rank `i`, and then neighbours are.
pub fn ordered(mut ranks: Vec<Entries>) -> Entries {
    let Some(members) = ranks.len().checked_ilog2().map(|levels| 1 << levels) else { return Entries::new() };
    for (rank, guest) in ranks.split_off(members).into_iter().enumerate() {
        ranks[rank] = added(std::mem::take(&mut ranks[rank]), guest);
    }
    while ranks.len() > 1 {
        let mut pairs = ranks.into_iter();
        ranks = std::iter::from_fn(|| Some(added(pairs.next()?, pairs.next()?))).collect();
    }
    ranks.swap_remove(0).into_iter().filter(|(_, value)| *value != 0.0).collect()
}

/// The sum of dense vectors in the fixed order.
pub fn ordered_dense(mut ranks: Vec<Vec<f32>>) -> Vec<f32> {
    let Some(members) = ranks.len().checked_ilog2().map(|levels| 1 << levels) else { return Vec::new() };
    let add =
        |sum: &mut [f32], other: &[f32]| sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
    for (rank, guest) in ranks.split_off(members).into_iter().enumerate() {
        add(&mut ranks[rank], &guest);
    }
    while ranks.len() > 1 {
        let mut pairs = ranks.into_iter();
        ranks = std::iter::from_fn(|| {
            let (mut sum, other) = (pairs.next()?, pairs.next()?);
            add(&mut sum, &other);
            Some(sum)
        })
        .collect();
    }
    ranks.swap_remove(0)
}

fn added(mut sum: Entries, other: Entries) -> Entries {
    for (index, value) in other {
        *sum.entry(index).or_insert(0.0) += value;
    }
    sum
}

/// The `k` largest entries of a rank's vector, by rising index.
pub fn largest_of(rank: u32, count: usize, magnitude: u32, k: usize) -> Entries {
    largest(dense_entries(&vector(rank, count, magnitude)), k)
}

fn value(rank: u32, index: u64, magnitude: u32) -> f32 {
    let mut mixed = (u64::from(rank) << 40 ^ index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let range = 2 * u64::from(magnitude) + 1;
    ((mixed >> 32) % range) as f32 - magnitude as f32
}

fn dense_entries(vector: &[f32]) -> Vec<(u32, f32)> {
    (0..).zip(vector.iter().copied()).collect()
}

/// The `k` entries of largest magnitude; ties go to the lower index; never zeros.
pub fn largest(mut entries: Vec<(u32, f32)>, k: usize) -> BTreeMap<u32, f32> {
    let order =
        |a: &(u32, f32), b: &(u32, f32)| -> Ordering { b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)) };
    entries.retain(|entry| entry.1 != 0.0);
    if k < entries.len() {
        entries.select_nth_unstable_by(k, order);
        entries.truncate(k);
    }
    entries.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fill_their_range_and_differ_between_ranks() {
        let (first, second) = (vector(0, 100_000, EXACT), vector(1, 100_000, EXACT));
        let extreme =
            |values: &[f32]| values.iter().fold((0.0f32, 0.0f32), |(a, b), &v| (a.min(v), b.max(v)));
        assert_eq!((extreme(&first), extreme(&second)), ((-1000.0, 1000.0), (-1000.0, 1000.0)));
        let equal = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(equal < 200, "{equal} of 100,000 are equal, expected about 50");
        assert!(first.iter().all(|value| value.fract() == 0.0));
    }

    #[test]
    fn sums_are_over_ranks() {
        let vectors: Vec<_> = (0..3).map(|rank| vector(rank, 5, EXACT)).collect();
        let expected: Vec<f32> = (0..5).map(|i| vectors[0][i] + vectors[1][i] + vectors[2][i]).collect();
        assert_eq!(sum(3, 0..5, EXACT), expected);
        assert_eq!(sum(3, 2..4, EXACT), expected[2..4]);
    }

    #[test]
    fn guests_come_first_and_then_neighbours() {
        // 1e8 absorbs a 1, and two of them.
        let of = |values: &[f32]| {
            let dense = ordered_dense(values.iter().map(|value| vec![*value]).collect())[0];
            let sparse = ordered(values.iter().map(|value| Entries::from([(3, *value)])).collect());
            assert_eq!(sparse.get(&3).copied().unwrap_or_default(), dense);
            dense
        };
        assert_eq!(of(&[1e8, 1.0, -1e8]), 1.0);
        assert_eq!(of(&[1e8, -1e8, 1.0, 1.0]), 2.0);
        assert_eq!(of(&[1.0, 1e8, 1.0, 2.0, 1.0, -1e8, 1.0]), 6.0);
    }

    #[test]
    fn the_largest_by_a_full_sort() {
        let entries = vec![(0, 1.0), (1, -3.0), (2, 0.0), (3, 3.0), (4, 1.0)];
        let kept = |k| largest(entries.clone(), k).into_iter().collect::<Vec<_>>();
        assert_eq!(kept(0), []);
        assert_eq!(kept(1), [(1, -3.0)]);
        assert_eq!(kept(3), [(0, 1.0), (1, -3.0), (3, 3.0)]);
        assert_eq!(kept(9), [(0, 1.0), (1, -3.0), (3, 3.0), (4, 1.0)]);
    }
}
