//! Messages between two ranks of one host, over the memory that they share.
//!
//! What a rank sends to a neighbour, it writes into the [block](crate::shm::Neighbourhood::own_block) that it
//! has made for it, and what it has taken of the neighbour's, it acknowledges there too.
//!
//! | bytes of a block | what |
//! | --- | --- |
//! | 0..8 | not zero while this rank sleeps and has something to send that finds no room |
//! | 8..16 | not zero if this rank can read the neighbour's memory |
//! | 128..160 | acknowledged since the beginning: cells, bytes of the ring, bytes sent without asking, bytes of the pocket |
//! | 256..768 | 64 words: the serial number of a message whose memory may be read, or one that is over; else zero |
//! | 4096..12288 | 64 cells of 128 bytes, see `cell.rs` |
//! | 12288..28672 | the pocket, a small ring of payload |
//! | 28672.. | the ring of payload, a power of two |
//!
//! A message takes one of these ways:
//!
//! 1. Up to 2 KiB lie in a cell or in the pocket: 80 bytes in the cell, or 112 where the message has one part
//!    and says of itself what the one before has said, and what is longer in the pocket. One copy in, one copy
//!    out. Where it likewise says nothing new, what finds the pocket full or is longer, up to 32 KiB, lies in
//!    the ring as a whole: as much work, and the same copies.
//! 2. Up to [`MAX_EAGER_BYTES`](crate::limits::MAX_EAGER_BYTES) it goes through the ring in pieces, each
//!    announced by a cell. One copy in, one copy out. Above 8 KiB this and the ring as a whole are only for
//!    messages that could not be read otherwise, or to a neighbour that has received all before: another copy
//!    is due for one that is not expected.
//! 3. Otherwise, from 8 KiB on (and from 6 KiB on without credit), where the kernel allows it, the message is
//!    offered with its address and the receiver reads it from the sender's memory. One copy. Up to
//!    [`MAX_EAGER_BYTES`](crate::limits::MAX_EAGER_BYTES), what is still not expected a turn later is read to
//!    the heap, if its sender has paid for it: as far as the credit goes, an offer takes as much of it as the
//!    message would, until its receive is posted.
//! 4. What is longer than 1 MiB is offered as well. Once a receive is posted, it is read in pieces, one a turn,
//!    with other messages in between; or it goes through the ring, where that is faster: on ordinary pages,
//!    which the kernel looks up one by one, unless the message is many times as long as the ring.
//! 5. Anything else is offered, and goes through the ring when a receive is posted.
//!
//! The ring of few ranks is larger than the second cache of a processor: a line that the neighbour still has
//! there is slow to write again. Faster than either is what lies in the first caches of both, as the pocket
//! does.
//!
//! Cells are in the order in which messages were posted, and a receiver matches in the order of cells. Pieces
//! of one message at a time go through the ring; cells of others come between them. The credits are those of
//! the sockets.
//!
//! Memory is read only while there is a cell for the answer: whoever has received the message may take no
//! more turns, and its sender waits for that. Without one, the message comes through the ring, which its
//! receiver waits for.
//!
//! A sender that ends a message early whose memory may be read takes the word away *before* it gives the
//! memory back. A receiver looks at the word after each piece that it has read: if it is gone, it asks for the
//! whole message through the ring, and gets the copy that the sender has made.
//!
//! Nothing that a neighbour writes is believed: positions are counted here, lengths are checked against what
//! is left of the message and of the ring, acknowledgements against what was sent. What does not fit is
//! [`Error::Protocol`] naming the neighbour.

mod cell;
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

use crate::shm::Neighbourhood;
use crate::transport::{Posted, RecvDone, RecvParts, SendDone, SendParts};
use crate::{Envelope, Error, Rank, Result, Statistics};
use receiving::Receiver;
use sending::Sender;

pub(crate) use links::Links;

/// Where things lie in a block.
const STARVING_AT: usize = 0;
const CAN_READ_AT: usize = 8;
const CELLS_TAKEN_AT: usize = 128;
const RING_TAKEN_AT: usize = 136;
const EAGER_TAKEN_AT: usize = 144;
const POCKET_TAKEN_AT: usize = 152;
const OPEN_AT: usize = 256;
const CELLS_AT: usize = 4096;
const POCKET_AT: usize = 12288;

/// Messages whose memory may be read at the same time.
const OPEN_MESSAGES: usize = 64;

/// Messages of so many bytes and more may be read from the sender's memory.
const LEAST_OPEN: usize = 6 << 10;

