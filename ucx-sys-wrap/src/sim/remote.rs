//! Puts and gets on the simulated network.
//!
//! A put travels like a message of its bytes, is carried out when its last byte has arrived, and ends `alpha`
//! later. A get sends a request without payload; its answer travels like a message of the requested bytes. A
//! flush ends when the earlier puts have ended.

use std::collections::BTreeMap;

use super::Sim;
use super::network::{Event, Network, Packet};
use crate::buffer::RegionMemory;
use crate::local::matching::HEADER_BYTES;
use crate::one_sided::{AccessId, AccessParts, OneSided, PostedAccess, PutOrder, RegionKey, Regions, Remote};
use crate::table::Table;
use crate::transport::{Posted, RecvParts, count_copy};
use crate::{Error, Rank, Result};

/// A one-sided packet.
pub(super) enum Request {
    /// Bytes for the receiver's memory.
    Put { number: u64, key: RegionKey, offset: u64, bytes: Vec<u8> },
    /// Asks for bytes of the receiver's memory.
    Get { number: u64, key: RegionKey, offset: u64, length: u64 },
    /// The answer to a get.
    Got { number: u64, result: Result<Vec<u8>> },
}

/// The regions and one-sided operations of a rank.
#[derive(Default)]
pub(super) struct Accesses {
    regions: Regions,
    operations: Table<Operation>,
    /// By peer.
    orders: BTreeMap<Rank, PutOrder>,
}

struct Operation {
    peer: Rank,
    kind: Kind,
    done: Option<Result<()>>,
}

enum Kind {
    /// A put, by its number in the order of puts.
    Put(u64),
    Get(RecvParts),
    /// A flush of all puts before this number.
    Flush(u64),
}

impl Request {
    pub(super) fn payload_bytes(&self) -> usize {
        match self {
            Self::Put { bytes, .. } | Self::Got { result: Ok(bytes), .. } => bytes.len(),
            Self::Get { .. } | Self::Got { .. } => 0,
        }
    }
}

impl Accesses {
    pub(super) fn waits_for(&mut self, peer: Rank) -> bool {
        self.operations.iter_mut().any(|operation| operation.peer == peer && operation.done.is_none())
    }

    /// Ends the operations with the peers that `is_meant` names.
    pub(super) fn end_if(&mut self, error: &Error, is_meant: impl Fn(Rank) -> bool) {
        for operation in self.operations.iter_mut().filter(|operation| is_meant(operation.peer)) {
            operation.end(Err(error.clone()));
        }
    }

    /// Ends an operation unless it has ended, and flushes that waited for it.
    fn end(&mut self, number: u64, result: Result<()>) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        let peer = operation.peer;
        if let Kind::Put(place) = operation.kind {
            self.orders.entry(peer).or_default().end(place);
        }
        operation.end(result);
        self.end_flushes(peer);
    }

    /// Ends the flushes whose puts have all ended.
    fn end_flushes(&mut self, peer: Rank) {
        let order = self.orders.entry(peer).or_default();
        for flush in self.operations.iter_mut().filter(|flush| flush.peer == peer) {
            if matches!(flush.kind, Kind::Flush(before) if order.has_reached(before)) {
                flush.end(Ok(()));
            }
        }
    }
}

impl Operation {
    fn end(&mut self, result: Result<()>) {
        if self.done.is_none() {
            self.done = Some(result);
            if let Kind::Get(parts) = &mut self.kind {
                parts.clear();
            }
        }
    }
}

impl Network {
    /// Carries out a request at its receiver.
    pub(super) fn carry_out(&mut self, from: Rank, to: Rank, request: Request) {
        let node = &mut self.nodes[to.index()];
        if node.has_left {
            return;
        }
        match request {
            Request::Put { number, key, offset, bytes } => {
                let found = node.accesses.regions.find(&key, offset, bytes.len() as u64);
                let result = found.map(|(memory, offset)| memory.write(offset, &bytes));
                count_copy(&mut node.statistics, if result.is_ok() { bytes.len() } else { 0 });
                let time = self.latency_from_now(to, from);
                self.schedule(time, Event::PutEnded { from: to, to: from, number, result });
            }
            Request::Get { number, key, offset, length } => {
                let found = node.accesses.regions.find(&key, offset, length);
                let result = found.map(|(memory, offset)| {
                    let mut bytes = vec![0; length as usize];
                    memory.read(offset, &mut bytes);
                    bytes
                });
                count_copy(&mut node.statistics, if result.is_ok() { length as usize } else { 0 });
                self.send(to, from, Packet::Request(Request::Got { number, result }));
            }
            Request::Got { number, result } => {
                let Some(Operation { kind: Kind::Get(parts), done: None, .. }) =
                    node.accesses.operations.get_mut(number)
                else {
                    return;
                };
                if let Ok(bytes) = &result {
                    let mut rest = &bytes[..];
                    for part in parts {
                        let (now, later) = rest.split_at(part.len());
                        // Copy: from the packet to the getter's memory.
                        part.bytes_mut().copy_from_slice(now);
                        count_copy(&mut node.statistics, now.len());
                        rest = later;
                    }
                }
                self.end_access(to, number, result.map(|_| ()));
            }
        }
    }

