//! Messages that were offered: they wait for their grant, and then go out piece by piece.

use super::Outgoing;
use crate::limits::MAX_OFFERS;
use crate::tcp::frame::{Frame, HEADER_BYTES, Header, SEGMENT_BYTES, encode};
use crate::tcp::queued::{Payload, Queued};
use crate::tcp::wire::Wire;
use crate::transport::{Posted, SendDone, SendParts};
use crate::{Error, Rank, Result, Statistics};

/// What has become of an offer.
pub(super) enum Offered {
    /// The message waits for its grant; it has its number once the offer is written.
    Waiting(Queued),
    /// The peer has granted it, and waits until all its data has come.
    Granted,
}

impl Outgoing {
    /// A message that was offered may be sent.
    pub(in crate::tcp) fn grant(&mut self, number: u32) -> Result<()> {
        let offer = self.answered(number)?;
        let mut data = Queued { offer: None, data: Some(number), ..offer };
        carry_next(&mut data, number, self.own);
        self.queue.push_back(data);
        Ok(())
    }

    /// A message that was offered is not wanted: it counts as received.
    pub(in crate::tcp) fn refuse(&mut self, number: u32) -> Result<()> {
        let offer = self.answered(number)?;
        self.offers.try_remove(number as usize);
        self.end(offer, Ok(()));
        Ok(())
    }

    pub(super) fn offer(
        &mut self,
        wire: &mut Wire,
        header: Header,
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        if self.offers.len() >= MAX_OFFERS {
            let why = format!("rank {} has not received {MAX_OFFERS} messages: let it catch up", self.peer);
            return Posted::Done(SendDone { parts, result: Err(Error::Unavailable { name: "tcp", why }) });
        }
        let operation = self.begin();
        let message =
            Queued { operation: Some(operation), ..Queued::new([0; HEADER_BYTES], Payload::Leased(parts)) };
        let number = self.offers.insert(Offered::Waiting(message)) as u32;
        self.push_control(&Frame::Offer(number, header));
        if let Some(frame) = self.queue.back_mut() {
            frame.offer = Some(number);
        }
        if self.queue.len() == 1 {
            // An error is found again, and judged, when the queue is written.
            self.flush(wire, HEADER_BYTES, statistics);
        }
        Posted::Pending(operation)
    }

    /// Takes a message that waits for the answer to its offer; the number stays taken.
    pub(super) fn answered(&mut self, number: u32) -> Result<Queued> {
        if let Some(offer) = self.offers.get_mut(number as usize)
            && matches!(offer, Offered::Waiting(message) if message.offer.is_some())
            && let Offered::Waiting(message) = std::mem::replace(offer, Offered::Granted)
        {
            return Ok(message);
        }
        Err(Error::Protocol { rank: self.peer, what: format!("an answer to offer {number}, which is none") })
    }

    pub(super) fn offer_of(&self, key: usize) -> Option<u32> {
        let is_it =
            |offer: &Offered| matches!(offer, Offered::Waiting(message) if message.operation == Some(key));
        self.offers.iter().find(|(_, offer)| is_it(offer)).map(|(number, _)| number as u32)
    }

    /// Withdraws an offer that is not written; else the message is copied, to be sent when it is granted.
    pub(super) fn cancel_offer(&mut self, number: u32, error: Error, statistics: &mut Statistics) {
        let position = self.queue.iter().position(|frame| frame.offer == Some(number));
        let offer = match position.filter(|position| self.is_unwritten(*position)) {
            Some(position) => {
                self.queue.remove(position);
                self.offers.try_remove(number as usize)
            }
            None => match self.offers.get_mut(number as usize) {
                Some(Offered::Waiting(message)) => {
                    Some(Offered::Waiting(message.detach(HEADER_BYTES, false, statistics)))
                }
                _ => None,
            },
        };
        if let Some(Offered::Waiting(message)) = offer {
            self.end(message, Err(error));
        }
    }

    pub(super) fn drop_offers(&mut self, error: &Error) {
        for (_, offer) in std::mem::take(&mut self.offers) {
            if let Offered::Waiting(message) = offer {
                self.end(message, Err(error.clone()));
            }
        }
    }

    /// Takes note of an offer that is written, or of the last data of one.
    pub(super) fn written(&mut self, frame: &Queued) {
        if let Some(Offered::Waiting(message)) =
            frame.offer.and_then(|number| self.offers.get_mut(number as usize))
        {
            message.offer = frame.offer;
        }
        if let Some(number) = frame.data {
            self.offers.try_remove(number as usize);
        }
    }

    /// Queues the next frame of data that was offered: behind the others, or, once the last word is queued,
    /// before them.
    pub(super) fn go_on(&mut self, mut data: Queued) {
        if let Some(number) = data.data {
            carry_next(&mut data, number, self.own);
        }
        if self.is_parting { self.queue.push_front(data) } else { self.queue.push_back(data) }
    }
}

/// Has data carry the next piece of the payload of an offer.
fn carry_next(data: &mut Queued, number: u32, own: Rank) {
    let bytes = data.payload_left().min(SEGMENT_BYTES);
    data.carry(encode(&Frame::Data(number, bytes as u64), own), bytes);
}
