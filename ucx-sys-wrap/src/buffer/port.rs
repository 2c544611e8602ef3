//! The entry point to a transport, for one thread at a time. It tracks every operation in flight.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::abort::AbortRequests;
use super::contexts::{Contexts, OnLoss};
use super::orphans::OrphanedScope;
use super::scopes::{KeptBuffers, Scopes};
use crate::exit;
use crate::on_end::Woken;
use crate::one_sided::Regions;
use crate::pollable::wait_for;
use crate::told::{self, TellLast};
use crate::transport::Transport;
use crate::{Error, Failure, Owner, Rank, Statistics};

/// How long a scope waits for canceled operations before it abandons the transport.
pub(super) const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A transport that threads share, one inside at a time.
///
/// It tracks the operations in flight of each scope, so that a scope can end its own even if their futures
/// are gone.
///
/// Tracing events of the transport are emitted after the thread has left the port, so that a subscriber may
/// call any function of the port.
pub struct Port {
    inner: ReentrantMutex<Inner>,
    /// The number of threads that wait to enter.
    waiting: AtomicU32,
    pub(super) abort: AbortRequests,
    /// The same as inside.
    has_closed: Arc<AtomicBool>,
    /// The tasks to wake once the transport has been left.
    pub(super) woken: Arc<Woken>,
    owner: Owner,
    name: &'static str,
    rank: Rank,
    world_size: u32,
    /// Dropped after the transport, whose drop may produce events.
    _told: TellLast,
}

/// Access to the transport of a port.
pub(super) type Inside<'port> = ReentrantMutexGuard<'port, Inner>;

pub(super) struct Inner {
    pub(super) transport: RefCell<Box<dyn Transport>>,
    pub(super) scopes: RefCell<Scopes>,
    pub(super) contexts: RefCell<Contexts>,
    /// What this rank has registered: it reaches that without the transport.
    pub(super) regions: RefCell<Regions>,
    /// Its copies into and out of those regions, which the transport does not count.
    pub(super) own_copies: Cell<Statistics>,
    /// Whether an operation may meet a closed context. Cheaper than asking.
    pub(super) has_closed: Arc<AtomicBool>,
    /// Open scopes that nobody holds.
    pub(super) orphans: RefCell<Vec<OrphanedScope>>,
}

impl Port {
    /// Makes a port of `transport`, with context 0 open for all ranks.
    #[must_use]
    pub fn new(transport: Box<dyn Transport>) -> Arc<Self> {
        let (name, rank, world_size) = (transport.name(), transport.rank(), transport.world_size());
        let stands_on_library = transport.stands_on_library();
        let has_closed = Arc::new(AtomicBool::new(false));
        let inner = Inner {
            transport: RefCell::new(transport),
            scopes: RefCell::default(),
            contexts: RefCell::default(),
            regions: RefCell::default(),
            own_copies: Cell::default(),
            has_closed: Arc::clone(&has_closed),
            orphans: RefCell::default(),
        };
        let inner = ReentrantMutex::new(inner);
        let port = Arc::new(Self {
            inner,
            waiting: AtomicU32::new(0),
            abort: AbortRequests::default(),
            has_closed,
            woken: Arc::default(),
            owner: Owner::here(),
            name,
            rank,
            world_size,
            _told: TellLast,
        });
        port.open_context(0, 0, Rank::all(world_size).collect(), OnLoss::Close);
        if stands_on_library {
            exit::keep(&port);
        }
        port
    }

