//! What a blocked call does between the turns of its engine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ucx_sys_wrap::buffer::CallTime;

use super::deadline::Deadline;
use super::thread::Blocked;
use super::wait::Waiter;
use super::{Engine, Status};

/// Turns of a waiting call between two readings of the clock while it does not sleep.
const TURNS_PER_CLOCK: u32 = 16;

/// What a blocked call does between polls.
pub(super) struct Turns<'engine> {
    _blocked: Option<Blocked<'engine>>,
    waiter: Waiter,
    moves: u32,
    pub(super) deadline: Deadline,
    status: &'engine Status,
    turns: u32,
}

impl<'engine> Turns<'engine> {
    pub(super) fn new(
        engine: &'engine Engine,
        timeout: Duration,
        status: &'engine Status,
        time: &CallTime,
    ) -> Self {
        let now = engine.port.now();
        if !engine.is_late(now, status) {
            time.begin_to_wait(now);
        }
        let deadline = Deadline::after(now, timeout, engine.is_simulated);
        let blocked = Blocked::begin(engine);
        let (waiter, moves) = (Waiter::new(), engine.moves());
        Self { _blocked: blocked, waiter, moves, deadline, status, turns: 0 }
    }

    /// Pauses after a turn that `moved` something or not. Calls `expire` when the call must end, and `leave`
    /// before it sleeps.
    #[inline]
    pub(super) fn pause(
        &mut self,
        moved: bool,
        engine: &Engine,
        mut expire: impl FnMut(),
        leave: impl FnOnce(),
    ) {
        let before = std::mem::replace(&mut self.moves, engine.moves());
        let sleeps = self.waiter.pause(moved || self.moves != before, &engine.processor);
        self.turns = self.turns.wrapping_add(1);
        if sleeps || self.turns.is_multiple_of(TURNS_PER_CLOCK) {
            let now = engine.port.now();
            engine.looked_at.store(now.as_nanos() as u64, Ordering::Relaxed);
            self.deadline.look((now, moved), &engine.port, self.status, &mut expire);
            if sleeps {
                leave();
                self.waiter.sleep(self.deadline.patience(now), &engine.port, engine.local_group());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use ucx_sys_wrap::buffer::Port;

    #[test]
    fn a_call_that_comes_further_over_shared_memory_does_not_sleep() {
        let alone = ucx_sys_wrap::local::world(1).into_iter().next().unwrap();
        let engine = Engine::new(Port::new(Box::new(alone)), None, false);
        let mut turns = Turns::new(&engine, Duration::from_secs(10), engine.world(), &CallTime::default());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            engine.course().moves.fetch_add(1, Ordering::Relaxed);
            turns.pause(false, &engine, || {}, || {});
        }
        // As many turns as lie between two readings of the clock.
        assert!((0..32).all(|_| !turns.waiter.pause(false, &engine.processor)), "it has just moved");
    }
}
