//! Detects the regime of the processor's caches.
//!
//! A store to a line that another core has read must first take the line back. On some machines that costs
//! several times more for minutes at a time, as does everything that uses shared memory. Figures from two
//! regimes must not be compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::processor;
use crate::statistics::median;

/// Lines that one round stores to: more than a store buffer holds, less than a cache.
const LINES: usize = 2048;
const ROUNDS: u64 = 9;

/// Two figures that differ by more than this factor belong to two regimes.
const CHANGE: f64 = 1.7;

#[repr(align(64))]
struct CacheLine(AtomicU64);

/// Nanoseconds of a store to a line that another core has just read: the median of some rounds. Takes about a
/// millisecond and needs two processors.
#[must_use]
pub fn dirty_store_nanoseconds() -> f64 {
    let lines: Vec<CacheLine> = (0..LINES).map(|_| CacheLine(AtomicU64::new(0))).collect();
    let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            processor::pin(1);
            for round in 1..=ROUNDS {
                await_round(&written, round);
                let sum: u64 = lines.iter().map(|line| line.0.load(Ordering::Relaxed)).sum();
                // The sum is used, so that the reads are not optimised away.
                read.store(round.max(u64::from(sum == u64::MAX)), Ordering::Release);
            }
        });
        let writer = scope.spawn(|| {
            processor::pin(0);
            let mut times = Vec::new();
            for round in 1..=ROUNDS {
                let start = Instant::now();
                lines.iter().for_each(|line| line.0.store(round, Ordering::Relaxed));
                times.push(start.elapsed().as_secs_f64() * 1e9 / LINES as f64);
                written.store(round, Ordering::Release);
                await_round(&read, round);
            }
            times
        });
        // No core had read the lines before the first round.
        writer.join().map_or(0.0, |times| median(&times[1..]))
    })
}

fn await_round(flag: &AtomicU64, round: u64) {
    let mut looks = 0u32;
    while flag.load(Ordering::Acquire) < round {
        looks += 1;
        if looks.is_multiple_of(1000) {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Whether two figures of [`dirty_store_nanoseconds`] belong to two regimes.
#[must_use]
pub fn has_changed(before: f64, after: f64) -> bool {
    before.max(after) > CHANGE * before.min(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_ends_with_a_time() {
        let cost = dirty_store_nanoseconds();
        assert!(cost > 0.0 && cost.is_finite());
    }

    #[test]
    fn a_change_has_no_direction() {
        assert!(has_changed(6.5, 28.0) && has_changed(28.0, 6.5));
        assert!(!has_changed(6.5, 8.0) && !has_changed(8.0, 6.5) && !has_changed(5.0, 5.0));
    }
}
