//! Rendezvous messages: they wait for the CTS, and then go out fragment by fragment.

use super::Outgoing;
use crate::limits::MAX_OFFERS;
use crate::tcp::frame::{Frame, HEADER_BYTES, Header, SEGMENT_BYTES, encode};
use crate::tcp::queued::{Payload, Queued};
use crate::tcp::wire::Wire;
use crate::transport::{Posted, SendDone, SendParts};
use crate::{Error, Rank, Result, Statistics};

/// A message that was announced by an RTS.
pub(super) enum Rendezvous {
    /// It waits for the answer; `Queued::rts` is set once the RTS is written.
    Waiting(Queued),
    /// The CTS has come. The number stays taken until all data is written.
    Cleared,
}

impl Outgoing {
    /// The peer is ready for an announced message.
    pub(in crate::tcp) fn handle_cts(&mut self, number: u32) -> Result<()> {
        let message = self.take_answered(number)?;
        let data = Queued { rts: None, data: Some(number), ..message };
        self.queue.push_back(with_next_fragment(data, number, self.own));
        Ok(())
    }

    /// The peer does not want an announced message: its send has succeeded.
    pub(in crate::tcp) fn handle_nack(&mut self, number: u32) -> Result<()> {
        let message = self.take_answered(number)?;
        self.rendezvous.try_remove(number as usize);
        self.end(message, Ok(()));
        Ok(())
    }

    pub(super) fn send_rts(
        &mut self,
        wire: &mut Wire,
        header: Header,
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        if self.rendezvous.len() >= MAX_OFFERS {
            let why = format!("rank {} has not received {MAX_OFFERS} messages: let it catch up", self.peer);
            return Posted::Done(SendDone { parts, result: Err(Error::Unavailable { name: "tcp", why }) });
        }
        let operation = self.begin(header.tag.group());
        let message =
            Queued { operation: Some(operation), ..Queued::new([0; HEADER_BYTES], Payload::Leased(parts)) };
        let number = self.rendezvous.insert(Rendezvous::Waiting(message)) as u32;
        self.push_control(&Frame::Rts(number, header));
        if let Some(frame) = self.queue.back_mut() {
            frame.rts = Some(number);
        }
        if self.queue.len() == 1 {
            // The next turn finds and handles an error.
            self.flush(wire, HEADER_BYTES, statistics);
        }
        Posted::Pending(operation)
    }

    /// Takes a message that waits for the answer to its RTS; the number stays taken.
    fn take_answered(&mut self, number: u32) -> Result<Queued> {
        if let Some(rendezvous) = self.rendezvous.get_mut(number as usize)
            && matches!(rendezvous, Rendezvous::Waiting(message) if message.rts.is_some())
            && let Rendezvous::Waiting(message) = std::mem::replace(rendezvous, Rendezvous::Cleared)
        {
            return Ok(message);
        }
        Err(Error::Protocol { rank: self.peer, what: format!("an answer to RTS {number}, which is none") })
    }

    /// Cancels the send `key` if it waits for a CTS: withdraws the RTS if that is not written, else copies
    /// the message, which is sent when the CTS comes.
    pub(super) fn cancel_rendezvous(&mut self, key: usize, error: Error, statistics: &mut Statistics) {
        let is_it = |rendezvous: &Rendezvous| match rendezvous {
            Rendezvous::Waiting(message) => message.operation == Some(key),
            Rendezvous::Cleared => false,
        };
        let Some((number, _)) = self.rendezvous.iter().find(|(_, waiting)| is_it(waiting)) else { return };
        let position = self.queue.iter().position(|frame| frame.rts == Some(number as u32));
        let message = match position.filter(|position| self.is_unwritten(*position)) {
            Some(position) => {
                self.queue.remove(position);
                self.rendezvous.try_remove(number)
            }
            None => match self.rendezvous.get_mut(number) {
                Some(Rendezvous::Waiting(message)) => {
                    Some(Rendezvous::Waiting(message.detach(HEADER_BYTES, false, statistics)))
                }
                _ => None,
            },
        };
        if let Some(Rendezvous::Waiting(message)) = message {
            self.end(message, Err(error));
        }
    }

    pub(super) fn drop_rendezvous(&mut self, error: &Error) {
        for (_, rendezvous) in std::mem::take(&mut self.rendezvous) {
            if let Rendezvous::Waiting(message) = rendezvous {
                self.end(message, Err(error.clone()));
            }
        }
    }

    /// Notes that an RTS, or the last data of a rendezvous message, is written.
    pub(super) fn written(&mut self, frame: &Queued) {
        if let Some(Rendezvous::Waiting(message)) =
            frame.rts.and_then(|number| self.rendezvous.get_mut(number as usize))
        {
            message.rts = frame.rts;
        }
        if let Some(number) = frame.data {
            self.rendezvous.try_remove(number as usize);
        }
    }

    /// Queues the next fragment: behind the other frames, or before them once the close frame is queued.
    pub(super) fn queue_next_fragment(&mut self, mut data: Queued) {
        if let Some(number) = data.data {
            data = with_next_fragment(data, number, self.own);
        }
        if self.is_closing { self.queue.push_front(data) } else { self.queue.push_back(data) }
    }
}

/// Makes `data` a frame of the next fragment of its payload.
fn with_next_fragment(mut data: Queued, number: u32, own: Rank) -> Queued {
    let bytes = (data.payload.len() - data.start).min(SEGMENT_BYTES);
    data.header = encode(&Frame::Data(number, bytes as u64), own);
    data.end = data.start + bytes;
    data
}
