//! What it takes to sum a vector over all ranks, as it is and compressed.
//!
//! A compressed collective has a row for each of its algorithms, as dense ones do. Beside what these take, a
//! rank compresses its gradient and writes the sum back: whether compression pays depends on both. What a
//! rank's own work takes is derived from the speed of its dense sums, to which it is about proportional: both
//! move the vector through memory.

mod comparators;
mod known;

use std::fmt;

use brevity_compress::in_standard_float_mode;
use brevity_compress::quantise::Values;

use super::{Algorithm, Estimate, Ground, Row, Work, estimates, estimates_of};
use crate::dense::AllReduce;
use crate::description::Operation;
use crate::sparse::{Wire, all_gather, blocks, gtopk, hierarchical, ok_topk, random_k, reduce_scatter, topk};
use crate::{low_rank, quantised, vote};
pub(crate) use known::{block_ways, low_rank_ways};

/// A vector of `f32` on each rank that is to be summed, and how it may be compressed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summand {
    /// Its length.
    pub elements: usize,
    /// The entries that each rank keeps, for collectives on sparse vectors.
    pub entries: Option<usize>,
    /// How entries are written; `None` for the ways that are exact, as [pairs](Wire::Pairs) and packed.
    pub wire: Option<Wire>,
    /// The rank of low-rank factors. The vector is the matrix that is the nearest to a square.
    pub rank: Option<usize>,
    /// The format of a quantised vector.
    pub values: Option<Values>,
}

/// A way to sum a [`Summand`], and what it is estimated to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planned {
    /// The collective.
    pub operation: Operation,
    /// Whose messages a dense collective carries, if these are no vectors: `unbiased-low-rank`,
    /// `best-low-rank`, `atomo` or `sign-norm`, as policies are called.
    pub policy: Option<&'static str>,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// How entries are written, by collectives that write some on a wire.
    pub wire: Option<Wire>,
    /// Whether every rank gets a sum of gradients. If not, it is a part of one, a vote, the sum at random
    /// places, or a sample, and no alternative to those that are.
    pub is_sum: bool,
    /// What the collective takes, with the merging of entries.
    pub estimate: Estimate,
    /// Seconds of a rank's own work: to compress its gradient with error feedback, and to write the sum back.
    pub own_seconds: f64,
}

impl Planned {
    /// Seconds in all.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.estimate.seconds + self.own_seconds
    }

    /// Whether it compresses nothing.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.operation == Operation::ALL_REDUCE && self.policy.is_none()
    }

    /// The name of its collective, as "gtop-k all-reduce" or "all-gather (sign-norm)".
    #[must_use]
    pub fn collective(&self) -> String {
        let Self { operation, policy, .. } = self;
        policy.map_or(operation.to_string(), |policy| format!("{operation} ({policy})"))
    }
}

/// As "all-reduce by ring", or "top-k all-reduce by direct (packed f32)".
impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.collective(), self.algorithm)?;
        self.wire.map_or(Ok(()), |wire| write!(f, " ({wire})"))
    }
}

/// The fastest sum that [`compare`] gives, or "dense" if compression does not pay; and why, in words.
#[must_use]
pub fn recommend(ways: &[Planned]) -> (String, String) {
    let fastest = |is_dense: bool| ways.iter().find(|way| way.is_sum && way.is_dense() == is_dense);
    let (Some(dense), Some(compressed)) = (fastest(true), fastest(false)) else {
        return ("dense".into(), "nothing else was asked for".into());
    };
    let [of_dense, of_compressed] = [dense, compressed].map(Planned::seconds);
    if of_compressed < of_dense {
        let reason = format!(
            "{:.1} us, {:.1} times as fast as the {dense} ({:.1} us)",
            of_compressed * 1e6,
            of_dense / of_compressed,
            of_dense * 1e6
        );
        return (compressed.to_string(), reason);
    }
    let reason = format!(
        "compression does not pay: the {dense} takes {:.1} us, and the fastest that compresses, the \
         {compressed}, {:.1} us, of which a rank compresses and writes the sum for {:.1} us",
        of_dense * 1e6,
        of_compressed * 1e6,
        compressed.own_seconds * 1e6
    );
    ("dense".into(), reason)
}

