//! Sends and receives of one scope.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::call_time::CallTime;
use super::memory::{RecvBuffer, SendBuffer};
use super::operation::{Direction, PostedOperation, Recv, Send, State};
use super::port::{Inner, Port};
use crate::memory::{ReadLease, WriteLease};
use crate::transport::{Posted, RecvId, RecvParts, SendId, SendParts, check_peer};
use crate::{Envelope, Error, Lengths, Rank, Result, Tag};

/// Sends and receives inside one scope, on buffers that outlive `'env`.
///
/// As with [`std::thread::scope`], the lifetime is invariant and `'env` outlives the scope: lending a buffer
/// that is local to the scope's own future does not compile.
pub struct Comm<'env> {
    port: Arc<Port>,
    scope: usize,
    /// Not in the port's scope table, because every poll checks the deadline.
    time: CallTime,
    /// Set once the scope is given up. Empty until somebody asks for what gives it up.
    pub(super) given_up: OnceLock<Arc<AtomicBool>>,
    /// How often an awaited receive that is alone in the scope polls for its message before it yields.
    spins: AtomicU32,
    /// The number of such polls so far.
    looks: AtomicU32,
    env: PhantomData<fn(&'env ()) -> &'env ()>,
}

/// One of this many receives yields even if its message would be found by spinning, so that others get turns.
const LOOKS_PER_TURN: u32 = 16;

impl<'env> Comm<'env> {
    pub(super) fn open(port: &Arc<Port>, spins: u32) -> Self {
        let (time, given_up) = (CallTime::default(), OnceLock::new());
        let (spins, looks, scope) = (AtomicU32::new(spins), AtomicU32::new(0), port.open_scope());
        Self { port: Arc::clone(port), scope, time, given_up, spins, looks, env: PhantomData }
    }

    #[inline]
    pub(super) fn scope_key(&self) -> usize {
        self.scope
    }

