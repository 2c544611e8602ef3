//! The speed of links, and faults.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Rank;

const PICOSECONDS_PER_SECOND: f64 = 1e12;
const PICOSECONDS_PER_NANOSECOND: u64 = 1000;

/// The latency and time per byte of every link, as defined in the [module](super).
#[derive(Clone, Debug)]
pub struct Links {
    uniform: Link,
    overrides: BTreeMap<(Rank, Rank), Link>,
    pub(super) header_bytes: usize,
}

/// One direction between two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    alpha: f64,
    beta: f64,
}

impl Links {
    /// Equal links of `alpha` seconds per message and `beta` seconds per byte.
    ///
    /// # Panics
    /// When one of them is negative or not finite.
    #[must_use]
    pub fn new(alpha: f64, beta: f64) -> Self {
        Self { uniform: Link::new(alpha, beta), overrides: BTreeMap::new(), header_bytes: 0 }
    }

    /// Sets the latency and time per byte between `a` and `b`, in both directions.
    ///
    /// # Panics
    /// When one of them is negative or not finite.
    #[must_use]
    pub fn with_link(mut self, a: Rank, b: Rank, alpha: f64, beta: f64) -> Self {
        let link = Link::new(alpha, beta);
        self.overrides.extend([((a, b), link), ((b, a), link)]);
        self
    }

    /// The header bytes of every message on the wire; zero by default, as in the formulas of papers.
    #[must_use]
    pub fn with_header_bytes(mut self, header_bytes: usize) -> Self {
        self.header_bytes = header_bytes;
        self
    }

    pub(super) fn between(&self, from: Rank, to: Rank) -> Link {
        self.overrides.get(&(from, to)).copied().unwrap_or(self.uniform)
    }
}

impl Link {
    fn new(alpha: f64, beta: f64) -> Self {
        let valid = |value: f64| value.is_finite() && value >= 0.0;
        assert!(valid(alpha) && valid(beta), "a link of {alpha} s a message and {beta} s a byte");
        Self { alpha, beta }
    }

    /// Picoseconds from one port to the other.
    pub(super) fn latency(self) -> u64 {
        (self.alpha * PICOSECONDS_PER_SECOND).round() as u64
    }

    /// Picoseconds for which `bytes` keep a port busy.
    pub(super) fn port_time(self, bytes: usize) -> u64 {
        (self.beta * bytes as f64 * PICOSECONDS_PER_SECOND).round() as u64
    }
}

/// A fault at a given time or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The rank dies: all its operations end with its own loss. Messages that it has posted still arrive.
    Kill {
        /// The rank that dies.
        rank: Rank,
        /// The time.
        at: Duration,
    },
    /// The rank dies when it has posted this many messages, all of which still arrive. Puts and gets are no
    /// messages.
    KillAfter {
        /// The rank that dies.
        rank: Rank,
        /// The number of its messages.
        messages: u64,
    },
    /// The rank stops, like a stopped process; messages to it wait.
    Stall {
        /// The rank that stops.
        rank: Rank,
        /// The start.
        at: Duration,
        /// The duration.
        lasting: Duration,
    },
    /// The link is cut in both directions for good: messages whose first byte has not arrived are lost
    /// silently.
    Cut {
        /// One end.
        a: Rank,
        /// The other end.
        b: Rank,
        /// The time.
        at: Duration,
    },
}

impl Fault {
    /// `count` random faults before `before`, determined by the seed. None if there are fewer than two ranks.
    #[must_use]
    pub fn random(seed: u64, world_size: u32, count: usize, before: Duration) -> Vec<Self> {
        let mut state = seed;
        let mut below = |bound: u64| splitmix(&mut state) % bound.max(1);
        let count = if world_size < 2 { 0 } else { count };
        let fault = |_| {
            let rank = Rank(below(world_size.into()) as u32);
            let at = Duration::from_nanos(below(before.as_nanos() as u64));
            match below(3) {
                0 => Self::Kill { rank, at },
                1 => Self::Stall { rank, at, lasting: Duration::from_nanos(below(before.as_nanos() as u64)) },
                _ => {
                    let distance = 1 + below(u64::from(world_size) - 1) as u32;
                    Self::Cut { a: rank, b: Rank((rank.0 + distance) % world_size), at }
                }
            }
        };
        (0..count).map(fault).collect()
    }

    /// The time in picoseconds, if it is known before.
    pub(super) fn time(&self) -> Option<u64> {
        match self {
            Self::Kill { at, .. } | Self::Stall { at, .. } | Self::Cut { at, .. } => Some(picoseconds(*at)),
            Self::KillAfter { .. } => None,
        }
    }

    /// The ranks that it names.
    pub(super) fn ranks(&self) -> [Rank; 2] {
        match *self {
            Self::Kill { rank, .. } | Self::KillAfter { rank, .. } | Self::Stall { rank, .. } => [rank; 2],
            Self::Cut { a, b, .. } => [a, b],
        }
    }
}

pub(super) fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(PICOSECONDS_PER_NANOSECOND)
}

pub(super) fn duration(picoseconds: u64) -> Duration {
    Duration::from_nanos(picoseconds / PICOSECONDS_PER_NANOSECOND)
}

/// SplitMix64 of Steele, Lea and Flood (OOPSLA 2014). Any seed will do.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_holds_both_ways_and_nowhere_else() {
        let links = Links::new(1e-6, 1e-9).with_link(Rank(0), Rank(2), 5e-6, 2e-9);
        for (from, to, latency, time) in [(0, 2, 5, 2000), (2, 0, 5, 2000), (0, 1, 1, 1000), (2, 1, 1, 1000)]
        {
            let link = links.between(Rank(from), Rank(to));
            assert_eq!((link.latency(), link.port_time(1)), (latency * 1_000_000, time));
        }
    }

    #[test]
    fn random_faults_are_the_same_for_the_same_seed_and_name_ranks_of_the_world() {
        let before = Duration::from_secs(1);
        let faults = Fault::random(7, 3, 200, before);
        assert_eq!(faults, Fault::random(7, 3, 200, before));
        assert_ne!(faults, Fault::random(8, 3, 200, before));
        for fault in faults {
            assert!(fault.time().unwrap() < picoseconds(before));
            let [a, b] = fault.ranks();
            assert!(a.0 < 3 && b.0 < 3 && (a != b || !matches!(fault, Fault::Cut { .. })));
        }
    }
}
