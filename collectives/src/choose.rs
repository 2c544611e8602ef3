//! The cost model, and the choice between messages and shared memory.

use brevity_compress::in_standard_float_mode;

use crate::pattern::doubling_rounds;

/// The latency and inverse bandwidth of the network, equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte.
    pub beta: f64,
}

/// Roughly loopback sockets on one host.
impl Default for Cost {
    fn default() -> Self {
        Self { alpha: 20e-6, beta: 0.5e-9 }
    }
}

/// Seconds to see what a rank of the same host has published, and per byte to read it, for cores that share
/// no cache.
const SLOTS_ALPHA: f64 = 0.1e-6;
const SLOTS_BETA: f64 = 0.12e-9;

/// Choices are computed in the standard floating-point mode, so that all ranks choose alike.
impl Cost {
    /// Whether an all-reduce over shared memory is faster than by messages among ranks of one host. The same
    /// holds for the other collectives on dense vectors.
    #[must_use]
    pub fn prefers_slots(&self, world_size: u32, bytes: usize) -> bool {
        in_standard_float_mode(|| {
            let by_messages =
                self.ring_all_reduce(world_size, bytes).min(self.recursive_doubling(world_size, bytes));
            Self::slots_all_reduce(world_size, bytes) < by_messages
        })
    }

    /// Whether [`prefers_slots`](Self::prefers_slots) holds for every length.
    #[must_use]
    pub fn always_prefers_slots(&self, world_size: u32) -> bool {
        // The costs are linear in the length, so the shortest and the longest decide.
        in_standard_float_mode(|| {
            let slope = |of: &dyn Fn(usize) -> f64| of(1 << 40) - of(0);
            let slots = slope(&|bytes| Self::slots_all_reduce(world_size, bytes));
            let ring = slope(&|bytes| self.ring_all_reduce(world_size, bytes));
            let doubling = slope(&|bytes| self.recursive_doubling(world_size, bytes));
            self.prefers_slots(world_size, 0) && slots <= ring.min(doubling)
        })
    }

    /// Seconds of an all-reduce over slots: each rank waits for all others and reads their slices.
    #[must_use]
    pub fn slots_all_reduce(world_size: u32, bytes: usize) -> f64 {
        let others = f64::from(world_size.saturating_sub(1));
        others * (SLOTS_ALPHA + 2.0 * SLOTS_BETA * bytes as f64 / f64::from(world_size.max(1)))
    }

    /// Seconds of a ring all-reduce.
    #[must_use]
    pub fn ring_all_reduce(&self, world_size: u32, bytes: usize) -> f64 {
        let steps = f64::from(world_size.saturating_sub(1));
        2.0 * steps * (self.alpha + self.beta * bytes as f64 / f64::from(world_size.max(1)))
    }

    /// Seconds of a recursive doubling.
    #[must_use]
    pub fn recursive_doubling(&self, world_size: u32, bytes: usize) -> f64 {
        let extra = if world_size.is_power_of_two() { 0 } else { 1 };
        f64::from(doubling_rounds(world_size) + extra) * (self.alpha + self.beta * bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_use_their_memory() {
        for bytes in [0, 8, 1 << 20, 1 << 30] {
            assert!(Cost::default().prefers_slots(2, bytes) && Cost::default().prefers_slots(8, bytes));
        }
        assert!((2..100).all(|world_size| Cost::default().always_prefers_slots(world_size)));
        assert!(!Cost { alpha: 1e-3, beta: 1e-12 }.always_prefers_slots(4), "long vectors go by messages");
        assert!(!Cost { alpha: 1e-9, beta: 1.0 }.always_prefers_slots(4), "short ones do");
        assert!(!Cost::default().prefers_slots(1, 8), "there is nobody to share with");
        assert!(!Cost { alpha: 1e-9, beta: 0.0 }.prefers_slots(4, 8), "messages that cost nothing");
    }

    #[test]
    fn formulas_of_the_papers() {
        let cost = Cost { alpha: 1.0, beta: 1.0 };
        assert_eq!(cost.ring_all_reduce(4, 8), 2.0 * 3.0 + 2.0 * 3.0 / 4.0 * 8.0);
        assert_eq!(cost.recursive_doubling(8, 5), 3.0 * 6.0);
        assert_eq!(cost.recursive_doubling(5, 0), 4.0);
    }
}
