//! A simulated network with virtual time: many ranks in one thread, always with the same outcome.
//!
//! Every rank has one full-duplex port on a network that is otherwise never full. `alpha` (seconds a message)
//! and `beta` (seconds a byte) belong to the link between two ranks. A message of `b` bytes (payload and, if
//! asked for, a header of fixed size) that is posted at time `t`
//!
//! 1. leaves at `s`, the later of `t` and the time at which the sender's port is free of earlier messages,
//!    and keeps the outgoing half of that port busy until `s + beta * b`;
//! 2. comes to the receiver's port at `s + alpha`, its last byte still leaving (cut-through), and enters it
//!    at `r`, the later of that and the time at which the port is free of messages that came before;
//! 3. has arrived at `r + beta * b`, until when it keeps the incoming half of that port busy.
//!
//! So a lone message takes `alpha + beta * b`, latencies overlap while bytes do not, and the usual formulas
//! come out exactly where no port is shared: `(P - 1) (alpha + beta * b)` for a ring's rounds, `log2(P)
//! (alpha + beta * b)` for a binomial tree, `log2(P) alpha + (P - 1) beta * b` for an all-gather by recursive
//! doubling. Computing takes no time. Time is counted in picoseconds, and given out in nanoseconds.
//!
//! A send is done when it is posted. A rank that has left, or has been killed, is known to be lost by those
//! who wait for it, `alpha` later and after everything that it sent; they close their transports and tell
//! their peers, which takes `alpha` and no port.
#![forbid(unsafe_code)]

mod driver;
mod links;
mod network;
mod remote;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::driver::{Stuck, run};
pub use self::links::{Fault, Links};

use self::links::duration;
use self::network::{Cargo, Message, Network, Node};
use crate::local::matching::{HEADER_BYTES, Header, Key, accept};
use crate::transport::{
    Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, Statistics, Transport, check_peer,
    count_copy,
};
use crate::{Envelope, Error, Failure, MAX_WORLD_SIZE, OneSided, Rank, Result};

/// A simulated network and its clock. Clones are handles of the same network.
#[derive(Clone)]
pub struct Cluster {
    network: Arc<Mutex<Network>>,
    world_size: u32,
}

/// One rank of a [`Cluster`].
pub struct Sim {
    cluster: Cluster,
    rank: Rank,
    posted: u64,
}

impl Cluster {
    /// A network of `world_size` ranks whose clock stands at zero.
    ///
    /// # Panics
    /// When `world_size` is above [`MAX_WORLD_SIZE`].
    #[must_use]
    pub fn new(world_size: u32, links: Links) -> Self {
        assert!(world_size <= MAX_WORLD_SIZE, "a world has at most {MAX_WORLD_SIZE} ranks");
        Self { network: Arc::new(Mutex::new(Network::new(world_size, links))), world_size }
    }

    /// The same network, on which this will go wrong. What is planned for the past happens now.
    ///
    /// # Panics
    /// When a fault names a rank outside the world.
    #[must_use]
    pub fn with_faults(self, faults: impl IntoIterator<Item = Fault>) -> Self {
        for fault in faults {
            let (first, second) = match fault {
                Fault::Kill { rank, .. } | Fault::Stall { rank, .. } => (rank, rank),
                Fault::Cut { a, b, .. } => (a, b),
            };
            assert!(first.0.max(second.0) < self.world_size, "{fault:?} in a world of {}", self.world_size);
            self.network.lock().plan(fault);
        }
        self
    }

    /// The ranks' transports, by rising rank: each rank has one, so call this once. [`run`] does it.
    #[must_use]
    pub fn transports(&self) -> Vec<Sim> {
        Rank::all(self.world_size).map(|rank| Sim { cluster: self.clone(), rank, posted: 0 }).collect()
    }

    /// Moves the clock to what happens next, and lets it happen. Says whether anything is left that can.
    pub fn advance(&self) -> bool {
        let mut network = self.network.lock();
        network.has_events() && network.advance(u64::MAX)
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        duration(self.network.lock().now)
    }

    /// A hash of every message and fault so far, with its time: equal for equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.network.lock().trace()
    }

    /// Whether the rank may be polled now; forgets what it has done before.
    fn begin_turn(&self, rank: Rank) -> bool {
        let mut network = self.network.lock();
        let now = network.now;
        let node = &mut network.nodes[rank.index()];
        node.has_acted = false;
        node.stalled_until <= now
    }

    fn has_acted(&self, rank: Rank) -> bool {
        self.network.lock().nodes[rank.index()].has_acted
    }
}

