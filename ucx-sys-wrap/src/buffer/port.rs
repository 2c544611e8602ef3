//! The door to a transport: one thread at a time, and a book of every operation in flight.

use std::cell::RefCell;
use std::io::Write;
use std::ops::{Index, IndexMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

use super::abort::AbortRequest;
use super::left::Left;
use crate::exit::{self, Leave};
use crate::pollable::wait_for;
use crate::told::{self, TellLast};
use crate::transport::{RecvId, SendId, Transport};
use crate::{AccessId, Failure, Owner, Rank, Statistics};

/// How long a scope waits for its canceled operations before the transport is torn down.
pub(super) const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// A transport that can be shared between threads and is entered by one of them at a time.
///
/// It knows every operation in flight by the scope that posted it, so that a scope can end all its own,
/// whether or not somebody still holds them.
///
/// What the transport tells by way of `tracing` is told when the port has been left: a subscriber may call any
/// function of the port.
pub struct Port {
    inner: ReentrantMutex<Inner>,
    /// Threads that wait to enter.
    waiting: AtomicU32,
    pub(super) abort: AbortRequest,
    owner: Owner,
    name: &'static str,
    rank: Rank,
    world_size: u32,
    /// After the transport, whose end may be an event.
    _told: TellLast,
}

/// The transport, entered.
pub(super) type Inside<'port> = ReentrantMutexGuard<'port, Inner>;

pub(super) struct Inner {
    pub(super) transport: RefCell<Box<dyn Transport>>,
    pub(super) scopes: RefCell<Scopes>,
    /// Scopes that are open and that nobody holds.
    pub(super) left: RefCell<Vec<Left>>,
}

/// The scopes that are open. Those that were closed keep their place and memory for the next.
#[derive(Default)]
pub(super) struct Scopes {
    all: Vec<ScopeState>,
    closed: Vec<usize>,
}

#[derive(Default)]
pub(super) struct ScopeState {
    in_flight: Vec<InFlight>,
    /// Of operations that have ended.
    orphans: Vec<Box<dyn Orphan>>,
}

/// An operation in flight, and its buffer if whoever waited for it has gone.
struct InFlight {
    id: OperationId,
    orphan: Option<Box<dyn Orphan>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OperationId {
    Send(SendId),
    Recv(RecvId),
    Access(AccessId),
}

/// A buffer kept only so that it outlives its operation; dropping it frees it.
pub(super) trait Orphan: Send {}

/// The buffers that a closed scope has kept.
///
/// To be dropped before what they borrow is free, and once the caller knows that the scope is closed: a
/// buffer may have been made by anybody, and dropping it may panic, or enter the port.
#[must_use]
pub(super) struct Orphans {
    _kept: Vec<Box<dyn Orphan>>,
}

impl Port {
    /// Makes a door for `transport`.
    #[must_use]
    pub fn new(transport: Box<dyn Transport>) -> Arc<Self> {
        let (name, rank, world_size) = (transport.name(), transport.rank(), transport.world_size());
        let stands_on_library = transport.stands_on_library();
        let inner = Inner {
            transport: RefCell::new(transport),
            scopes: RefCell::default(),
            left: RefCell::default(),
        };
        let inner = ReentrantMutex::new(inner);
        let port = Arc::new(Self {
            inner,
            waiting: AtomicU32::new(0),
            abort: AbortRequest::default(),
            owner: Owner::here(),
            name,
            rank,
            world_size,
            _told: TellLast,
        });
        if stands_on_library {
            exit::keep(&port);
        }
        port
    }

    /// The transport's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the transport is that of a simulated network; see [`Transport::is_simulated`].
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.enter().transport.borrow().is_simulated()
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks in the world.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Whether this is not a copy in a forked child, which is to leave the transport alone. Costs a system
    /// call.
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_here()
    }

    /// Moves bytes, without blocking except for another thread that is inside. Says whether anything
    /// happened.
    pub fn progress(&self) -> bool {
        self.heed_abort();
        let inside = self.enter();
        let moved = inside.transport.borrow_mut().progress();
        let has_left = inside.has_left();
        drop(inside);
        if has_left {
            self.end_left();
        }
        told::tell();
        moved
    }

    /// The transport's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.enter().transport.borrow().now()
    }

    /// What was sent, received and copied.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.enter().transport.borrow().statistics()
    }

    /// Why the transport is closed, once it is.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.heed_abort();
        self.enter().transport.borrow().failure()
    }

    /// Watches a peer that is waited for by other means than an operation; see [`Transport::watch`].
    #[must_use]
    pub fn watch(&self, peer: Rank) -> bool {
        self.enter().transport.borrow_mut().watch(peer)
    }

    /// Closes the transport on all ranks because a peer that is needed has gone.
    pub fn lose(&self, peer: Rank) {
        self.enter().transport.borrow_mut().fail(Failure::PeerLost(peer));
        told::tell();
    }

    /// Closes the transport on purpose, on all ranks. Not for signal handlers: see
    /// [`request_abort`](Self::request_abort).
    pub fn abort(&self) {
        self.enter().transport.borrow_mut().fail(Failure::Aborted(self.rank));
        told::tell();
    }

    /// Closes the transport on all ranks because this one has waited for as long as it may. Every operation
    /// that is pending, on any rank, ends with [`Error::Timeout`](crate::Error::Timeout) naming the rank that
    /// it waits for.
    pub fn time_out(&self) {
        self.enter().transport.borrow_mut().fail(Failure::TimedOut(self.rank));
        told::tell();
    }

    /// Sleeps until there is something to progress, at most `longest`; other threads may enter meanwhile.
    pub fn sleep(&self, longest: Duration) {
        self.sleep_or_hear(longest, None);
    }

    /// As [`sleep`](Self::sleep), or until `bell` is readable.
    pub fn sleep_or_hear(&self, longest: Duration, bell: Option<BorrowedFd<'_>>) {
        match self.arm() {
            Some(descriptor) => wait_for(descriptor.as_fd(), bell, Some(longest)),
            None => std::thread::yield_now(),
        }
    }

    /// Prepares for sleeping without the port: a descriptor, always the same, that becomes readable when
    /// there is something to [`progress`](Self::progress). `None` when there is already, or when nobody can
    /// sleep on this transport.
    #[must_use]
    pub fn arm(&self) -> Option<Arc<OwnedFd>> {
        self.enter().transport.borrow_mut().arm()
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

    /// Whether a thread is inside.
    pub(super) fn is_in_use(&self) -> bool {
        self.inner.is_locked()
    }

    /// Whether another thread waits to enter.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Leaves; a thread that waits is inside before this one is again.
    #[cold]
    pub(super) fn hand_over(inside: Inside<'_>) {
        ReentrantMutexGuard::unlock_fair(inside);
    }

    pub(super) fn open_scope(&self) -> usize {
        self.heed_abort();
        self.enter().scopes.borrow_mut().open()
    }

    /// Cancels and tests what the scope has in flight. Once nothing is left, closes the scope and gives what
    /// it has kept.
    pub(super) fn try_close_scope(&self, scope: usize) -> Option<Orphans> {
        let inner = self.enter();
        let mut scopes = inner.scopes.borrow_mut();
        let mut transport = inner.transport.borrow_mut();
        scopes[scope].end_all(&mut **transport).then(|| scopes.close(scope))
    }

    /// Ends what the scope has in flight, whatever it takes, and closes the scope.
    ///
    /// Borrowed memory goes back to its owner after this. If the transport can't promise that nothing touches
    /// it, the process ends: the alternative is a peer that writes into memory that is used for something
    /// else.
    pub(super) fn close_scope(&self, scope: usize) {
        let mut start = None;
        let orphans = loop {
            if let Some(orphans) = self.try_close_scope(scope) {
                break orphans;
            }
            if start.get_or_insert_with(Instant::now).elapsed() > DRAIN_PATIENCE {
                break self.abandon(scope);
            }
            if !self.progress() {
                std::thread::yield_now();
            }
        };
        drop(orphans);
    }

    fn abandon(&self, scope: usize) -> Orphans {
        let abandoned = self.enter().transport.borrow_mut().abandon();
        let closed = if abandoned.is_ok() { self.try_close_scope(scope) } else { None };
        closed.unwrap_or_else(|| {
            // Not an event: whoever listens to these must hear it too. Nothing may unwind from here, not even
            // for want of a standard error.
            let why =
                format!("operations on borrowed memory can't be ended ({abandoned:?}): stopping the process");
            let _ = writeln!(std::io::stderr(), "brevity: {why}");
            std::process::abort();
        })
    }
}

