//! Operations as futures, and the scope that ends them before borrowed memory goes back.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::call_time::CallTime;
use super::memory::{Buffer, RecvBuffer, SendBuffer};
use super::port::{Inner, Inside, OperationId, Orphan, Port};
use super::waking::next_turn;
use crate::memory::{ReadLease, WriteLease};
use crate::told;
use crate::transport::{Posted, RecvId, RecvParts, SendId, SendParts, Transport, check_peer};
use crate::{Arrival, Envelope, Error, Failure, Lengths, Rank, Result, Tag};

/// Sends and receives inside one scope, on buffers that outlive `'env`.
///
/// The lifetime is invariant and `'env` outlives the scope, as with [`std::thread::scope`]: lending a buffer
/// that is local to the scope's own future does not compile.
pub struct Comm<'env> {
    port: Arc<Port>,
    scope: usize,
    /// Here and not in the port's book: every poll asks whether the deadline has passed.
    time: CallTime,
    /// How often an awaited receive that is alone in the scope looks for its message before it lets others
    /// have a turn.
    spins: AtomicU32,
    /// Awaited receives that may have looked, so far.
    looks: AtomicU32,
    env: PhantomData<fn(&'env ()) -> &'env ()>,
}

/// In a row of messages that are there as soon as they are looked for, one of so many waits for a turn:
/// others need turns too.
const LOOKS_PER_TURN: u32 = 16;

/// Runs `body` to its end on this thread, calling `between` after each poll that left it waiting.
///
/// Returns only after every operation that `body` posted has ended, whether it was awaited, dropped or
/// forgotten; the same on a panic. `between` should move the transport ([`Port::progress`]) and may let the
/// deadline pass ([`Comm::expire`]).
pub fn scope<'env, R>(
    port: &Arc<Port>,
    mut between: impl FnMut(&Comm<'env>),
    body: impl AsyncFnOnce(&Comm<'env>) -> R,
) -> R {
    let comm = Comm::open(port, 0);
    comm.time.begin_to_wait(port.now());
    let drain = DrainOnExit(&comm);
    let result = {
        let mut future = std::pin::pin!(body(&comm));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                break result;
            }
            between(&comm);
        }
    };
    drop(drain);
    told::tell();
    result
}

/// As [`scope`], but moves the transport itself: `between` is told whether a turn that left `body` waiting
/// moved anything.
///
/// The transport stays entered for as long as no other thread wants to enter it, which saves what each
/// operation would pay to enter it, and a change of hands of the lock every turn. Other threads can enter it
/// between two turns, and a poll of `body` must not wait for one that does; nor may `between`, unless it has
/// called [`Turn::leave`].
///
/// A receive that `body` awaits while no other operation is in flight looks for a short message up to `spins`
/// times before `between` is called: some 100 where nobody else wants the processor, none where somebody
/// does. `between` can change that ([`Comm::set_spins`]), and says when the call begins to wait
/// ([`CallTime::begin_to_wait`]).
pub fn scope_in_turns<'env, R>(
    port: &Arc<Port>,
    spins: u32,
    mut between: impl FnMut(&Comm<'env>, &mut Turn<'_>),
    body: impl AsyncFnOnce(&Comm<'env>) -> R,
) -> R {
    let comm = Comm::open(port, spins);
    let drain = DrainOnExit(&comm);
    let result = {
        let mut future = std::pin::pin!(body(&comm));
        let mut context = Context::from_waker(Waker::noop());
        let mut turn = Turn { port, inside: Some(port.enter()), moved: false };
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                break result;
            }
            between(&comm, &mut turn);
            turn.go();
        }
    };
    drop(drain);
    told::tell();
    result
}

/// A turn of [`scope_in_turns`] that left its body waiting.
pub struct Turn<'port> {
    port: &'port Port,
    inside: Option<Inside<'port>>,
    moved: bool,
}