impl crate::transport::sealed::Sealed for Sim {}

impl Transport for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.cluster.world_size
    }

    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone> {
        let result = self.send(to, envelope, &parts);
        Posted::Done(SendDone { parts, result })
    }

    fn post_recv(
        &mut self,
        from: Rank,
        envelope: Envelope,
        mut parts: RecvParts,
    ) -> Posted<RecvId, RecvDone> {
        let mut network = self.cluster.network.lock();
        if let Err(error) = self.check_open(&network, from) {
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        network.nodes[self.rank.index()].has_acted = true;
        if let Some(message) = network.take_message(self.rank, from, envelope.tag) {
            let statistics = &mut network.nodes[self.rank.index()].statistics;
            let result =
                accept(from, envelope.signature, &mut parts, &message.header, message.slices(), statistics);
            return Posted::Done(RecvDone { parts, result });
        }
        if network.knows_gone(self.rank, from) {
            network.fail(self.rank, Failure::PeerLost(from));
            return Posted::Done(RecvDone { parts, result: Err(Error::PeerLost { rank: from }) });
        }
        Posted::Pending(network.nodes[self.rank.index()].receives.post(from, &envelope, parts))
    }

    /// Never needed: a send has ended when it is posted.
    fn test_send(&mut self, _: SendId) -> Option<SendDone> {
        None
    }

    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone> {
        self.with_node(|node| {
            let done = node.receives.test(id);
            node.has_acted |= done.is_some();
            done
        })
    }

    fn cancel_send(&mut self, _: SendId) {}

    fn cancel_recv(&mut self, id: RecvId) {
        self.with_node(|node| node.receives.cancel(id));
    }

    /// Says whether anything has happened to this rank; the clock is moved by [`run`] or [`Cluster::advance`]
    /// alone.
    fn progress(&mut self) -> bool {
        self.with_node(|node| std::mem::take(&mut node.has_changed))
    }

    fn now(&self) -> Duration {
        self.cluster.now()
    }

    /// Nobody can sleep while the clock stands still.
    fn is_simulated(&self) -> bool {
        true
    }

    fn arm(&mut self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Ranks in virtual time share nothing, and have nothing but operations to wait for.
    fn watch(&mut self, _: Rank) -> bool {
        false
    }

    fn failure(&self) -> Option<Failure> {
        self.with_node(|node| node.failure)
    }

    fn fail(&mut self, cause: Failure) {
        self.cluster.network.lock().fail(self.rank, cause);
    }

    fn abandon(&mut self) -> Result<()> {
        self.leave();
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        self.with_node(|node| node.statistics)
    }

    fn one_sided(&mut self) -> &mut dyn OneSided {
        self
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Sim {
    fn with_node<R>(&self, look: impl FnOnce(&mut Node) -> R) -> R {
        look(&mut self.cluster.network.lock().nodes[self.rank.index()])
    }

    fn check_open(&self, network: &Network, peer: Rank) -> Result<()> {
        let node = &network.nodes[self.rank.index()];
        match node.failure {
            Some(failure) => Err(failure.into()),
            None if node.has_left => Err(Error::Closed),
            None => check_peer(peer, self.rank, self.cluster.world_size),
        }
    }

    fn send(&mut self, to: Rank, envelope: Envelope, parts: &SendParts) -> Result<()> {
        let mut network = self.cluster.network.lock();
        self.check_open(&network, to)?;
        if network.knows_gone(self.rank, to) {
            network.fail(self.rank, Failure::PeerLost(to));
            return Err(Error::PeerLost { rank: to });
        }
        let header = Header::new(&envelope, parts);
        // Copy: the message travels while its sender goes on.
        let mut bytes = Vec::with_capacity(header.payload_bytes());
        parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
        let node = &mut network.nodes[self.rank.index()];
        node.has_acted = true;
        node.statistics.messages_sent += 1;
        node.statistics.bytes_sent += HEADER_BYTES + bytes.len() as u64;
        count_copy(&mut node.statistics, bytes.len());
        self.posted += 1;
        let key = Key { source: self.rank, tag: envelope.tag, sequence: self.posted };
        network.send(self.rank, to, Cargo::Message(key, Message { header, bytes }));
        Ok(())
    }

    fn leave(&self) {
        let mut network = self.cluster.network.lock();
        let error = network.nodes[self.rank.index()].failure.map_or(Error::Canceled, Error::from);
        network.leave(self.rank, &error);
    }
}
