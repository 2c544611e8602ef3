//! How an operation is timed: once for its result, then to warm up, then for the figures.

use std::time::Instant;

use brevity::Group;

use super::arguments::{Benchmark, Case};
use super::error::{Error, Result};

/// What one rank does for one row.
pub trait Workload {
    /// Sets up what the operation consumes; not timed.
    fn prepare(&mut self);

    /// The operation that is timed.
    fn run(&mut self, group: &Group) -> brevity::collectives::Result<()>;

    /// Compares the last result with the oracle's; not timed.
    fn check(&self) -> Result<(), Difference>;

    /// Entries that are kept, where some are dropped.
    fn kept(&self) -> Option<usize> {
        None
    }
}

/// The first position where a result is wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The position.
    pub index: usize,
    /// What is there.
    pub found: String,
    /// What belongs there.
    pub expected: String,
}

/// What one rank measured for one row.
#[derive(Debug, Default)]
pub struct Measured {
    /// Microseconds of each iteration.
    pub times: Vec<f64>,
    /// Microseconds of each iteration as a call of its own, where that differs.
    pub call_times: Vec<f64>,
    /// Bytes that this rank hands to the network in an iteration, headers included.
    pub bytes_sent: f64,
    /// Entries that are kept, where some are dropped.
    pub kept: Option<usize>,
}

impl Difference {
    /// Compares element by element.
    pub fn find<T: PartialEq + std::fmt::Debug>(found: &[T], expected: &[T]) -> Result<(), Self> {
        let unequal = found.iter().zip(expected).position(|(a, b)| a != b);
        let shorter = (found.len() != expected.len()).then_some(found.len().min(expected.len()));
        let Some(index) = unequal.or(shorter) else { return Ok(()) };
        let show = |values: &[T]| values.get(index).map_or("nothing".to_owned(), |value| format!("{value:?}"));
        Err(Self { index, found: show(found), expected: show(expected) })
    }

    /// Says whose result it is.
    pub fn of(self, rank: u32, benchmark: Benchmark, bytes: usize) -> Error {
        let Self { index, found, expected } = self;
        Error::Wrong { rank, benchmark, bytes, index, found, expected }
    }
}

/// Runs a workload for one row on this rank: one iteration for its result, the warm-up, and those that are timed.
/// A barrier is before each.
pub fn measure(
    group: &Group,
    workload: &mut dyn Workload,
    benchmark: Benchmark,
    case: Case,
    verify: bool,
) -> Result<Measured> {
    let mut measured = Measured { kept: workload.kept(), ..Measured::default() };
    let untimed = 1 + case.warmup;
    for iteration in 0..untimed + case.iterations {
        workload.prepare();
        group.barrier()?;
        let sent_before = group.statistics().bytes_sent;
        let start = Instant::now();
        workload.run(group)?;
        let time = microseconds(start);
        let sent = group.statistics().bytes_sent - sent_before;
        if verify || iteration == 0 {
            workload.check().map_err(|wrong| wrong.of(group.rank(), benchmark, case.bytes))?;
        }
        if iteration >= untimed {
            measured.times.push(time);
            measured.bytes_sent += sent as f64 / case.iterations as f64;
        }
    }
    Ok(measured)
}

/// The time since `start`.
pub fn microseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
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
}