impl Turn<'_> {
    /// Whether it moved anything.
    #[must_use]
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Lets other threads enter the transport until the next turn. To be called before waiting for anything.
    pub fn leave(&mut self) {
        self.inside = None;
    }

    #[inline]
    fn go(&mut self) {
        self.port.heed_abort();
        if self.port.is_wanted() {
            self.inside.take().into_iter().for_each(Port::hand_over);
        }
        let inside = self.inside.get_or_insert_with(|| self.port.enter());
        self.moved = inside.transport.borrow_mut().progress();
        if inside.has_left() || told::has_some() {
            // What is freed, and a subscriber, may wait for a thread that wants to enter.
            self.inside = None;
            self.port.end_left();
            told::tell();
        }
    }
}

impl<'env> Comm<'env> {
    pub(super) fn open(port: &Arc<Port>, spins: u32) -> Self {
        let (time, spins, looks) = (CallTime::default(), AtomicU32::new(spins), AtomicU32::new(0));
        Self { port: Arc::clone(port), scope: port.open_scope(), time, spins, looks, env: PhantomData }
    }

    pub(super) fn scope_key(&self) -> usize {
        self.scope
    }

    /// The transport's door.
    #[must_use]
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The transport's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.port.now()
    }

    /// Lets the deadline pass: every operation of this scope that has not ended fails with
    /// [`Error::Timeout`].
    pub fn expire(&self) {
        self.time.expire();
    }

    /// Whether the deadline has passed.
    #[inline]
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.time.has_expired()
    }

    /// When the call of this scope began to wait, and whether its deadline has passed.
    #[must_use]
    pub fn time(&self) -> &CallTime {
        &self.time
    }

    /// From now on an awaited receive that is alone in this scope looks so often for its message; see
    /// [`scope_in_turns`].
    #[inline]
    pub fn set_spins(&self, spins: u32) {
        self.spins.store(spins, Ordering::Relaxed);
    }

    /// How often a receive that is awaited may look for its message: not where another operation is in
    /// flight, or another thread wants to enter.
    #[inline]
    fn spins(&self, inner: &Inner) -> u32 {
        let spins = self.spins.load(Ordering::Relaxed);
        if spins == 0 || self.port.is_wanted() || !inner.scopes.borrow()[self.scope].has_one_at_most() {
            return 0;
        }
        // Threads that overwrite each other lose a count.
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if looks.is_multiple_of(LOOKS_PER_TURN) { 0 } else { spins }
    }

    /// Posts a message to `to`. The buffer comes back when the bytes are on their way.
    ///
    /// Dropping the future cancels the send, but cannot always take the message back: the peer gets all of it
    /// or nothing. Over sockets and shared memory, what the peer may have seen, if only as an offer, is copied
    /// to the heap, kept there until the peer receives it or this rank leaves, and matched by the peer's next
    /// receive of its tag. So dropping a large send costs a copy and as much memory, and a tag of which a send
    /// was dropped is best not used for anything else.
    ///
    /// # Errors
    /// [`Error::ForeignTag`] for a tag of another source than this rank: nothing is sent then. What else the
    /// transport fails with.
    #[inline]
    pub fn send<B: SendBuffer + 'env>(&self, to: Rank, envelope: Envelope, buffer: B) -> Send<'_, 'env, B> {
        let raw = buffer.into_raw();
        let mut parts = SendParts::new();
        // SAFETY: the leaf, and after it the scope, keeps `raw` until the transport has given the leases
        // back.
        unsafe { B::lend(&raw, &mut parts) };
        let alone = if parts.len() == 1 { parts.pop() } else { None };
        let state = match alone {
            _ if !envelope.tag.is_of(self.port.rank()) => self.refuse(to, self.port.rank(), envelope.tag),
            Some(part) => self.send_one(to, &envelope, part),
            None => self.send_parts(to, &envelope, parts),
        };
        Leaf::new(self, (to, envelope.tag), raw, state)
    }

    fn send_one(&self, to: Rank, envelope: &Envelope, part: ReadLease) -> State<SendId> {
        let inner = self.port.enter();
        let posted = inner.transport.borrow_mut().send_one(to, envelope, part);
        self.note(&inner, posted)
    }

    fn send_parts(&self, to: Rank, envelope: &Envelope, parts: SendParts) -> State<SendId> {
        let inner = self.port.enter();
        let posted = inner.transport.borrow_mut().post_send(to, *envelope, parts).map(|done| done.result);
        self.note(&inner, posted)
    }

    /// An operation with `peer` that has failed: no message from `source` has this tag.
    #[cold]
    fn refuse<Id: Direction>(&self, peer: Rank, source: Rank, tag: Tag) -> State<Id> {
        let peer = check_peer(peer, self.port.rank(), self.port.world_size());
        State::failed(peer.err().unwrap_or(Error::ForeignTag { tag, rank: source }))
    }

    /// Notes an operation that goes on in the scope's book.
    #[inline]
    pub(super) fn note<Id: Direction>(
        &self,
        inner: &Inner,
        posted: Posted<Id, Result<Id::Outcome>>,
    ) -> State<Id> {
        match posted {
            Posted::Done(Ok(outcome)) => State::Done(outcome),
            Posted::Done(Err(error)) => State::failed(error),
            Posted::Pending(id) => {
                inner.scopes.borrow_mut()[self.scope].began(id.operation());
                State::Pending(id)
            }
        }
    }

    /// Posts a receive of the next message from `from` with the envelope's tag.
    ///
    /// The buffer comes back with what arrived; each part is at most as long as its place. What lies behind a
    /// shorter part is unspecified: bytes may have been read into it before it was known what they belong to.
    ///
    /// # Errors
    /// [`Error::ForeignTag`] for a tag of another source than `from`. What else the transport fails with.
    #[inline]
    pub fn recv<B: RecvBuffer + 'env>(&self, from: Rank, envelope: Envelope, buffer: B) -> Recv<'_, 'env, B> {
        self.post_recv(from, envelope, buffer, |_| ()).0
    }

    /// As [`recv`](Self::recv), with the bytes that the buffer has for each part.
    pub fn recv_with_room<B: RecvBuffer + 'env>(
        &self,
        from: Rank,
        envelope: Envelope,
        buffer: B,
    ) -> (Recv<'_, 'env, B>, Lengths) {
        self.post_recv(from, envelope, buffer, |parts| parts.iter().map(WriteLease::len).collect())
    }

    fn recv_parts(&self, from: Rank, envelope: &Envelope, parts: RecvParts) -> State<RecvId> {
        let inner = self.port.enter();
        let posted = inner.transport.borrow_mut().post_recv(from, *envelope, parts).map(|done| done.result);
        self.note(&inner, posted)
    }

    #[inline]
    fn post_recv<B: RecvBuffer + 'env, N>(
        &self,
        from: Rank,
        envelope: Envelope,
        buffer: B,
        note: impl FnOnce(&RecvParts) -> N,
    ) -> (Recv<'_, 'env, B>, N) {
        let mut raw = buffer.into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: the leaf, and after it the scope, keeps `raw` until the transport has given the leases
        // back.
        unsafe { B::lend(&mut raw, &mut parts) };
        let noted = note(&parts);
        let state = if envelope.tag.is_of(from) {
            self.recv_parts(from, &envelope, parts)
        } else {
            self.refuse(from, from, envelope.tag)
        };
        (Leaf::new(self, (from, envelope.tag), raw, state), noted)
    }
}

