//! Messages between two ranks of one host, over shared memory.
//!
//! A rank writes what it sends to a local peer, and what it has taken from it, into the
//! [channel](crate::shm::LocalGroup::own_channel) that it has made for that peer.
//!
//! | bytes of a channel | content |
//! | --- | --- |
//! | 0..8 | not zero while this rank sleeps and has something to send that finds no room |
//! | 8..16 | not zero if this rank can read the peer's memory |
//! | 128..160 | acknowledged so far: descriptors, bytes of the ring, eager bytes, bytes of the fast box |
//! | 256..768 | 64 guard words: the serial number of a message that may be read; zero once it is canceled |
//! | 4096..12288 | 64 descriptors of 128 bytes, see `descriptor.rs` |
//! | 12288..28672 | the fast box: a small ring for payload |
//! | 28672.. | the ring for payload, a power of two |
//!
//! A message takes one of these ways:
//!
//! 1. Up to 2 KiB: in a descriptor (80 bytes, or 112 for a message of one part that repeats the signature and
//!    mark of the message before), else in the fast box. Two copies. If it repeats them and is longer, up to
//!    32 KiB, or finds the fast box full, it lies in the ring as a whole.
//! 2. Up to [`MAX_EAGER_BYTES`](crate::limits::MAX_EAGER_BYTES): in fragments through the ring, each
//!    announced by a descriptor. Two copies. Above 8 KiB, a message goes eagerly only if the peer can't read
//!    it or has received everything before it: an unexpected eager message costs one more copy.
//! 3. Other messages from 8 KiB on (6 KiB without credit): an RTS says where the message lies, and the
//!    receiver reads it from the sender's memory, where the kernel allows it. One copy. Up to
//!    `MAX_EAGER_BYTES`, an RTS takes credit, as far as there is any; such a message is read to the heap if
//!    its receive is not posted within a turn.
//! 4. Above 1 MiB: an RTS too. Once a receive is posted, the message is read in fragments, one a turn, with
//!    other messages in between. On ordinary pages, which the kernel looks up one by one, the ring is faster,
//!    unless the message is many times as long as the ring.
//! 5. Anything else: an RTS, then fragments through the ring when a receive is posted.
//!
//! Descriptors are in the order of posting, and the receiver matches in the order of descriptors. Fragments
//! of one message at a time go through the ring; descriptors of others come in between. Credit works as over
//! sockets.
//!
//! The receiver reads memory only while it has a descriptor for the FIN: it may take no more turns, and the
//! sender waits for the FIN. Without one it asks for the message through the ring.
//!
//! A sender that ends a message early clears its guard word *before* it gives the memory back. The receiver
//! checks the word after each read; if it has changed, it asks for the message through the ring, and gets the
//! copy that the sender has made.
//!
//! Nothing that a peer writes is trusted: positions are counted locally, and lengths and acknowledgements are
//! checked against what is outstanding. A violation is [`Error::Protocol`] naming the peer.

mod descriptor;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod links;
mod payload;
mod receives;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::shm::LocalGroup;
use crate::transport::{Posted, RecvDone, RecvParts, SendDone, SendParts, Which};
use crate::{Envelope, Error, Rank, Result, Statistics};
use receiving::Receiver;
use sending::Sender;

pub(crate) use links::Links;

/// Offsets in a channel.
const STALLED_AT: usize = 0;
const CAN_READ_AT: usize = 8;
const DESCRIPTORS_TAKEN_AT: usize = 128;
const RING_TAKEN_AT: usize = 136;
const EAGER_TAKEN_AT: usize = 144;
const FAST_BOX_TAKEN_AT: usize = 152;
const GUARDS_AT: usize = 256;
const DESCRIPTORS_AT: usize = 4096;
const FAST_BOX_AT: usize = 12288;

/// Messages that the peer may read from this rank's memory at the same time.
const GUARDS: usize = 64;

/// Shorter messages are never read from the sender's memory.
const MIN_READABLE_BYTES: usize = 6 << 10;

/// The receiver's reply to an RTS.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// Send the message through the ring.
    Cts(u32),
    /// The message was read from the sender's memory.
    Fin(u32),
    /// The message is not wanted.
    Nack(u32),
}

/// Messages to and from one local peer.
pub(crate) struct Link {
    receiver: Receiver,
    sender: Sender,
    is_open: bool,
    /// Whether it is in [`Links`]' list of links to poll in each turn.
    is_listed: bool,
    peer: Rank,
}

