//! The expected results of collectives, computed naively in one place.

use std::collections::BTreeMap;

/// A small integer-valued float that depends on rank and index: sums of many are exact.
#[must_use]
pub fn value(rank: u32, index: usize) -> f32 {
    let mixed = (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (index as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
    ((mixed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) % 201) as f32 - 100.0
}

/// The vector of `rank`.
#[must_use]
pub fn vector(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|index| value(rank, index)).collect()
}

/// The elementwise sum of all ranks' vectors.
#[must_use]
pub fn sum(vectors: &[Vec<f32>]) -> Vec<f32> {
    let mut total = vec![0.0; vectors.first().map_or(0, Vec::len)];
    for vector in vectors {
        for (total, value) in total.iter_mut().zip(vector) {
            *total += value;
        }
    }
    total
}

/// The `k` entries of largest magnitude, by a full sort; ties go to the lower index, never zeros.
#[must_use]
pub fn top_k(vector: &[f32], k: usize) -> BTreeMap<u32, f32> {
    let mut order: Vec<usize> = (0..vector.len()).filter(|&index| vector[index] != 0.0).collect();
    order.sort_by(|&a, &b| vector[b].abs().total_cmp(&vector[a].abs()).then(a.cmp(&b)));
    order.into_iter().take(k).map(|index| (index as u32, vector[index])).collect()
}

/// Adds sparse vectors; drops entries that cancel to zero.
#[must_use]
pub fn add(a: &BTreeMap<u32, f32>, b: &BTreeMap<u32, f32>) -> BTreeMap<u32, f32> {
    let mut sum = a.clone();
    for (&index, &value) in b {
        *sum.entry(index).or_insert(0.0) += value;
    }
    sum.retain(|_, value| *value != 0.0);
    sum
}

/// The `k` largest entries of a sparse vector.
#[must_use]
pub fn largest(sparse: &BTreeMap<u32, f32>, k: usize) -> BTreeMap<u32, f32> {
    let mut entries: Vec<(u32, f32)> = sparse.iter().map(|(&index, &value)| (index, value)).collect();
    entries.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
    entries.into_iter().take(k).collect()
}

/// The gTop-k tree, naively: in round `j`, rank `r` with `r % 2^(j+1) == 0` merges the entries of rank `r +
/// 2^j`.
#[must_use]
pub fn gtopk(mut contributions: Vec<BTreeMap<u32, f32>>, k: usize) -> BTreeMap<u32, f32> {
    let mut distance = 1;
    while distance < contributions.len() {
        for rank in (0..contributions.len()).step_by(2 * distance) {
            if let Some(partner) = contributions.get(rank + distance) {
                contributions[rank] = largest(&add(&contributions[rank], partner), k);
            }
        }
        distance *= 2;
    }
    contributions.swap_remove(0)
}

/// A step of gTop-k that loses nothing: the sum, and what each rank keeps of its vector. Entries that are not
/// in the sum stay where they are; of those that are, a merging rank keeps what its merge has dropped.
#[must_use]
pub fn gtopk_step(vectors: &[Vec<f32>], k: usize) -> (BTreeMap<u32, f32>, Vec<Vec<f32>>) {
    let selected: Vec<_> = vectors.iter().map(|vector| top_k(vector, k)).collect();
    let (mut merged, mut dropped) = (selected.clone(), vec![Vec::new(); vectors.len()]);
    let mut distance = 1;
    while distance < merged.len() {
        for rank in (0..merged.len()).step_by(2 * distance) {
            if let Some(partner) = merged.get(rank + distance) {
                let sum = add(&merged[rank], partner);
                merged[rank] = largest(&sum, k);
                let is_dropped = |(index, _): &(u32, f32)| !merged[rank].contains_key(index);
                dropped[rank].extend(sum.into_iter().filter(is_dropped));
            }
        }
        distance *= 2;
    }
    let sum = merged.swap_remove(0);
    let mut kept = vectors.to_vec();
    for ((kept, selected), dropped) in kept.iter_mut().zip(&selected).zip(dropped) {
        selected.keys().filter(|index| sum.contains_key(index)).for_each(|index| kept[*index as usize] = 0.0);
        let returned = dropped.into_iter().filter(|(index, _)| sum.contains_key(index));
        returned.for_each(|(index, value)| kept[index as usize] += value);
    }
    (sum, kept)
}

/// All elements of a sparse vector.
#[must_use]
pub fn dense(sparse: &BTreeMap<u32, f32>, count: usize) -> Vec<f32> {
    (0..count).map(|index| sparse.get(&(index as u32)).copied().unwrap_or(0.0)).collect()
}

/// One step of power iteration in double precision: the projection of `matrix` on the span of `matrix * q`.
#[must_use]
pub fn power_iteration(matrix: &[f64], rows: usize, cols: usize, q: &[f32]) -> Vec<f64> {
    let rank = q.len().checked_div(cols).unwrap_or(0);
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for column in 0..rank {
        let mut p: Vec<f64> = (0..rows)
            .map(|i| (0..cols).map(|j| matrix[i * cols + j] * f64::from(q[j * rank + column])).sum())
            .collect();
        for earlier in &basis {
            let dot: f64 = p.iter().zip(earlier).map(|(a, b)| a * b).sum();
            p.iter_mut().zip(earlier).for_each(|(a, b)| *a -= dot * b);
        }
        let norm = p.iter().map(|value| value * value).sum::<f64>().sqrt();
        basis.push(p.iter().map(|value| value / norm).collect());
    }
    let mut projection = vec![0.0; rows * cols];
    for p in &basis {
        for j in 0..cols {
            let dot: f64 = (0..rows).map(|i| p[i] * matrix[i * cols + j]).sum();
            (0..rows).for_each(|i| projection[i * cols + j] += p[i] * dot);
        }
    }
    projection
}