    /// Whether a context was closed, as far as the last turn has shown. Cheaper than asking for one.
    #[inline]
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.has_closed.load(Ordering::Relaxed)
    }

    /// Whether this process is a forked child of the one that has made the port.
    #[inline]
    #[must_use]
    pub fn has_forked(&self) -> bool {
        self.owner.has_forked()
    }

    /// The transport's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the network is simulated; see [`Transport::is_simulated`].
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.enter().transport.borrow().is_simulated()
    }

    /// On a simulated network, lets this rank do nothing for so long, because it computes: what it does
    /// before its next turn still happens now. Elsewhere computing takes its own time.
    pub fn compute(&self, lasting: Duration) {
        self.enter().transport.borrow_mut().compute(lasting);
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks in the world.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Whether this process made the port, and is not a forked child that must leave the transport alone.
    /// Costs a system call.
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_here()
    }

    /// Makes progress, blocking only while another thread is inside. Returns whether anything happened.
    pub fn progress(&self) -> bool {
        self.heed_abort();
        let inside = self.enter();
        let moved = inside.transport.borrow_mut().progress();
        inside.heed_news(self.rank);
        let has_orphans = inside.has_orphans();
        drop(inside);
        // A turn around this call does both when it has left the port.
        if has_orphans && !self.inner.is_owned_by_current_thread() {
            self.end_orphans();
        }
        self.tell();
        moved
    }

    /// Emits events and wakes the tasks whose operations have ended, unless this thread is still inside: a
    /// subscriber may wait for a thread that waits for the port.
    pub(super) fn tell(&self) {
        if !self.inner.is_owned_by_current_thread() {
            told::tell();
            self.wake();
        }
    }

    /// Whether operations have ended whose tasks were not woken yet.
    #[inline]
    #[must_use]
    pub fn has_woken(&self) -> bool {
        self.woken.has_some()
    }

    /// Wakes the tasks whose operations have ended, unless this thread is inside.
    /// [`progress`](Self::progress) does so too.
    #[inline]
    pub fn wake(&self) {
        if self.woken.has_some() && !self.inner.is_owned_by_current_thread() {
            self.woken.wake();
        }
    }

    /// Wakes the tasks that wait for operations of a scope, so that they test them.
    pub(super) fn wake_scope(&self, scope: usize) {
        let inner = self.enter();
        let scopes = inner.scopes.borrow();
        let mut transport = inner.transport.borrow_mut();
        for operation in &scopes.all[scope].in_flight {
            if let Some(on_end) = transport.on_end(operation.id) {
                on_end.tell();
            }
        }
    }

    /// The transport's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.enter().transport.borrow().now()
    }

    /// The transport's counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let inner = self.enter();
        let (all, own) = (inner.transport.borrow().statistics(), inner.own_copies.get());
        Statistics {
            copies: all.copies + own.copies,
            bytes_copied: all.bytes_copied + own.bytes_copied,
            ..all
        }
    }

    /// Watches a peer that this rank waits for without an operation; see [`Transport::watch`].
    #[must_use]
    pub fn watch(&self, peer: Rank) -> bool {
        self.enter().transport.borrow_mut().watch(peer)
    }

    /// Sleeps until there is something to progress, at most `longest`. Other threads may enter meanwhile.
    pub fn sleep(&self, longest: Duration) {
        self.sleep_or_hear(longest, None);
    }

    /// Like [`sleep`](Self::sleep), and also ends when `waker` becomes readable.
    pub fn sleep_or_hear(&self, longest: Duration, waker: Option<BorrowedFd<'_>>) {
        match self.arm() {
            Some(descriptor) => wait_for(descriptor.as_fd(), waker, Some(longest)),
            None => std::thread::yield_now(),
        }
    }

    /// Prepares for sleeping outside the port. Returns a descriptor, always the same, that becomes readable
    /// when there is something to [`progress`](Self::progress); `None` if there is something already, or if
    /// this transport has no descriptor.
    #[must_use]
    pub fn arm(&self) -> Option<Arc<OwnedFd>> {
        self.enter().transport.borrow_mut().arm()
    }

    /// The descriptor that [`arm`](Self::arm) returns when there is nothing to progress; `None` if this
    /// transport has none.
    #[must_use]
    pub fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.enter().transport.borrow().descriptor()
    }

    #[inline]
    pub(super) fn enter(&self) -> Inside<'_> {
        self.inner.try_lock().unwrap_or_else(|| self.wait_to_enter())
    }

    #[cold]
    fn wait_to_enter(&self) -> Inside<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inside = self.inner.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        inside
    }

    #[cfg(test)]
    pub(crate) fn enter_for_test(&self) -> impl Sized {
        self.enter()
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.inner.is_locked()
    }

    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Leaves, and lets a waiting thread enter before this one can again.
    #[cold]
    pub(super) fn hand_over(inside: Inside<'_>) {
        ReentrantMutexGuard::unlock_fair(inside);
    }

    pub(super) fn open_scope(&self) -> usize {
        self.heed_abort();
        self.enter().scopes.borrow_mut().open()
    }

    /// Cancels and tests the scope's operations. If none is left, closes the scope and returns the buffers it
    /// kept.
    pub(super) fn try_close_scope(&self, scope: usize) -> Option<KeptBuffers> {
        let inner = self.enter();
        let mut scopes = inner.scopes.borrow_mut();
        let mut transport = inner.transport.borrow_mut();
        scopes.all[scope].end_all(&mut **transport).then(|| scopes.close(scope))
    }

    /// Ends all operations of the scope and closes it.
    ///
    /// Borrowed memory goes back to its owner after this. If the transport can't guarantee that nothing
    /// accesses it, this aborts the process: otherwise a peer could overwrite reused memory.
    pub(super) fn close_scope(&self, scope: usize) {
        let mut start = None;
        let kept = loop {
            if let Some(kept) = self.try_close_scope(scope) {
                break kept;
            }
            if start.get_or_insert_with(Instant::now).elapsed() > DRAIN_PATIENCE {
                break self.abandon(scope);
            }
            if !self.progress() {
                std::thread::yield_now();
            }
        };
        drop(kept);
    }

    fn abandon(&self, scope: usize) -> KeptBuffers {
        let inside = self.enter();
        let abandoned = inside.transport.borrow_mut().abandon();
        inside.end(Failure::Aborted(self.rank), &Error::Closed, self.rank);
        drop(inside);
        let closed = if abandoned.is_ok() { self.try_close_scope(scope) } else { None };
        closed.unwrap_or_else(|| {
            // Not a tracing event: a subscriber may not show it. A failed write to standard error must not
            // unwind here.
            let why =
                format!("operations on borrowed memory can't be ended ({abandoned:?}): stopping the process");
            let _ = writeln!(std::io::stderr(), "brevity: {why}");
            std::process::abort();
        })
    }

    /// Makes the transport leave because the process exits, if it can be entered before `until`.
    pub(crate) fn leave_with_process(&self, is_library_there: bool, until: Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inside = self.inner.try_lock_until(until);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // The transport is borrowed if it made the call that exits.
        if let Some(Ok(mut transport)) = inside.as_ref().map(|inside| inside.transport.try_borrow_mut()) {
            transport.leave_with_process(is_library_there);
        }
        drop(inside);
        told::tell();
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