impl Leave for Port {
    fn leave(&self, is_library_there: bool, until: Instant) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inside = self.inner.try_lock_until(until);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // It is in use where it has called what exits.
        if let Some(Ok(mut transport)) = inside.as_ref().map(|inside| inside.transport.try_borrow_mut()) {
            transport.leave_with_process(is_library_there);
        }
        drop(inside);
        told::tell();
    }
}

impl Scopes {
    fn open(&mut self) -> usize {
        self.closed.pop().unwrap_or_else(|| {
            self.all.push(ScopeState::default());
            self.all.len() - 1
        })
    }

    pub(super) fn close(&mut self, scope: usize) -> Orphans {
        self.closed.push(scope);
        Orphans { _kept: std::mem::take(&mut self.all[scope].orphans) }
    }
}

impl Index<usize> for Scopes {
    type Output = ScopeState;

    #[inline]
    fn index(&self, scope: usize) -> &ScopeState {
        &self.all[scope]
    }
}

impl IndexMut<usize> for Scopes {
    #[inline]
    fn index_mut(&mut self, scope: usize) -> &mut ScopeState {
        &mut self.all[scope]
    }
}

impl ScopeState {
    /// Whether one operation at most is in flight.
    #[inline]
    pub(super) fn has_one_at_most(&self) -> bool {
        self.in_flight.len() <= 1
    }

