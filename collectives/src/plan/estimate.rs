//! Estimates of what algorithms take.

use super::Ground;
use crate::sparse::Wire;

/// An entry that is encoded, or decoded, costs about as much as so many bytes of a dense sum.
const ENCODED_BYTES: f64 = 12.0;
const DECODED_BYTES: f64 = 9.0;

/// What an algorithm is estimated to take, if all ranks begin at once and nothing else uses the network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Messages that wait for each other, of one segment of the vector.
    pub rounds: u32,
    /// Bytes that the rank which sends the most sends.
    pub bytes: f64,
    /// Seconds until the last rank has its result.
    pub seconds: f64,
    /// Seconds for which the busiest rank's port is in use.
    pub port: f64,
    /// Seconds for which the busiest rank's processor works.
    pub processor: f64,
}

/// The segments that are on their way at once.
const AT_ONCE: f64 = crate::lanes::IN_FLIGHT as f64;

impl Estimate {
    /// Likewise, `rounds` times one after the other.
    #[must_use]
    pub(crate) fn times(self, rounds: u32) -> Self {
        let count = f64::from(rounds);
        Self {
            rounds: self.rounds * rounds,
            bytes: self.bytes * count,
            seconds: self.seconds * count,
            port: self.port * count,
            processor: self.processor * count,
        }
    }

    /// This, and then another.
    #[must_use]
    pub(crate) fn then(self, next: Self) -> Self {
        Self {
            rounds: self.rounds + next.rounds,
            bytes: self.bytes + next.bytes,
            seconds: self.seconds + next.seconds,
            port: self.port + next.port,
            processor: self.processor + next.processor,
        }
    }

    /// With so many seconds of computing between messages.
    #[must_use]
    pub(crate) fn computing(self, seconds: f64) -> Self {
        Self { seconds: self.seconds + seconds, processor: self.processor + seconds, ..self }
    }

    /// A vector of `bytes` in segments of at most `segment`, of which a few are on their way at once: all but
    /// the last take the time of the busiest resource, or their share of the time that one takes alone.
    pub(crate) fn in_segments(bytes: f64, segment: f64, of: impl Fn(f64) -> Self) -> Self {
        if bytes <= segment || segment <= 0.0 {
            return of(bytes);
        }
        let count = (bytes / segment).ceil();
        let (whole, last) = (of(segment), of(bytes - (count - 1.0) * segment));
        let each = whole.port.max(whole.processor).max(whole.seconds / AT_ONCE);
        let before = (count - 1.0) * each + last.seconds;
        Self {
            rounds: whole.rounds,
            bytes: (count - 1.0) * whole.bytes + last.bytes,
            seconds: before.max((count - 2.0) * each + whole.seconds),
            port: (count - 1.0) * whole.port + last.port,
            processor: (count - 1.0) * whole.processor + last.processor,
        }
    }
}

/// How a vector is cut into blocks of whole cache lines, one for each of some ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Bytes of the first block, which is the longest.
    pub(crate) block: f64,
    /// Blocks that are not empty.
    pub(crate) blocks: f64,
}

impl Cut {
    /// `bytes` for so many ranks.
    pub(crate) fn new(bytes: f64, ranks: f64) -> Self {
        const LINE: f64 = 64.0;
        let block = ((bytes / ranks / LINE).ceil() * LINE).min(bytes);
        Self { block, blocks: if block > 0.0 { (bytes / block).ceil() } else { 0.0 } }
    }
}

impl Ground {
    /// Several messages at once, of `bytes` in all, which the busiest rank sends or receives.
    pub(crate) fn messages(&self, count: f64, bytes: f64) -> Estimate {
        let link = self.link();
        let (port, processor) = (bytes * link.beta, count * link.overhead);
        let seconds = link.alpha + (processor - link.overhead).max(0.0) + port;
        Estimate { rounds: 1, bytes, seconds, port, processor }
    }

    /// A message of so many bytes.
    pub(crate) fn message(&self, bytes: f64) -> Estimate {
        self.messages(1.0, bytes)
    }

    /// A message of so many bytes to each of the other ranks, and from each of them.
    pub(crate) fn burst(&self, bytes: f64) -> Estimate {
        let others = self.ranks() - 1.0;
        self.messages(others, others * bytes)
    }

    /// Likewise, with those of this rank's host over its own links, while so many ranks of the host use its
    /// link to others.
    pub(crate) fn burst_of_levels(&self, bytes: f64, at_once: u32) -> Estimate {
        if !self.topology.has_levels() {
            return self.burst(bytes);
        }
        let (inside, between) = (self.machine.inside, self.across(at_once).machine.between);
        let near = f64::from(self.topology.most - 1);
        let far = self.ranks() - 1.0 - near;
        let port = bytes * (near * inside.beta + far * between.beta);
        let processor = near * inside.overhead + far * between.overhead;
        let seconds = between.alpha.max(inside.alpha) + (processor - between.overhead).max(0.0) + port;
        Estimate { rounds: 1, bytes: (near + far) * bytes, seconds, port, processor }
    }

