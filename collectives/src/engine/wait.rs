//! How a blocked call waits: spin, then yield the processor, then sleep.

use std::hint::spin_loop;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::shm::Neighbourhood;

/// Empty turns that are spent spinning where every rank has a processor of its own.
const SPINS: u32 = 50;

/// How long to yield before sleeping.
const YIELD_TIME: Duration = Duration::from_millis(1);

/// The longest sleep: another thread may have done the work that the descriptor announced.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// The patience of one blocked call.
pub(super) struct Waiter {
    spins: u32,
    empty_turns: u32,
    yielding_since: Option<Instant>,
    /// Whether neighbours were told to ring; then everything is looked at once more before sleeping.
    is_armed: bool,
}

impl Waiter {
    pub(super) fn new(crowded: bool) -> Self {
        Self { spins: if crowded { 0 } else { SPINS }, empty_turns: 0, yielding_since: None, is_armed: false }
    }

    /// Whether spinning is over, so that looking at the clock costs nothing that matters.
    pub(super) fn is_patient(&self) -> bool {
        self.yielding_since.is_some()
    }

    /// Waits a little after a turn that `moved` something or not; at most `longest` once it sleeps.
    pub(super) fn pause(&mut self, moved: bool, longest: Duration, port: &Port, neighbourhood: Option<&Neighbourhood>) {
        if moved {
            (self.empty_turns, self.yielding_since, self.is_armed) = (0, None, false);
            return;
        }
        self.empty_turns = self.empty_turns.saturating_add(1);
        if self.empty_turns <= self.spins {
            spin_loop();
            return;
        }
        let since = *self.yielding_since.get_or_insert_with(Instant::now);
        if since.elapsed() < YIELD_TIME {
            yield_now();
            return;
        }
        match neighbourhood {
            Some(neighbourhood) if !self.is_armed => {
                neighbourhood.begin_sleep();
                self.is_armed = true;
            }
            _ => {
                self.is_armed = false;
                port.sleep_or_hear(longest.min(LONGEST_SLEEP), neighbourhood.map(Neighbourhood::bell));
            }
        }
    }
}