    /// The port of this scope.
    #[inline]
    #[must_use]
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The transport's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.port.now()
    }

    /// Lets the deadline pass: every pending operation of this scope fails with [`Error::Timeout`].
    pub fn expire(&self) {
        self.time.expire();
        self.port.wake_scope(self.scope);
    }

    /// Whether the deadline has passed.
    #[inline]
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.time.has_expired()
    }

    /// The waiting time and deadline of this scope's call.
    #[must_use]
    pub fn time(&self) -> &CallTime {
        &self.time
    }

    /// Sets how often an awaited receive that is alone in this scope polls for its message; see
    /// [`scope_in_turns`](super::scope_in_turns).
    #[inline]
    pub fn set_spins(&self, spins: u32) {
        self.spins.store(spins, Ordering::Relaxed);
    }

    /// How often an awaited receive may poll for its message: zero if another operation is in flight or
    /// another thread wants to enter.
    #[inline]
    pub(super) fn spins(&self, inner: &Inner) -> u32 {
        let spins = self.spins.load(Ordering::Relaxed);
        if spins == 0 || self.port.is_wanted() || !inner.scopes.borrow().all[self.scope].has_one_at_most() {
            return 0;
        }
        // Concurrent updates may lose a count, which does no harm.
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if looks.is_multiple_of(LOOKS_PER_TURN) { 0 } else { spins }
    }

    /// Posts a message to `to`. The buffer comes back when it may be reused.
    ///
    /// Dropping the future cancels the send, but the peer may already know of the message; it receives all of
    /// it or nothing. Over sockets and shared memory, a message that the peer may know of (also by its RTS
    /// alone) is copied to the heap and kept there until the peer receives it or this rank leaves. The peer's
    /// next receive of its tag matches it. So dropping a large send costs a copy and as much memory, and the
    /// tag of a dropped send should not be reused.
    ///
    /// # Errors
    /// [`Error::ForeignTag`] if the tag's source is not this rank (nothing is sent). Errors of the transport.
    #[inline]
    pub fn send<B: SendBuffer + 'env>(&self, to: Rank, envelope: Envelope, buffer: B) -> Send<'_, 'env, B> {
        self.send_with_length(to, envelope, buffer).0
    }

    /// Like [`send`](Self::send), and returns the length of the message in bytes.
    #[inline]
    pub fn send_with_length<B: SendBuffer + 'env>(
        &self,
        to: Rank,
        envelope: Envelope,
        buffer: B,
    ) -> (Send<'_, 'env, B>, usize) {
        let raw = buffer.into_raw();
        let mut parts = SendParts::new();
        // SAFETY: the `PostedOperation`, and after it the scope, keeps `raw` until the transport has returned
        // the leases.
        unsafe { B::lend(&raw, &mut parts) };
        let length = parts.iter().map(ReadLease::len).sum();
        let alone = if parts.len() == 1 { parts.pop() } else { None };
        let state = match alone {
            _ if !envelope.tag.is_of(self.port.rank()) => self.refuse(to, self.port.rank(), envelope.tag),
            Some(part) => self.send_one(to, &envelope, part),
            None => self.send_parts(to, &envelope, parts),
        };
        (PostedOperation::new(self, (to, envelope.tag), raw, state), length)
    }

    fn send_one(&self, to: Rank, envelope: &Envelope, part: ReadLease) -> State<SendId> {
        let inner = self.port.enter();
        if inner.has_closed.load(Ordering::Relaxed)
            && let Err(error) = inner.check_context(envelope.tag.group())
        {
            return State::failed(error);
        }
        let posted = inner.transport.borrow_mut().send_one(to, envelope, part);
        self.note(&inner, Some(envelope.tag.group()), posted)
    }

    fn send_parts(&self, to: Rank, envelope: &Envelope, parts: SendParts) -> State<SendId> {
        let inner = self.port.enter();
        if inner.has_closed.load(Ordering::Relaxed)
            && let Err(error) = inner.check_context(envelope.tag.group())
        {
            return State::failed(error);
        }
        let posted = inner.transport.borrow_mut().post_send(to, *envelope, parts).map(|done| done.result);
        self.note(&inner, Some(envelope.tag.group()), posted)
    }

    /// A failed operation with `peer`, for a tag that messages from `source` cannot have.
    #[cold]
    fn refuse<Id: Direction>(&self, peer: Rank, source: Rank, tag: Tag) -> State<Id> {
        let peer = check_peer(peer, self.port.rank(), self.port.world_size());
        State::failed(peer.err().unwrap_or(Error::ForeignTag { tag, rank: source }))
    }

    /// Registers a pending operation with the scope. Puts and gets have no context.
    #[inline]
    pub(super) fn note<Id: Direction>(
        &self,
        inner: &Inner,
        context: Option<u16>,
        posted: Posted<Id, Result<Id::Outcome>>,
    ) -> State<Id> {
        match posted {
            Posted::Done(Ok(outcome)) => State::Done(outcome),
            Posted::Done(Err(error)) => State::failed(inner.heed_failure(error, context, self.port.rank())),
            Posted::Pending(id) => {
                inner.scopes.borrow_mut().all[self.scope].began(id.operation());
                State::Pending(id)
            }
        }
    }

    /// Posts a receive of the next message from `from` with the envelope's tag.
    ///
    /// The buffer comes back with the arrival, which states the length of each part. Bytes of a part beyond
    /// the received length are unspecified.
    ///
    /// # Errors
    /// [`Error::ForeignTag`] if the tag's source is not `from`. Errors of the transport.
    #[inline]
    pub fn recv<B: RecvBuffer + 'env>(&self, from: Rank, envelope: Envelope, buffer: B) -> Recv<'_, 'env, B> {
        self.post_recv(from, envelope, buffer, |_| ()).0
    }

    /// Like [`recv`](Self::recv), and returns the capacity of each part of the buffer, in bytes.
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
        if inner.has_closed.load(Ordering::Relaxed)
            && let Err(error) = inner.check_context(envelope.tag.group())
        {
            return State::failed(error);
        }
        let posted = inner.transport.borrow_mut().post_recv(from, *envelope, parts).map(|done| done.result);
        self.note(&inner, Some(envelope.tag.group()), posted)
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
        // SAFETY: the `PostedOperation`, and after it the scope, keeps `raw` until the transport has returned
        // the leases.
        unsafe { B::lend(&mut raw, &mut parts) };
        let noted = note(&parts);
        let state = if envelope.tag.is_of(from) {
            self.recv_parts(from, &envelope, parts)
        } else {
            self.refuse(from, from, envelope.tag)
        };
        (PostedOperation::new(self, (from, envelope.tag), raw, state), noted)
    }
}

#[cfg(test)]
mod tests {
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
}
