//! How a blocked call waits: it spins, then yields the processor from time to time, then sleeps.
//!
//! A yield costs time even if no other thread runs, and nothing is received during it. But if other ranks
//! wait for the processor, spinning keeps them from sending the awaited message. The duration of yields shows
//! which is the case: a yield returns at once unless another thread has run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::shm::LocalGroup;

/// Checks of a flag before other work gets a turn, if every rank has its own processor.
pub(super) const SPINS: u32 = 100;

/// How long to spin if the rank has its processor to itself: longer than a message of 1 MiB takes inside a
/// host. The second is for crowded hosts, which have fewer processors than ranks.
const SPIN_TIME: Duration = Duration::from_micros(200);
const SPIN_TIME_IN_A_CROWD: Duration = Duration::from_micros(10);

/// Turns without progress before the first reading of the clock, and then between two yields.
const TURNS_PER_LOOK: u32 = 16;

/// How long to wait before sleeping.
const WAKE_TIME: Duration = Duration::from_millis(1);

/// The longest sleep, because another thread may have handled what the descriptor announced.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// A yield that takes longer has let another thread run.
const LONG_YIELD: Duration = Duration::from_nanos(800);

/// This many unused yields in a row show that no other thread wants the processor. The second is for crowded
/// hosts: there the scheduler keeps returning the processor for a while to a thread that has yielded less
/// often than the others, and if it then stops yielding, all others wait for milliseconds.
const UNUSED_YIELDS: u32 = 16;
const UNUSED_YIELDS_IN_A_CROWD: u32 = 4096;

/// On crowded hosts the awaited message has mostly arrived after one or two yields. The clock costs as much
/// as half a turn, so it is read once for this many of those yields.
const YIELDS_PER_LOOK: u32 = 16;

/// Turns since the last progress, inclusive, after which a wait is no longer short.
const SHORT_WAIT: u32 = 2;

/// What yields have shown about the processor of this rank.
pub(super) struct Processor {
    /// Whether the host has fewer processors for its ranks than ranks.
    is_crowded: bool,
    /// Unused yields in a row, up to the decisive number.
    unused: AtomicU32,
    /// Yields of short waits on a crowded host.
    short_yields: AtomicU32,
}

/// The state of one blocked call.
pub(super) struct Waiter {
    empty_turns: u32,
    /// The time of the first reading of the clock.
    since: Option<Instant>,
    /// Whether local peers were told to wake this rank; then everything is checked once more before sleeping.
    is_armed: bool,
    /// Yields for which the clock was read.
    #[cfg(test)]
    timed_yields: u32,
}

impl Processor {
    /// Assumes that the processor is shared on a crowded host, and not shared otherwise.
    pub(super) fn new(is_crowded: bool) -> Self {
        let unused = AtomicU32::new(if is_crowded { 0 } else { UNUSED_YIELDS });
        Self { is_crowded, unused, short_yields: AtomicU32::new(0) }
    }

    /// Whether another thread wants it.
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.unused.load(Ordering::Relaxed) < self.telling_yields()
    }

    /// The number of unused yields in a row that shows that no other thread wants it.
    #[inline]
    fn telling_yields(&self) -> u32 {
        if self.is_crowded { UNUSED_YIELDS_IN_A_CROWD } else { UNUSED_YIELDS }
    }

    fn spin_time(&self) -> Duration {
        if self.is_crowded { SPIN_TIME_IN_A_CROWD } else { SPIN_TIME }
    }

    /// Counts a yield of a short wait on a crowded host. Returns whether to read the clock for it.
    #[inline]
    fn is_look_due(&self) -> bool {
        // Concurrent updates may lose a count.
        let yields = self.short_yields.load(Ordering::Relaxed).wrapping_add(1);
        self.short_yields.store(yields, Ordering::Relaxed);
        yields.is_multiple_of(YIELDS_PER_LOOK)
    }

    /// Learns from the duration of a yield, which stands for `count` of them. Concurrent updates may lose a
    /// count.
    fn learn(&self, took: Duration, count: u32) {
        let unused = if took > LONG_YIELD { 0 } else { self.unused.load(Ordering::Relaxed) + count };
        self.unused.store(unused.min(self.telling_yields()), Ordering::Relaxed);
    }
}

impl Waiter {
    pub(super) fn new() -> Self {
        Self {
            empty_turns: 0,
            since: None,
            is_armed: false,
            #[cfg(test)]
            timed_yields: 0,
        }
    }

    /// Pauses after a turn that `moved` something or not. On a shared processor it pauses even after
    /// progress, because the next message is from a thread that waits for the processor. Returns whether it
    /// is time to [`sleep`](Self::sleep).
    #[inline]
    pub(super) fn pause(&mut self, moved: bool, processor: &Processor) -> bool {
        let is_shared = processor.is_shared();
        if moved {
            (self.empty_turns, self.since, self.is_armed) = (0, None, false);
            if !is_shared {
                return false;
            }
        }
        self.empty_turns = self.empty_turns.wrapping_add(1);
        (is_shared || self.empty_turns.is_multiple_of(TURNS_PER_LOOK)) && self.give_way(is_shared, processor)
    }

