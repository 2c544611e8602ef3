//! Puts and gets on one connection: requests that the peer carries out, and those that are carried out for
//! it.
//!
//! The pieces of a put have at most [`PIECE_BYTES`]; two at most wait to be written, so that messages get in
//! between. The payload is read into the region's memory where it can be, under the lock of the region. A
//! get is answered with copies of the region's memory, one frame at a time, as fast as the requester reads:
//! what is kept for a peer stays bounded. Both are checked against the key and the bounds of the region
//! before a byte is moved.

mod landing;
mod serving;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use landing::Landing;
use serving::Served;

use super::outgoing::Outgoing;
use super::sizes::{HEADER_BYTES, PIECE_BYTES};
use super::wire::Wire;
use crate::memory::ReadLease;
use crate::one_sided::Regions;
use crate::one_sided::frame::{Outcome, RemoteFrame};
use crate::one_sided::requests::{MAX_REQUESTS, PeerRequests, Request};
use crate::transport::{SendParts, Statistics};
use crate::{Error, Rank, Result};

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
    pub(super) requests: PeerRequests,
    /// Pieces that are written or about to be: the operation, and the send of `Outgoing`.
    writing: VecDeque<(usize, usize)>,
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
            requests: PeerRequests::new(peer, PIECE_BYTES),
            writing: VecDeque::new(),
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

    /// Whether there is something to send.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.answers.is_empty() || !self.served.is_empty() || self.requests.may_send()
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
            } else if !self.served.is_empty() && (self.serves_next || !self.requests.may_send()) {
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
                let (memory, outcome) = match self.find(&place, length as u64)? {
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
                        let rest = length as usize;
                        self.served.push_back(Served { number, region, memory, offset, rest });
                    }
                    Err(outcome) => self.answers.push_back(RemoteFrame::Ended(number, outcome)),
                }
                Ok(None)
            }
            RemoteFrame::Bytes(number, length) => {
                self.landing = Some(Landing::Got(self.requests.take_up_bytes(number, length)?));
                Ok(Some(length))
            }
            RemoteFrame::Ended(number, outcome) => self.requests.take_up_end(number, outcome).map(|()| None),
        }
    }

    /// The end of an operation of this rank, once it is over.
    pub(super) fn test(&mut self, number: usize, outgoing: &mut Outgoing) -> Option<Result<()>> {
        self.collect(outgoing);
        self.requests.test(number).map(|(result, _)| result)
    }

    /// Ends an operation early: what is being written is copied, and what is arriving goes nowhere.
    pub(super) fn cancel(&mut self, number: usize, outgoing: &mut Outgoing, statistics: &mut Statistics) {
        self.requests.cancel(number);
        for (_, send) in self.writing.iter().filter(|(operation, _)| *operation == number) {
            outgoing.cancel(*send, Error::Canceled, statistics);
        }
        self.collect(outgoing);
        if matches!(&self.landing, Some(Landing::Got(target)) if target.number == number) {
            self.landed();
        }
    }

    /// Ends every operation with `error`, once `outgoing` has ended all its sends; nothing more is sent.
    pub(super) fn end_all(&mut self, error: &Error, outgoing: &mut Outgoing) {
        self.collect(outgoing);
        self.requests.end_all(error);
        self.landed();
        self.answers.clear();
        self.served.clear();
    }

    /// Sends the next frame of this rank's puts and gets; gives its bytes.
    fn send_piece(&mut self, outgoing: &mut Outgoing, wire: &mut Wire, statistics: &mut Statistics) -> usize {
        let Some(Request { number, frame, payload }) = self.requests.next_request() else { return 0 };
        let bytes = HEADER_BYTES + payload.as_ref().map_or(0, ReadLease::len);
        let parts = payload.into_iter().collect();
        match outgoing.post_one_sided(wire, frame.encode(self.own), parts, statistics) {
            Some(send) => self.writing.push_back((number, send)),
            None => self.requests.release(number, false),
        }
        bytes
    }

    /// Takes leases back whose bytes are written.
    fn collect(&mut self, outgoing: &mut Outgoing) {
        self.writing.retain(|(number, send)| {
            let is_written = outgoing.take_ended(*send).is_some();
            if is_written {
                self.requests.release(*number, false);
            }
            !is_written
        });
    }
}