/// Ends what is left in a scope when its stack frame is left, by return or by panic.
struct DrainOnExit<'comm, 'env>(&'comm Comm<'env>);

impl Drop for DrainOnExit<'_, '_> {
    fn drop(&mut self) {
        self.0.port.close_scope(self.0.scope);
    }
}

/// A send in flight; see [`Comm::send`].
pub type Send<'comm, 'env, B> = Leaf<'comm, 'env, B, SendId>;

/// A receive in flight; see [`Comm::recv`].
pub type Recv<'comm, 'env, B> = Leaf<'comm, 'env, B, RecvId>;

/// An operation in flight: posted already, it resolves to its buffer and its outcome.
///
/// Dropped early, it cancels the operation and leaves its buffer to the scope; what that means for a message
/// that the peer knows of already, [`Comm::send`] says. An operation that fails drops its buffer.
#[must_use = "an operation that is dropped is canceled"]
pub struct Leaf<'comm, 'env, B: Buffer + 'env, Id: Direction> {
    comm: &'comm Comm<'env>,
    peer: Rank,
    tag: Tag,
    state: State<Id>,
    /// The buffer, until it is given back.
    raw: Option<B::Raw>,
}

/// What has become of an operation.
pub(super) enum State<Id: Direction> {
    Pending(Id),
    Done(Id::Outcome),
    /// Boxed: every state would have room for an error, and be copied with it.
    Failed(Box<Error>),
    Taken,
}