/// A compressed collective, as [`compare`] sees it.
struct Method {
    operation: Operation,
    policy: Option<&'static str>,
    is_sum: bool,
    rows: &'static [Row],
    /// What it has to do, if the vector may be compressed so.
    work: Doing,
    own_seconds: fn(&Work, &Ground) -> f64,
}

/// The work for a vector, if it may be compressed so.
enum Doing {
    /// Of entries on a wire.
    Entries,
    Other(fn(&Summand) -> Option<Work>),
}

/// The wires that round nothing.
const EXACT: [Wire; 2] = [Wire::Pairs, Wire::Coded(Values::F32)];

const METHODS: &[Method] = &[
    Method {
        operation: Operation::SPARSE_ALL_GATHER,
        policy: None,
        is_sum: false,
        rows: all_gather::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| ground.selecting(work.dim as f64),
    },
    Method {
        operation: Operation::SPARSE_REDUCE_SCATTER,
        policy: None,
        is_sum: false,
        rows: reduce_scatter::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| ground.selecting(work.dim as f64),
    },
    Method {
        operation: Operation::TOPK_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: topk::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            ground.selecting(elements) + ground.spreading(topk::union(work, ground), elements)
        },
    },
    Method {
        operation: Operation::GTOPK_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: gtopk::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            ground.selecting(elements) + ground.spreading(work.entries as f64, elements)
        },
    },
    Method {
        operation: Operation::HIERARCHICAL_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: hierarchical::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            ground.selecting(elements) + ground.spreading(work.entries as f64, elements)
        },
    },
    Method {
        operation: Operation::OK_TOPK_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: ok_topk::ROWS,
        work: Doing::Entries,
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            ground.selecting(elements) + ground.spreading(work.entries as f64, elements)
        },
    },
    Method {
        operation: Operation::BLOCK_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: blocks::ROWS,
        work: Doing::Other(|summand| summand.entries.map(|entries| blocks::work(summand.elements, entries))),
        // To write the entries into a vector, and to find its blocks, which become the sum.
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            let written = ground.spreading(work.entries as f64, elements);
            ground.selecting(elements) + written + ground.copying(4.0 * elements)
        },
    },
    Method {
        operation: Operation::RANDOM_K_ALL_REDUCE,
        policy: None,
        is_sum: false,
        rows: random_k::ROWS,
        work: Doing::Other(|summand| {
            summand.entries.map(|entries| random_k::work(summand.elements, entries))
        }),
        own_seconds: |work, ground| {
            let elements = work.dim as f64;
            ground.selecting(elements) + ground.spreading(work.entries as f64, elements)
        },
    },
    Method {
        operation: Operation::QUANTISED_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: quantised::ROWS,
        work: Doing::Other(|summand| summand.values.map(|values| quantised::work(summand.elements, values))),
        // To add to the residual, and to quantise.
        own_seconds: |work, ground| ground.combining(2.0 * 4.0 * work.dim as f64),
    },
    Method {
        operation: Operation::VOTE_ALL_REDUCE,
        policy: None,
        is_sum: false,
        rows: vote::ROWS,
        work: Doing::Other(|summand| summand.values.map(|_| vote::work(summand.elements))),
        own_seconds: |work, ground| ground.combining(4.0 * work.dim as f64),
    },
    Method {
        operation: Operation::LOW_RANK_ALL_REDUCE,
        policy: None,
        is_sum: true,
        rows: low_rank::ROWS,
        work: Doing::Other(|summand| {
            let [rows, cols] = shape(summand.elements);
            summand.rank.map(|rank| low_rank::work(rows, cols, rank))
        }),
        // To add to the residual, to project twice and to reconstruct.
        own_seconds: |work, ground| {
            ground.combining((2.35 + 0.14 * work.entries as f64) * 4.0 * work.dim as f64)
        },
    },
];

/// The method of an operation, if it is no policy's.
fn of_operation(operation: Operation) -> &'static Method {
    let method = METHODS.iter().find(|method| method.operation == operation);
    method.unwrap_or_else(|| unreachable!("{operation} compresses nothing"))
}

