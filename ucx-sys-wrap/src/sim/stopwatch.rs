//! Measuring what a simulated rank is charged for.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Measures how long this thread computes. Time in which it waits, or in which other work of the machine has
/// its processor, does not count.
///
/// ```
/// use std::{thread, time::Duration};
/// use ucx_sys_wrap::sim::Stopwatch;
///
/// let stopwatch = Stopwatch::start();
/// thread::sleep(Duration::from_millis(50));
/// assert!(stopwatch.elapsed() < Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Duration,
}

impl Stopwatch {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self { started: processor_time() }
    }

    /// How long the thread that calls this has computed since the start, which it called too.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        processor_time().saturating_sub(self.started)
    }
}

fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint;

    #[test]
    fn it_counts_computing_and_no_other_thread() {
        let stopwatch = Stopwatch::start();
        std::thread::spawn(|| {
            let other = Stopwatch::start();
            while other.elapsed() < Duration::from_millis(200) {
                hint::spin_loop();
            }
        })
        .join()
        .unwrap();
        assert!(stopwatch.elapsed() < Duration::from_millis(100), "{:?}", stopwatch.elapsed());
        let before = stopwatch.elapsed();
        while stopwatch.elapsed() < before + Duration::from_millis(20) {
            hint::spin_loop();
        }
    }
}
