//! Operations in flight as futures that hold their buffers until they have ended.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::comm::Comm;
use super::memory::Buffer;
use super::port::Inner;
use super::scopes::KeptBuffer;
use super::waking::next_turn;
use crate::transport::{OperationId, RecvId, SendId, Transport};
use crate::{Arrival, Error, Failure, Rank, Result, Tag};

/// A send in flight; see [`Comm::send`].
pub type Send<'comm, 'env, B> = PostedOperation<'comm, 'env, B, SendId>;

/// A receive in flight; see [`Comm::recv`].
pub type Recv<'comm, 'env, B> = PostedOperation<'comm, 'env, B, RecvId>;

/// An operation in flight. It is already posted, and resolves to its buffer and its outcome.
///
/// Dropping it cancels the operation and leaves the buffer to the scope; [`Comm::send`] describes what that
/// means for a message that the peer already knows of. An operation that fails drops its buffer.
#[must_use = "an operation that is dropped is canceled"]
pub struct PostedOperation<'comm, 'env, B: Buffer + 'env, Id: Direction> {
    comm: &'comm Comm<'env>,
    peer: Rank,
    tag: Tag,
    state: State<Id>,
    /// The buffer, until it is given back.
    raw: Option<B::Raw>,
}

/// The state of an operation.
pub(super) enum State<Id: Direction> {
    Pending(Id),
    Done(Id::Outcome),
    /// Boxed, so that the other states stay small to copy.
    Failed(Box<Error>),
    Taken,
}

impl<Id: Direction> State<Id> {
    #[cold]
    #[inline(never)]
    pub(super) fn failed(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

impl<'comm, 'env, B: Buffer + 'env, Id: Direction> PostedOperation<'comm, 'env, B, Id> {
    #[inline]
    pub(super) fn new(
        comm: &'comm Comm<'env>,
        (peer, tag): (Rank, Tag),
        raw: B::Raw,
        state: State<Id>,
    ) -> Self {
        Self { comm, peer, tag, state, raw: Some(raw) }
    }

    /// Cancels an operation whose future is dropped; the scope keeps its buffer until it has ended.
    #[cold]
    fn cancel(&mut self, id: Id) {
        let Some(raw) = self.raw.take() else { return };
        let inner = self.comm.port().enter();
        let mut scopes = inner.scopes.borrow_mut();
        let mut transport = inner.transport.borrow_mut();
        if id.end_early(&mut **transport) {
            scopes.all[self.comm.scope_key()].ended(id.operation());
        } else {
            scopes.all[self.comm.scope_key()].keep(id.operation(), kept_buffer(raw));
        }
    }

    /// Returns pending, and arranges that the task is woken when the operation has ended. A scope or engine
    /// that polls every turn has a no-op waker and needs no waking.
    #[inline]
    fn wait<T>(&self, inner: &Inner, id: Id, context: &Context<'_>) -> Poll<T> {
        if context.waker().will_wake(Waker::noop()) { Poll::Pending } else { self.leave(inner, id, context) }
    }

    #[cold]
    fn leave<T>(&self, inner: &Inner, id: Id, context: &Context<'_>) -> Poll<T> {
        let mut transport = inner.transport.borrow_mut();
        let Some(on_end) = transport.on_end(id.operation()) else {
            drop(transport);
            return next_turn(context);
        };
        on_end.set(context.waker(), &self.comm.port().woken);
        Poll::Pending
    }

    /// Returns the buffer and the outcome of an operation that has ended.
    #[inline(always)]
    fn resolve(&mut self, outcome: Id::Outcome) -> Poll<Result<(B, Id::Outcome)>> {
        self.state = State::Taken;
        let Some(raw) = self.raw.take() else {
            unreachable!("the buffer of an operation stays until it is over")
        };
        // SAFETY: the raw parts come from the posted buffer, and the operation has ended.
        let buffer = unsafe { B::from_raw(raw) };
        Poll::Ready(Ok((buffer, outcome)))
    }
}

impl<'env, B: Buffer + 'env, Id: Direction> Future for PostedOperation<'_, 'env, B, Id> {
    type Output = Result<(B, Id::Outcome)>;

