//! Unexpected messages and rendezvous.

use std::ops::ControlFlow;

use super::super::Reply;
use super::super::descriptor::{Kind, Rts};
use super::super::receives::{Body, Slices, Unexpected, slices};
use super::super::sending::Sender;
use super::{Cleared, HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::{MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::shm::LINE_BYTES;
use crate::transport::{Posted, RecvDone, RecvParts, Which, check_message};
use crate::{Envelope, Error, Result, Statistics};

impl Receiver {
    /// Posts a receive. An unexpected message is found now; later ones are matched only if `is_open`.
    #[inline]
    pub(in super::super) fn post(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        is_open: bool,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        loop {
            let found = match self.receives.take_unexpected(envelope.tag) {
                None if is_open => return Posted::Pending(self.receives.post(envelope, parts)),
                None => {
                    return Posted::Done(RecvDone {
                        parts,
                        result: Err(Error::PeerLost { rank: self.peer }),
                    });
                }
                Some(message) => message,
            };
            if found.header.signature.epoch() == envelope.signature.epoch() {
                return self.post_unexpected(envelope, parts, found, sender, counts);
            }
            self.drop_unexpected(found, sender, counts);
        }
    }

    /// Drops some unexpected messages of a context, as if received; returns how many.
    pub(in super::super) fn discard(
        &mut self,
        context: u16,
        which: Which,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> usize {
        let is_meant = |message: &Unexpected| {
            message.header.tag.group() == context
                && which.includes(message.header.tag, message.header.signature)
        };
        let mut count = 0;
        while let Some(message) = self.receives.take_unexpected_if(is_meant) {
            self.drop_unexpected(message, sender, counts);
            count += 1;
        }
        count
    }

    #[cold]
    fn drop_unexpected(
        &mut self,
        Unexpected { header, body }: Unexpected,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        match body {
            Body::Rts(rts) | Body::NewRts(rts) => self.reject_rts(&rts, sender, counts),
            Body::Bytes(number, _) => {
                let target = Target::Unexpected(number);
                match self.streams.iter_mut().find(|stream| stream.target == target) {
                    // The rest of it is still to come.
                    Some(stream) => stream.target = Target::Discarded,
                    None => {
                        self.eager_taken += cost(header.bytes());
                        self.acknowledge();
                    }
                }
            }
        }
    }

    /// Posts a receive for an unexpected message, which may have arrived only in part.
    fn post_unexpected(
        &mut self,
        envelope: Envelope,
        mut parts: RecvParts,
        Unexpected { header, body }: Unexpected,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        let checked =
            check_message(self.peer, envelope.signature, &parts, header.signature, header.lengths());
        match body {
            Body::Bytes(number, bytes) => {
                if checked.is_ok() {
                    copy_unexpected(slices(&mut parts, &header, 0, bytes.len()), &bytes, counts);
                }
                let target = Target::Unexpected(number);
                let Some(stream) = self.streams.iter_mut().find(|stream| stream.target == target) else {
                    self.eager_taken += cost(header.bytes());
                    self.acknowledge();
                    counts.messages_received += u64::from(checked.is_ok());
                    return Posted::Done(RecvDone { parts, result: checked.map(|()| header.arrival()) });
                };
                stream.target = Target::Discarded;
                if let Err(error) = checked {
                    return Posted::Done(RecvDone { parts, result: Err(error) });
                }
                let key = self.receives.post_matched(envelope, parts);
                stream.target = Target::Posted(key);
                Posted::Pending(key)
            }
            Body::Rts(rts) | Body::NewRts(rts) => {
                if let Err(error) = checked {
                    self.reject_rts(&rts, sender, counts);
                    return Posted::Done(RecvDone { parts, result: Err(error) });
                }
                let key = self.receives.post_matched(envelope, parts);
                self.accept_rts(key, &rts, sender, counts);
                self.receives.take_ended(key).map_or(Posted::Pending(key), Posted::Done)
            }
        }
    }

    /// Handles an RTS: reads the message, asks for it, or keeps the RTS until a receive is posted.
    pub(super) fn take_rts(
        &mut self,
        at: usize,
        stamp: u64,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        let header = self.decode(at, stamp, Kind::Rts)?;
        let line = self.descriptors.line(at + LINE_BYTES);
        let rts = Rts::decode(header, &line).map_err(|what| self.protocol_error(what))?;
        if rts.takes_credit {
            if header.bytes() > MAX_EAGER_BYTES {
                return Err(self.protocol_error(format!("an RTS of {} bytes with credit", header.bytes())));
            }
            self.take_credit(header.bytes())?;
        }
        counts.bytes_received += HEADER_BYTES;
        match self.match_receive(&header) {
            Target::Posted(key) => self.accept_rts(key, &rts, sender, counts),
            Target::Discarded => self.reject_rts(&rts, sender, counts),
            Target::Unexpected(_) if self.receives.rts_count() >= MAX_OFFERS => {
                return Err(self.protocol_error(format!("more than {MAX_OFFERS} RTS")));
            }
            // A rank that waits for its own send posts the receive when this turn has ended it, so most are
            // not kept long.
            Target::Unexpected(_) => self.receives.keep_rts(rts),
        }
        Ok(())
    }

    /// Reads the message for the posted receive `key`, or asks for it.
    fn accept_rts(&mut self, key: usize, rts: &Rts, sender: &mut Sender, counts: &mut Statistics) {
        self.return_credit(rts);
        let bytes = rts.header.bytes();
        if self.is_long(&rts.header) {
            return self.begin_read(key, rts, sender, counts);
        }
        let is_read = sender.can_reply()
            && self.memory.read(rts, 0..bytes, self.receives.slices(key, &rts.header, 0, bytes));
        if is_read {
            counts.bytes_received += bytes as u64;
            self.finish_read(key, rts, sender, counts);
        } else {
            self.send_cts(key, rts, sender, counts);
        }
    }

    fn reject_rts(&mut self, rts: &Rts, sender: &mut Sender, counts: &mut Statistics) {
        self.return_credit(rts);
        sender.reply(Reply::Nack(rts.number), counts);
    }

    /// Gives back the credit that an RTS has taken: its bytes are not kept any more. Before the reply, so
    /// that a sender that sees the reply sees the credit.
    fn return_credit(&mut self, rts: &Rts) {
        if rts.takes_credit {
            self.eager_taken += cost(rts.header.bytes());
            self.acknowledge();
        }
    }

    /// Reads to the heap the messages of earlier turns' RTS that took credit and may be read, so that their
    /// sends end. Those that can't be answered now are tried again. Returns whether any was handled.
    pub(in super::super) fn fetch_unexpected(
        &mut self,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> bool {
        self.receives.age_rts(|rts| {
            if !rts.takes_credit {
                return ControlFlow::Continue(None);
            }
            if !sender.can_reply() {
                return ControlFlow::Break(());
            }
            let bytes = self.memory.fetch(rts);
            if let Some(bytes) = &bytes {
                counts.bytes_received += bytes.len() as u64;
                count_copy(bytes.len(), counts);
                sender.reply(Reply::Fin(rts.number), counts);
            }
            ControlFlow::Continue(bytes)
        })
    }

    /// Ends the receive of a message that was read.
    pub(super) fn finish_read(
        &mut self,
        key: usize,
        rts: &Rts,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        counts.messages_received += 1;
        // The only copy: from the sender's memory to the receiver's.
        count_copy(rts.header.bytes(), counts);
        self.receives.end(key, Ok(rts.header.arrival()));
        sender.reply(Reply::Fin(rts.number), counts);
    }

    /// Asks for a message through the ring.
    pub(super) fn send_cts(&mut self, key: usize, rts: &Rts, sender: &mut Sender, counts: &mut Statistics) {
        self.cleared.insert(rts.number, Cleared { header: rts.header, receive: Some(key) });
        sender.reply(Reply::Cts(rts.number), counts);
    }
}

/// Copies an unexpected message to its parts.
pub(super) fn copy_unexpected(slices: Slices<'_>, bytes: &[u8], counts: &mut Statistics) {
    let mut start = 0;
    for mut slice in slices {
        let length = slice.len();
        slice.copy_from_slice(&bytes[start..start + length]);
        start += length;
    }
    count_copy(bytes.len(), counts);
}