impl Link {
    /// The link to the peer at `place`; `None` when there is none. With `may_read`, messages are read from
    /// the peer's memory where the kernel allows it.
    fn new(local_group: &Arc<LocalGroup>, place: usize, may_read: bool) -> Option<Self> {
        let peer = *local_group.ranks().get(place)?;
        let receiver = Receiver::new(local_group, place, may_read)?;
        let sender = Sender::new(local_group, place)?;
        Some(Self { receiver, sender, is_open: true, is_listed: false, peer })
    }

    fn post_send(
        &mut self,
        envelope: Envelope,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        if !self.is_open {
            return Posted::Done(SendDone { parts, result: Err(self.lost()) });
        }
        counts.messages_sent += 1;
        self.sender.post(envelope, parts, counts)
    }

    /// Sends a message of one part if it can be written at once.
    #[inline]
    fn send_at_once(&mut self, envelope: &Envelope, part: &[u8], counts: &mut Statistics) -> bool {
        let is_sent = self.is_open && self.sender.send_short(envelope, part, counts);
        counts.messages_sent += u64::from(is_sent);
        is_sent
    }

    fn post_recv(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        self.receiver.post(envelope, parts, self.is_open, &mut self.sender, counts)
    }

    /// Takes what the peer has sent (about `quota` bytes, and one fragment read from its memory) and writes
    /// what there is room for. Returns whether anything moved.
    #[inline]
    fn poll(&mut self, quota: usize, counts: &mut Statistics) -> Result<bool> {
        if !self.receiver.has_descriptor() && self.sender.is_idle() && !self.receiver.has_rts() {
            return Ok(false);
        }
        self.work(quota, counts)
    }

    /// The part of [`poll`](Self::poll) that does something, kept out of line.
    fn work(&mut self, quota: usize, counts: &mut Statistics) -> Result<bool> {
        if !self.is_open {
            return Ok(false);
        }
        let mut moved = false;
        if self.receiver.has_rts() {
            moved |= self.receiver.fetch_unexpected(&mut self.sender, counts);
        }
        if self.receiver.has_descriptor() {
            moved = true;
            self.receiver.take(quota, &mut self.sender, counts)?;
        }
        if self.receiver.has_rts() {
            moved |= self.receiver.continue_read(&mut self.sender, counts);
        }
        if !self.sender.is_idle() || self.sender.is_stalled() {
            moved |= self.sender.pump(counts)?;
        }
        Ok(moved)
    }

    /// Looks up to `spins` times for a short message, and takes it. Returns whether there was one.
    #[inline]
    fn poll_short(&mut self, spins: u32, counts: &mut Statistics) -> Result<bool> {
        // Anything else is left to the next turn.
        let is_quiet = self.is_open && self.sender.is_idle() && !self.receiver.has_rts();
        if is_quiet { self.receiver.poll_short(spins, counts) } else { Ok(false) }
    }

    /// Whether an operation waits for this link, or something is to be sent.
    #[inline]
    fn is_awaited(&self) -> bool {
        let is_needed = self.has_operations() || !self.sender.is_idle();
        self.is_open && (is_needed || self.receiver.has_rts())
    }

    #[inline]
    fn has_operations(&self) -> bool {
        self.receiver.receives.has_operations() || self.sender.has_operations()
    }

    /// The peer is gone; `has_left` says whether it closed in good order. Ends what still waits for it, and
    /// returns whether anything did. Messages that have arrived can still be received.
    fn finish(&mut self, has_left: bool, counts: &mut Statistics) -> bool {
        let error = self.lost();
        self.is_open = false;
        let is_missed = self.receiver.finish(&error, has_left, counts) | self.sender.has_operations();
        self.sender.end_all(&error);
        is_missed
    }

    /// Ends the sends and receives of a context with `error`.
    fn end_context(&mut self, context: u16, error: &Error, counts: &mut Statistics) {
        for key in self.receiver.receives.of_context(context) {
            self.receiver.cancel(key, error.clone());
        }
        for key in self.sender.of_context(context) {
            self.sender.cancel(key, error, counts);
        }
    }

    /// Drops some messages of a context that came before their receive; returns how many.
    fn discard(&mut self, context: u16, which: Which, counts: &mut Statistics) -> usize {
        self.receiver.discard(context, which, &mut self.sender, counts)
    }

    /// Ends every operation with `error`; nothing is read or written any more.
    fn close(&mut self, error: &Error) {
        self.is_open = false;
        self.receiver.close(error);
        self.sender.end_all(error);
    }

    fn lost(&self) -> Error {
        Error::PeerLost { rank: self.peer }
    }
}
