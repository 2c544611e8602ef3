//! Posting a receive, for which a message may have come already: whole, in part, or as an RTS.

use super::Connection;
use crate::tcp::frame::Header;
use crate::tcp::matching::{Body, scatter};
use crate::transport::{Posted, RecvDone, RecvParts, check_message};
use crate::{Arrival, Envelope, Statistics};

impl Connection {
    #[inline]
    pub(in crate::tcp) fn post_recv(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        if self.receives.has_nothing_kept() && self.wire.is_some() {
            return Posted::Pending(self.receives.post(envelope, parts));
        }
        let posted = match self.incoming.take_unexpected(envelope.tag, &mut self.receives) {
            Some((header, body)) => self.post_matched(envelope, parts, header, body, statistics),
            None if self.wire.is_some() => Posted::Pending(self.receives.post(envelope, parts)),
            None => Posted::Done(RecvDone { parts, result: Err(self.lost()) }),
        };
        self.reply(statistics);
        posted
    }

    /// Posts a receive whose message is there, is arriving, or is announced.
    fn post_matched(
        &mut self,
        envelope: Envelope,
        mut parts: RecvParts,
        header: Header,
        body: Body,
        statistics: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        let is_arriving = matches!(&body, Body::Bytes(bytes) if bytes.len() < header.payload_bytes());
        if let Err(error) =
            check_message(self.peer, envelope.signature, &parts, header.signature, &header.lengths)
        {
            match body {
                Body::Rts(number) => self.incoming.flow_control.answer(number, header, None),
                Body::Bytes(_) if is_arriving => self.incoming.discard(),
                Body::Bytes(_) => {}
            }
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        match body {
            Body::Rts(number) => {
                let key = self.receives.post_matched(envelope, parts);
                self.incoming.flow_control.answer(number, header, Some(key));
                return Posted::Pending(key);
            }
            Body::Bytes(bytes) => scatter(&mut parts, &header.lengths, 0, &bytes, statistics),
        }
        if is_arriving {
            let key = self.receives.post_matched(envelope, parts);
            self.incoming.redirect(key);
            return Posted::Pending(key);
        }
        statistics.messages_received += 1;
        let arrival = Arrival { mark: header.mark, lengths: header.lengths.into() };
        Posted::Done(RecvDone { parts, result: Ok(arrival) })
    }
}
