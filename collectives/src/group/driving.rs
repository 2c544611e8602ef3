//! Moving the non-blocking calls of a group: by hand, from an event loop, or from a runtime.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ucx_sys_wrap::buffer::next_turn;

use super::Group;
use crate::engine::{Driver, Sleep};
use crate::error::Result;

impl Group {
    /// Moves the transport and all non-blocking calls once, without blocking. Returns whether anything
    /// happened.
    pub fn progress(&self) -> bool {
        if self.check_process().is_err() {
            return false;
        }
        let moved = self.engine().turn();
        self.engine().stop_turning();
        moved
    }

    /// Whether non-blocking calls of this job are pending.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.engine().has_background()
    }

    /// For event loops: moves all non-blocking calls once and prepares for sleeping. Returns the descriptor
    /// to watch and the longest sleep; `None` if something has moved: check the handles, then call this
    /// again.
    ///
    /// The wake-up is guaranteed only until something turns the engine or starts a call, so call this before
    /// each sleep. While no handle is pending there is nothing to watch for.
    ///
    /// ```
    /// use brevity_collectives::{Group, ReduceOp};
    /// use rustix::event::{PollFd, PollFlags, Timespec, poll};
    ///
    /// let group = Group::solo();
    /// let handle = group.start_all_reduce(vec![1.0f32; 4], ReduceOp::Sum);
    /// while !handle.test() {
    ///     let Some(sleep) = group.prepare_sleep() else { continue };
    ///     // The runtime's own descriptors may be polled too.
    ///     let longest = Timespec { tv_sec: 0, tv_nsec: sleep.longest().as_nanos() as i64 };
    ///     poll(&mut [PollFd::new(&sleep, PollFlags::IN)], Some(&longest)).unwrap();
    /// }
    /// let (sum, result) = handle.wait();
    /// assert!(result.is_ok() && sum == [1.0; 4]);
    /// ```
    pub fn prepare_sleep(&self) -> Option<Sleep> {
        self.engine().prepare_sleep()
    }

    /// Moves the transport and all non-blocking calls until `is_done`, at most for `longest`, and returns
    /// whether it is. Sleeps while there is nothing to do, and asks at least every few milliseconds.
    ///
    /// ```
    /// use brevity_collectives::Group;
    /// use std::time::Duration;
    ///
    /// let group = Group::solo();
    /// let calls = [group.start_barrier(), group.start_barrier()];
    /// assert!(group.wait_until(Duration::from_secs(1), || calls.iter().any(|call| call.has_ended())));
    /// ```
    ///
    /// # Panics
    /// If it would wait inside the body of a non-blocking call, in which no call moves.
    pub fn wait_until(&self, longest: Duration, is_done: impl Fn() -> bool) -> bool {
        if self.check_process().is_err() {
            return is_done();
        }
        self.engine().turn_until(longest, is_done)
    }

    /// Computes for so long, in virtual time: on a [simulated](ucx_sys_wrap::sim) network this rank does
    /// nothing else meanwhile. Elsewhere it returns at once, because computing takes its own time.
    pub async fn compute(&self, lasting: Duration) {
        let port = self.port();
        if port.is_simulated() && lasting > Duration::ZERO {
            let end = port.now().saturating_add(lasting);
            port.compute(lasting);
            poll_fn(|context| if port.now() < end { next_turn(context) } else { Poll::Ready(()) }).await;
        }
    }

    /// The time since the transport was made; virtual on a [simulated](ucx_sys_wrap::sim) network.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.port().now()
    }

    /// What moves the calls of this job from a runtime or an event loop, and wakes the tasks that await them.
    ///
    /// # Errors
    /// [`AlreadyDriven`](crate::Error::AlreadyDriven); [`Transport`](crate::Error::Transport) where there is
    /// no descriptor, as in a simulation; [`Forked`](crate::Error::Forked).
    pub fn driver(&self) -> Result<Driver> {
        self.check_process()?;
        self.engine().driver()
    }
}
