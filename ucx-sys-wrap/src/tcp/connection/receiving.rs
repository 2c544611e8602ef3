//! A receive that is posted: what has come for it already, whole, in part or as an offer.

use super::Connection;
use crate::tcp::frame::Header;
use crate::tcp::incoming::Found;
use crate::tcp::matching::scatter;
use crate::transport::{Posted, RecvDone, RecvParts, check_message};
use crate::{Arrival, Envelope, Rank, Statistics};

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
        let posted = match self.incoming.find(envelope.tag, &mut self.receives) {
            Found::Nothing if self.wire.is_none() => {
                Posted::Done(RecvDone { parts, result: Err(self.lost()) })
            }
            Found::Nothing => Posted::Pending(self.receives.post(envelope, parts)),
            Found::Whole(header, bytes) => {
                Posted::Done(deliver(self.peer, &envelope, parts, header, &bytes, statistics))
            }
            Found::Arriving(header, bytes) => {
                self.post_arriving(envelope, parts, &header, &bytes, statistics)
            }
            Found::Offered(header, number) => self.post_offered(envelope, parts, header, number),
        };
        self.reply(statistics);
        posted
    }

    fn post_offered(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        header: Header,
        number: u32,
    ) -> Posted<usize, RecvDone> {
        if let Err(error) =
            check_message(self.peer, envelope.signature, &parts, header.signature, &header.lengths)
        {
            self.incoming.answer(number, header, None);
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        let key = self.receives.post_matched(envelope, parts);
        self.incoming.answer(number, header, Some(key));
        Posted::Pending(key)
    }

    fn post_arriving(
        &mut self,
        envelope: Envelope,
        mut parts: RecvParts,
        header: &Header,
        bytes: &[u8],
        statistics: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        if let Err(error) =
            check_message(self.peer, envelope.signature, &parts, header.signature, &header.lengths)
        {
            self.incoming.discard();
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        scatter(&mut parts, header, 0, bytes, statistics);
        let key = self.receives.post_matched(envelope, parts);
        self.incoming.redirect(key);
        Posted::Pending(key)
    }
}

/// Gives a whole message to its receive.
fn deliver(
    peer: Rank,
    envelope: &Envelope,
    mut parts: RecvParts,
    header: Header,
    bytes: &[u8],
    statistics: &mut Statistics,
) -> RecvDone {
    let result =
        check_message(peer, envelope.signature, &parts, header.signature, &header.lengths).map(|()| {
            scatter(&mut parts, &header, 0, bytes, statistics);
            statistics.messages_received += 1;
            Arrival { mark: header.mark, lengths: header.lengths.into() }
        });
    RecvDone { parts, result }
}
