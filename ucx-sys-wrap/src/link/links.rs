//! The links to all local peers of a rank.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Link;
use crate::on_end::OnEnd;
use crate::shm::LocalGroup;
use crate::tick::tick;
use crate::transport::{
    Found, OperationId, Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, Wanted, Which,
    join, split,
};
use crate::{Arrival, Envelope, Error, Rank, Result, Statistics};

/// Bytes that are taken from a channel in one turn, about. A fragment read from the sender's memory comes on
/// top.
const QUOTA: usize = 1 << 20;

/// The clock is read every so many turns.
const TURNS_PER_LOOK: u32 = 4;

/// Whether anything moved, or a violation of the protocol by this peer.
pub(crate) type Turn = std::result::Result<bool, (Rank, Error)>;

pub(crate) struct Links {
    local_group: Arc<LocalGroup>,
    links: Vec<Option<Link>>,
    peers: Vec<usize>,
    /// Links that an operation waits for, and perhaps some that none waits for any more.
    awaited: Vec<usize>,
    turns: u32,
    swept_in: u64,
}

impl Links {
    /// The links of rank `own` to all its local peers. With `may_read`, messages are read from the memory of
    /// other processes where the system allows it: long and unexpected messages are faster so.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the local group is another rank's; [`Error::NoSuchPeer`] when a local peer
    /// is not below `world_size`.
    pub(crate) fn new(
        local_group: &Arc<LocalGroup>,
        own: Rank,
        world_size: u32,
        may_read: bool,
    ) -> Result<Self> {
        if local_group.ranks().get(local_group.own_place()) != Some(&own) {
            let why = format!("rank {own} was given the local group of another rank");
            return Err(Error::Unavailable { name: "shared memory", why });
        }
        let mut links: Vec<Option<Link>> = (0..world_size).map(|_| None).collect();
        for (place, rank) in local_group.ranks().iter().enumerate() {
            let slot =
                links.get_mut(rank.index()).ok_or(Error::NoSuchPeer { rank: *rank, own, world_size })?;
            *slot = Link::new(local_group, place, may_read);
        }
        let peers = (0..links.len()).filter(|index| links[*index].is_some()).collect();
        Ok(Self {
            local_group: Arc::clone(local_group),
            links,
            peers,
            awaited: Vec::new(),
            turns: 0,
            swept_in: 0,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.peers.len()
    }

    /// Becomes readable when a local peer wakes this rank.
    pub(crate) fn wake_receiver(&self) -> BorrowedFd<'_> {
        self.local_group.wake_receiver()
    }

    /// The outcome of a receive; the outer `None` if its peer has no link.
    #[inline]
    pub(crate) fn recv_outcome(&mut self, id: RecvId) -> Option<Option<Result<Arrival>>> {
        let (index, key) = split(id.0);
        let link = self.links.get_mut(index)?.as_mut()?;
        Some(link.receiver.receives.take_outcome(key))
    }

    /// Looks up to `spins` times for a short message of `peer`, and takes it. Returns whether there was one.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    #[inline]
    pub(crate) fn look_for(&mut self, peer: Rank, spins: u32, counts: &mut Statistics) -> Turn {
        let Some(Some(link)) = self.links.get_mut(peer.index()) else { return Ok(false) };
        link.poll_short(spins, counts).map_err(|error| (peer, error))
    }

    #[inline]
    pub(crate) fn has(&self, peer: Rank) -> bool {
        matches!(self.links.get(peer.index()), Some(Some(_)))
    }

    #[inline]
    pub(crate) fn post_send(
        &mut self,
        to: Rank,
        envelope: Envelope,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<SendId, SendDone> {
        let Some(Some(link)) = self.links.get_mut(to.index()) else {
            return Posted::Done(SendDone { parts, result: Err(Error::Closed) });
        };
        let posted = link.post_send(envelope, parts, counts);
        self.watch(to.index());
        match posted {
            Posted::Pending(key) => Posted::Pending(SendId(join(to, key))),
            Posted::Done(done) => Posted::Done(done),
        }
    }

    /// Sends a message of one part if the peer has a link and the message can be written at once; returns
    /// whether it was.
    #[inline]
    pub(crate) fn send_at_once(
        &mut self,
        to: Rank,
        envelope: &Envelope,
        part: &[u8],
        counts: &mut Statistics,
    ) -> bool {
        match self.links.get_mut(to.index()) {
            Some(Some(link)) => link.send_at_once(envelope, part, counts),
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        from: Rank,
        envelope: Envelope,
        parts: RecvParts,
        counts: &mut Statistics,
    ) -> Posted<RecvId, RecvDone> {
        let Some(Some(link)) = self.links.get_mut(from.index()) else {
            return Posted::Done(RecvDone { parts, result: Err(Error::Closed) });
        };
        let posted = link.post_recv(envelope, parts, counts);
        self.watch(from.index());
        match posted {
            Posted::Pending(key) => Posted::Pending(RecvId(join(from, key))),
            Posted::Done(done) => Posted::Done(done),
        }
    }

    #[inline]
    pub(crate) fn test_send(&mut self, id: SendId) -> Option<SendDone> {
        let (index, key) = split(id.0);
        self.links.get_mut(index)?.as_mut()?.sender.test(key)
    }

    #[inline]
    pub(crate) fn test_recv(&mut self, id: RecvId) -> Option<RecvDone> {
        let (index, key) = split(id.0);
        self.links.get_mut(index)?.as_mut()?.receiver.receives.take_ended(key)
    }

    /// As [`Transport::on_end`](crate::Transport::on_end).
    pub(crate) fn on_end(&mut self, operation: OperationId) -> Option<&mut OnEnd> {
        let (OperationId::Send(SendId(number)) | OperationId::Recv(RecvId(number))) = operation else {
            return None;
        };
        let (index, key) = split(number);
        let link = self.links.get_mut(index)?.as_mut()?;
        match operation {
            OperationId::Send(_) => link.sender.on_end(key),
            _ => link.receiver.receives.on_end(key),
        }
    }

    pub(crate) fn cancel_send(&mut self, id: SendId, counts: &mut Statistics) {
        let (index, key) = split(id.0);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.sender.cancel(key, &Error::Canceled, counts);
        }
    }

    pub(crate) fn cancel_recv(&mut self, id: RecvId) {
        let (index, key) = split(id.0);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.receiver.cancel(key, Error::Canceled);
        }
    }

    /// As [`Transport::withdraw_recv`](crate::Transport::withdraw_recv).
    pub(crate) fn withdraw_recv(&mut self, id: RecvId) -> bool {
        let (index, key) = split(id.0);
        let Some(Some(link)) = self.links.get_mut(index) else { return true };
        if link.receiver.receives.is_waiting(key) {
            link.receiver.cancel(key, Error::Canceled);
            return true;
        }
        link.receiver.receives.has_ended(key)
    }

    /// The first message of a local peer that is wanted and has no receive.
    pub(crate) fn find(&self, peer: Rank, wanted: &Wanted) -> Option<Found> {
        self.links.get(peer.index())?.as_ref()?.receiver.receives.find(wanted)
    }

    /// Polls the links that are awaited, and all links once in a tick, so that a peer that nothing waits for
    /// is not kept waiting where turns are rare. Returns whether anything moved.
    ///
    /// # Errors
    /// A violation of the protocol, with the peer.
    #[inline]
    pub(crate) fn turn(&mut self, counts: &mut Statistics) -> Turn {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_LOOK) {
            let now = tick();
            if std::mem::replace(&mut self.swept_in, now) != now {
                return self.sweep(counts);
            }
        }
        let mut moved = false;
        let mut position = 0;
        while let Some(&index) = self.awaited.get(position) {
            let Some(Some(link)) = self.links.get_mut(index) else { break };
            moved |= link.poll(QUOTA, counts).map_err(|error| (Rank(index as u32), error))?;
            if link.is_awaited() {
                position += 1;
            } else {
                link.is_listed = false;
                self.awaited.swap_remove(position);
            }
        }
        Ok(moved)
    }