impl Doing {
    /// The work for a vector, with the wire of its entries.
    fn of(&self, summand: &Summand) -> Vec<(Option<Wire>, Work)> {
        let wires = summand.wire.map_or(EXACT.to_vec(), |wire| vec![wire]);
        let on = |wire, entries| (Some(wire), topk::work(summand.elements, entries, wire));
        match self {
            Self::Entries => summand
                .entries
                .map_or(Vec::new(), |entries| wires.into_iter().map(|wire| on(wire, entries)).collect()),
            Self::Other(work) => work(summand).into_iter().map(|work| (None, work)).collect(),
        }
    }
}

/// The exact wire on which a collective on sparse vectors of length `dim`, of up to `entries` entries each,
/// is estimated to be the fastest, by the algorithm `wish` if it fits. In hierarchical sums it is that of the
/// leaders. Pairs for other collectives.
pub(crate) fn exact_wire(
    operation: Operation,
    (dim, entries): (usize, usize),
    ground: &Ground,
    wish: Option<Algorithm>,
) -> Wire {
    let method = METHODS.iter().find(|method| method.operation == operation);
    let (rows, ground) = match method {
        Some(_) if operation == Operation::HIERARCHICAL_ALL_REDUCE => (gtopk::ROWS, ground.across(1)),
        Some(Method { rows, work: Doing::Entries, .. }) => (*rows, *ground),
        _ => return Wire::Pairs,
    };
    let [pairs, packed] = EXACT.map(|wire| {
        let ways = estimates_of(rows, &topk::work(dim, entries, wire), &ground);
        let wished = ways.iter().find(|(by, _)| Some(*by) == wish);
        wished.or(ways.first()).map_or(0.0, |(_, estimate)| estimate.seconds)
    });
    if packed < pairs { EXACT[1] } else { Wire::Pairs }
}

/// The rows and columns of the matrix of so many elements that is the nearest to a square.
fn shape(elements: usize) -> [usize; 2] {
    let rows = elements.isqrt().max(1);
    [rows, elements.div_ceil(rows)]
}

/// All ways to sum a vector that fit, the fastest first: dense ones, and those that its compression allows.
///
/// A dense sum among the ranks of one host goes over the memory that they share, too.
///
/// ```
/// use brevity_collectives::{Ground, Machine, Summand, compare};
///
/// let summand = Summand { elements: 25_000_000, entries: Some(25_000), ..Summand::default() };
/// let (slow, fast) = ("between:50,2,8".parse::<Machine>()?, "between:2,0.1,0.02".parse::<Machine>()?);
/// let is_dense = |machine| compare(&summand, &Ground::new(machine, 8))[0].is_dense();
/// assert_eq!((is_dense(slow), is_dense(fast)), (false, true));
/// # Ok::<(), brevity_collectives::UnknownMachine>(())
/// ```
#[must_use]
pub fn compare(summand: &Summand, ground: &Ground) -> Vec<Planned> {
    let mut all = dense(summand, ground);
    // Nothing is no sum.
    let (entries, rank) = (summand.entries.filter(|&k| k > 0), summand.rank.filter(|&rank| rank > 0));
    let summand = &Summand { entries, rank, ..*summand };
    for method in METHODS.iter().chain(comparators::METHODS) {
        for (wire, work) in method.work.of(summand) {
            let own_seconds = in_standard_float_mode(|| (method.own_seconds)(&work, ground));
            all.extend(estimates_of(method.rows, &work, ground).into_iter().map(|(algorithm, estimate)| {
                let Method { operation, policy, is_sum, .. } = *method;
                Planned { operation, policy, algorithm, wire, is_sum, estimate, own_seconds }
            }));
        }
    }
    all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    all
}

