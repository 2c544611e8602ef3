//! The state of one rank of a simulated network.

use std::collections::{BTreeMap, VecDeque};

use super::remote::Accesses;
use crate::local::matching::{Header, Key, Receives, first_of};
use crate::transport::{News, Statistics, Which};
use crate::{Envelope, Error, Rank, Result};

/// A message with its parts concatenated.
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
}

impl Message {
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        self.header.lengths.iter().map(move |length| {
            let (part, tail) = rest.split_at(*length);
            rest = tail;
            part
        })
    }
}

/// The state of one rank.
#[derive(Default)]
pub(super) struct Node {
    pub(super) receives: Receives,
    pub(super) accesses: Accesses,
    pub(super) statistics: Statistics,
    /// The peers that are lost, with the error of operations with them.
    pub(super) lost: BTreeMap<Rank, Error>,
    pub(super) news: VecDeque<News>,
    /// It dies when it has posted this many messages.
    pub(super) dies_after: Option<u64>,
    /// The error of its operations, once it is dead.
    pub(super) dead: Option<Error>,
    /// It has ended and accepts no messages.
    pub(super) has_left: bool,
    /// It had an event since it last made progress.
    pub(super) has_changed: bool,
    /// It has posted or ended an operation since its turn began.
    pub(super) has_acted: bool,
    /// It has probed in vain since its turn began: it waits for messages of any rank.
    pub(super) is_listening: bool,
    pub(super) stalled_until: u64,
    /// Its peers know that it has left.
    pub(super) is_gone: bool,
    /// Its peers are told that it has left as soon as none of its messages is in flight.
    pub(super) goes_when_drained: bool,
    pub(super) in_flight: usize,
    pub(super) messages: BTreeMap<Key, Message>,
    pub(super) out_port_free: u64,
    pub(super) in_port_free: u64,
}

impl Node {
    /// Fails if the rank is dead or has left.
    pub(super) fn check_open(&self) -> Result<()> {
        match &self.dead {
            Some(error) => Err(error.clone()),
            None if self.has_left => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Drops some messages of a context.
    pub(super) fn discard(&mut self, context: u16, which: Which) -> usize {
        let before = self.messages.len();
        self.messages.retain(|key, message| {
            key.tag.group() != context || !which.includes(key.tag, message.header.signature)
        });
        before - self.messages.len()
    }

    /// Takes the oldest arrived message of a source, tag and epoch. Drops those of other epochs before it.
    pub(super) fn take_message(&mut self, from: Rank, envelope: &Envelope) -> Option<Message> {
        loop {
            let message = self.messages.remove(&first_of(&self.messages, from, envelope.tag)?)?;
            if message.header.signature.epoch() == envelope.signature.epoch() {
                return Some(message);
            }
        }
    }

    /// Takes a message that has arrived. Returns whether a receive has got it.
    pub(super) fn deliver(&mut self, key: Key, message: Message) -> bool {
        match self.receives.epoch(key.source, key.tag) {
            // Of an earlier context of this number: dropped, and the receive goes on waiting.
            Some(epoch) if epoch != message.header.signature.epoch() => {}
            Some(_) => {
                let id = self.receives.claim(key.source, key.tag);
                if let Some(id) = id {
                    self.receives.deliver(id, &message.header, message.slices(), &mut self.statistics);
                }
                return id.is_some();
            }
            None if self.has_left || self.lost.contains_key(&key.source) => {}
            None => _ = self.messages.insert(key, message),
        }
        false
    }
}
