//! The store policy: whether bulk writes go past the caches.
//!
//! A cache line that another processor has read costs an ordinary store some nanoseconds or, on some machines
//! and for minutes at a time, some tens of them. Then stores past the caches are faster, although the reader
//! must go to memory. This can't be known in advance, so each writer measures.
//!
//! A write is also slow when its source is in no cache, and then storing past the caches does not help. So a
//! few writes past the caches are timed before the policy decides. The first pass over the memory is not
//! timed, as its pages do not exist yet; nor is the first pass after stores past the caches, which leave its
//! lines in memory.

use std::time::{Duration, Instant};

use crate::told::later;

use super::area::LINE_BYTES;

/// Shorter writes are not timed.
pub(crate) const MIN_TIMED_BYTES: usize = 8 << 10;

/// Ordinary stores are slow when a line takes longer than this.
const SLOW_PICOSECONDS: u64 = 12_000;

/// Writes that are timed before a decision. The fastest counts: a writer may lose its processor meanwhile.
const TIMED_WRITES: u32 = 4;

/// Writes for which a decision holds.
const DECIDED_WRITES: u32 = 1000;

/// Chooses the kind of stores by the time that writes took.
#[derive(Debug)]
pub(crate) struct StorePolicy {
    /// Bytes that are written before any line is written again.
    cycle_bytes: usize,
    /// Bytes of ordinary stores that are not to be timed.
    untimed_bytes: usize,
    phase: Phase,
    writes_left: u32,
    /// The shortest time for a line in this phase, in picoseconds.
    line_time: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ordinary stores are timed.
    Storing,
    /// Stores past the caches are timed; ordinary ones took `stored` for a line.
    Streaming {
        stored: u64,
    },
    Decided {
        streams: bool,
    },
}

impl StorePolicy {
    /// For writes that cycle through so many bytes.
    pub(crate) fn new(cycle_bytes: usize) -> Self {
        Self {
            cycle_bytes,
            untimed_bytes: cycle_bytes,
            phase: Phase::Storing,
            writes_left: TIMED_WRITES,
            line_time: u64::MAX,
        }
    }

    /// As if stores past the caches had just been found faster.
    #[cfg(test)]
    pub(crate) fn slow() -> Self {
        let phase = Phase::Decided { streams: true };
        Self { phase, writes_left: DECIDED_WRITES, ..Self::new(0) }
    }

    /// Whether to write past the caches.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.phase, Phase::Streaming { .. } | Phase::Decided { streams: true })
    }

    /// Runs `write`, which writes `bytes` bytes, past the caches if its argument says so, and learns from the
    /// time it takes.
    #[inline]
    pub(crate) fn write_timed(&mut self, bytes: usize, write: impl FnOnce(bool)) {
        let streams = self.is_slow();
        if !streams && self.untimed_bytes > 0 {
            self.untimed_bytes = self.untimed_bytes.saturating_sub(bytes);
            write(false);
        } else if bytes < MIN_TIMED_BYTES {
            write(streams);
        } else if matches!(self.phase, Phase::Decided { .. }) {
            write(streams);
            self.count();
        } else {
            let start = Instant::now();
            write(streams);
            self.learn(time_per_line(bytes, start.elapsed()));
        }
    }

    fn learn(&mut self, line_time: u64) {
        self.line_time = self.line_time.min(line_time);
        self.count();
    }

    /// Counts a write of this phase.
    fn count(&mut self) {
        self.writes_left -= 1;
        if self.writes_left > 0 {
            return;
        }
        let line_time = std::mem::replace(&mut self.line_time, u64::MAX);
        let (phase, writes) = match self.phase {
            Phase::Storing if line_time > SLOW_PICOSECONDS => {
                later!(DEBUG, line_time, "stores are slow: trying stores past the caches");
                (Phase::Streaming { stored: line_time }, TIMED_WRITES)
            }
            Phase::Storing => (Phase::Decided { streams: false }, DECIDED_WRITES),
            Phase::Streaming { stored } => {
                (Phase::Decided { streams: line_time <= stored / 2 }, DECIDED_WRITES)
            }
            Phase::Decided { streams } => {
                self.untimed_bytes = if streams { self.cycle_bytes } else { 0 };
                (Phase::Storing, TIMED_WRITES)
            }
        };
        (self.phase, self.writes_left) = (phase, writes);
    }
}