    /// Polls all links. Returns whether anything moved.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub(crate) fn sweep(&mut self, counts: &mut Statistics) -> Turn {
        let mut moved = false;
        for position in 0..self.peers.len() {
            let index = self.peers[position];
            if let Some(Some(link)) = self.links.get_mut(index) {
                moved |= link.poll(QUOTA, counts).map_err(|error| (Rank(index as u32), error))?;
                self.watch(index);
            }
        }
        Ok(moved)
    }

    /// Discards the wake-ups so far: in the first turn after a sleep, before anything is looked at.
    pub(crate) fn hear(&self) {
        self.local_group.hear();
    }

    /// Announces that this rank is about to sleep, and polls once more. If this returns that anything moved,
    /// the rank must not sleep.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub(crate) fn begin_sleep(&mut self, counts: &mut Statistics) -> Turn {
        for link in self.links.iter_mut().flatten() {
            link.sender.begin_sleep(link.receiver.has_rts());
        }
        self.local_group.begin_sleep();
        self.sweep(counts)
    }

    /// Takes everything that a peer, which writes no more, has written.
    pub(crate) fn drain(&mut self, peer: Rank, counts: &mut Statistics) -> Result<()> {
        let Some(Some(link)) = self.links.get_mut(peer.index()) else { return Ok(()) };
        if link.receiver.has_descriptor() {
            link.poll(usize::MAX, counts)?;
        }
        Ok(())
    }

    /// The peer is gone; `has_left` says whether it closed in good order. Returns whether an operation still
    /// waited for it.
    pub(crate) fn finish(&mut self, peer: Rank, has_left: bool, counts: &mut Statistics) -> bool {
        let link = self.links.get_mut(peer.index()).and_then(Option::as_mut);
        link.is_some_and(|link| link.finish(has_left, counts))
    }

    /// Ends every operation with a peer that is lost.
    pub(crate) fn lose(&mut self, peer: Rank, error: &Error) {
        if let Some(Some(link)) = self.links.get_mut(peer.index()) {
            link.close(error);
        }
    }

    /// Ends the sends and receives of a context with `error`.
    pub(crate) fn end_context(&mut self, context: u16, error: &Error, counts: &mut Statistics) {
        for link in self.links.iter_mut().flatten() {
            link.end_context(context, error, counts);
        }
        self.watch_all();
    }

    /// Drops some messages of a context that came before their receive; returns how many.
    pub(crate) fn discard(&mut self, context: u16, which: Which, counts: &mut Statistics) -> usize {
        let links = self.links.iter_mut().flatten();
        let count = links.map(|link| link.discard(context, which, counts)).sum();
        self.watch_all();
        count
    }

    fn watch_all(&mut self) {
        for position in 0..self.peers.len() {
            self.watch(self.peers[position]);
        }
    }

    pub(crate) fn close(&mut self, error: &Error) {
        self.links.iter_mut().flatten().for_each(|link| link.close(error));
        self.awaited.clear();
    }

    /// The local peers that operations wait for.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Rank> {
        let has_operations =
            |index: &&usize| matches!(self.links.get(**index), Some(Some(link)) if link.has_operations());
        self.awaited.iter().filter(has_operations).map(|index| Rank(*index as u32))
    }

    pub(crate) fn has_queued(&self) -> bool {
        self.links.iter().flatten().any(|link| link.is_open && !link.sender.is_idle())
    }

    /// Lists a link for polling if anything waits for it.
    #[inline]
    fn watch(&mut self, index: usize) {
        if let Some(Some(link)) = self.links.get_mut(index)
            && !link.is_listed
            && link.is_awaited()
        {
            link.is_listed = true;
            self.awaited.push(index);
        }
    }
}
