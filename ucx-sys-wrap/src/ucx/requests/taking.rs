//! What peers say: what they ask for, and what they answer.

use super::request::{Kind, Request};
use super::{Bytes, Errand, MAX_SERVED, PART_BITS, Requests};
use crate::limits::MAX_MESSAGE_BYTES;
use crate::one_sided::frame::{FRAME_BYTES, Outcome, Place, RemoteFrame};
use crate::transport::{Statistics, count_copy};
use crate::ucx::payload::Payload;
use crate::{Error, Rank, Tag};

/// What is no message of ours, and the rank that it names as its sender.
type Refusal = (Rank, String);

impl Requests {
    /// Takes what a peer says.
    ///
    /// # Errors
    /// A refusal.
    pub(in crate::ucx) fn take_up(
        &mut self,
        header: &[u8],
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) -> Result<(), Refusal> {
        if self.is_closed {
            return Ok(());
        }
        let (from, frame) = self.decode(header)?;
        let announced = match frame {
            RemoteFrame::Put(_, _, length) | RemoteFrame::Bytes(_, length) => length,
            RemoteFrame::Get(..) | RemoteFrame::Ended(..) => 0,
        };
        if payload.bytes() != announced {
            return Err((from, format!("{} bytes behind a put or get of {announced}", payload.bytes())));
        }
        let taken = match frame {
            RemoteFrame::Put(number, place, length) => self
                .begin_to_serve(from)
                .map(|()| self.take_put((from, number), (&place, length), payload, statistics)),
            RemoteFrame::Get(number, place, length) => {
                self.release(payload);
                self.begin_to_serve(from).map(|()| self.take_get((from, number), &place, length))
            }
            RemoteFrame::Bytes(number, length) => self.take_bytes(from, number, length, payload, statistics),
            RemoteFrame::Ended(number, outcome) => {
                self.release(payload);
                self.take_end(from, number, outcome)
            }
        };
        taken.map_err(|what| (from, what))
    }

    fn decode(&self, header: &[u8]) -> Result<(Rank, RemoteFrame), Refusal> {
        let Ok(header) = <&[u8; FRAME_BYTES]>::try_from(header) else {
            let what = format!("{} bytes about a put or get, expected {FRAME_BYTES}", header.len());
            return Err((Rank(u32::MAX), what));
        };
        let [_, tag] = bytemuck::pod_read_unaligned::<[u64; 2]>(&header[..16]);
        let from = Tag(tag.to_le()).source();
        if from == self.own || from.index() >= self.peers.len() {
            return Err((from, "a put or get that names no peer as its source".into()));
        }
        match RemoteFrame::decode(header, from, MAX_MESSAGE_BYTES) {
            Ok(frame) => Ok((from, frame)),
            Err(Error::Protocol { what, .. }) => Err((from, what)),
            Err(error) => Err((from, error.to_string())),
        }
    }

    /// Counts what a peer asks for.
    fn begin_to_serve(&mut self, from: Rank) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(from.index()).filter(|peer| peer.served < MAX_SERVED) else {
            return Err(format!("more than {MAX_SERVED} puts and gets without reading the answers"));
        };
        peer.served += 1;
        Ok(())
    }

    fn take_put(
        &mut self,
        (from, number): (Rank, u32),
        (place, length): (&Place, usize),
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) {
        match (self.regions.look_up(self.own, place, length as u64), payload) {
            (Ok((memory, offset)), Payload::Eager(bytes)) => {
                // A copy: UCX has received it before anybody knew where it belongs.
                memory.write(offset, bytes);
                count_copy(statistics, bytes.len());
                self.answer(from, number, Outcome::Done);
            }
            (Ok((memory, offset)), Payload::Rendezvous(offer)) => {
                let into = Bytes::Region { number: place.region, memory, offset, length };
                self.errands.push_back(Errand::Fetch { offer, into, answer: Some((from, number)) });
            }
            (Err(outcome), payload) => {
                self.release(payload);
                self.answer(from, number, outcome);
            }
        }
    }

    fn take_get(&mut self, (from, number): (Rank, u32), place: &Place, length: u64) {
        match self.regions.look_up(self.own, place, length) {
            Ok((memory, offset)) => {
                // What was found is no longer than memory can be.
                let length = length as usize;
                let bytes = Bytes::Region { number: place.region, memory, offset, length };
                let frame = RemoteFrame::Bytes(number, length);
                self.errands.push_back(Errand::Send { to: from, frame, bytes });
            }
            Err(outcome) => self.answer(from, number, outcome),
        }
    }

    fn take_bytes(
        &mut self,
        from: Rank,
        number: u32,
        length: usize,
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) -> Result<(), String> {
        let (number, part) = split(number);
        let is_get = |request: &Request| {
            matches!(request.kind, Kind::Get(_)) && (request.is_left || request.length(part) == length)
        };
        let Some(request) = self.answered(from, number, part, is_get) else {
            return Err(format!("{length} bytes for get {number}, which has not asked for them"));
        };
        match payload {
            payload if request.is_left => self.release(payload),
            Payload::Eager(bytes) => {
                if let Kind::Get(parts) = &mut request.kind
                    && let Some(place) = parts.get_mut(part)
                {
                    // A copy: as above.
                    place.bytes_mut().copy_from_slice(bytes);
                    count_copy(statistics, length);
                }
                request.close_part(part, Ok(()));
            }
            Payload::Rendezvous(offer) => {
                self.errands.push_back(Errand::Fetch {
                    offer,
                    into: Bytes::Part(number, part),
                    answer: None,
                });
            }
        }
        self.forget(number);
        Ok(())
    }

    fn take_end(&mut self, from: Rank, number: u32, outcome: Outcome) -> Result<(), String> {
        let (number, part) = split(number);
        let is_end = |request: &Request| matches!(request.kind, Kind::Put(..)) || outcome != Outcome::Done;
        let Some(request) = self.answered(from, number, part, is_end) else {
            return Err(format!("the end of put or get {number}, which is none"));
        };
        request.close_part(part, outcome.result(from, request.extent));
        self.end_put(number);
        self.forget(number);
        Ok(())
    }

    /// The operation that a peer answers about a part, if it waits for that and `is_meant` says that it is
    /// the one.
    fn answered(
        &mut self,
        from: Rank,
        number: usize,
        part: usize,
        is_meant: impl FnOnce(&Request) -> bool,
    ) -> Option<&mut Request> {
        let request = self.operations.get_mut(number)?;
        if request.peer != from || request.asked & 1 << part == 0 || !is_meant(request) {
            return None;
        }
        request.asked &= !(1 << part);
        let peer = self.peers.get_mut(from.index())?;
        match peer.held_back.pop_front() {
            Some(next) => self.unasked.push_back(next),
            None => peer.unanswered -= 1,
        }
        Some(request)
    }

    /// Refuses a payload that is offered.
    fn release(&mut self, payload: Payload<'_>) {
        if let Payload::Rendezvous(offer) = payload {
            self.errands.push_back(Errand::Release(offer));
        }
    }
}

/// The operation and the part of a number on the wire.
fn split(number: u32) -> (usize, usize) {
    ((number >> PART_BITS) as usize, (number & ((1 << PART_BITS) - 1)) as usize)
}
