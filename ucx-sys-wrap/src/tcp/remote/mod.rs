//! Puts and gets on one connection: requests that the peer carries out, and those that are carried out for
//! it.
//!
//! A put is cut into frames of at most [`PIECE_BYTES`]; two at most wait to be written, so that messages get
//! in between. The payload is read into the region's memory where it can be, under the lock of the region. A
//! get is answered with copies of the region's memory, one frame at a time, as fast as the requester reads:
//! what is kept for a peer stays bounded. Both are checked against the key and the bounds of the region
//! before a byte is moved.

mod landing;
mod requests;
mod serving;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use slab::Slab;

use landing::Landing;
use requests::Operation;
use serving::Served;

use super::outgoing::Outgoing;
use super::sizes::{HEADER_BYTES, PIECE_BYTES};
use super::wire::Wire;
use crate::one_sided::frame::{Outcome, RemoteFrame};
use crate::one_sided::{PutOrder, Regions};
use crate::transport::{SendParts, Statistics};
use crate::{Error, Rank, Result};

/// Frames that wait for their answer, at most; more are held back, and more of a peer's are not taken.
const MAX_REQUESTS: usize = 1 << 14;

/// Turns for which a connection is still looked at after the peer has put or got something: more may follow
/// at once, and nothing here waits for it. Turns take some 0.3 us then.
const ATTENTIVE_TURNS: u32 = 1000;

/// So many frames of puts and gets wait to be written before the next one is made; messages do not count, of
/// which there may always be some.
const PIECES_QUEUED: usize = 2;

/// The one-sided operations of one connection, in both directions.
pub(super) struct Accesses {
    own: Rank,
    peer: Rank,
    /// The memory of this rank that peers may access; all connections share the table.
    regions: Arc<Mutex<Regions>>,
    operations: Slab<Operation>,
    order: PutOrder,
    /// Flushes that nobody has been told the end of.
    flushes: usize,
    /// Operations that have something to send, in order.
    unsent: VecDeque<usize>,
    /// Pieces that are written or about to be: the operation, and the send of `Outgoing`.
    writing: VecDeque<(usize, usize)>,
    unanswered: usize,
    /// Operations that nobody has been told the end of.
    pending: usize,
    /// What the payload that is arriving is for.
    landing: Option<Landing>,
    answers: VecDeque<RemoteFrame>,
    served: VecDeque<Served>,
    /// Whether the peer's gets come next.
    serves_next: bool,
    /// Turns for which more of the peer's frames are looked for.
    attentive_turns: u32,
}

impl Accesses {
    pub(super) fn new(own: Rank, peer: Rank, regions: Arc<Mutex<Regions>>) -> Self {
        Self {
            own,
            peer,
            regions,
            operations: Slab::new(),
            order: PutOrder::default(),
            flushes: 0,
            unsent: VecDeque::new(),
            writing: VecDeque::new(),
            unanswered: 0,
            pending: 0,
            landing: None,
            answers: VecDeque::new(),
            served: VecDeque::new(),
            serves_next: false,
            attentive_turns: 0,
        }
    }

    /// Whether the peer has lately put or got something, so that more may come.
    #[inline]
    pub(super) fn is_attentive(&self) -> bool {
        self.attentive_turns > 0
    }

    /// One of the turns for which the peer's frames are looked for is over.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.attentive_turns = self.attentive_turns.saturating_sub(1);
    }

    /// Whether an operation has not ended.
    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// Whether there is something to send.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.answers.is_empty() || !self.served.is_empty() || self.may_send()
    }

    /// Sends what there is to send, as far as the queue takes it, about `quota` bytes at most.
    pub(super) fn pump(
        &mut self,
        outgoing: &mut Outgoing,
        wire: &mut Wire,
        quota: usize,
        statistics: &mut Statistics,
    ) {
        self.collect(outgoing);
        let mut sent = 0;
        while sent < quota && outgoing.one_sided_queued() < PIECES_QUEUED && self.has_unsent() {
            sent += if let Some(answer) = self.answers.pop_front() {
                outgoing.post_one_sided(wire, answer.encode(self.own), SendParts::new(), statistics);
                HEADER_BYTES
            } else if !self.served.is_empty() && (self.serves_next || !self.may_send()) {
                self.serves_next = false;
                self.serve_piece(outgoing, wire, statistics)
            } else {
                self.serves_next = true;
                self.send_piece(outgoing, wire, statistics)
            };
        }
    }

    /// Takes up a frame; gives how many bytes of payload follow, if that is its kind.
    pub(super) fn take_up(&mut self, frame: RemoteFrame) -> Result<Option<usize>> {
        if matches!(frame, RemoteFrame::Put(..) | RemoteFrame::Get(..)) {
            self.attentive_turns = ATTENTIVE_TURNS;
        }
        match frame {
            RemoteFrame::Put(number, place, length) => {
                let found = self.find(&place, length as u64)?;
                let (memory, outcome) = match found {
                    Ok(found) => (Some(found), Outcome::Done),
                    Err(outcome) => (None, outcome),
                };
                self.landing = Some(Landing::Put { number, region: place.region, memory, outcome });
                Ok(Some(length))
            }
            RemoteFrame::Get(number, place, length) => {
                let region = place.region;
                match self.find(&place, length)? {
                    // What was found is no longer than memory can be.
                    Ok((memory, offset)) => {
                        self.served.push_back(Served {
                            number,
                            region,
                            memory,
                            offset,
                            rest: length as usize,
                        });
                    }
                    Err(outcome) => self.answers.push_back(RemoteFrame::Ended(number, outcome)),
                }
                Ok(None)
            }
            RemoteFrame::Bytes(number, length) => self.take_up_bytes(number, length).map(Some),
            RemoteFrame::Ended(number, outcome) => self.take_up_end(number, outcome).map(|()| None),
        }
    }

    /// Ends every operation with `error`, once `outgoing` has ended all its sends; nothing more is sent.
    pub(super) fn end_all(&mut self, error: &Error, outgoing: &mut Outgoing) {
        self.collect(outgoing);
        self.unsent.clear();
        self.answers.clear();
        self.served.clear();
        self.landing = None;
        let numbers: Vec<_> = self.operations.iter().map(|(number, _)| number).collect();
        for number in numbers {
            if let Some(operation) = self.operations.get_mut(number) {
                operation.unanswered = 0;
            }
            self.end(number, Err(error.clone()));
            self.forget(number);
        }
        self.unanswered = 0;
    }

    /// Whether this rank has a put or get to send, and may.
    #[inline]
    fn may_send(&self) -> bool {
        !self.unsent.is_empty() && self.unanswered < MAX_REQUESTS
    }

    /// Takes leases back whose bytes are written.
    fn collect(&mut self, outgoing: &mut Outgoing) {
        self.writing.retain(|(_, send)| outgoing.take_ended(*send).is_none());
    }

    fn refuse<T>(&self, what: String) -> Result<T> {
        Err(Error::Protocol { rank: self.peer, what })
    }
}
