//! The network: ports, the clock and the event queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use slab::Slab;

use super::links::{Fault, Links, picoseconds};
use super::remote::{Accesses, Request};
use crate::local::matching::{Header, Key, Receives, first_of};
use crate::told::later;
use crate::transport::Statistics;
use crate::{Error, Failure, Rank, Result, Tag};

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

/// The shared state of all ranks. Times are in picoseconds.
pub(super) struct Network {
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    links: Links,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Slab<Event>,
    scheduled: u64,
    cuts: BTreeSet<(Rank, Rank)>,
    /// The ranks with events since the driver last took them.
    pub(super) ready: BTreeSet<Rank>,
    /// A hash of all events in order.
    pub(super) trace: u64,
}

/// The state of one rank.
#[derive(Default)]
pub(super) struct Node {
    pub(super) receives: Receives,
    pub(super) accesses: Accesses,
    pub(super) statistics: Statistics,
    pub(super) failure: Option<Failure>,
    /// It has ended and accepts no messages.
    pub(super) has_left: bool,
    /// It had an event since it last made progress.
    pub(super) has_changed: bool,
    /// It has posted or ended an operation since its turn began.
    pub(super) has_acted: bool,
    pub(super) stalled_until: u64,
    /// Its peers know that it has left.
    is_gone: bool,
    /// Its peers are told that it has left as soon as none of its messages is in flight.
    goes_when_drained: bool,
    in_flight: usize,
    messages: BTreeMap<Key, Message>,
    out_port_free: u64,
    in_port_free: u64,
}

pub(super) enum Event {
    /// The first byte of a message reaches the receiver's port.
    Head(Box<Transfer>),
    /// The last byte of a message has passed the receiver's port.
    Arrival(Box<Transfer>),
    /// A rank learns that its put has been carried out.
    PutEnded {
        from: Rank,
        to: Rank,
        number: u64,
        result: Result<()>,
    },
    /// A rank that has closed its transport tells a peer the cause.
    Notice {
        from: Rank,
        to: Rank,
        cause: Failure,
    },
    /// The peers of a rank that has left may learn of it.
    Gone(Rank),
    Fault(Fault),
    Resume(Rank),
}

pub(super) struct Transfer {
    from: Rank,
    to: Rank,
    packet: Packet,
}

pub(super) enum Packet {
    Message(Key, Message),
    Request(Request),
}

impl Packet {
    fn payload_bytes(&self) -> usize {
        match self {
            Self::Message(_, message) => message.bytes.len(),
            Self::Request(request) => request.payload_bytes(),
        }
    }

    /// What identifies it in the trace.
    fn detail(&self) -> u64 {
        match self {
            Self::Message(key, _) => key.tag.0,
            Self::Request(_) => 1,
        }
    }
}

impl Network {
    pub(super) fn new(world_size: u32, links: Links) -> Self {
        Self {
            now: 0,
            nodes: Rank::all(world_size).map(|_| Node::default()).collect(),
            links,
            queue: BinaryHeap::new(),
            events: Slab::new(),
            scheduled: 0,
            cuts: BTreeSet::new(),
            ready: BTreeSet::new(),
            trace: 0,
        }
    }

    pub(super) fn plan(&mut self, fault: Fault) {
        self.schedule(fault.time().max(self.now), Event::Fault(fault));
    }

