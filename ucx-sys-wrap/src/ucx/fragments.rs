//! Messages that do not come as a whole: fragmented ones, and those by rendezvous.

use super::header::{FragmentHeader, Header};
use super::inbox::{Deferred, Inbox};
use super::payload::{Kept, Payload};
use crate::Rank;

/// A fragment that has not come.
pub(super) struct Awaited {
    pub(super) from: Rank,
    serial: u32,
    part: u8,
    bytes: usize,
    /// The receive; `None` for a message to be discarded.
    whose: Option<u64>,
}

impl Inbox {
    pub(super) fn fragment(&mut self, header: &[u8], payload: Payload<'_>) {
        if self.is_closed {
            return;
        }
        let Some(fragment) = FragmentHeader::decode(header).filter(|fragment| self.is_peer(fragment.from))
        else {
            return self.refuse(Rank(u32::MAX), format!("a header of {header:?} before a fragment"));
        };
        let is_meant = |awaited: &Awaited| {
            (awaited.from, awaited.serial, awaited.part) == (fragment.from, fragment.serial, fragment.part)
        };
        if self.is_lost(fragment.from) {
            return self.drop_of_lost(fragment.from, payload);
        }
        match self.awaited.iter().position(is_meant) {
            Some(position) => {
                let awaited = self.awaited.swap_remove(position);
                self.consume(fragment.from, fragment.is_counted, payload.bytes());
                self.take_fragment(&awaited, payload);
            }
            None => self.fragments.push((fragment, payload.keep(&mut self.statistics))),
        }
    }

    /// Delivers a message of which something is still to come.
    pub(super) fn deliver_fragmented(
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
        let payload_part = header.payload_part();
        if header.is_fragmented {
            incoming.unpack_inline(header, inline, &mut self.statistics);
        }
        let fragments = header.fragments().count();
        let is_rendezvous = matches!((&payload, payload_part), (Payload::Rendezvous(_), Some(_)));
        let missing = fragments + usize::from(is_rendezvous);
        incoming.fetch(header.arrival(), missing, missing > 0);
        match (payload, payload_part) {
            (Payload::Eager(bytes), Some(part)) => incoming.unpack_part(part, bytes, &mut self.statistics),
            (Payload::Eager(_), None) => {}
            (Payload::Rendezvous(rts), Some(part)) => {
                self.deferred.push_back(Deferred::Fetch { number, part, rts })
            }
            (Payload::Rendezvous(rts), None) => self.deferred.push_back(Deferred::Release(rts)),
        }
        self.take_fragments(header, serial, Some(number));
    }

    /// Takes the fragments of a message that have come, and awaits the others.
    fn take_fragments(&mut self, header: &Header, serial: u32, whose: Option<u64>) {
        let from = header.tag.source();
        for part in header.fragments() {
            let awaited = Awaited { from, serial, part: part as u8, bytes: header.lengths[part], whose };
            let is_meant = |(fragment, _): &(FragmentHeader, Kept)| {
                (fragment.from, fragment.serial, usize::from(fragment.part)) == (from, serial, part)
            };
            match self.fragments.iter().position(is_meant) {
                Some(position) => {
                    let (fragment, payload) = self.fragments.swap_remove(position);
                    payload.with(|payload| {
                        self.consume(from, fragment.is_counted, payload.bytes());
                        self.take_fragment(&awaited, payload);
                    });
                }
                None => self.awaited.push(awaited),
            }
        }
    }

    fn take_fragment(&mut self, awaited: &Awaited, payload: Payload<'_>) {
        if payload.bytes() != awaited.bytes {
            let what =
                format!("a part of {} bytes that was announced with {}", payload.bytes(), awaited.bytes);
            return self.refuse(awaited.from, what);
        }
        let part = awaited.part.into();
        let incoming = awaited.whose.and_then(|number| Some((number, self.receives.get_mut(number)?)));
        match (incoming, payload) {
            (Some((_, incoming)), Payload::Eager(bytes)) => {
                incoming.unpack_part(part, bytes, &mut self.statistics);
                incoming.comes(None);
            }
            (Some((number, _)), Payload::Rendezvous(rts)) => {
                self.deferred.push_back(Deferred::Fetch { number, part, rts })
            }
            (None, Payload::Eager(_)) => {}
            (None, Payload::Rendezvous(rts)) => self.deferred.push_back(Deferred::Release(rts)),
        }
    }

    pub(super) fn discard(&mut self, header: &Header, payload: Payload<'_>, serial: u32) {
        self.consume(header.tag.source(), header.is_counted, header.bytes_at_once());
        if let Payload::Rendezvous(rts) = payload {
            self.deferred.push_back(Deferred::Release(rts));
        }
        self.take_fragments(header, serial, None);
    }
}