/// What a rank says about an offer of its neighbour.
#[derive(Clone, Copy, Debug)]
enum News {
    /// A receive waits for this offer.
    Granted(u32),
    /// This offer was read from this rank's memory.
    Read(u32),
    /// This offer is not wanted.
    Refused(u32),
}

/// Messages to and from one neighbour.
pub(crate) struct Link {
    receiver: Receiver,
    sender: Sender,
    is_open: bool,
    /// Whether it is in the list of those that are polled in each turn.
    is_listed: bool,
    peer: Rank,
}

impl Link {
    /// The link between this rank and the neighbour at `place`; `None` when there is none. `may_read` says
    /// whether messages may be read from the neighbour's memory, where the kernel allows it.
    fn new(neighbourhood: &Arc<Neighbourhood>, place: usize, may_read: bool) -> Option<Self> {
        let peer = *neighbourhood.ranks().get(place)?;
        let own = neighbourhood.own_block(place)?;
        let theirs = neighbourhood.peer_block(place)?;
        let receiver = Receiver::new(neighbourhood, place, peer, own.clone(), &theirs, may_read);
        let sender = Sender::new(neighbourhood, place, peer, own, theirs);
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

    /// Sends a message of one part if it can be on its way at once.
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

    fn cancel_send(&mut self, key: usize, counts: &mut Statistics) {
        self.sender.cancel(key, Error::Canceled, counts);
    }

    fn cancel_recv(&mut self, key: usize) {
        self.receiver.cancel(key);
    }

    /// Takes what the neighbour has sent, about `quota` bytes of what it has written here and one piece of what
    /// is read from its memory, and sends what there is room for. Says whether anything moved.
    #[inline]
    fn poll(&mut self, quota: usize, counts: &mut Statistics) -> Result<bool> {
        if !self.receiver.has_cell() && self.sender.is_idle() && !self.receiver.has_offers() {
            return Ok(false);
        }
        self.work(quota, counts)
    }

    /// What [`poll`](Self::poll) does where there may be something to do.
    fn work(&mut self, quota: usize, counts: &mut Statistics) -> Result<bool> {
        if !self.is_open {
            return Ok(false);
        }
        let mut moved = false;
        if self.receiver.has_offers() {
            moved |= self.receiver.fetch_offers(&mut self.sender, counts);
        }
        if self.receiver.has_cell() {
            moved = true;
            self.receiver.take(quota, &mut self.sender, counts)?;
        }
        if self.receiver.has_offers() {
            moved |= self.receiver.read_on(&mut self.sender, counts);
        }
        if !self.sender.is_idle() || self.sender.is_starving() {
            moved |= self.sender.pump(counts)?;
        }
        Ok(moved)
    }

    /// Looks up to `spins` times for a short message, and takes it. Says whether there was one.
    #[inline]
    fn look_for_small(&mut self, spins: u32, counts: &mut Statistics) -> Result<bool> {
        // Whatever else there is to do is for the next turn.
        let is_quiet = self.is_open && self.sender.is_idle() && !self.receiver.has_offers();
        if is_quiet { self.receiver.look_for_small(spins, counts) } else { Ok(false) }
    }

    /// Whether something waits here: an operation, or something to send.
    #[inline]
    fn is_awaited(&self) -> bool {
        let is_needed = self.has_operations() || !self.sender.is_idle();
        self.is_open && (is_needed || self.receiver.has_offers())
    }

    #[inline]
    fn has_operations(&self) -> bool {
        self.receiver.has_operations() || self.sender.has_operations()
    }

    /// Whether something still has to be written.
    fn has_queued(&self) -> bool {
        self.is_open && !self.sender.is_idle()
    }

    /// The neighbour is gone, as who has left in good order or otherwise: ends what still waits for it, and
    /// says whether anything did. What it sent before can still be received.
    fn finish(&mut self, has_left: bool, counts: &mut Statistics) -> bool {
        let error = self.lost();
        self.is_open = false;
        let is_missed = self.receiver.finish(&error, has_left, counts) | self.sender.has_operations();
        self.sender.end_all(&error);
        is_missed
    }

    /// Ends every operation with `error`, at once; nothing more is read or written.
    fn close(&mut self, error: &Error) {
        self.is_open = false;
        self.receiver.close(error);
        self.sender.end_all(error);
    }

    fn lost(&self) -> Error {
        Error::PeerLost { rank: self.peer }
    }
}
