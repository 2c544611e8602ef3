//! The network itself: ports, the clock, and what happens next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use slab::Slab;

use super::links::{Fault, Links, picoseconds};
use super::remote::{Accesses, Request};
use crate::local::matching::{Header, Key, Receives, first_of};
use crate::told::later;
use crate::transport::Statistics;
use crate::{Error, Failure, Rank, Result, Tag};

/// The payload of a message, its parts one after the other.
pub(super) struct Message {
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
}

impl Message {
    /// The parts.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        self.header.lengths.iter().map(move |length| {
            let (part, tail) = rest.split_at(*length);
            rest = tail;
            part
        })
    }
}

/// All that the ranks share. Times are picoseconds.
pub(super) struct Network {
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    links: Links,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Slab<Event>,
    scheduled: u64,
    cuts: BTreeSet<(Rank, Rank)>,
    ready: BTreeSet<Rank>,
    trace: u64,
}

/// One rank, as the network sees it.
#[derive(Default)]
pub(super) struct Node {
    pub(super) receives: Receives,
    pub(super) accesses: Accesses,
    pub(super) statistics: Statistics,
    pub(super) failure: Option<Failure>,
    /// It has ended and takes no messages.
    pub(super) has_left: bool,
    /// Something has happened to it since it last made progress.
    pub(super) has_changed: bool,
    /// It has posted or ended an operation since the driver last looked.
    pub(super) has_acted: bool,
    pub(super) stalled_until: u64,
    /// Everybody knows that it has left.
    is_gone: bool,
    /// Its peers are told that it has left, as soon as nothing of it is in flight.
    goes_when_drained: bool,
    in_flight: usize,
    messages: BTreeMap<Key, Message>,
    out_port_free: u64,
    in_port_free: u64,
}

pub(super) enum Event {
    /// The first byte of a message is at the receiver's port.
    Head(Box<Flight>),
    /// The last byte of a message is through the receiver's port.
    Arrival(Box<Flight>),
    /// A rank hears that its put has been carried out.
    PutEnded {
        from: Rank,
        to: Rank,
        number: u64,
        result: Result<()>,
    },
    /// A rank that has closed its transport tells a peer why.
    Notice {
        from: Rank,
        to: Rank,
        cause: Failure,
    },
    /// The peers of a rank that has left may know.
    Gone(Rank),
    Fault(Fault),
    Resume(Rank),
}

pub(super) struct Flight {
    from: Rank,
    to: Rank,
    cargo: Cargo,
}

/// What travels between two ports.
pub(super) enum Cargo {
    Message(Key, Message),
    Request(Request),
}

impl Cargo {
    fn payload_bytes(&self) -> usize {
        match self {
            Self::Message(_, message) => message.bytes.len(),
            Self::Request(request) => request.payload_bytes(),
        }
    }

    /// What the trace tells it by.
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

    /// A hash of all that has happened, in order.
    pub(super) fn trace(&self) -> u64 {
        self.trace
    }

