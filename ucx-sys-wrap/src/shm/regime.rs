//! Whether lines that another processor has are slow to get, and what goes round them is faster.
//!
//! A line that another processor has read costs an ordinary store some nanoseconds, or, on some machines and
//! for minutes at a time, some tens of them: there stores past the caches are faster, though whoever reads
//! must then go to memory. Nobody can tell in advance, so this measures, each rank for itself: the order of
//! bytes does not depend on it.
//!
//! A write is slow as well while what it reads lies in no cache, as after a pause: then it is no faster past
//! them. So a few writes past the caches are timed before more follow.

use std::time::{Duration, Instant};

use super::area::LINE_BYTES;

/// Writes of fewer bytes say nothing.
const TELLING_BYTES: usize = 16 << 10;

/// Ordinary stores are slow when a line costs this many picoseconds. Measured: 2,700 to 4,000 in one regime,
/// 28,000 in the other.
const SLOW_PICOSECONDS: u128 = 12_000;

/// So many slow writes in a row are no accident, as losing the processor meanwhile is.
const SLOW_WRITES: u32 = 3;

/// So many writes past the caches are timed.
const TRIALS: u32 = 4;

/// After so many writes past the caches, ordinary ones get another chance.
const PATIENCE: u32 = 1000;

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Regime {
    slow_writes: u32,
    /// The least price of a line in the slow writes in a row, in picoseconds.
    slow_price: u128,
    /// Writes past the caches that are left before ordinary ones are measured again; 0 while they are.
    streams_left: u32,
    /// Those of them that are timed yet, and the least price of a line in those that were.
    trials_left: u32,
    trial_price: u128,
}

impl Regime {
    /// Whether to write past the caches.
    #[inline]
    pub(super) fn is_slow(&self) -> bool {
        self.streams_left > 0
    }

    /// Has `write` write `bytes` bytes, and learns from how long it takes.
    #[inline]
    pub(super) fn time(&mut self, bytes: usize, write: impl FnOnce(bool)) {
        if bytes < TELLING_BYTES {
            write(self.is_slow());
        } else if self.is_slow() && self.trials_left == 0 {
            write(true);
            self.has_streamed();
        } else {
            let start = Instant::now();
            write(self.is_slow());
            let price = price_of_a_line(bytes, start.elapsed());
            if self.is_slow() {
                self.has_tried(price);
            } else {
                self.has_stored(price);
            }
        }
    }

    fn has_streamed(&mut self) {
        self.streams_left -= 1;
        if self.streams_left == 0 {
            // One slow write is enough to come back here.
            self.slow_writes = SLOW_WRITES - 1;
            self.slow_price = u128::MAX;
        }
    }

    /// A write past the caches was timed: it must be twice as fast as the slow ones before it.
    fn has_tried(&mut self, price: u128) {
        self.trial_price = self.trial_price.min(price);
        self.trials_left -= 1;
        self.streams_left -= 1;
        if self.trials_left == 0 && 2 * self.trial_price > self.slow_price {
            self.streams_left = 0;
        }
    }

    fn has_stored(&mut self, price: u128) {
        if price < SLOW_PICOSECONDS {
            self.slow_writes = 0;
            return;
        }
        self.slow_price = if self.slow_writes == 0 { price } else { self.slow_price.min(price) };
        self.slow_writes += 1;
        if self.slow_writes >= SLOW_WRITES {
            self.slow_writes = 0;
            self.streams_left = PATIENCE;
            (self.trials_left, self.trial_price) = (TRIALS, u128::MAX);
            tracing::debug!(price, "lines of another processor are slow: trying to go round them");
        }
    }
}

/// Picoseconds for each line of so many bytes.
fn price_of_a_line(bytes: usize, took: Duration) -> u128 {
    took.as_nanos() * 1000 / bytes.div_ceil(LINE_BYTES) as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;
    const FAST: u128 = 3_000;
    const SLOW: u128 = 28_000;

    fn store(regime: &mut Regime, prices: &[u128]) {
        for price in prices {
            assert!(!regime.is_slow());
            regime.has_stored(*price);
        }
    }

    fn try_all(regime: &mut Regime, price: u128) {
        for _ in 0..TRIALS {
            assert!(regime.is_slow());
            regime.has_tried(price);
        }
    }

    #[test]
    fn one_slow_write_is_an_accident_and_three_are_a_regime() {
        let mut regime = Regime::default();
        store(&mut regime, &[SLOW, SLOW, FAST, SLOW, SLOW, SLOW]);
        try_all(&mut regime, FAST);
        assert!(regime.is_slow());
    }

    /// What is read first lies in no cache, on either way.
    #[test]
    fn what_is_slow_past_the_caches_too_is_no_regime() {
        let mut regime = Regime::default();
        store(&mut regime, &[SLOW; 3]);
        try_all(&mut regime, SLOW / 2 + 1);
        store(&mut regime, &[SLOW, SLOW, FAST, SLOW, SLOW, SLOW]);
        assert!(regime.is_slow(), "it is tried again");
    }

    #[test]
    fn ordinary_stores_get_another_chance() {
        let mut regime = Regime::default();
        store(&mut regime, &[SLOW; 3]);
        try_all(&mut regime, FAST);
        for _ in TRIALS..PATIENCE {
            assert!(regime.is_slow());
            regime.time(BYTES, |streams| assert!(streams));
        }
        store(&mut regime, &[SLOW]);
        assert!(regime.is_slow(), "still slow");
        try_all(&mut regime, FAST);
        (TRIALS..PATIENCE).for_each(|_| regime.has_streamed());
        store(&mut regime, &[FAST, SLOW]);
        assert!(!regime.is_slow(), "fast again");
    }

    #[test]
    fn short_writes_do_not_count() {
        let mut regime = Regime::default();
        for _ in 0..10 {
            regime.time(TELLING_BYTES - 1, |_| std::thread::sleep(Duration::from_micros(50)));
        }
        assert!(!regime.is_slow());
    }

    #[test]
    fn a_price_is_for_a_line() {
        assert_eq!(price_of_a_line(BYTES, Duration::from_micros(3)), 3_000_000 / 1024);
    }
}
