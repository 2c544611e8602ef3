//! The network: ports, the clock and the event queue.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use slab::Slab;

use super::links::{Fault, Links, duration, picoseconds};
use super::node::{Message, Node};
use super::remote::Request;
use crate::local::matching::Key;
use crate::transport::{News, Notice};
use crate::{Error, Failure, Rank, Result};

/// The shared state of all ranks. Times are in picoseconds.
pub(super) struct Network {
    pub(super) now: u64,
    pub(super) nodes: Vec<Node>,
    links: Links,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Slab<Event>,
    scheduled: u64,
    cuts: BTreeSet<(Rank, Rank)>,
    /// Whether every two ranks that are half of the network apart are one process.
    pub(super) has_twins: bool,
    /// The ranks with events since the driver last took them.
    pub(super) ready: BTreeSet<Rank>,
    /// A hash of all events in order.
    pub(super) trace: u64,
    /// The messages that have arrived, if they are kept.
    pub(super) passages: Option<Vec<Passage>>,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The rank that has sent it.
    pub from: Rank,
    /// The rank that it was for.
    pub to: Rank,
    /// Its bytes, without header.
    pub bytes: usize,
    /// When its first byte left the sender's port.
    pub begun: Duration,
    /// When its last byte had passed the receiver's port.
    pub ended: Duration,
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
    /// A rank tells a peer that it has closed a context.
    Notice {
        from: Rank,
        to: Rank,
        notice: Notice,
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
    begun: u64,
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
            has_twins: false,
            ready: BTreeSet::new(),
            trace: 0,
            passages: None,
        }
    }

    pub(super) fn plan(&mut self, fault: Fault) {
        match fault {
            Fault::KillAfter { rank, messages } => {
                let first = &mut self.nodes[rank.index()].dies_after;
                *first = Some(first.map_or(messages, |first| first.min(messages)));
                self.die_after_message(rank);
            }
            _ => self.schedule(fault.time().unwrap_or(0).max(self.now), Event::Fault(fault)),
        }
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
            Event::Head(Box::new(Transfer { from, to, packet, begun: start })),
        );
    }

    pub(super) fn knows_gone(&self, rank: Rank, peer: Rank) -> bool {
        self.nodes[peer.index()].is_gone && !self.is_cut(rank, peer)
    }

    /// Sends a notice. Like a packet, it comes before its sender is found to have left.
    pub(super) fn tell(&mut self, rank: Rank, to: Rank, notice: Notice) {
        let node = &mut self.nodes[rank.index()];
        if node.check_open().is_ok() && !node.lost.contains_key(&to) {
            node.in_flight += 1;
            let time = self.latency_from_now(rank, to);
            self.schedule(time, Event::Notice { from: rank, to, notice });
        }
    }

    /// Gives a peer up: ends the operations of `rank` with it.
    pub(super) fn lose(&mut self, rank: Rank, peer: Rank, error: Error) {
        let node = &mut self.nodes[rank.index()];
        if node.check_open().is_err() || node.lost.contains_key(&peer) {
            return;
        }
        node.receives.end_if(&error, |source, _| source == peer);
        node.accesses.end_if(&error, |with| with == peer);
        node.messages.retain(|key, _| key.source != peer);
        node.lost.insert(peer, error.clone());
        node.news.push_back(News::Lost(peer, error));
        self.wake(rank);
    }

    /// The rank, and its twin if it has one.
    pub(super) fn process(&self, rank: Rank) -> impl Iterator<Item = Rank> + Clone + use<> {
        let size = self.nodes.len() as u32;
        let twin = self.has_twins.then(|| Rank((rank.0 + size / 2) % size));
        std::iter::once(rank).chain(twin)
    }

    /// The messages that a rank and its twin have posted.
    pub(super) fn messages_sent(&self, rank: Rank) -> u64 {
        self.process(rank).map(|rank| self.nodes[rank.index()].statistics.messages_sent).sum()
    }

    /// Kills a rank, and its twin: their operations end with their own loss.
    fn die(&mut self, rank: Rank) {
        self.process(rank).for_each(|rank| self.die_alone(rank));
    }

    fn die_alone(&mut self, rank: Rank) {
        let node = &mut self.nodes[rank.index()];
        if node.check_open().is_err() {
            return;
        }
        self.record(6, rank, rank, 0);
        let error = Error::PeerLost { rank };
        let node = &mut self.nodes[rank.index()];
        node.dead = Some(error.clone());
        node.news = VecDeque::from([News::Ended(Failure::PeerLost(rank), error.clone())]);
        self.leave(rank, &error);
        self.wake(rank);
    }

    /// Kills a rank that has posted as many messages as it may.
    pub(super) fn die_after_message(&mut self, rank: Rank) {
        let limits = self.process(rank).filter_map(|rank| self.nodes[rank.index()].dies_after);
        if limits.min().is_some_and(|messages| self.messages_sent(rank) >= messages) {
            self.die(rank);
        }
    }

    /// Ends a rank: it accepts no more messages, and its peers learn of it after all that it has sent.
    pub(super) fn leave(&mut self, rank: Rank, error: &Error) {
        let node = &mut self.nodes[rank.index()];
        node.receives.end_if(error, |_, _| true);
        node.accesses.end_if(error, |_| true);
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
            Event::Notice { from, to, notice } => {
                if !self.is_cut(from, to) && !self.nodes[to.index()].has_left {
                    self.record(2, from, to, notice.said.encode());
                    self.nodes[to.index()].news.push_back(News::Told(from, notice));
                    self.wake(to);
                }
                self.packet_left(from);
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

    fn arrive(&mut self, Transfer { from, to, packet, begun }: Transfer) {
        self.record(4, from, to, packet.detail());
        match packet {
            Packet::Message(key, message) => {
                if let Some(passages) = &mut self.passages {
                    let (begun, ended) = (duration(begun), duration(self.now));
                    passages.push(Passage { from, to, bytes: message.bytes.len(), begun, ended });
                }
                let node = &mut self.nodes[to.index()];
                if node.deliver(key, message) || node.is_listening {
                    self.wake(to);
                }
            }
            Packet::Request(request) => self.carry_out(from, to, request),
        }
        self.packet_left(from);
    }

    /// Counts a packet or notice of `from` that is no longer in flight.
    fn packet_left(&mut self, from: Rank) {
        let node = &mut self.nodes[from.index()];
        node.in_flight -= 1;
        if node.goes_when_drained {
            self.announce_gone(from);
        }
    }

    /// Loses a rank that has left for those that wait for it, once nothing of it is in flight.
    fn announce_gone(&mut self, rank: Rank) {
        let node = &mut self.nodes[rank.index()];
        node.goes_when_drained = node.in_flight > 0;
        if node.goes_when_drained {
            return;
        }
        node.is_gone = true;
        let is_dead = node.dead.is_some();
        self.record(5, rank, rank, 0);
        for peer in Rank::all(self.nodes.len() as u32) {
            let node = &mut self.nodes[peer.index()];
            let waits = node.receives.waits_for(rank)
                || node.accesses.waits_for(rank)
                || node.is_listening && is_dead;
            if waits && self.knows_gone(peer, rank) {
                self.lose(peer, rank, Error::PeerLost { rank });
            }
        }
    }

    /// Lets a rank compute, after what it computes already.
    pub(super) fn compute(&mut self, rank: Rank, lasting: Duration) {
        self.record(9, rank, rank, picoseconds(lasting));
        self.stall(rank, self.now.max(self.nodes[rank.index()].stalled_until), lasting);
    }

    /// Does not poll a rank for so long, from `start` on.
    fn stall(&mut self, rank: Rank, start: u64, lasting: Duration) {
        let end = start.saturating_add(picoseconds(lasting));
        let node = &mut self.nodes[rank.index()];
        node.stalled_until = node.stalled_until.max(end);
        self.schedule(end, Event::Resume(rank));
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { rank, .. } | Fault::KillAfter { rank, .. } => self.die(rank),
            Fault::Stall { rank, lasting, .. } => {
                self.record(7, rank, rank, 0);
                self.stall(rank, self.now, lasting);
            }
            Fault::Cut { a, b, .. } => {
                self.record(8, a, b, 0);
                self.cuts.extend([(a, b), (b, a)]);
            }
        }
    }

    /// When `to` learns what `from` tells it now.
    pub(super) fn latency_from_now(&self, from: Rank, to: Rank) -> u64 {
        self.now.saturating_add(self.links.between(from, to).latency())
    }

    pub(super) fn wake(&mut self, rank: Rank) {
        self.nodes[rank.index()].has_changed = true;
        self.ready.extend(self.process(rank));
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