    /// Ends a put or get of `rank`.
    pub(super) fn end_access(&mut self, rank: Rank, number: u64, result: Result<()>) {
        self.nodes[rank.index()].accesses.end(number, result);
        self.wake(rank);
    }
}

impl OneSided for Sim {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        let rank = self.rank;
        self.with_node(|node| node.check_open().and_then(|()| node.accesses.regions.add(rank, memory)))
    }

    fn conceal(&mut self, key: &RegionKey) -> bool {
        self.with_node(|node| node.accesses.regions.remove(key));
        true
    }

    fn post_access(&mut self, remote: &Remote, offset: u64, parts: AccessParts) -> PostedAccess {
        let (key, length) = (remote.key.clone(), parts.bytes());
        let mut bytes = Vec::new();
        if let AccessParts::Put(parts) = &parts {
            // Copy: the bytes travel while their owner goes on.
            parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
        }
        let is_put = matches!(parts, AccessParts::Put(_));
        let begun = self.begin(key.owner, |order| match parts {
            AccessParts::Put(_) => Kind::Put(order.begin()),
            AccessParts::Get(parts) => Kind::Get(parts),
        });
        let number = match begun {
            Ok(number) => number,
            Err(error) => return Posted::Done(Err(error)),
        };
        self.with_node(|node| count_copy(&mut node.statistics, bytes.len()));
        let request = match is_put {
            true => Request::Put { number, key, offset, bytes },
            false => Request::Get { number, key, offset, length },
        };
        self.request(remote.key.owner, request);
        Posted::Pending(AccessId(number))
    }

    fn post_flush(&mut self, to: Rank) -> PostedAccess {
        let mut is_done = false;
        let begun = self.begin(to, |order| {
            is_done = order.has_reached(order.next());
            Kind::Flush(order.next())
        });
        match begun {
            Ok(number) if is_done => {
                self.with_node(|node| node.accesses.operations.remove_if(number, |_| true));
                Posted::Done(Ok(()))
            }
            Ok(number) => Posted::Pending(AccessId(number)),
            Err(error) => Posted::Done(Err(error)),
        }
    }

    fn test_access(&mut self, id: AccessId) -> Option<Result<()>> {
        self.with_node(|node| {
            let done = node.accesses.operations.remove_if(id.0, |operation| operation.done.is_some())?.done;
            node.has_acted = true;
            done
        })
    }

    fn cancel_access(&mut self, id: AccessId) {
        self.with_node(|node| {
            let operation = node.accesses.operations.get_mut(id.0);
            operation.into_iter().for_each(|operation| operation.end(Err(Error::Canceled)));
        });
    }
}

impl Sim {
    /// Registers an operation, given the order of the puts to its peer.
    fn begin(&mut self, peer: Rank, kind: impl FnOnce(&mut PutOrder) -> Kind) -> Result<u64> {
        let mut network = self.cluster.network.lock();
        self.check_open(&network, peer)?;
        self.check_present(&mut network, peer)?;
        let node = &mut network.nodes[self.rank.index()];
        node.has_acted = true;
        let kind = kind(node.accesses.orders.entry(peer).or_default());
        Ok(node.accesses.operations.insert(Operation { peer, kind, done: None }))
    }

    fn request(&mut self, to: Rank, request: Request) {
        let mut network = self.cluster.network.lock();
        network.nodes[self.rank.index()].statistics.bytes_sent +=
            HEADER_BYTES + request.payload_bytes() as u64;
        network.send(self.rank, to, Packet::Request(request));
    }
}
