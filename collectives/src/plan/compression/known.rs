//! Ways to sum vectors of which more is known than their length: matrices, and entries in whole blocks.

use brevity_compress::select::BLOCK_PLACES;

use super::{Method, Planned, of_operation};
use crate::description::Operation;
use crate::low_rank;
use crate::plan::{Algorithm, Estimate, Ground, Work, estimates_of};
use crate::sparse::blocks;

/// The ways to sum matrices of these rows and columns by low rank, the fastest first, with `vectors` elements
/// that travel with the left factors as they are.
pub(crate) fn low_rank_ways(
    matrices: &[[usize; 2]],
    rank: usize,
    vectors: usize,
    ground: &Ground,
) -> Vec<Planned> {
    let mut all = Work { entries: rank, ..Work::default() };
    for &[rows, cols] in matrices {
        let work = low_rank::work(rows, cols, rank);
        all.bytes = all.bytes.saturating_add(work.bytes);
        all.second_bytes = all.second_bytes.saturating_add(work.second_bytes);
        all.dim = all.dim.saturating_add(work.dim);
    }
    all.bytes = all.bytes.saturating_add(vectors.saturating_mul(size_of::<f32>()));
    all.wide_bytes = all.bytes;
    let method = of_operation(Operation::LOW_RANK_ALL_REDUCE);
    let mut ways: Vec<_> = estimates_of(method.rows, &all, ground)
        .into_iter()
        .map(|(algorithm, estimate)| planned(method, algorithm, estimate, (method.own_seconds)(&all, ground)))
        .collect();
    ways.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    ways
}

/// The ways to sum vectors of which each rank gives so many whole blocks, at random places.
pub(crate) fn block_ways(elements: usize, count: usize, ground: &Ground) -> Vec<Planned> {
    let entries = count.saturating_mul(BLOCK_PLACES).min(elements);
    let (method, work) = (of_operation(Operation::BLOCK_ALL_REDUCE), blocks::work(elements, entries));
    let estimate = blocks::estimate_of_blocks(elements, count, ground);
    vec![planned(method, Algorithm::Direct, estimate, (method.own_seconds)(&work, ground))]
}

fn planned(method: &Method, algorithm: Algorithm, estimate: Estimate, own_seconds: f64) -> Planned {
    let Method { operation, policy, is_sum, .. } = *method;
    Planned { operation, policy, algorithm, wire: None, is_sum, estimate, own_seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Machine, Summand, compare};

    fn ground() -> Ground {
        Ground::new(Machine { reduce: 1e-10, ..Machine::uniform(1e-3, 1e-8) }, 8)
    }

    /// One that is nearly square is what `compare` assumes.
    #[test]
    fn a_square_matrix_takes_what_a_vector_of_its_length_does() {
        let summand = Summand { elements: 1 << 20, rank: Some(4), ..Summand::default() };
        let of_vector = compare(&summand, &ground());
        let found = low_rank_ways(&[[1024, 1024]], 4, 0, &ground());
        assert!(!found.is_empty());
        for way in found {
            assert!(of_vector.contains(&way), "{way}: {way:?}");
        }
        // Two halves have longer factors together; what travels along costs its bytes.
        let first = |matrices: &[[usize; 2]], vectors| low_rank_ways(matrices, 4, vectors, &ground())[0];
        let (whole, halves) = (first(&[[1024, 1024]], 0), first(&[[1024, 512]; 2], 0));
        assert!(halves.estimate.bytes > 1.4 * whole.estimate.bytes);
        assert!(first(&[[1024, 1024]], 1000).estimate.bytes > whole.estimate.bytes + 4000.0);
    }

    /// Eight ranks with one block of eight each: the sum has `8 (1 - (7 / 8)^8)` blocks.
    #[test]
    fn blocks_of_ranks_overlap_by_chance() {
        let found = block_ways(8 * BLOCK_PLACES, 1, &ground())[0];
        let (each, union) = (4.0 + 1024.0, 8.0 * (1.0 - 0.875_f64.powi(8)));
        let expected = 7.0 / 8.0 * each * (1.0 + union);
        assert!((found.estimate.bytes / expected - 1.0).abs() < 1e-9, "{}", found.estimate.bytes);
        // Entries that lie together take less than those that are anywhere.
        let summand = Summand { elements: 1 << 20, entries: Some(4096), ..Summand::default() };
        let ways = compare(&summand, &ground());
        let anywhere = ways.iter().find(|way| way.operation == Operation::BLOCK_ALL_REDUCE).unwrap();
        assert!(block_ways(1 << 20, 16, &ground())[0].estimate.bytes < 0.1 * anywhere.estimate.bytes);
    }
}
