//! The compressors that PowerSGD is compared to: what a rank has written travels by a dense collective.
//!
//! Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed optimization", NeurIPS
//! 2019.

use super::{Doing, Method, Summand, shape};
use crate::dense::{AllGather, AllReduce, Collective};
use crate::description::Operation;
use crate::plan::{Ground, Work};

/// A singular value decomposition takes about as long as a dense sum of so many bytes for each element and
/// each row of a square matrix. It has 21 operations for these (Golub and Van Loan, "Matrix computations",
/// section 8.6).
const SVD_BYTES: f64 = 250.0;

pub(super) const METHODS: &[Method] = &[
    Method {
        operation: Operation::ALL_REDUCE,
        policy: Some("unbiased-low-rank"),
        // A sample: nothing is kept of what it misses.
        is_sum: false,
        rows: AllReduce::ROWS,
        work: Doing::Other(|summand| of_factors(summand, |rows, _| rows)),
        // To add to what waits, to project and to reconstruct.
        own_seconds: |work, ground| {
            ground.combining((2.25 + 0.06 * work.entries as f64) * 4.0 * work.dim as f64)
        },
    },
    Method {
        operation: Operation::ALL_GATHER,
        policy: Some("best-low-rank"),
        is_sum: true,
        rows: AllGather::ROWS,
        work: Doing::Other(|summand| of_factors(summand, |rows, cols| rows + cols)),
        own_seconds: components,
    },
    Method {
        operation: Operation::ALL_GATHER,
        policy: Some("atomo"),
        is_sum: false,
        rows: AllGather::ROWS,
        work: Doing::Other(|summand| of_factors(summand, |rows, cols| rows + cols)),
        own_seconds: components,
    },
    Method {
        operation: Operation::ALL_GATHER,
        policy: Some("sign-norm"),
        is_sum: true,
        rows: AllGather::ROWS,
        work: Doing::Other(|summand| {
            let (bytes, dim) = (4 + 4 * summand.elements.div_ceil(32), summand.elements);
            summand.values.map(|_| Work { bytes, wide_bytes: bytes, dim, ..Work::default() })
        }),
        // To add to the residual and write the signs, and to add those of all ranks.
        own_seconds: |work, ground| ground.combining((2.0 + 0.83 * ground.ranks()) * 4.0 * work.dim as f64),
    },
];

/// The work for factors of so many rows.
fn of_factors(summand: &Summand, rows_of: fn(usize, usize) -> usize) -> Option<Work> {
    let [rows, cols] = shape(summand.elements);
    let rank = summand.rank?.min(rows).min(cols);
    let bytes = rows_of(rows, cols).saturating_mul(rank).saturating_mul(size_of::<f32>());
    let dim = rows.saturating_mul(cols);
    Some(Work { bytes, wide_bytes: bytes, entries: rank, dim, ..Work::default() })
}

/// To find singular components of a nearly square matrix, and to add up those of all ranks.
fn components(work: &Work, ground: &Ground) -> f64 {
    let (elements, rank) = (work.dim as f64, work.entries as f64);
    let finding = SVD_BYTES * elements * shape(work.dim)[0] as f64;
    let adding = (0.8 + 0.03 * rank) * 4.0 * elements * ground.ranks();
    ground.combining(finding + adding)
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Values;

    use super::*;
    use crate::plan::{Algorithm, Machine, Planned, compare};

    /// Of a matrix of 1024 rows and columns.
    fn ways() -> Vec<Planned> {
        let values = Some(Values::OneBit(Default::default()));
        let summand = Summand { elements: 1 << 20, rank: Some(4), values, ..Summand::default() };
        compare(&summand, &Ground::new(Machine { reduce: 1e-10, ..Machine::uniform(1e-3, 1e-8) }, 8))
    }

    #[test]
    fn bytes_are_those_of_the_documents() {
        let of_factors = 4.0 * 4.0 * 1024.0;
        for (collective, algorithm, bytes) in [
            ("all-reduce (unbiased-low-rank)", Algorithm::Doubling, 3.0 * of_factors),
            ("all-gather (best-low-rank)", Algorithm::Ring, 7.0 * 2.0 * of_factors),
            ("all-gather (atomo)", Algorithm::Ring, 7.0 * 2.0 * of_factors),
            ("all-gather (sign-norm)", Algorithm::Ring, 7.0 * (4.0 + f64::from(1 << 17))),
        ] {
            let is_it = |way: &&Planned| way.collective() == collective && way.algorithm == algorithm;
            let ways = ways();
            let found = ways.iter().find(is_it).unwrap();
            assert!((found.estimate.bytes / bytes - 1.0).abs() < 0.01, "{found}: {}", found.estimate.bytes);
            assert!(found.own_seconds > 0.0 && !found.is_dense());
        }
    }

    #[test]
    fn singular_vectors_take_longest() {
        let ways = ways();
        let own = |name: &str| ways.iter().find(|way| way.policy == Some(name)).unwrap().own_seconds;
        let (sampled, best) = (own("atomo"), own("best-low-rank"));
        assert_eq!(sampled, best);
        assert!(best > 10.0 * own("unbiased-low-rank") && best > 10.0 * own("sign-norm"));
    }
}
