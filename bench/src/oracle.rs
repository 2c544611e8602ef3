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

/// The result of a gTop-k all-reduce of the `k` largest entries of each rank's vector: in round `j`, rank `r`
/// with `r % 2^(j+1) == 0` adds what rank `r + 2^j` has to its own and keeps the `k` largest.
pub fn gtopk(world_size: u32, count: usize, magnitude: u32, k: usize) -> Vec<(u32, f32)> {
    let mut ranks: Vec<BTreeMap<u32, f32>> =
        (0..world_size).map(|rank| largest(dense_entries(&vector(rank, count, magnitude)), k)).collect();
    let mut distance = 1;
    while distance < ranks.len() {
        for rank in (0..ranks.len()).step_by(2 * distance) {
            let Some(partner) = ranks.get(rank + distance).cloned() else { continue };
            let mut total = std::mem::take(&mut ranks[rank]);
            for (index, value) in partner {
                *total.entry(index).or_insert(0.0) += value;
            }
            ranks[rank] = largest(total.into_iter().collect(), k);
        }
        distance *= 2;
    }
    ranks.swap_remove(0).into_iter().collect()
}

/// The `k` largest entries of a rank's vector, by rising index.
pub fn largest_of(rank: u32, count: usize, magnitude: u32, k: usize) -> Vec<(u32, f32)> {
    largest(dense_entries(&vector(rank, count, magnitude)), k).into_iter().collect()
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
fn largest(mut entries: Vec<(u32, f32)>, k: usize) -> BTreeMap<u32, f32> {
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
    fn the_largest_by_a_full_sort() {
        let entries = vec![(0, 1.0), (1, -3.0), (2, 0.0), (3, 3.0), (4, 1.0)];
        let kept = |k| largest(entries.clone(), k).into_iter().collect::<Vec<_>>();
        assert_eq!(kept(0), []);
        assert_eq!(kept(1), [(1, -3.0)]);
        assert_eq!(kept(3), [(0, 1.0), (1, -3.0), (3, 3.0)]);
        assert_eq!(kept(9), [(0, 1.0), (1, -3.0), (3, 3.0), (4, 1.0)]);
    }
}