impl<Id: Direction> State<Id> {
    #[cold]
    #[inline(never)]
    fn failed(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

impl<'comm, 'env, B: Buffer + 'env, Id: Direction> Leaf<'comm, 'env, B, Id> {
    #[inline]
    pub(super) fn new(
        comm: &'comm Comm<'env>,
        (peer, tag): (Rank, Tag),
        raw: B::Raw,
        state: State<Id>,
    ) -> Self {
        Self { comm, peer, tag, state, raw: Some(raw) }
    }

    /// Cancels an operation that nobody waits for any more; its buffer is the scope's until it is over.
    #[cold]
    fn cancel(&mut self, id: Id) {
        let Some(raw) = self.raw.take() else { return };
        let inner = self.comm.port.enter();
        let mut scopes = inner.scopes.borrow_mut();
        let mut transport = inner.transport.borrow_mut();
        id.cancel(&mut **transport);
        if id.test(&mut **transport, 0).is_some() {
            scopes[self.comm.scope].ended(id.operation());
        } else {
            scopes[self.comm.scope].adopt(id.operation(), orphan(raw));
        }
    }

    /// Ends an operation that has failed, or whose time is over if it can be canceled.
    #[cold]
    fn fail(&mut self, inner: &Inner, id: Id, mut ended: Option<Result<Id::Outcome>>) {
        let mut transport = inner.transport.borrow_mut();
        if ended.is_none() {
            id.cancel(&mut **transport);
            ended = id.test(&mut **transport, 0);
        }
        let Some(result) = ended else { return };
        inner.scopes.borrow_mut()[self.comm.scope].ended(id.operation());
        let error = match result {
            Ok(outcome) => {
                self.state = State::Done(outcome);
                return;
            }
            Err(error) => error,
        };
        let is_out_of_time = match error {
            Error::Canceled => self.comm.has_expired(),
            // Closed with the whole transport while this call waited, by its timeout or another's.
            Error::Aborted { .. } => {
                self.comm.time.is_waiting() && matches!(transport.failure(), Some(Failure::TimedOut(_)))
            }
            _ => false,
        };
        let error = if is_out_of_time {
            let waited = self.comm.time.waited(transport.now());
            Error::Timeout { rank: self.peer, tag: self.tag, waited }
        } else {
            error
        };
        self.state = State::failed(error);
    }

    /// Gives the buffer back with the outcome of an operation that has ended.
    #[inline(always)]
    fn resolve(&mut self, outcome: Id::Outcome) -> Poll<Result<(B, Id::Outcome)>> {
        self.state = State::Taken;
        let Some(raw) = self.raw.take() else {
            unreachable!("the buffer of an operation stays until it is over")
        };
        // SAFETY: the raw parts were taken apart when the operation was posted, and it has ended.
        let buffer = unsafe { B::from_raw(raw) };
        Poll::Ready(Ok((buffer, outcome)))
    }
}

impl<'env, B: Buffer + 'env, Id: Direction> Future for Leaf<'_, 'env, B, Id> {
    type Output = Result<(B, Id::Outcome)>;

    // Always: what has arrived would be copied once more, on the way of every message.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Pending(id) = self.state {
            let comm = self.comm;
            let inner = comm.port.enter();
            let spins = if Id::LOOKS { comm.spins(&inner) } else { 0 };
            let ended = id.test(&mut **inner.transport.borrow_mut(), spins);
            match ended {
                None if !comm.has_expired() => return next_turn(context),
                Some(Ok(outcome)) => {
                    inner.scopes.borrow_mut()[comm.scope].ended(id.operation());
                    return self.resolve(outcome);
                }
                ended => self.fail(&inner, id, ended),
            }
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Done(outcome) => self.resolve(outcome),
            State::Failed(error) => {
                self.raw = None;
                Poll::Ready(Err(*error))
            }
            State::Pending(id) => {
                self.state = State::Pending(id);
                next_turn(context)
            }
            State::Taken => unreachable!("an operation is not polled after it has resolved"),
        }
    }
}