    /// Yields, unless it is too early for that, or time to sleep.
    #[inline]
    fn give_way(&mut self, is_shared: bool, processor: &Processor) -> bool {
        let is_short = is_shared && processor.is_crowded && self.empty_turns <= SHORT_WAIT;
        if is_short && !processor.is_look_due() {
            yield_now();
            return false;
        }
        self.give_way_by_clock(is_shared, processor, if is_short { YIELDS_PER_LOOK } else { 1 })
    }

    /// Like [`give_way`](Self::give_way), but reads the clock, for `count` yields.
    fn give_way_by_clock(&mut self, is_shared: bool, processor: &Processor, count: u32) -> bool {
        let begun = Instant::now();
        let waited = begun - *self.since.get_or_insert(begun);
        if waited >= WAKE_TIME {
            return true;
        }
        if is_shared || waited >= processor.spin_time() {
            yield_now();
            processor.learn(begun.elapsed(), count);
            #[cfg(test)]
            (self.timed_yields += 1);
        }
        false
    }

    /// Sleeps until there is something to progress, at most `longest`. The first call only announces the
    /// sleep.
    pub(super) fn sleep(&mut self, longest: Duration, port: &Port, local_group: Option<&LocalGroup>) {
        match local_group {
            Some(local_group) if !self.is_armed => {
                local_group.hear();
                local_group.begin_sleep();
                self.is_armed = true;
            }
            _ => {
                self.is_armed = false;
                port.sleep_or_hear(longest.min(LONGEST_SLEEP), local_group.map(LocalGroup::wake_receiver));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNUSED: Duration = Duration::from_nanos(300);
    const USED: Duration = Duration::from_micros(4);

    #[test]
    fn a_processor_is_shared_until_nobody_takes_it() {
        for (is_crowded, telling) in [(false, UNUSED_YIELDS), (true, UNUSED_YIELDS_IN_A_CROWD)] {
            let processor = Processor::new(is_crowded);
            assert_eq!(processor.is_shared(), is_crowded, "before anything is known");
            processor.learn(USED, 1);
            for _ in 0..telling {
                assert!(processor.is_shared());
                processor.learn(UNUSED, 1);
            }
            assert!(!processor.is_shared());
            processor.learn(UNUSED, 1);
            assert!(!processor.is_shared());
            processor.learn(USED, 1);
            assert!(processor.is_shared());
        }
    }

    #[test]
    fn a_call_spins_then_yields_then_sleeps() {
        let processor = Processor::new(false);
        let (mut waiter, begun) = (Waiter::new(), Instant::now());
        while waiter.timed_yields == 0 {
            assert!(!waiter.pause(false, &processor));
        }
        assert!(begun.elapsed() >= SPIN_TIME);
        while !waiter.pause(false, &processor) {}
        assert!(begun.elapsed() >= WAKE_TIME);
        // A new one, because yields may have shown that another thread wants this processor.
        let processor = Processor::new(false);
        assert!(!waiter.pause(true, &processor) && waiter.since.is_none(), "something has moved");
        let crowded = Processor::new(true);
        assert!(!waiter.pause(false, &crowded), "it yields first");
        assert_eq!(crowded.short_yields.load(Ordering::Relaxed), 1, "at the first empty turn");
    }

    /// A turn may take longer than a used yield, because it polls each socket.
    #[test]
    fn a_long_turn_is_not_taken_for_a_used_yield() {
        let processor = Processor::new(false);
        processor.learn(USED, 1);
        let (mut waiter, mut unused) = (Waiter::new(), 0);
        while processor.is_shared() {
            if waiter.pause(false, &processor) {
                waiter = Waiter::new();
            }
            let turn = Instant::now();
            while turn.elapsed() < 2 * LONG_YIELD {}
            // Whether another thread is running now.
            let begun = Instant::now();
            yield_now();
            unused = if begun.elapsed() > LONG_YIELD { 0 } else { unused + 1 };
            assert!(unused < 100 * UNUSED_YIELDS, "nobody else has run for so long");
        }
    }

    #[test]
    fn short_waits_in_a_crowd_look_at_the_clock_now_and_then() {
        let crowded = Processor::new(true);
        let mut looks = 0;
        for _ in 0..10 * YIELDS_PER_LOOK {
            // One call each, like the shortest calls.
            let mut waiter = Waiter::new();
            assert!(!waiter.pause(true, &crowded));
            looks += waiter.timed_yields;
        }
        assert_eq!(looks, 10);
        let mut waiter = Waiter::new();
        let turns = (0..).take_while(|_| !waiter.pause(false, &crowded)).count();
        assert!(turns > SHORT_WAIT as usize && waiter.since.is_some(), "a long wait ends in a sleep");
    }
}