    // Inlined always, to spare a copy of the arrival with every message.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Pending(id) = self.state {
            let comm = self.comm;
            let inner = comm.port().enter();
            let spins = if Id::LOOKS { comm.spins(&inner) } else { 0 };
            let ended = id.test(&mut **inner.transport.borrow_mut(), spins);
            match ended {
                None if !comm.has_expired() => return self.wait(&inner, id, context),
                Some(Ok(outcome)) => {
                    inner.scopes.borrow_mut().all[comm.scope_key()].ended(id.operation());
                    return self.resolve(outcome);
                }
                ended => self.state = fail(comm, &inner, (self.peer, self.tag), (id, ended)),
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
                self.wait(&self.comm.port().enter(), id, context)
            }
            State::Taken => unreachable!("an operation is not polled after it has resolved"),
        }
    }
}

// The state is never pinned: the memory that must not move lies elsewhere.
impl<'env, B: Buffer + 'env, Id: Direction> Unpin for PostedOperation<'_, 'env, B, Id> {}

impl<'env, B: Buffer + 'env, Id: Direction> Drop for PostedOperation<'_, 'env, B, Id> {
    #[inline]
    fn drop(&mut self) {
        if let State::Pending(id) = self.state {
            self.cancel(id);
        }
    }
}

/// The state of an operation with `peer` that has failed, or whose deadline has passed; then it is canceled.
#[cold]
fn fail<Id: Direction>(
    comm: &Comm<'_>,
    inner: &Inner,
    (peer, tag): (Rank, Tag),
    (id, mut ended): (Id, Option<Result<Id::Outcome>>),
) -> State<Id> {
    let mut transport = inner.transport.borrow_mut();
    if ended.is_none() {
        if !comm.time().has_expired_softly() {
            id.cancel(&mut **transport);
        } else if !id.withdraw(&mut **transport) {
            return State::Pending(id);
        }
        ended = id.test(&mut **transport, 0);
    }
    let now = transport.now();
    drop(transport);
    let Some(result) = ended else { return State::Pending(id) };
    inner.scopes.borrow_mut().all[comm.scope_key()].ended(id.operation());
    let error = match result {
        Ok(outcome) => return State::Done(outcome),
        Err(error) => {
            let context = Id::HAS_CONTEXT.then(|| tag.group());
            inner.heed_failure(error, context, comm.port().rank())
        }
    };
    let is_out_of_time = match error {
        Error::Canceled => comm.has_expired(),
        // The context was closed while this call waited, by its own timeout or another's.
        Error::Aborted { .. } | Error::PeerLost { .. } => {
            comm.time().is_waiting() && matches!(inner.failure(tag.group()), Some(Failure::TimedOut(_)))
        }
        _ => false,
    };
    State::failed(if is_out_of_time {
        Error::Timeout { rank: peer, tag, waited: comm.time().waited(now) }
    } else {
        error
    })
}

/// Boxes raw parts, to be kept until their operation has ended.
fn kept_buffer<'env, R: std::marker::Send + 'env>(raw: R) -> Box<dyn KeptBuffer> {
    let kept: Box<dyn KeptBuffer + 'env> = Box::new(Kept(raw));
    // SAFETY: the scope drops the box before `'env` ends, because it is closed before its stack frame or task
    // ends. A scope that is never closed never drops it.
    unsafe { std::mem::transmute::<Box<dyn KeptBuffer + 'env>, Box<dyn KeptBuffer>>(kept) }
}

struct Kept<R>(R);

impl<R: std::marker::Send> KeptBuffer for Kept<R> {}

/// Whether an operation sends, receives, puts or gets.
pub trait Direction: Copy {
    /// What the operation reports when it has ended.
    type Outcome;

    /// Whether testing it may poll for the message itself.
    #[doc(hidden)]
    const LOOKS: bool = false;

    /// Whether its tag names a context.
    #[doc(hidden)]
    const HAS_CONTEXT: bool = true;

    #[doc(hidden)]
    fn operation(self) -> OperationId;
    #[doc(hidden)]
    fn test(self, transport: &mut dyn Transport, spins: u32) -> Option<Result<Self::Outcome>>;
    #[doc(hidden)]
    fn cancel(self, transport: &mut dyn Transport);

    /// Cancels it, unless it would lose a message that has begun to come. Returns whether it ends early.
    #[doc(hidden)]
    fn withdraw(self, transport: &mut dyn Transport) -> bool {
        self.cancel(transport);
        true
    }

    /// Cancels and tests it. Returns whether it has ended.
    #[doc(hidden)]
    fn end_early(self, transport: &mut dyn Transport) -> bool {
        self.cancel(transport);
        self.test(transport, 0).is_some()
    }
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

    fn withdraw(self, transport: &mut dyn Transport) -> bool {
        transport.withdraw_recv(self)
    }
}