// The state is never pinned: the memory that must not move lies behind the raw parts.
impl<'env, B: Buffer + 'env, Id: Direction> Unpin for Leaf<'_, 'env, B, Id> {}

impl<'env, B: Buffer + 'env, Id: Direction> Drop for Leaf<'_, 'env, B, Id> {
    #[inline]
    fn drop(&mut self) {
        if let State::Pending(id) = self.state {
            self.cancel(id);
        }
    }
}

/// Boxes raw parts to be kept until their operation has ended.
fn orphan<'env, R: std::marker::Send + 'env>(raw: R) -> Box<dyn Orphan> {
    let kept: Box<dyn Orphan + 'env> = Box::new(Kept(raw));
    // SAFETY: the scope drops the box before `'env` ends, because it is closed before its stack frame or its
    // task is left; what a scope never closes is never dropped.
    unsafe { std::mem::transmute::<Box<dyn Orphan + 'env>, Box<dyn Orphan>>(kept) }
}

struct Kept<R>(R);

impl<R: std::marker::Send> Orphan for Kept<R> {}

/// Whether an operation sends, receives, puts or gets.
pub trait Direction: Copy {
    /// What the operation reports when it has ended.
    type Outcome;

    /// Whether it may look for its end by itself.
    #[doc(hidden)]
    const LOOKS: bool = false;

    #[doc(hidden)]
    fn operation(self) -> OperationId;
    #[doc(hidden)]
    fn test(self, transport: &mut dyn Transport, spins: u32) -> Option<Result<Self::Outcome>>;
    #[doc(hidden)]
    fn cancel(self, transport: &mut dyn Transport);
}

impl Direction for SendId {
    type Outcome = ();

    fn operation(self) -> OperationId {
        OperationId::Send(self)
    }

    fn test(self, transport: &mut dyn Transport, _: u32) -> Option<Result<()>> {
        transport.test_send(self).map(|done| done.result)
    }

    fn cancel(self, transport: &mut dyn Transport) {
        transport.cancel_send(self);
    }
}

impl Direction for RecvId {
    type Outcome = Arrival;

    const LOOKS: bool = true;

    fn operation(self) -> OperationId {
        OperationId::Recv(self)
    }

    fn test(self, transport: &mut dyn Transport, spins: u32) -> Option<Result<Arrival>> {
        transport.recv_outcome(self, spins)
    }

    fn cancel(self, transport: &mut dyn Transport) {
        transport.cancel_recv(self);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::local;

    #[test]
    fn nobody_looks_for_long_while_another_thread_wants_to_enter() {
        let port = Port::new(Box::new(local::world(1).remove(0)));
        let comm = Comm::open(&port, 2);
        let inside = port.enter();
        assert_eq!(comm.spins(&inside), 2);
        std::thread::scope(|threads| {
            threads.spawn(|| drop(port.enter()));
            while !port.is_wanted() {
                std::hint::spin_loop();
            }
            assert_eq!(comm.spins(&inside), 0);
            drop(inside);
        });
        comm.set_spins(1);
        assert_eq!(comm.spins(&port.enter()), 1);
        port.close_scope(comm.scope);
    }

    #[test]
    fn another_thread_enters_between_turns() {
        let port = Port::new(Box::new(local::world(1).remove(0)));
        let (entered, turns) = (AtomicBool::new(false), AtomicBool::new(false));
        let looked = std::future::poll_fn(|_| {
            turns.store(true, Ordering::Release);
            if entered.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        });
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !turns.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                assert_eq!(port.statistics().messages_sent, 0);
                entered.store(true, Ordering::Release);
            });
            scope_in_turns(&port, 0, |_, turn| assert!(!turn.moved()), async move |_| looked.await);
        });
    }
}
