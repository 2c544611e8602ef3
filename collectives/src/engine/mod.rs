//! The progress engine: polls collectives, moves the transport, keeps deadlines.
//!
//! A blocking call is polled on the calling thread until it is done ([`Engine::run`]). A non-blocking call is a task
//! that owns its buffers ([`Engine::spawn`]); whoever turns the engine, for whatever reason, moves all tasks. There is
//! no thread and no global state.

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

    /// Runs `body` to its end on this thread. Operations that have not ended `timeout` from now fail, and the transport
    /// is closed on all ranks: nobody could tell who has which result.
    ///
    /// Everything that `body` posted has ended when this returns.
    pub fn run<'env, R>(&self, timeout: Duration, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        let mut waiter = Waiter::new(self.crowded);
        let mut deadline = None;
        let mut turns = 0u32;
        let mut expired = false;
        let result = scope(
            &self.port,
            |comm| {
                let deadline = *deadline.get_or_insert_with(|| self.port.now().saturating_add(timeout));
                let moved = self.turn();
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(TURNS_PER_CLOCK) || waiter.is_patient() {
                    let now = self.port.now();
                    if now >= deadline && !expired {
                        comm.expire();
                        expired = true;
                    }
                    waiter.pause(moved, deadline.saturating_sub(now), &self.port);
                } else {
                    waiter.pause(moved, Duration::ZERO, &self.port);
                }
            },
            body,
        );
        if expired {
            self.port.abort();
        }
        result
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
        let deadline = self.port.now().saturating_add(timeout);
        let (handle, mut spawned) = Spawned::new(self, task, deadline);
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