    pub(super) fn has_events(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Handles all events of the next time, or none if that is after `limit`. Returns whether there were any.
    pub(super) fn advance(&mut self, limit: u64) -> bool {
        let next = self.queue.peek().map(|Reverse((time, ..))| *time).filter(|time| *time <= limit);
        self.now = self.now.max(next.unwrap_or(limit));
        while let Some(&Reverse((time, _, index))) = self.queue.peek()
            && time <= self.now
            && next.is_some()
        {
            self.queue.pop();
            let event = self.events.remove(index);
            self.handle(event);
        }
        next.is_some()
    }

    /// Sends a packet through the sender's port, which it keeps busy for the time of its bytes.
    pub(super) fn send(&mut self, from: Rank, to: Rank, packet: Packet) {
        let link = self.links.between(from, to);
        let port_time = link.port_time(packet.payload_bytes() + self.links.header_bytes);
        self.record(1, from, to, packet.detail() ^ packet.payload_bytes() as u64);
        let sender = &mut self.nodes[from.index()];
        let start = sender.out_port_free.max(self.now);
        sender.out_port_free = start.saturating_add(port_time);
        sender.in_flight += 1;
        self.schedule(
            start.saturating_add(link.latency()),
            Event::Head(Box::new(Transfer { from, to, packet })),
        );
    }

    /// Takes the oldest arrived message of a source and tag.
    pub(super) fn take_message(&mut self, rank: Rank, from: Rank, tag: Tag) -> Option<Message> {
        let messages = &mut self.nodes[rank.index()].messages;
        let key = first_of(messages, from, tag)?;
        messages.remove(&key)
    }

    pub(super) fn knows_gone(&self, rank: Rank, peer: Rank) -> bool {
        self.nodes[peer.index()].is_gone && !self.is_cut(rank, peer)
    }

    /// Closes the transport of `rank` for `cause`, unless it is closed, and notifies the peers.
    pub(super) fn fail(&mut self, rank: Rank, cause: Failure) {
        if !self.close(rank, cause) {
            return;
        }
        later!(DEBUG, rank = rank.0, ?cause, "the transport is closed");
        for to in Rank::all(self.nodes.len() as u32).filter(|to| *to != rank) {
            // A closed peer ignores notices.
            if self.nodes[to.index()].failure.is_none() && !self.nodes[to.index()].has_left {
                let time = self.latency_from_now(rank, to);
                self.schedule(time, Event::Notice { from: rank, to, cause });
            }
        }
    }

    /// Ends a rank: it accepts no more messages, and its peers learn of it after all that it has sent.
    pub(super) fn leave(&mut self, rank: Rank, error: &Error) {
        let node = &mut self.nodes[rank.index()];
        node.receives.end_all(error);
        node.accesses.end_all(error);
        node.messages.clear();
        if !std::mem::replace(&mut node.has_left, true) {
            let time = self.latency_from_now(rank, rank);
            self.schedule(time, Event::Gone(rank));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Head(transfer) => self.enter_port(transfer),
            Event::Arrival(transfer) => self.arrive(*transfer),
            Event::PutEnded { from, to, number, result } => {
                if !self.is_cut(from, to) {
                    self.end_access(to, number, result);
                }
            }
            Event::Notice { from, to, cause } => {
                if !self.is_cut(from, to) && self.close(to, cause) {
                    self.record(2, from, to, 0);
                }
            }
            Event::Gone(rank) => self.announce_gone(rank),
            Event::Fault(fault) => self.inject(fault),
            Event::Resume(rank) => self.wake(rank),
        }
    }

    /// Passes a packet through the receiver's port, which it keeps busy for the time of its bytes.
    fn enter_port(&mut self, transfer: Box<Transfer>) {
        let (from, to) = (transfer.from, transfer.to);
        if self.is_cut(from, to) {
            self.record(3, from, to, transfer.packet.detail());
            self.packet_left(from);
            return;
        }
        let port_time =
            self.links.between(from, to).port_time(transfer.packet.payload_bytes() + self.links.header_bytes);
        let port_free = &mut self.nodes[to.index()].in_port_free;
        *port_free = self.now.max(*port_free).saturating_add(port_time);
        let time = *port_free;
        self.schedule(time, Event::Arrival(transfer));
    }

    fn arrive(&mut self, Transfer { from, to, packet }: Transfer) {
        self.record(4, from, to, packet.detail());
        match packet {
            Packet::Message(key, message) => self.deliver(key, to, message),
            Packet::Request(request) => self.carry_out(from, to, request),
        }
        self.packet_left(from);
    }

    fn deliver(&mut self, key: Key, to: Rank, message: Message) {
        let node = &mut self.nodes[to.index()];
        if let Some(id) = node.receives.claim(key.source, key.tag) {
            node.receives.deliver(id, &message.header, message.slices(), &mut node.statistics);
            self.wake(to);
        } else if !node.has_left && node.failure.is_none() {
            node.messages.insert(key, message);
        }
    }

    /// Counts a packet of `from` that is no longer in flight.
    fn packet_left(&mut self, from: Rank) {
        let node = &mut self.nodes[from.index()];
        node.in_flight -= 1;
        if node.goes_when_drained {
            self.announce_gone(from);
        }
    }

    /// Fails the ranks that wait for a rank that has left, once none of its packets is in flight.
    fn announce_gone(&mut self, rank: Rank) {
        let node = &mut self.nodes[rank.index()];
        node.goes_when_drained = node.in_flight > 0;
        if node.goes_when_drained {
            return;
        }
        node.is_gone = true;
        self.record(5, rank, rank, 0);
        for peer in Rank::all(self.nodes.len() as u32) {
            let node = &mut self.nodes[peer.index()];
            let waits = node.receives.waits_for(rank) || node.accesses.waits_for(rank);
            if waits && self.knows_gone(peer, rank) {
                self.fail(peer, Failure::PeerLost(rank));
            }
        }
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { rank, .. } => {
                self.record(6, rank, rank, 0);
                self.close(rank, Failure::PeerLost(rank));
                self.leave(rank, &Error::PeerLost { rank });
            }
            Fault::Stall { rank, lasting, .. } => {
                self.record(7, rank, rank, 0);
                let end = self.now.saturating_add(picoseconds(lasting));
                let node = &mut self.nodes[rank.index()];
                node.stalled_until = node.stalled_until.max(end);
                self.schedule(end, Event::Resume(rank));
            }
            Fault::Cut { a, b, .. } => {
                self.record(8, a, b, 0);
                self.cuts.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Closes the transport of a rank and ends its operations. Returns false if it was already closed.
    fn close(&mut self, rank: Rank, cause: Failure) -> bool {
        let node = &mut self.nodes[rank.index()];
        if node.failure.is_some() {
            return false;
        }
        node.failure = Some(cause);
        node.messages.clear();
        node.receives.end_all(&cause.into());
        node.accesses.end_all(&cause.into());
        self.wake(rank);
        true
    }

    /// When `to` learns what `from` tells it now.
    pub(super) fn latency_from_now(&self, from: Rank, to: Rank) -> u64 {
        self.now.saturating_add(self.links.between(from, to).latency())
    }

    pub(super) fn wake(&mut self, rank: Rank) {
        self.nodes[rank.index()].has_changed = true;
        self.ready.insert(rank);
    }

    fn is_cut(&self, a: Rank, b: Rank) -> bool {
        self.cuts.contains(&(a, b))
    }

    pub(super) fn schedule(&mut self, time: u64, event: Event) {
        self.scheduled += 1;
        let index = self.events.insert(event);
        self.queue.push(Reverse((time, self.scheduled, index)));
    }

    fn record(&mut self, what: u64, from: Rank, to: Rank, detail: u64) {
        for word in [self.now, what << 40 | u64::from(from.0) << 20 | u64::from(to.0), detail] {
            self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}
