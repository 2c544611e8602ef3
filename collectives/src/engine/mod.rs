//! The progress engine: polls collectives, moves the transport, keeps deadlines.
//!
//! A blocking call is polled on the calling thread until it is done ([`Engine::run`]). A non-blocking call is a task
//! that owns its buffers ([`Engine::spawn`]); whoever turns the engine, for whatever reason, moves all tasks. There is
//! no thread and no global state.

mod deadline;
mod handle;
mod join;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{Comm, Port, Task, TaskFuture, scope};

pub use handle::Handle;
pub use join::join;

use deadline::Deadline;
use handle::Spawned;
use wait::Waiter;

/// Turns of a waiting call between two looks at the clock while it spins.
const TURNS_PER_CLOCK: u32 = 16;

/// Moves the collectives of one transport.
pub struct Engine {
    port: Arc<Port>,
    background: Mutex<Vec<Box<dyn Background>>>,
    background_count: AtomicUsize,
    crowded: bool,
}

/// A task that moves whenever the engine turns.
trait Background: Send {
    /// Polls; says whether the task has ended and handed over its result.
    fn poll(&mut self) -> bool;
}

impl Engine {
    /// An engine for `port`. `crowded` says that ranks outnumber processors, so that spinning only keeps others waiting.
    #[must_use]
    pub fn new(port: Arc<Port>, crowded: bool) -> Arc<Self> {
        Arc::new(Self { port, background: Mutex::default(), background_count: AtomicUsize::new(0), crowded })
    }

    /// The transport's door.
    #[must_use]
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Runs `body` to its end on this thread. Operations that have not ended by a sixteenth before `timeout` from now
    /// (at most a second) fail, and the transport is then closed on all ranks: nobody could tell who has which result.
    ///
    /// Everything that `body` posted has ended when this returns.
    pub fn run<'env, R>(&self, timeout: Duration, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        let mut waiter = Waiter::new(self.crowded);
        let mut deadline = None;
        let mut turns = 0u32;
        let result = scope(
            &self.port,
            |comm| {
                let deadline = deadline.get_or_insert_with(|| Deadline::after(self.port.now(), timeout));
                let moved = self.turn();
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(TURNS_PER_CLOCK) || waiter.is_patient() {
                    let now = self.port.now();
                    deadline.look(now, comm);
                    waiter.pause(moved, deadline.patience(now), &self.port);
                } else {
                    waiter.pause(moved, Duration::ZERO, &self.port);
                }
            },
            body,
        );
        if let Some(deadline) = deadline.filter(Deadline::is_expired) {
            self.close_in_time(deadline);
        }
        result
    }

    /// Closes the group for a call that has expired, once the others had their time to expire as well.
    fn close_in_time(&self, mut deadline: Deadline) {
        let mut waiter = Waiter::new(self.crowded);
        loop {
            let now = self.port.now();
            if deadline.is_over(now, &self.port) {
                return deadline.finish(&self.port);
            }
            waiter.pause(self.turn(), deadline.patience(now), &self.port);
        }
    }

    /// Starts `body` on buffers that the task owns; the handle gives them back with the result.
    ///
    /// The first poll happens here, so that the operations that `body` begins with are posted in program order.
    pub fn spawn<B, R, F>(self: &Arc<Self>, timeout: Duration, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        let task = Task::new(&self.port, buffers, body);
        let (handle, mut spawned) = Spawned::new(self, task, Deadline::after(self.port.now(), timeout));
        if !spawned.poll() {
            self.background.lock().push(Box::new(spawned));
            self.background_count.fetch_add(1, Ordering::Relaxed);
        }
        handle
    }

    /// Moves the transport and every task once, without blocking. Says whether anything happened.
    pub fn turn(&self) -> bool {
        let moved = self.port.progress();
        moved | (self.background_count.load(Ordering::Relaxed) > 0 && self.poll_background())
    }

    /// Polls every task; one thread at a time, and never from inside a task.
    fn poll_background(&self) -> bool {
        let Some(mut tasks) = self.background.try_lock() else { return false };
        let before = tasks.len();
        tasks.retain_mut(|task| !task.poll());
        let ended = before - tasks.len();
        self.background_count.fetch_sub(ended, Ordering::Relaxed);
        ended > 0
    }
}
