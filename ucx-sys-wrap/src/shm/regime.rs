//! Whether stores into slots go through the caches or past them.
//!
//! A line that another processor has read costs an ordinary store some nanoseconds, or, on some machines and for minutes
//! at a time, some tens of them: there stores past the caches are faster, though whoever reads must then go to memory.
//! Nobody can tell in advance, so this measures, each rank for itself: the order of bytes does not depend on it.

use std::time::{Duration, Instant};

use super::area::LINE_BYTES;

/// Writes of fewer bytes say nothing.
const TELLING_BYTES: usize = 16 << 10;

/// Ordinary stores are slow when a line costs this many picoseconds. Measured: 2,700 to 4,000 in one regime, 28,000 in
/// the other.
const SLOW_PICOSECONDS: u128 = 12_000;

/// So many slow writes in a row are no accident, as losing the processor meanwhile is.
const SLOW_WRITES: u32 = 3;

/// After so many writes past the caches, ordinary ones get another chance.
const PATIENCE: u32 = 1000;

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct Regime {
    slow_writes: u32,
    /// Writes past the caches that are left before ordinary ones are measured again; 0 while they are.
    streams_left: u32,
}

impl Regime {
    /// Whether to write past the caches.
    #[inline]
    pub(super) fn streams(&self) -> bool {
        self.streams_left > 0
    }

    /// Has `write` write `bytes` bytes, and learns from how long it takes.
    #[inline]
    pub(super) fn time(&mut self, bytes: usize, write: impl FnOnce(bool)) {
        if bytes < TELLING_BYTES {
            write(self.streams());
        } else if self.streams() {
            write(true);
            self.has_streamed();
        } else {
            let start = Instant::now();
            write(false);
            self.has_stored(bytes, start.elapsed());
        }
    }

    fn has_streamed(&mut self) {
        self.streams_left -= 1;
        if self.streams_left == 0 {
            // One slow write is enough to come back here.
            self.slow_writes = SLOW_WRITES - 1;
        }
    }

    fn has_stored(&mut self, bytes: usize, took: Duration) {
        let lines = bytes.div_ceil(LINE_BYTES) as u128;
        if took.as_nanos() * 1000 < lines * SLOW_PICOSECONDS {
            self.slow_writes = 0;
            return;
        }
        self.slow_writes += 1;
        if self.slow_writes >= SLOW_WRITES {
            self.slow_writes = 0;
            self.streams_left = PATIENCE;
            tracing::debug!(?took, bytes, "stores into shared memory are slow: going past the caches");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 << 10;
    const FAST: Duration = Duration::from_micros(3);
    const SLOW: Duration = Duration::from_micros(29);

    #[test]
    fn one_slow_write_is_an_accident_and_three_are_a_regime() {
        let mut regime = Regime::default();
        for took in [SLOW, SLOW, FAST, SLOW, SLOW] {
            regime.has_stored(BYTES, took);
            assert!(!regime.streams());
        }
        regime.has_stored(BYTES, SLOW);
        assert!(regime.streams());
    }

    #[test]
    fn ordinary_stores_get_another_chance() {
        let mut regime = Regime { slow_writes: 0, streams_left: PATIENCE };
        for _ in 0..PATIENCE {
            assert!(regime.streams());
            regime.time(BYTES, |streams| assert!(streams));
        }
        assert!(!regime.streams());
        regime.has_stored(BYTES, SLOW);
        assert!(regime.streams(), "still slow");
        regime.streams_left = 1;
        regime.has_streamed();
        regime.has_stored(BYTES, FAST);
        regime.has_stored(BYTES, SLOW);
        assert!(!regime.streams(), "fast again");
    }

    #[test]
    fn short_writes_do_not_count() {
        let mut regime = Regime::default();
        for _ in 0..10 {
            regime.time(TELLING_BYTES - 1, |_| std::thread::sleep(Duration::from_micros(50)));
        }
        assert!(!regime.streams());
    }
}