fn dense(summand: &Summand, ground: &Ground) -> Vec<Planned> {
    let bytes = summand.elements.saturating_mul(size_of::<f32>());
    let work = Work { bytes, wide_bytes: bytes, ..Work::default() };
    let planned = |algorithm, estimate| Planned {
        operation: Operation::ALL_REDUCE,
        policy: None,
        algorithm,
        wire: None,
        is_sum: true,
        estimate,
        own_seconds: 0.0,
    };
    estimates::<AllReduce>(&work, ground).into_iter().map(|(by, estimate)| planned(by, estimate)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Machine, Topology};

    fn ground(world_size: u32) -> Ground {
        Ground::new(Machine::uniform(1e-3, 1e-8), world_size)
    }

    fn all_of(elements: usize) -> Summand {
        let entries = Some(elements / 1000);
        Summand { elements, entries, rank: Some(4), values: Some(Values::EightBit), wire: Some(Wire::Pairs) }
    }

    fn find(all: &[Planned], operation: Operation, algorithm: Algorithm) -> Planned {
        let is_it = |way: &&Planned| way.operation == operation && way.algorithm == algorithm;
        *all.iter().find(is_it).unwrap()
    }

    #[test]
    fn rounds_and_bytes_are_those_of_the_documents() {
        const ELEMENTS: usize = 1 << 20;
        let all = compare(&all_of(ELEMENTS), &ground(8));
        let entries = (ELEMENTS / 1000) as f64;
        for (operation, algorithm, rounds, bytes) in [
            (Operation::SPARSE_ALL_GATHER, Algorithm::Bruck, 3, 8.0 * entries * 7.0),
            (Operation::SPARSE_REDUCE_SCATTER, Algorithm::Direct, 4, 8.0 * entries * 7.0 / 8.0),
            (Operation::TOPK_ALL_REDUCE, Algorithm::Bruck, 3, 8.0 * entries * 7.0),
            (Operation::GTOPK_ALL_REDUCE, Algorithm::Binomial, 6, 8.0 * entries * 3.0),
            (
                Operation::OK_TOPK_ALL_REDUCE,
                Algorithm::Direct,
                5,
                8.0 * entries * 2.0 * 7.0 / 8.0 + 24.0 * 7.0,
            ),
            (Operation::RANDOM_K_ALL_REDUCE, Algorithm::Doubling, 3, 4.0 * entries * 3.0),
            (Operation::VOTE_ALL_REDUCE, Algorithm::Direct, 2, ELEMENTS as f64 / 8.0 * 2.0 * 7.0 / 8.0),
            (Operation::LOW_RANK_ALL_REDUCE, Algorithm::Doubling, 6, 2.0 * 3.0 * 4.0 * 4.0 * 1024.0),
        ] {
            let found = find(&all, operation, algorithm).estimate;
            assert_eq!(found.rounds, rounds, "{operation}");
            assert!((found.bytes / bytes - 1.0).abs() < 1e-3, "{operation}: {} {bytes}", found.bytes);
        }
        assert!(all.is_sorted_by(|a, b| a.seconds() <= b.seconds()));
        use Algorithm::{Hosts, Ring, Slots};
        let rows = METHODS.iter().flat_map(|method| method.rows);
        let rows = rows.filter(|row| !matches!(row.algorithm, Ring | Hosts | Slots)).count();
        let own = all.iter().filter(|way| way.policy.is_none()).count();
        assert!(own >= rows, "{own} of {rows}");
    }

    /// What a rank does itself counts: with a fast network it outweighs what compression saves.
    #[test]
    fn compression_pays_on_slow_networks_only() {
        let fastest = |machine: &str, ranks| {
            let ways = compare(&all_of(1 << 24), &Ground::new(machine.parse().unwrap(), ranks));
            *ways.iter().find(|way| way.is_sum).unwrap()
        };
        assert!(!fastest("between:50,2,8", 4).is_dense());
        let dense = fastest("between:2,0.1,0.02;reduce:0.2", 4);
        assert!(dense.is_dense() && dense.own_seconds == 0.0);
    }

    #[test]
    fn nothing_that_was_not_asked_for_is_there() {
        let ways = compare(&Summand { elements: 1000, ..Summand::default() }, &ground(4));
        assert!(!ways.is_empty() && ways.iter().all(Planned::is_dense));
        let one_host = Ground { topology: Topology::one_host(4), has_slots: true, ..ground(4) };
        let ways = compare(&Summand { elements: 1000, ..Summand::default() }, &one_host);
        assert_eq!(ways[0].algorithm, Algorithm::Slots, "faster than messages of a millisecond");
        for elements in [0, 1, 2] {
            for ranks in [1, 2, 100] {
                let ways = compare(&all_of(elements), &ground(ranks));
                assert!(ways.iter().all(|way| way.seconds().is_finite()), "{elements}, {ranks}: {ways:?}");
            }
        }
    }
}
