//! What peers say: what they ask for, and what they answer.

use super::{Bytes, Errand, MAX_SERVED, Requests, Then};
use crate::limits::MAX_MESSAGE_BYTES;
use crate::one_sided::frame::{FRAME_BYTES, Outcome, Place, RemoteFrame};
use crate::one_sided::requests::Target;
use crate::transport::{Statistics, count_copy};
use crate::ucx::payload::Payload;
use crate::{Error, Rank, Result, Tag};

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
    ) -> std::result::Result<(), Refusal> {
        if self.is_closed {
            return Ok(());
        }
        self.take_frame(header, payload, statistics).map_err(|error| match error {
            Error::Protocol { rank, what } => (rank, what),
            error => (Rank(u32::MAX), error.to_string()),
        })
    }

    fn take_frame(&mut self, header: &[u8], payload: Payload<'_>, statistics: &mut Statistics) -> Result<()> {
        let (from, frame) = self.decode(header)?;
        let announced = match frame {
            RemoteFrame::Put(_, _, length) | RemoteFrame::Bytes(_, length) => length,
            RemoteFrame::Get(..) | RemoteFrame::Ended(..) => 0,
        };
        if payload.bytes() != announced {
            let what = format!("{} bytes behind a put or get of {announced}", payload.bytes());
            return Err(Error::Protocol { rank: from, what });
        }
        match frame {
            RemoteFrame::Put(number, place, length) => {
                self.begin_to_serve(from)?;
                self.take_put((from, number), (&place, length), payload, statistics);
            }
            RemoteFrame::Get(number, place, length) => {
                self.release(payload);
                self.begin_to_serve(from)?;
                self.take_get((from, number), &place, length);
            }
            RemoteFrame::Bytes(number, length) => {
                let target = self.of(from).take_up_bytes(number, length)?;
                self.take_bytes(from, target, payload, statistics);
                self.ask(from);
            }
            RemoteFrame::Ended(number, outcome) => {
                self.release(payload);
                self.of(from).take_up_end(number, outcome)?;
                self.ask(from);
            }
        }
        Ok(())
    }

    fn decode(&self, header: &[u8]) -> Result<(Rank, RemoteFrame)> {
        let Ok(header) = <&[u8; FRAME_BYTES]>::try_from(header) else {
            let what = format!("{} bytes about a put or get, expected {FRAME_BYTES}", header.len());
            return Err(Error::Protocol { rank: Rank(u32::MAX), what });
        };
        let [_, tag] = bytemuck::pod_read_unaligned::<[u64; 2]>(&header[..16]);
        let from = Tag(tag.to_le()).source();
        if from == self.own || from.index() >= self.peers.len() {
            let what = "a put or get that names no peer as its source".into();
            return Err(Error::Protocol { rank: from, what });
        }
        Ok((from, RemoteFrame::decode(header, from, MAX_MESSAGE_BYTES)?))
    }

    /// Counts what a peer asks for.
    fn begin_to_serve(&mut self, from: Rank) -> Result<()> {
        let served = &mut self.peers[from.index()].served;
        if *served >= MAX_SERVED {
            let what = format!("more than {MAX_SERVED} puts and gets without reading the answers");
            return Err(Error::Protocol { rank: from, what });
        }
        *served += 1;
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
                self.errands.push_back(Errand::Fetch(offer, into, Then::Answer(from, number)));
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
                self.errands.push_back(Errand::Send(from, frame, bytes, Then::Served(from)));
            }
            Err(outcome) => self.answer(from, number, outcome),
        }
    }

    fn take_bytes(&mut self, from: Rank, target: Target, payload: Payload<'_>, statistics: &mut Statistics) {
        match payload {
            Payload::Eager(bytes) => {
                if let Some(place) = self.of(from).place(&target) {
                    // A copy: as above.
                    place.copy_from_slice(bytes);
                    count_copy(statistics, bytes.len());
                }
                self.of(from).release(target.number, false);
            }
            Payload::Rendezvous(offer) => {
                let (into, then) = (Bytes::Got(from, target), Then::Asked(from, target.number));
                self.errands.push_back(Errand::Fetch(offer, into, then));
            }
        }
    }

    /// Refuses a payload that is offered.
    fn release(&mut self, payload: Payload<'_>) {
        if let Payload::Rendezvous(offer) = payload {
            self.errands.push_back(Errand::Release(offer));
        }
    }
}
