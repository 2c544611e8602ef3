//! Messages of which not everything comes with the header: offers, and the pieces of spread messages.

use super::header::{Header, PieceHeader};
use super::inbox::{Inbox, Job};
use super::payload::{Kept, Payload};
use crate::Rank;

/// A piece that has not come.
pub(super) struct Awaited {
    from: Rank,
    serial: u32,
    part: u8,
    bytes: usize,
    /// The receive; `None` for a message that nobody wants.
    whose: Option<u64>,
}

impl Inbox {
    /// A piece has come.
    pub(super) fn piece(&mut self, header: &[u8], payload: Payload<'_>) {
        if self.is_closed {
            return;
        }
        let Some(piece) = PieceHeader::decode(header).filter(|piece| self.is_peer(piece.from)) else {
            return self.refuse(Rank(u32::MAX), format!("a header of {header:?} before a piece"));
        };
        let is_meant = |awaited: &Awaited| {
            (awaited.from, awaited.serial, awaited.part) == (piece.from, piece.serial, piece.part)
        };
        match self.awaited.iter().position(is_meant) {
            Some(position) => {
                let awaited = self.awaited.swap_remove(position);
                self.consume(piece.from, piece.is_counted, payload.bytes());
                self.take_piece(&awaited, payload);
            }
            None => self.pieces.push((piece, payload.keep(&mut self.statistics))),
        }
    }

    /// Gives a message of which something has to be fetched to the receive that waits for it.
    pub(super) fn deliver_spread(
        &mut self,
        number: u64,
        header: &Header,
        inline: &[u8],
        payload: Payload<'_>,
        serial: u32,
    ) {
        let from = header.tag.source();
        self.consume(from, header.is_counted, header.bytes_at_once());
        let Some(incoming) = self.receives.get_mut(number) else { return };
        let carried =
            if header.is_spread { header.carried() } else { (header.total_bytes() > 0).then_some(0) };
        if header.is_spread {
            incoming.unpack_inline(header, inline, &mut self.statistics);
        }
        let pieces = header.pieces().count();
        let is_offered = matches!((&payload, carried), (Payload::Offered(_), Some(_)));
        incoming.fetch(header.arrival(), pieces + usize::from(is_offered), pieces > 0 || is_offered);
        match (payload, carried) {
            (Payload::Here(bytes), Some(part)) => incoming.unpack_part(part, bytes, &mut self.statistics),
            (Payload::Here(_), None) => {}
            (Payload::Offered(offer), Some(part)) => self.jobs.push_back(Job::Fetch { number, part, offer }),
            (Payload::Offered(offer), None) => self.jobs.push_back(Job::Release(offer)),
        }
        self.ask_for_pieces(header, serial, Some(number));
    }

    /// Takes the pieces of a message that have come, and waits for the others.
    fn ask_for_pieces(&mut self, header: &Header, serial: u32, whose: Option<u64>) {
        let from = header.tag.source();
        for part in header.pieces() {
            let awaited = Awaited { from, serial, part: part as u8, bytes: header.lengths[part], whose };
            let is_meant = |(piece, _): &(PieceHeader, Kept)| {
                (piece.from, piece.serial, usize::from(piece.part)) == (from, serial, part)
            };
            match self.pieces.iter().position(is_meant) {
                Some(position) => {
                    let (piece, payload) = self.pieces.swap_remove(position);
                    self.consume(from, piece.is_counted, payload.bytes());
                    payload.with(|payload| self.take_piece(&awaited, payload));
                }
                None => self.awaited.push(awaited),
            }
        }
    }

    fn take_piece(&mut self, awaited: &Awaited, payload: Payload<'_>) {
        if payload.bytes() != awaited.bytes {
            let what =
                format!("a part of {} bytes that was announced with {}", payload.bytes(), awaited.bytes);
            return self.refuse(awaited.from, what);
        }
        let part = awaited.part.into();
        let incoming = awaited.whose.and_then(|number| Some((number, self.receives.get_mut(number)?)));
        match (incoming, payload) {
            (Some((_, incoming)), Payload::Here(bytes)) => {
                incoming.unpack_part(part, bytes, &mut self.statistics);
                incoming.comes(None);
            }
            (Some((number, _)), Payload::Offered(offer)) => {
                self.jobs.push_back(Job::Fetch { number, part, offer })
            }
            (None, Payload::Here(_)) => {}
            (None, Payload::Offered(offer)) => self.jobs.push_back(Job::Release(offer)),
        }
    }

    /// Takes a message that nobody wants.
    pub(super) fn discard(&mut self, header: &Header, payload: Payload<'_>, serial: u32) {
        self.consume(header.tag.source(), header.is_counted, header.bytes_at_once());
        if let Payload::Offered(offer) = payload {
            self.jobs.push_back(Job::Release(offer));
        }
        self.ask_for_pieces(header, serial, None);
    }
}
