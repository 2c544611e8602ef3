//! A simulated network with virtual time: many ranks in one thread, with deterministic results.
//!
//! Every rank has one full-duplex port; the network between the ports is never congested. A link has `alpha`
//! (seconds per message) and `beta` (seconds per byte). A message of `b` bytes (payload and, optionally, a
//! header of fixed size) that is posted at time `t`
//!
//! 1. starts at `s`, when `t` has come and the sender's port has finished earlier messages, and keeps the
//!    outgoing half of that port busy until `s + beta * b`;
//! 2. reaches the receiver's port at `s + alpha` (cut-through) and enters it at `r`, when that port has
//!    finished earlier messages;
//! 3. has arrived at `r + beta * b`, and keeps the incoming half of that port busy until then.
//!
//! So a lone message takes `alpha + beta * b`, latencies overlap while bytes do not, and the usual formulas
//! hold exactly if ports are not shared: `(P - 1) (alpha + beta * b)` for a ring, `log2(P) (alpha + beta *
//! b)` for a binomial tree, `log2(P) alpha + (P - 1) beta * b` for an all-gather by recursive doubling.
//! Computing takes the time that a rank is charged for it ([`Port::compute`]): it does nothing else
//! meanwhile. The clock counts picoseconds and reports nanoseconds.
//!
//! [`Port::compute`]: crate::buffer::Port::compute
//!
//! A send has ended when it is posted. A rank that needs a rank that has left or died finds it lost `alpha`
//! later, and after everything that it sent. What members of a context tell each other takes `alpha` and no
//! port.
#![forbid(unsafe_code)]

mod driver;
mod links;
mod network;
mod node;
mod remote;
mod stopwatch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::driver::{Stuck, run};
pub use self::links::{Fault, Links};
pub use self::network::Passage;
pub use self::stopwatch::Stopwatch;

