//! Times an operation: once to check its result, then for warm-up, then for the figures.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use brevity::{Group, collectives};

use super::Case;
use crate::{Error, Result};

/// A call that goes on.
pub type Going<'a> = Pin<Box<dyn Future<Output = collectives::Result<()>> + 'a>>;

/// What one rank does for one row.
pub trait Workload {
    /// Sets up what the operation consumes; not timed.
    fn prepare(&mut self);

    /// The operation that is timed.
    ///
    /// # Errors
    /// The errors of the operation.
    fn run(&mut self, group: &Group) -> collectives::Result<()>;

    /// The same operation, started and awaited: where nothing may block.
    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a>;

    /// Compares the last result with the oracle's; not timed.
    ///
    /// # Errors
    /// The first difference.
    fn check(&self) -> Result<(), Difference>;

    /// Called once when results are checked no more: [`prepare`](Self::prepare) need not restore the input.
    fn settle(&mut self) {}

    /// The number of entries that are kept, if some are dropped.
    fn kept(&self) -> Option<usize> {
        None
    }

    /// Whether the first call estimates what later ones go by, and so takes longer than these.
    fn has_first_call(&self) -> bool {
        false
    }
}

/// The first position where a result is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The position.
    pub index: usize,
    /// The value found.
    pub found: String,
    /// The value expected.
    pub expected: String,
}

/// What one rank measured for one row.
#[derive(Debug, Default)]
pub struct Measured {
    /// Microseconds of each iteration.
    pub times: Vec<f64>,
    /// Microseconds of each iteration as a separate call, if that differs.
    pub call_times: Vec<f64>,
    /// Bytes that this rank sends to the network in an iteration, including headers.
    pub bytes_sent: f64,
    /// The number of entries that are kept, if some are dropped.
    pub kept: Option<usize>,
}

impl Difference {
    /// Compares element by element.
    ///
    /// # Errors
    /// The first difference.
    pub fn find<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T]) -> Result<(), Self> {
        let unequal = found.iter().zip(expected).position(|(a, b)| a != b);
        let shorter = (found.len() != expected.len()).then_some(found.len().min(expected.len()));
        let Some(index) = unequal.or(shorter) else { return Ok(()) };
        let show =
            |values: &[T]| values.get(index).map_or("nothing".to_owned(), |value| format!("{value:?}"));
        Err(Self { index, found: show(found), expected: show(expected) })
    }

    /// Converts to an error that says whose result it is.
    #[must_use]
    pub fn of(self, rank: u32, what: &'static str, bytes: usize) -> Error {
        let Self { index, found, expected } = self;
        Error::Wrong { rank, what, bytes, index, found, expected }
    }
}

/// Runs a workload for one row on this rank: one iteration to check its result, the warm-up, and the timed
/// ones. A barrier follows each, outside the clock, as in the OSU benchmarks.
///
/// # Errors
/// If the operation fails or its result is wrong.
pub fn measure(
    group: &Group,
    workload: &mut dyn Workload,
    name: &'static str,
    case: Case,
    verify: bool,
) -> Result<Measured> {
    let times = Vec::with_capacity(case.iterations);
    let mut measured = Measured { times, kept: workload.kept(), ..Measured::default() };
    let untimed = 1 + case.warmup;
    workload.prepare();
    group.barrier()?;
    for iteration in 0..untimed + case.iterations {
        let sent_before = bytes_out(group);
        let start = Instant::now();
        workload.run(group)?;
        let time = start.elapsed().as_secs_f64() * 1e6;
        let sent = bytes_out(group) - sent_before;
        if verify || iteration == 0 {
            workload.check().map_err(|wrong| wrong.of(group.rank(), name, case.bytes))?;
        }
        if iteration == 0 && !verify {
            workload.settle();
        }
        if iteration >= untimed {
            measured.times.push(time);
            measured.bytes_sent += sent as f64 / case.iterations as f64;
        }
        // Before the barrier, so that no rank begins late.
        workload.prepare();
        group.barrier()?;
    }
    Ok(measured)
}

/// Bytes that have left this rank, by messages and by memory that ranks of one host share.
pub(super) fn bytes_out(group: &Group) -> u64 {
    let statistics = group.statistics();
    statistics.bytes_sent + statistics.bytes_shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_told() {
        let difference = |index, found: &str, expected: &str| {
            Err(Difference { index, found: found.into(), expected: expected.into() })
        };
        assert_eq!(Difference::find(&[1, 2, 3], &[1, 2, 3]), Ok(()));
        assert_eq!(Difference::find(&[1, 9, 9], &[1, 2, 3]), difference(1, "9", "2"));
        assert_eq!(Difference::find(&[1], &[1, 2]), difference(1, "nothing", "2"));
        assert_eq!(Difference::find(&[1, 2], &[1]), difference(1, "2", "nothing"));
        assert_eq!(Difference::find::<f32>(&[], &[]), Ok(()));
    }

    struct Broken {
        runs: usize,
        wrong_from: usize,
    }

    impl Workload for Broken {
        fn prepare(&mut self) {}

        fn run(&mut self, group: &Group) -> collectives::Result<()> {
            self.runs += 1;
            group.barrier()
        }

        fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
            self.runs += 1;
            Box::pin(async move { group.start_barrier().await.1 })
        }

        fn check(&self) -> Result<(), Difference> {
            Difference::find(&[self.runs >= self.wrong_from], &[false])
        }
    }

    #[test]
    fn wrong_results_are_found_where_results_are_checked() {
        let case = Case { bytes: 4, density: None, iterations: 3, warmup: 1 };
        let run = |wrong_from, verify| {
            let group = Group::solo();
            measure(&group, &mut Broken { runs: 0, wrong_from }, "allreduce", case, verify)
        };
        for (wrong_from, verify) in [(1, false), (1, true), (5, true)] {
            let error = run(wrong_from, verify).unwrap_err().to_string();
            assert_eq!(error, "rank 0: allreduce of 4 bytes is wrong at 0: found true, expected false");
        }
        assert_eq!(run(2, false).unwrap().times.len(), 3);
        assert_eq!(run(6, true).unwrap().times.len(), 3);
    }
}
