//! Whether lines that another processor has are slow to get, and what goes round them is faster.
//!
//! A line that another processor has read costs an ordinary store some nanoseconds, or, on some machines and
//! for minutes at a time, some tens of them: there stores past the caches are faster, though whoever reads
//! must then go to memory. Nobody can tell in advance, so this measures, each writer for itself: the order of
//! bytes does not depend on it.
//!
//! A write is slow as well while what it reads lies in no cache: then it is no faster past them. So a few
//! writes past the caches are timed before more follow. The first way round the memory says nothing, as its
//! pages are not there yet; nor does the first after stores past the caches, which leave its lines in memory.

use std::time::{Duration, Instant};

use crate::told::later;

use super::area::LINE_BYTES;

/// Writes of fewer bytes say nothing.
pub(crate) const TELLING_BYTES: usize = 8 << 10;

/// Ordinary stores are slow when a line costs more than so many picoseconds.
const SLOW_PICOSECONDS: u64 = 12_000;

/// Writes that are timed before a decision. The fastest counts: a writer may lose its processor meanwhile.
const TIMED_WRITES: u32 = 4;

/// Writes for which a decision holds.
const DECIDED_WRITES: u32 = 1000;

/// How writes go, by what was measured so far.
#[derive(Debug)]
pub(crate) struct Regime {
    /// Bytes that are written before any line is written again.
    round_bytes: usize,
    /// Bytes of ordinary stores that say nothing yet.
    untold_bytes: usize,
    phase: Phase,
    /// Writes until the next phase.
    writes_left: u32,
    /// The least price of a line in the writes that were timed in this phase, in picoseconds.
    price: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ordinary stores are timed.
    Storing,
    /// Stores past the caches are timed, after ordinary ones have cost this for a line.
    Streaming {
        stored: u64,
    },
    Decided {
        streams: bool,
    },
}

impl Regime {
    /// For writes that go round and round in so many bytes.
    pub(crate) fn new(round_bytes: usize) -> Self {
        Self {
            round_bytes,
            untold_bytes: round_bytes,
            phase: Phase::Storing,
            writes_left: TIMED_WRITES,
            price: u64::MAX,
        }
    }

    /// As if stores past the caches had just been found to be faster.
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

    /// Has `write` write `bytes` bytes, past the caches or not, and learns from how long it takes.
    #[inline]
    pub(crate) fn time(&mut self, bytes: usize, write: impl FnOnce(bool)) {
        let streams = self.is_slow();
        if !streams && self.untold_bytes > 0 {
            self.untold_bytes = self.untold_bytes.saturating_sub(bytes);
            write(false);
        } else if bytes < TELLING_BYTES {
            write(streams);
        } else if matches!(self.phase, Phase::Decided { .. }) {
            write(streams);
            self.count();
        } else {
            let start = Instant::now();
            write(streams);
            self.learn(price_of_a_line(bytes, start.elapsed()));
        }
    }

    /// A write was timed.
    fn learn(&mut self, price: u64) {
        self.price = self.price.min(price);
        self.count();
    }

    /// A write that tells something is done.
    fn count(&mut self) {
        self.writes_left -= 1;
        if self.writes_left > 0 {
            return;
        }
        let price = std::mem::replace(&mut self.price, u64::MAX);
        let (phase, writes) = match self.phase {
            Phase::Storing if price > SLOW_PICOSECONDS => {
                later!(DEBUG, price, "lines of another processor are slow: trying to go round them");
                (Phase::Streaming { stored: price }, TIMED_WRITES)
            }
            Phase::Storing => (Phase::Decided { streams: false }, DECIDED_WRITES),
            Phase::Streaming { stored } => (Phase::Decided { streams: price <= stored / 2 }, DECIDED_WRITES),
            Phase::Decided { streams } => {
                self.untold_bytes = if streams { self.round_bytes } else { 0 };
                (Phase::Storing, TIMED_WRITES)
            }
        };
        (self.phase, self.writes_left) = (phase, writes);
    }
}

/// Picoseconds for each line of so many bytes.
fn price_of_a_line(bytes: usize, took: Duration) -> u64 {
    u64::try_from(took.as_nanos() * 1000 / bytes.div_ceil(LINE_BYTES) as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: usize = 4 * TELLING_BYTES;
    const FAST: u64 = 3_000;
    const SLOW: u64 = 28_000;

    /// Writes once round the memory, which says nothing.
    fn go_round(regime: &mut Regime) {
        for _ in 0..4 {
            assert!(!regime.is_slow());
            regime.time(TELLING_BYTES, |streams| assert!(!streams));
        }
        assert_eq!(
            (regime.phase, regime.writes_left, regime.price),
            (Phase::Storing, TIMED_WRITES, u64::MAX)
        );
    }

    fn learn(regime: &mut Regime, prices: [u64; 4], are_streams: bool) {
        for price in prices {
            assert_eq!(regime.is_slow(), are_streams);
            regime.learn(price);
        }
    }

    fn write_as_decided(regime: &mut Regime, expected: bool) {
        assert_eq!(regime.phase, Phase::Decided { streams: expected });
        for _ in 0..DECIDED_WRITES {
            regime.time(TELLING_BYTES, |streams| assert_eq!(streams, expected));
        }
        assert_eq!(regime.phase, Phase::Storing);
    }

    #[test]
    fn one_fast_write_of_those_that_are_timed_is_enough() {
        let mut regime = Regime::new(ROUND);
        go_round(&mut regime);
        learn(&mut regime, [SLOW, SLOW, FAST, SLOW], false);
        write_as_decided(&mut regime, false);
        assert_eq!(regime.untold_bytes, 0, "no line went to memory");
        learn(&mut regime, [SLOW; 4], false);
        learn(&mut regime, [FAST, SLOW, SLOW, SLOW], true);
        assert!(regime.is_slow());
    }

    /// What is read first lies in no cache, on either way.
    #[test]
    fn what_is_slow_past_the_caches_too_is_no_regime() {
        let mut regime = Regime::new(ROUND);
        go_round(&mut regime);
        learn(&mut regime, [SLOW; 4], false);
        learn(&mut regime, [SLOW / 2 + 1; 4], true);
        write_as_decided(&mut regime, false);
    }

    #[test]
    fn ordinary_stores_get_another_chance() {
        let mut regime = Regime::slow();
        regime.round_bytes = ROUND;
        write_as_decided(&mut regime, true);
        go_round(&mut regime);
        learn(&mut regime, [SLOW; 4], false);
        learn(&mut regime, [FAST; 4], true);
        write_as_decided(&mut regime, true);
        go_round(&mut regime);
        learn(&mut regime, [FAST; 4], false);
        assert!(!regime.is_slow(), "fast again");
    }

    #[test]
    fn short_writes_do_not_count() {
        let mut regime = Regime::new(0);
        (0..10).for_each(|_| regime.time(TELLING_BYTES - 1, |streams| assert!(!streams)));
        assert_eq!((regime.writes_left, regime.price), (TIMED_WRITES, u64::MAX));
    }

    #[test]
    fn a_price_is_for_a_line() {
        assert_eq!(price_of_a_line(64 << 10, Duration::from_micros(3)), 3_000_000 / 1024);
        assert_eq!(price_of_a_line(64, Duration::MAX), u64::MAX);
    }
}