    #[inline]
    pub(super) fn began(&mut self, id: OperationId) {
        self.in_flight.push(InFlight { id, orphan: None });
    }

    #[inline]
    pub(super) fn ended(&mut self, id: OperationId) {
        if let Some(position) = self.in_flight.iter().position(|operation| operation.id == id) {
            self.in_flight.swap_remove(position);
        }
    }

    pub(super) fn adopt(&mut self, id: OperationId, orphan: Box<dyn Orphan>) {
        if let Some(operation) = self.in_flight.iter_mut().find(|operation| operation.id == id) {
            operation.orphan = Some(orphan);
        }
    }

    /// Cancels and tests all that is in flight; says whether nothing is left.
    pub(super) fn end_all(&mut self, transport: &mut dyn Transport) -> bool {
        let orphans = &mut self.orphans;
        self.in_flight.retain_mut(|operation| {
            let is_over = operation.end(transport);
            if is_over {
                orphans.extend(operation.orphan.take());
            }
            !is_over
        });
        self.in_flight.is_empty()
    }
}

impl InFlight {
    /// Cancels and tests; says whether the operation has ended.
    fn end(&self, transport: &mut dyn Transport) -> bool {
        match self.id {
            OperationId::Send(id) => {
                transport.cancel_send(id);
                transport.test_send(id).is_some()
            }
            OperationId::Recv(id) => {
                transport.cancel_recv(id);
                transport.test_recv(id).is_some()
            }
            OperationId::Access(id) => {
                transport.one_sided().cancel_access(id);
                transport.one_sided().test_access(id).is_some()
            }
        }
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
