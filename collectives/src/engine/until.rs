//! Waiting on this thread for something that turns of the engine bring.

use std::time::Duration;

use super::Engine;
use super::thread::Blocked;
use super::wait::Waiter;

pub(super) const WAITS_INSIDE: &str =
    "a wait inside the body of a non-blocking call, during which no call moves: await the handle instead";

/// Turns between two readings of the clock while the wait does not sleep.
const TURNS_PER_CLOCK: u32 = 16;

impl Engine {
    /// Turns until `is_done`, at most for `longest`, and returns whether it is. Sleeps as blocking calls do.
    ///
    /// # Panics
    /// If it would wait inside the body of a non-blocking call.
    pub(crate) fn turn_until(&self, longest: Duration, is_done: impl Fn() -> bool) -> bool {
        let blocked = Blocked::begin(self);
        let mut wait = Wait { waiter: Waiter::new(), moves: self.moves(), turns: 0, end: None };
        let is_done = loop {
            if is_done() {
                break true;
            }
            assert!(!self.is_polled_here(), "{WAITS_INSIDE}");
            if !wait.turn(self, longest) {
                break is_done();
            }
        };
        drop(blocked);
        self.stop_turning();
        is_done
    }
}

struct Wait {
    waiter: Waiter,
    moves: u32,
    turns: u32,
    /// On the transport's clock, which is read late: many waits are short.
    end: Option<Duration>,
}

impl Wait {
    /// Turns once, then pauses. Returns whether there is time left.
    #[inline]
    fn turn(&mut self, engine: &Engine, longest: Duration) -> bool {
        let moved = engine.turn();
        let before = std::mem::replace(&mut self.moves, engine.moves());
        let sleeps = self.waiter.pause(moved || self.moves != before, &engine.processor);
        self.turns = self.turns.wrapping_add(1);
        if !sleeps && self.turns % TURNS_PER_CLOCK != 1 {
            return true;
        }
        let now = engine.port.now();
        let left = self.end.get_or_insert_with(|| now.saturating_add(longest)).saturating_sub(now);
        if sleeps && !left.is_zero() {
            self.waiter.sleep(left, &engine.port, engine.local_group());
        }
        !left.is_zero()
    }
}
