//! Flow control of what the peer sends: its eager credit and the rendezvous messages that it has announced.

use std::collections::{HashMap, VecDeque};

use super::frame::{Frame, Header};
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::{Error, Rank, Result};

pub(super) struct FlowControl {
    peer: Rank,
    /// The [`cost`] of all eager messages received.
    received: u64,
    /// The part of `received` that is no longer kept.
    consumed: u64,
    /// The part of `consumed` that the peer has been told.
    reported: u64,
    /// Announced messages by the number of their RTS; `None` until a receive matches.
    pub(super) transfers: HashMap<u32, Option<Transfer>>,
    /// Frames to send to the peer.
    pub(super) replies: VecDeque<Frame>,
}

/// A rendezvous message whose CTS is sent.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    pub(super) header: Header,
    /// `None` when the receive has ended early.
    pub(super) receive: Option<usize>,
    /// Bytes of payload that have come.
    pub(super) received: usize,
}

impl FlowControl {
    pub(super) fn new(peer: Rank) -> Self {
        let (transfers, replies) = Default::default();
        Self { peer, received: 0, consumed: 0, reported: 0, transfers, replies }
    }

    /// Whether the peer may send this message eagerly.
    #[inline]
    pub(super) fn may_be_eager(&self, payload_bytes: usize) -> bool {
        payload_bytes <= MAX_EAGER_BYTES
            && self.received - self.reported + cost(payload_bytes) <= CREDIT_BYTES
    }

    /// Counts an eager message that begins to arrive.
    #[inline]
    pub(super) fn receive(&mut self, payload_bytes: usize) {
        self.received += cost(payload_bytes);
    }

    /// Counts an eager message that is not kept any more, and tells the peer from time to time.
    #[inline]
    pub(super) fn consume(&mut self, payload_bytes: usize) {
        self.consumed += cost(payload_bytes);
        if self.consumed - self.reported >= CREDIT_BYTES / 4 {
            self.reported = self.consumed;
            self.replies.push_back(Frame::Credit(self.consumed));
        }
    }

    /// Registers an RTS.
    pub(super) fn announce(&mut self, number: u32) -> Result<()> {
        if self.transfers.len() >= MAX_OFFERS {
            return self.violated(format!("more than {MAX_OFFERS} RTS"));
        }
        match self.transfers.insert(number, None) {
            None => Ok(()),
            Some(_) => self.violated(format!("RTS {number} twice")),
        }
    }

    /// Answers an RTS: CTS if there is a receive, else NACK.
    pub(super) fn answer(&mut self, number: u32, header: Header, receive: Option<usize>) {
        let reply = if receive.is_some() {
            self.transfers.insert(number, Some(Transfer { header, receive, received: 0 }));
            Frame::Cts(number)
        } else {
            self.transfers.remove(&number);
            Frame::Nack(number)
        };
        self.replies.push_back(reply);
    }

    /// Takes the transfer of which `bytes` come next.
    pub(super) fn take_transfer(&mut self, number: u32, bytes: u64) -> Result<Transfer> {
        let Some(Some(transfer)) = self.transfers.remove(&number) else {
            return self.violated(format!("data for RTS {number}, which has no CTS"));
        };
        let missing = (transfer.header.payload_bytes() - transfer.received) as u64;
        // Only an empty message has an empty data frame.
        if bytes > missing || (bytes == 0 && missing > 0) {
            return self
                .violated(format!("{bytes} bytes of data for RTS {number}, of which {missing} are missing"));
        }
        Ok(transfer)
    }

    /// Discards what comes for a receive that has ended early.
    pub(super) fn divert(&mut self, ended: usize) {
        for transfer in self.transfers.values_mut().flatten() {
            transfer.receive = transfer.receive.filter(|receive| *receive != ended);
        }
    }

    /// Forgets all announced messages; gives the receives that were matched to them.
    pub(super) fn forget_transfers(&mut self) -> Vec<usize> {
        self.transfers.drain().filter_map(|(_, transfer)| transfer?.receive).collect()
    }

    pub(super) fn violated<T>(&self, what: String) -> Result<T> {
        Err(Error::Protocol { rank: self.peer, what })
    }
}
