//! What the peer may send without asking, and what it has offered.

use std::collections::{HashMap, VecDeque};

use super::frame::{Frame, Header};
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::{Error, Rank, Result};

pub(super) struct Ledger {
    peer: Rank,
    /// What the peer has sent without asking, as [`cost`] counts.
    received: u64,
    /// What of it is not kept any more.
    consumed: u64,
    /// What of that the peer knows.
    reported: u64,
    offers: HashMap<u32, Offer>,
    /// Frames to send.
    replies: VecDeque<Frame>,
}

/// What has become of an offer.
enum Offer {
    /// It waits for a receive.
    Waiting,
    /// Its data is on its way to this receive, or to nowhere if that has ended.
    Granted(Granted),
}

/// An offer that was granted, and how much of it has come.
#[derive(Clone, Copy)]
pub(super) struct Granted {
    pub(super) header: Header,
    /// `None` when the receive has ended early.
    pub(super) receive: Option<usize>,
    pub(super) received: usize,
}

impl Ledger {
    pub(super) fn new(peer: Rank) -> Self {
        Self { peer, received: 0, consumed: 0, reported: 0, offers: HashMap::new(), replies: VecDeque::new() }
    }

    /// Whether the peer may send this message without asking.
    #[inline]
    pub(super) fn may_be_eager(&self, payload_bytes: usize) -> bool {
        payload_bytes <= MAX_EAGER_BYTES
            && self.received - self.reported + cost(payload_bytes) <= CREDIT_BYTES
    }

    /// Refuses a message that the peer should have offered.
    #[inline]
    pub(super) fn check(&self, header: &Header) -> Result<()> {
        if self.may_be_eager(header.payload_bytes()) {
            return Ok(());
        }
        self.refuse(format!("a message of {} bytes without credit", header.payload_bytes()))
    }

    /// A message comes that was sent without asking.
    #[inline]
    pub(super) fn receive(&mut self, payload_bytes: usize) {
        self.received += cost(payload_bytes);
    }

    /// Such a message is not kept any more, or never was; the peer is told now and then.
    #[inline]
    pub(super) fn consume(&mut self, payload_bytes: usize) {
        self.consumed += cost(payload_bytes);
        if self.consumed - self.reported >= CREDIT_BYTES / 4 {
            self.reported = self.consumed;
            self.replies.push_back(Frame::Credit(self.consumed));
        }
    }

    /// The peer offers a message.
    pub(super) fn offered(&mut self, number: u32) -> Result<()> {
        if self.offers.len() >= MAX_OFFERS {
            return self.refuse(format!("more than {MAX_OFFERS} offers"));
        }
        match self.offers.insert(number, Offer::Waiting) {
            None => Ok(()),
            Some(_) => self.refuse(format!("offer {number} twice")),
        }
    }

    /// Grants an offer to a receive, or refuses it.
    pub(super) fn answer(&mut self, number: u32, header: Header, receive: Option<usize>) {
        let reply = if receive.is_some() {
            self.offers.insert(number, Offer::Granted(Granted { header, receive, received: 0 }));
            Frame::Grant(number)
        } else {
            self.offers.remove(&number);
            Frame::Refusal(number)
        };
        self.replies.push_back(reply);
    }

    /// So many bytes of the data of an offer come: of what, and for which receive.
    pub(super) fn take_granted(&mut self, number: u32, bytes: u64) -> Result<Granted> {
        let Some(Offer::Granted(granted)) = self.offers.remove(&number) else {
            return self.refuse(format!("data for offer {number}, which was not granted"));
        };
        let missing = (granted.header.payload_bytes() - granted.received) as u64;
        // Nothing at all is only sent of a message that is empty.
        if bytes > missing || (bytes == 0 && missing > 0) {
            return self
                .refuse(format!("{bytes} bytes of data for offer {number}, of which {missing} are missing"));
        }
        Ok(granted)
    }

    /// More of the data of an offer is still to come.
    pub(super) fn put_back(&mut self, number: u32, granted: Granted) {
        self.offers.insert(number, Offer::Granted(granted));
    }

    /// The receive has ended early: what comes for it goes nowhere.
    pub(super) fn divert(&mut self, ended: usize) {
        for offer in self.offers.values_mut() {
            if let Offer::Granted(granted) = offer
                && granted.receive == Some(ended)
            {
                granted.receive = None;
            }
        }
    }

    /// Forgets the offers; the receives that they were granted to.
    pub(super) fn forget_granted(&mut self) -> Vec<usize> {
        let receive = |(_, offer)| if let Offer::Granted(granted) = offer { granted.receive } else { None };
        self.offers.drain().filter_map(receive).collect()
    }

    /// Whether there is a frame to send to the peer.
    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// A frame to send to the peer.
    #[inline]
    pub(super) fn take_reply(&mut self) -> Option<Frame> {
        self.replies.pop_front()
    }

    fn refuse<T>(&self, what: String) -> Result<T> {
        Err(Error::Protocol { rank: self.peer, what })
    }
}