    /// A call over the memory that all ranks share: each rank sees what every other one publishes, and the
    /// busiest reads or writes `bytes` of theirs.
    pub(crate) fn over_slots(&self, bytes: f64) -> Estimate {
        let slots = self.machine.slots;
        let seconds = (self.ranks() - 1.0) * slots.alpha + bytes * slots.beta;
        Estimate { rounds: 1, seconds, processor: seconds, ..Estimate::default() }
    }

    /// Seconds to combine so many bytes with others.
    pub(crate) fn combining(&self, bytes: f64) -> f64 {
        bytes * self.machine.reduce
    }

    /// Seconds to copy so many bytes.
    pub(crate) fn copying(&self, bytes: f64) -> f64 {
        bytes * self.machine.copy
    }

    /// Seconds to write so many entries as a message on a wire and to read what it says, as the sender does:
    /// nothing as pairs.
    pub(crate) fn encoding(&self, entries: f64, wire: Wire) -> f64 {
        match wire {
            Wire::Pairs => 0.0,
            Wire::Coded(_) => self.combining(ENCODED_BYTES * entries),
        }
    }

    /// Seconds to read so many entries from messages on a wire: nothing as pairs.
    pub(crate) fn decoding(&self, entries: f64, wire: Wire) -> f64 {
        match wire {
            Wire::Pairs => 0.0,
            Wire::Coded(_) => self.combining(DECODED_BYTES * entries),
        }
    }

    /// Seconds to merge so many entries two by two until one vector of `P` is left: an entry of 8 bytes costs
    /// about as much as 14 bytes of a dense sum.
    pub(crate) fn merging(&self, entries: f64) -> f64 {
        self.adding(entries) * f64::from(self.rounds())
    }

    /// Seconds to add two vectors of so many entries in all.
    pub(crate) fn adding(&self, entries: f64) -> f64 {
        self.combining(14.0 * entries)
    }

    /// Seconds to find the largest of so many entries, and to keep them.
    pub(crate) fn cutting(&self, entries: f64) -> f64 {
        self.combining(5.0 * entries)
    }

    /// Seconds to add a gradient of so many elements to its residual and to take the largest entries out, in
    /// one pass: about a quarter more than the sum.
    pub(crate) fn selecting(&self, elements: f64) -> f64 {
        self.combining(5.0 * elements)
    }

    /// Seconds to write so many entries into a dense vector of so many elements, which is cleared before.
    pub(crate) fn spreading(&self, entries: f64, elements: f64) -> f64 {
        self.copying(4.0 * elements) + self.combining(28.0 * entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Link, Machine, Topology};

    fn message(bytes: f64) -> Estimate {
        Ground::new(Machine::uniform(1.0, 1.0), 4).message(bytes)
    }

    #[test]
    fn segments_take_the_time_of_the_busiest_port() {
        let of = |bytes| message(bytes).times(2);
        assert_eq!(Estimate::in_segments(10.0, 10.0, of).seconds, 22.0);
        // Two full segments of 20 seconds of a port each, and one of half.
        let three = Estimate::in_segments(25.0, 10.0, of);
        assert_eq!((three.seconds, three.bytes, three.rounds), (52.0, 50.0, 2));
        // Latency counts where ports are idle.
        let short = Estimate::in_segments(3.0, 1.0, |bytes| message(bytes).times(9));
        assert_eq!(short.seconds, 2.0 * 9.0 + 18.0);
    }

    #[test]
    fn bursts_to_ranks_of_this_host_use_its_own_links() {
        let machine = Machine { has_own_ports: false, ..Machine::uniform(1.0, 1.0) };
        let inside = Link { beta: 0.25, ..machine.inside };
        let ground = Ground::new(Machine { inside, ..machine }, 8);
        assert_eq!(ground.burst_of_levels(4.0, 1), ground.burst(4.0));
        // Three ranks here, and four on the other host, whose link one or four ranks use at a time.
        let ground = Ground { topology: Topology::of(&[0, 0, 0, 0, 1, 1, 1, 1]), ..ground };
        let port = |at_once| ground.burst_of_levels(4.0, at_once).port;
        assert_eq!((port(1), port(4)), (3.0 + 4.0 * 4.0, 3.0 + 4.0 * 4.0 * 4.0));
        let own = Ground { machine: Machine::uniform(1.0, 1.0), ..ground };
        assert_eq!(own.burst_of_levels(4.0, 4), own.burst(4.0));
    }

    #[test]
    fn blocks_are_of_whole_lines() {
        let cut = |bytes, ranks| (Cut::new(bytes, ranks).block, Cut::new(bytes, ranks).blocks);
        assert_eq!(cut(8.0, 4.0), (8.0, 1.0));
        assert_eq!(cut(4096.0, 4.0), (1024.0, 4.0));
        assert_eq!(cut(300.0, 4.0), (128.0, 3.0));
        assert_eq!(cut(0.0, 4.0), (0.0, 0.0));
    }
}