use self::links::duration;
use self::network::{Network, Packet};
use self::node::{Message, Node};
use crate::local::matching::{HEADER_BYTES, Header, Key, accept, copy_parts, find};
use crate::transport::{
    Found, News, Notice, Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, Statistics,
    Transport, Wanted, Which, check_peer,
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
    /// A network of `world_size` ranks at time zero.
    ///
    /// # Panics
    /// When `world_size` is above [`MAX_WORLD_SIZE`].
    #[must_use]
    pub fn new(world_size: u32, links: Links) -> Self {
        assert!(world_size <= MAX_WORLD_SIZE, "a world has at most {MAX_WORLD_SIZE} ranks");
        Self { network: Arc::new(Mutex::new(Network::new(world_size, links))), world_size }
    }

    /// Plans faults. Those in the past happen now.
    ///
    /// # Panics
    /// When a fault names a rank outside the world.
    #[must_use]
    pub fn with_faults(self, faults: impl IntoIterator<Item = Fault>) -> Self {
        for fault in faults {
            let is_inside = fault.ranks().iter().all(|rank| rank.0 < self.world_size);
            assert!(is_inside, "{fault:?} in a world of {}", self.world_size);
            self.network.lock().plan(fault);
        }
        self
    }

    /// Keeps every message that arrives from now on, for [`passages`](Self::passages).
    #[must_use]
    pub fn with_passages(self) -> Self {
        self.network.lock().passages.get_or_insert_default();
        self
    }

    /// Makes every two ranks `r` and `r + world_size / 2` one process, for one that is in two worlds at once:
    /// it dies as a whole, after as many messages as both have posted, and events of one wake the other. In
    /// [`run`] the future of one of them uses both transports; that of the other one hands its transport over
    /// and ends.
    ///
    /// # Panics
    /// When the number of ranks is odd.
    #[must_use]
    pub fn with_twins(self) -> Self {
        assert!(self.world_size.is_multiple_of(2), "a world of {} has no twins", self.world_size);
        self.network.lock().has_twins = true;
        self
    }

    /// The messages that a rank, and its twin if it has one, have posted so far.
    #[must_use]
    pub fn messages_sent(&self, rank: Rank) -> u64 {
        self.network.lock().messages_sent(rank)
    }

    /// The messages that have arrived, in the order of their ends, if they are [kept](Self::with_passages).
    #[must_use]
    pub fn passages(&self) -> Vec<Passage> {
        self.network.lock().passages.clone().unwrap_or_default()
    }

    /// The ranks' transports, in rank order. Call this once: each rank has one transport. [`run`] calls it.
    #[must_use]
    pub fn transports(&self) -> Vec<Sim> {
        Rank::all(self.world_size).map(|rank| Sim { cluster: self.clone(), rank, posted: 0 }).collect()
    }

    /// Advances the clock to the next event and handles it. Returns whether events are left.
    pub fn advance(&self) -> bool {
        let mut network = self.network.lock();
        network.has_events() && network.advance(u64::MAX)
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        duration(self.network.lock().now)
    }

    /// A hash of all messages and faults so far with their times: equal runs have equal hashes.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.network.lock().trace
    }

    /// Whether the rank may be polled now. Resets [`has_acted`](Self::has_acted).
    fn begin_turn(&self, rank: Rank) -> bool {
        let mut network = self.network.lock();
        for rank in network.process(rank) {
            let node = &mut network.nodes[rank.index()];
            (node.has_acted, node.is_listening) = (false, false);
        }
        network.nodes[rank.index()].stalled_until <= network.now
    }

    fn has_acted(&self, rank: Rank) -> bool {
        let network = self.network.lock();
        network.process(rank).any(|rank| network.nodes[rank.index()].has_acted)
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
        if let Some(message) = network.nodes[self.rank.index()].take_message(from, &envelope) {
            let statistics = &mut network.nodes[self.rank.index()].statistics;
            let result =
                accept(from, envelope.signature, &mut parts, &message.header, message.slices(), statistics);
            return Posted::Done(RecvDone { parts, result });
        }
        if let Err(error) = self.check_present(&mut network, from) {
            return Posted::Done(RecvDone { parts, result: Err(error) });
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

    fn withdraw_recv(&mut self, id: RecvId) -> bool {
        self.with_node(|node| node.receives.withdraw(id))
    }

    fn probe(&mut self, wanted: &Wanted) -> Option<Found> {
        let world_size = self.cluster.world_size;
        self.with_node(|node| {
            let found = find(&node.messages, &node.receives, wanted, world_size, |message| &message.header);
            node.is_listening |= found.is_none();
            found.map(|(_, found)| found)
        })
    }

    /// Returns whether this rank had events. Only [`run`] and [`Cluster::advance`] move the clock.
    fn progress(&mut self) -> bool {
        self.with_node(|node| std::mem::take(&mut node.has_changed))
    }

    fn now(&self) -> Duration {
        self.cluster.now()
    }

    /// Sleeping is impossible: the clock stands still meanwhile.
    fn is_simulated(&self) -> bool {
        true
    }

    fn compute(&mut self, lasting: Duration) {
        if lasting > Duration::ZERO {
            self.cluster.network.lock().compute(self.rank, lasting);
        }
    }

    fn arm(&mut self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn watch(&mut self, peer: Rank) -> bool {
        let mut network = self.cluster.network.lock();
        if peer.0 >= self.cluster.world_size || !network.knows_gone(self.rank, peer) {
            return false;
        }
        let is_dead = network.nodes[peer.index()].dead.is_some();
        if is_dead {
            network.lose(self.rank, peer, Error::PeerLost { rank: peer });
        }
        !is_dead
    }

    fn next_news(&mut self) -> Option<News> {
        self.with_node(|node| node.news.pop_front())
    }

    fn lose(&mut self, peer: Rank, error: Error) {
        self.cluster.network.lock().lose(self.rank, peer, error);
    }

    fn tell(&mut self, peer: Rank, notice: Notice) {
        self.cluster.network.lock().tell(self.rank, peer, notice);
    }

    /// Sends have ended already.
    fn end_context(&mut self, context: u16, _: Failure, error: &Error) {
        self.with_node(|node| node.receives.end_if(error, |_, tag| tag.group() == context));
    }

    fn discard(&mut self, context: u16, which: Which) -> usize {
        self.with_node(|node| node.discard(context, which))
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
        node.check_open()?;
        check_peer(peer, self.rank, self.cluster.world_size)?;
        node.lost.get(&peer).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Refuses a peer that is known to have left, and gives it up.
    fn check_present(&self, network: &mut Network, peer: Rank) -> Result<()> {
        if network.knows_gone(self.rank, peer) {
            let error = Error::PeerLost { rank: peer };
            network.lose(self.rank, peer, error.clone());
            return Err(error);
        }
        Ok(())
    }

    fn send(&mut self, to: Rank, envelope: Envelope, parts: &SendParts) -> Result<()> {
        let mut network = self.cluster.network.lock();
        self.check_open(&network, to)?;
        self.check_present(&mut network, to)?;
        let header = Header::new(&envelope, parts);
        let node = &mut network.nodes[self.rank.index()];
        let bytes = copy_parts(parts, &mut node.statistics);
        node.has_acted = true;
        node.statistics.messages_sent += 1;
        node.statistics.bytes_sent += HEADER_BYTES + bytes.len() as u64;
        self.posted += 1;
        let key = Key { source: self.rank, tag: envelope.tag, sequence: self.posted };
        network.send(self.rank, to, Packet::Message(key, Message { header, bytes }));
        network.die_after_message(self.rank);
        Ok(())
    }

    fn leave(&self) {
        self.cluster.network.lock().leave(self.rank, &Error::Canceled);
    }
}
