//! How much of a collective that does not block is hidden behind computing, as the OSU benchmarks measure it.
//!
//! First the pure time of a call: it is started and waited for. Then each iteration starts a call, computes
//! for as long, and waits for the rest. What the whole takes beyond computing was not hidden.

use std::hint::black_box;
use std::time::{Duration, Instant};

use brevity::Group;

use super::{Case, Dense, Dtype, Workload, of_dtype};
use crate::Result;
use crate::collective::{Collective, Number, Started};

/// Multiplications between two looks at the clock: less than a microsecond.
const BETWEEN_LOOKS: u32 = 500;

/// What one rank measured for one row: microseconds, means over the iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overlapped {
    /// A call that is started and waited for.
    pub pure_us: f64,
    /// Start of a call while this rank computes.
    pub init_us: f64,
    /// Computing.
    pub compute_us: f64,
    /// Tests of the call in between.
    pub test_us: f64,
    /// The wait for the rest.
    pub wait_us: f64,
}

impl Overlapped {
    /// All parts of an iteration: init, compute, tests and wait.
    #[must_use]
    pub fn overall_us(&self) -> f64 {
        self.init_us + self.compute_us + self.test_us + self.wait_us
    }

    /// The share of the pure time that was hidden, in percent; at least 0.
    #[must_use]
    pub fn overlap_percent(&self) -> f64 {
        (100.0 - (self.overall_us() - self.compute_us) / self.pure_us * 100.0).max(0.0)
    }
}

/// Measures one row on this rank, with `tests` tests of the call while it computes. Every rank of the group
/// makes the same call. The result of the first call is checked, with `verify` that of each.
///
/// # Errors
/// If a rank is lost, or a result is wrong; [`Error::Arguments`](crate::Error::Arguments) if Brevity does not
/// have the collective.
pub fn measure_overlap(
    group: &Group,
    collective: Collective,
    dtype: Dtype,
    case: Case,
    tests: u32,
    verify: bool,
) -> Result<Overlapped> {
    of_dtype!(dtype, measure_as(group, collective, case, tests, verify))
}

fn measure_as<T: Number>(
    group: &Group,
    collective: Collective,
    case: Case,
    tests: u32,
    verify: bool,
) -> Result<Overlapped> {
    Row::<T>::new(group, collective, case, verify)?.measure(tests)
}

struct Row<'a, T> {
    group: &'a Group,
    name: &'static str,
    case: Case,
    verify: bool,
    dense: Dense<T>,
}

impl<'a, T: Number> Row<'a, T> {
    fn new(group: &'a Group, collective: Collective, case: Case, verify: bool) -> Result<Self> {
        let dense = Dense::new(group, collective, case.bytes / size_of::<T>())?;
        Ok(Self { group, name: collective.name(), case, verify, dense })
    }

    fn measure(mut self, tests: u32) -> Result<Overlapped> {
        self.call(&mut |started, _| started.wait())?;
        self.check()?;
        if !self.verify {
            self.dense.settle();
        }
        let pure = self.mean(&mut |started, _| started.wait())?;
        let lasting = Duration::from_secs_f64(pure.wait_us.max(0.0) * 1e-6 + pure.init_us * 1e-6);
        let overlapped = self.mean(&mut |started, times| {
            let begun = Instant::now();
            let in_tests = compute(lasting, tests, || started.test());
            (times.compute_us, times.test_us) =
                (microseconds(begun.elapsed() - in_tests), microseconds(in_tests));
            started.wait()
        })?;
        Ok(Overlapped { pure_us: pure.overall_us(), ..overlapped })
    }

    /// The means over the iterations.
    fn mean(&mut self, finish: Finish<'_, T>) -> Result<Overlapped> {
        let mut sum = Overlapped::default();
        self.dense.prepare();
        self.group.barrier()?;
        for iteration in 0..self.case.warmup + self.case.iterations {
            let times = self.call(finish)?;
            if self.verify {
                self.check()?;
            }
            if iteration >= self.case.warmup {
                sum.add(&times, self.case.iterations as f64);
            }
            self.dense.prepare();
            self.group.barrier()?;
        }
        Ok(sum)
    }

    /// One call: `finish` takes the started call to its end, and notes what it has done besides.
    fn call(&mut self, finish: Finish<'_, T>) -> Result<Overlapped> {
        let mut times = Overlapped::default();
        let begun = Instant::now();
        let started = self.dense.begin(self.group);
        times.init_us = microseconds(begun.elapsed());
        let ended = finish(started, &mut times);
        let all = microseconds(begun.elapsed());
        times.wait_us = all - times.init_us - times.compute_us - times.test_us;
        self.dense.end(ended)?;
        Ok(times)
    }

    fn check(&self) -> Result<()> {
        let wrong =
            |difference: super::Difference| difference.of(self.group.rank(), self.name, self.case.bytes);
        self.dense.check().map_err(wrong)
    }
}

type Finish<'a, T> = &'a mut dyn FnMut(
    Started<T>,
    &mut Overlapped,
) -> (crate::collective::Vectors<T>, brevity::collectives::Result<()>);

impl Overlapped {
    fn add(&mut self, times: &Self, iterations: f64) {
        self.init_us += times.init_us / iterations;
        self.compute_us += times.compute_us / iterations;
        self.test_us += times.test_us / iterations;
        self.wait_us += times.wait_us / iterations;
    }
}

/// Computes for so long, not counting the tests, which are spread over it. Returns the time of the tests.
fn compute(lasting: Duration, tests: u32, test: impl Fn() -> bool) -> Duration {
    let mut in_tests = Duration::ZERO;
    for _ in 0..tests {
        multiply_for(lasting / (tests + 1));
        let begun = Instant::now();
        // Whether it has ended does not matter: the wait follows in any case.
        let _ = test();
        in_tests += begun.elapsed();
    }
    multiply_for(lasting / (tests + 1));
    in_tests
}

/// Computes for so long.
pub(crate) fn multiply_for(lasting: Duration) {
    let begun = Instant::now();
    let mut product = 1.0f64;
    while begun.elapsed() < lasting {
        for _ in 0..BETWEEN_LOOKS {
            product = black_box(product * 1.000_000_1);
        }
    }
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_what_the_whole_does_not_take() {
        let times = Overlapped { pure_us: 10.0, init_us: 1.0, compute_us: 10.0, test_us: 0.5, wait_us: 1.0 };
        assert_eq!((times.overall_us(), times.overlap_percent()), (12.5, 75.0));
        assert_eq!(Overlapped { wait_us: 100.0, ..times }.overlap_percent(), 0.0);
    }

    #[test]
    fn computing_takes_its_time_with_tests_in_between() {
        let count = std::cell::Cell::new(0);
        let begun = Instant::now();
        compute(Duration::from_millis(2), 3, || count.replace(count.get() + 1) > 0);
        assert!(begun.elapsed() >= Duration::from_millis(2));
        assert_eq!(count.get(), 3);
    }

    #[test]
    fn every_collective_is_measured() {
        let group = Group::solo();
        let case = Case { bytes: 64, density: None, iterations: 3, warmup: 1 };
        for collective in crate::collective::measured() {
            for verify in [false, true] {
                let times = measure_overlap(&group, collective, Dtype::F64, case, 2, verify).unwrap();
                assert!(times.pure_us > 0.0 && times.compute_us >= times.pure_us, "{collective}: {times:?}");
            }
        }
    }
}