fn time_per_line(bytes: usize, took: Duration) -> u64 {
    u64::try_from(took.as_nanos() * 1000 / bytes.div_ceil(LINE_BYTES) as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: usize = 4 * MIN_TIMED_BYTES;
    const FAST: u64 = 3_000;
    const SLOW: u64 = 28_000;

    /// Writes all of the memory once, untimed.
    fn cycle(store_policy: &mut StorePolicy) {
        for _ in 0..4 {
            assert!(!store_policy.is_slow());
            store_policy.write_timed(MIN_TIMED_BYTES, |streams| assert!(!streams));
        }
        assert_eq!(
            (store_policy.phase, store_policy.writes_left, store_policy.line_time),
            (Phase::Storing, TIMED_WRITES, u64::MAX)
        );
    }

    fn learn(store_policy: &mut StorePolicy, prices: [u64; 4], are_streams: bool) {
        for line_time in prices {
            assert_eq!(store_policy.is_slow(), are_streams);
            store_policy.learn(line_time);
        }
    }

    fn write_as_decided(store_policy: &mut StorePolicy, expected: bool) {
        assert_eq!(store_policy.phase, Phase::Decided { streams: expected });
        for _ in 0..DECIDED_WRITES {
            store_policy.write_timed(MIN_TIMED_BYTES, |streams| assert_eq!(streams, expected));
        }
        assert_eq!(store_policy.phase, Phase::Storing);
    }

    #[test]
    fn the_fastest_timed_write_counts() {
        let mut store_policy = StorePolicy::new(ROUND);
        cycle(&mut store_policy);
        learn(&mut store_policy, [SLOW, SLOW, FAST, SLOW], false);
        write_as_decided(&mut store_policy, false);
        assert_eq!(store_policy.untimed_bytes, 0, "no line went to memory");
        learn(&mut store_policy, [SLOW; 4], false);
        learn(&mut store_policy, [FAST, SLOW, SLOW, SLOW], true);
        assert!(store_policy.is_slow());
    }

    /// A source that is in no cache makes both kinds of stores slow.
    #[test]
    fn stores_past_the_caches_must_be_faster() {
        let mut store_policy = StorePolicy::new(ROUND);
        cycle(&mut store_policy);
        learn(&mut store_policy, [SLOW; 4], false);
        learn(&mut store_policy, [SLOW / 2 + 1; 4], true);
        write_as_decided(&mut store_policy, false);
    }

    #[test]
    fn ordinary_stores_are_tried_again() {
        let mut store_policy = StorePolicy::slow();
        store_policy.cycle_bytes = ROUND;
        write_as_decided(&mut store_policy, true);
        cycle(&mut store_policy);
        learn(&mut store_policy, [SLOW; 4], false);
        learn(&mut store_policy, [FAST; 4], true);
        write_as_decided(&mut store_policy, true);
        cycle(&mut store_policy);
        learn(&mut store_policy, [FAST; 4], false);
        assert!(!store_policy.is_slow(), "fast again");
    }

    #[test]
    fn short_writes_are_not_timed() {
        let mut store_policy = StorePolicy::new(0);
        (0..10).for_each(|_| store_policy.write_timed(MIN_TIMED_BYTES - 1, |streams| assert!(!streams)));
        assert_eq!((store_policy.writes_left, store_policy.line_time), (TIMED_WRITES, u64::MAX));
    }

    #[test]
    fn the_time_is_per_line() {
        assert_eq!(time_per_line(64 << 10, Duration::from_micros(3)), 3_000_000 / 1024);
        assert_eq!(time_per_line(64, Duration::MAX), u64::MAX);
    }
}
