//! Messages that were not expected, and offers: what a receive finds that is posted after its message has
//! come, and what is read from the sender's memory.

use std::ops::ControlFlow;

use super::super::News;
use super::super::cell::{Head, Kind, Place};
use super::super::receives::{Body, Places, Unexpected, places};
use super::super::sending::Sender;
use super::{Granted, HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::{MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::shm::LINE_BYTES;
use crate::transport::{Posted, RecvDone, RecvParts, check_message};
use crate::{Envelope, Error, Result, Statistics};

impl Receiver {
    /// Posts a receive; what has come already is found, what comes is matched if `is_open`.
    #[inline]
    pub(in super::super) fn post(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        is_open: bool,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        match self.receives.take_unexpected(envelope.tag) {
            None if is_open => Posted::Pending(self.receives.post(envelope, parts)),
            None => Posted::Done(RecvDone { parts, result: Err(Error::PeerLost { rank: self.peer }) }),
            Some(Unexpected { head, body: Body::Bytes(number, bytes) }) => {
                self.post_kept(envelope, parts, (head, number, bytes), counts)
            }
            Some(Unexpected { head, body: Body::Offer(place) | Body::NewOffer(place) }) => {
                self.post_offered(envelope, parts, (head, place), sender, counts)
            }
        }
    }

    /// Reads what is offered, asks for it, or keeps the offer until a receive is posted.
    pub(super) fn take_offer(
        &mut self,
        at: usize,
        stamp: u64,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        let head = self.decode(at, stamp, Kind::Offer)?;
        let place = Place::decode(&self.cells.line(at + LINE_BYTES)).map_err(|what| self.refusal(what))?;
        if place.is_paid {
            if head.bytes() > MAX_EAGER_BYTES {
                return Err(self.refusal(format!("{} bytes offered for credit", head.bytes())));
            }
            self.receive_eager(head.bytes())?;
        }
        counts.bytes_received += HEADER_BYTES;
        match self.matched(&head) {
            Target::Posted(key) => self.meet_offer(key, (head, place), sender, counts),
            Target::Discarded => self.refuse_offer((head, place), sender, counts),
            Target::Kept(_) if self.receives.offers() >= MAX_OFFERS => {
                return Err(self.refusal(format!("more than {MAX_OFFERS} offers")));
            }
            // Who waits for its own send to end posts the receive when this turn has ended it: most are not
            // kept long.
            Target::Kept(_) => self.receives.keep_offer(head, place),
        }
        Ok(())
    }

    /// Reads what is offered to the posted receive `key`, or asks for it.
    fn meet_offer(
        &mut self,
        key: usize,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        self.give_credit_back(&head, &place);
        if self.is_long(&head) {
            return self.begin_read(key, (head, place), sender, counts);
        }
        let mut into = self.receives.places(key, &head, 0, head.bytes());
        let is_read = sender.can_answer() && self.memory.read(&head, &place, 0..head.bytes(), &mut into);
        drop(into);
        counts.bytes_received += if is_read { head.bytes() as u64 } else { 0 };
        self.settle(is_read, key, (head, place), sender, counts);
    }

    fn refuse_offer(&mut self, (head, place): (Head, Place), sender: &mut Sender, counts: &mut Statistics) {
        self.give_credit_back(&head, &place);
        sender.answer(News::Refused(place.number), counts);
    }

    /// The bytes of this offer will not be kept: what it has taken of the credit is there again. Comes before
    /// the answer, so that a sender that has it finds all credit.
    fn give_credit_back(&mut self, head: &Head, place: &Place) {
        if place.is_paid {
            self.eager_taken += cost(head.bytes());
            self.acknowledge();
        }
    }

    /// Reads to the heap what was offered in an earlier turn, is paid for and may be read: so its send ends.
    /// What can't be answered now is looked at again. Says whether anything was settled.
    pub(in super::super) fn fetch_offers(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        self.receives.age_offers(|head, place| {
            if !place.is_paid {
                return ControlFlow::Continue(None);
            }
            if !sender.can_answer() {
                return ControlFlow::Break(());
            }
            let kept = self.memory.fetch(head, place);
            if kept.is_some() {
                counts.bytes_received += head.bytes() as u64;
                count_copy(head.bytes(), counts);
                sender.answer(News::Read(place.number), counts);
            }
            ControlFlow::Continue(kept)
        })
    }

    /// Ends the receive of an offered message that was read, or asks for its bytes.
    pub(super) fn settle(
        &mut self,
        is_read: bool,
        key: usize,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        if is_read {
            counts.messages_received += 1;
            // The one copy there is: from the sender's memory to the receiver's.
            count_copy(head.bytes(), counts);
            self.receives.end(key, Ok(head.arrival()));
            sender.answer(News::Read(place.number), counts);
        } else {
            self.granted.insert(place.number, Granted { head, receive: Some(key) });
            sender.answer(News::Granted(place.number), counts);
        }
    }

    /// A receive for a message that is kept, whole or not.
    fn post_kept(
        &mut self,
        envelope: Envelope,
        mut parts: RecvParts,
        (head, number, bytes): (Head, u64, Vec<u8>),
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        let checked = check_message(self.peer, envelope.signature, &parts, head.signature, head.lengths());
        if checked.is_ok() {
            copy_kept(places(&mut parts, &head, 0, bytes.len()), &bytes, counts);
        }
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.target == Target::Kept(number)) {
            stream.target = Target::Discarded;
            if let Err(error) = checked {
                return Posted::Done(RecvDone { parts, result: Err(error) });
            }
            let key = self.receives.post_matched(envelope, parts);
            stream.target = Target::Posted(key);
            return Posted::Pending(key);
        }
        self.eager_taken += cost(head.bytes());
        self.acknowledge();
        counts.messages_received += u64::from(checked.is_ok());
        Posted::Done(RecvDone { parts, result: checked.map(|()| head.arrival()) })
    }

    fn post_offered(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        if let Err(error) =
            check_message(self.peer, envelope.signature, &parts, head.signature, head.lengths())
        {
            self.refuse_offer((head, place), sender, counts);
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        let key = self.receives.post_matched(envelope, parts);
        self.meet_offer(key, (head, place), sender, counts);
        match self.receives.take_ended(key) {
            Some(done) => Posted::Done(done),
            None => Posted::Pending(key),
        }
    }
}

/// Copies the bytes of a message that was kept to their places.
pub(super) fn copy_kept(places: Places<'_>, bytes: &[u8], counts: &mut Statistics) {
    let mut start = 0;
    for mut place in places {
        // A copy: the message came before its receive was posted.
        let length = place.len();
        place.copy_from_slice(&bytes[start..start + length]);
        start += length;
    }
    count_copy(bytes.len(), counts);
}