    pub(super) fn has_events(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The ranks to which something has happened since this was last asked, rising.
    pub(super) fn take_ready(&mut self) -> BTreeSet<Rank> {
        std::mem::take(&mut self.ready)
    }

    /// Lets all happen that happens next at one time, or nothing until `limit`. Says whether anything did.
    pub(super) fn advance(&mut self, limit: u64) -> bool {
        let next = self.queue.peek().map(|Reverse((time, ..))| *time).filter(|time| *time <= limit);
        self.now = self.now.max(next.unwrap_or(limit));
        while let Some(&Reverse((time, _, index))) = self.queue.peek()
            && time <= self.now
            && next.is_some()
        {
            self.queue.pop();
            let event = self.events.remove(index);
            self.happen(event);
        }
        next.is_some()
    }

    /// Sends a message on its way: it waits for the sender's port, and then takes it for the time of its
    /// bytes.
    pub(super) fn send(&mut self, from: Rank, to: Rank, cargo: Cargo) {
        let link = self.links.between(from, to);
        let port_time = link.port_time(cargo.payload_bytes() + self.links.header_bytes());
        self.note(1, from, to, cargo.detail() ^ cargo.payload_bytes() as u64);
        let sender = &mut self.nodes[from.index()];
        let start = sender.out_port_free.max(self.now);
        sender.out_port_free = start.saturating_add(port_time);
        sender.in_flight += 1;
        self.schedule(
            start.saturating_add(link.latency()),
            Event::Head(Box::new(Flight { from, to, cargo })),
        );
    }

    /// The oldest message that has arrived of a source and tag.
    pub(super) fn take_message(&mut self, rank: Rank, from: Rank, tag: Tag) -> Option<Message> {
        let messages = &mut self.nodes[rank.index()].messages;
        let key = first_of(messages, from, tag)?;
        messages.remove(&key)
    }

    /// Whether `rank` knows that `peer` has left.
    pub(super) fn knows_gone(&self, rank: Rank, peer: Rank) -> bool {
        self.nodes[peer.index()].is_gone && !self.is_cut(rank, peer)
    }

    /// Closes the transport of `rank` for `cause`, unless it is closed, and tells the peers.
    pub(super) fn fail(&mut self, rank: Rank, cause: Failure) {
        if !self.close(rank, cause) {
            return;
        }
        later!(DEBUG, rank = rank.0, ?cause, "the transport is closed");
        for to in Rank::all(self.nodes.len() as u32).filter(|to| *to != rank) {
            // Who is closed already would not listen.
            if self.nodes[to.index()].failure.is_none() && !self.nodes[to.index()].has_left {
                let time = self.now.saturating_add(self.links.between(rank, to).latency());
                self.schedule(time, Event::Notice { from: rank, to, cause });
            }
        }
    }

    /// Ends a rank: it takes no messages any more, and its peers get to know after what it has sent.
    pub(super) fn leave(&mut self, rank: Rank, error: &Error) {
        let node = &mut self.nodes[rank.index()];
        node.receives.end_all(error);
        node.accesses.end_all(error);
        node.messages.clear();
        if !std::mem::replace(&mut node.has_left, true) {
            let latency = self.links.between(rank, rank).latency();
            self.schedule(self.now.saturating_add(latency), Event::Gone(rank));
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Head(flight) => self.enter_port(flight),
            Event::Arrival(flight) => self.arrive(*flight),
            Event::PutEnded { from, to, number, result } => {
                if !self.is_cut(from, to) {
                    self.end_access(to, number, result);
                }
            }
            Event::Notice { from, to, cause } => {
                if !self.is_cut(from, to) && self.close(to, cause) {
                    self.note(2, from, to, 0);
                }
            }
            Event::Gone(rank) => self.go(rank),
            Event::Fault(fault) => self.strike(fault),
            Event::Resume(rank) => self.wake(rank),
        }
    }

    /// The message waits for the receiver's port, and then takes it for the time of its bytes.
    fn enter_port(&mut self, flight: Box<Flight>) {
        let (from, to) = (flight.from, flight.to);
        if self.is_cut(from, to) {
            self.note(3, from, to, flight.cargo.detail());
            self.land(from);
            return;
        }
        let port_time =
            self.links.between(from, to).port_time(flight.cargo.payload_bytes() + self.links.header_bytes());
        let port_free = &mut self.nodes[to.index()].in_port_free;
        *port_free = self.now.max(*port_free).saturating_add(port_time);
        let time = *port_free;
        self.schedule(time, Event::Arrival(flight));
    }

    fn arrive(&mut self, Flight { from, to, cargo }: Flight) {
        self.note(4, from, to, cargo.detail());
        match cargo {
            Cargo::Message(key, message) => self.deliver(key, to, message),
            Cargo::Request(request) => self.carry_out(from, to, request),
        }
        self.land(from);
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

    /// A message of `from` is not in flight any more.
    fn land(&mut self, from: Rank) {
        let node = &mut self.nodes[from.index()];
        node.in_flight -= 1;
        if node.goes_when_drained {
            self.go(from);
        }
    }

    /// Lets those who wait for a rank that has left know, once nothing of it is in flight.
    fn go(&mut self, rank: Rank) {
        let node = &mut self.nodes[rank.index()];
        node.goes_when_drained = node.in_flight > 0;
        if node.goes_when_drained {
            return;
        }
        node.is_gone = true;
        self.note(5, rank, rank, 0);
        for peer in Rank::all(self.nodes.len() as u32) {
            let node = &mut self.nodes[peer.index()];
            let waits = node.receives.waits_for(rank) || node.accesses.waits_for(rank);
            if waits && self.knows_gone(peer, rank) {
                self.fail(peer, Failure::PeerLost(rank));
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { rank, .. } => {
                self.note(6, rank, rank, 0);
                self.close(rank, Failure::PeerLost(rank));
                self.leave(rank, &Error::PeerLost { rank });
            }
            Fault::Stall { rank, lasting, .. } => {
                self.note(7, rank, rank, 0);
                let end = self.now.saturating_add(picoseconds(lasting));
                let node = &mut self.nodes[rank.index()];
                node.stalled_until = node.stalled_until.max(end);
                self.schedule(end, Event::Resume(rank));
            }
            Fault::Cut { a, b, .. } => {
                self.note(8, a, b, 0);
                self.cuts.extend([(a, b), (b, a)]);
            }
        }
    }

    /// Ends all that a rank has in flight, unless it is closed already.
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

    /// When what `from` tells `to` now is heard.
    pub(super) fn latency_from_now(&self, from: Rank, to: Rank) -> u64 {
        self.now.saturating_add(self.links.between(from, to).latency())
    }

    pub(super) fn wake(&mut self, rank: Rank) {
        self.nodes[rank.index()].has_changed = true;
        self.ready.insert(rank);
    }

    fn is_cut(&self, a: Rank, b: Rank) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(a, b))
    }

    pub(super) fn schedule(&mut self, time: u64, event: Event) {
        self.scheduled += 1;
        let index = self.events.insert(event);
        self.queue.push(Reverse((time, self.scheduled, index)));
    }

    fn note(&mut self, what: u64, from: Rank, to: Rank, detail: u64) {
        for word in [self.now, what << 40 | u64::from(from.0) << 20 | u64::from(to.0), detail] {
            self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}
