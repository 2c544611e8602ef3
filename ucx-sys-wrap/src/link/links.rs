//! The links to all neighbours of a rank.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Link;
use crate::shm::Neighbourhood;
use crate::tick::tick;
use crate::transport::{Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, join, split};
use crate::{Arrival, Envelope, Error, Rank, Result, Statistics};

/// How much is taken out of a link's cells, pocket and ring in one turn, in bytes. A piece of what is read from
/// the sender's memory comes on top.
const QUOTA: usize = 1 << 20;

/// The clock is asked every so many turns.
const TURNS_PER_LOOK: u32 = 4;

pub(crate) struct Links {
    neighbourhood: Arc<Neighbourhood>,
    /// By rank.
    links: Vec<Option<Link>>,
    /// The ranks that have one.
    linked: Vec<usize>,
    /// Those of them that an operation waits for, and some that none waits for any more.
    awaited: Vec<usize>,
    turns: u32,
    /// The [`tick`] in which all links were last polled.
    swept_in: u64,
}

impl Links {
    /// Links of rank `own` to all its neighbours, in a world of `world_size`. `may_read` says whether
    /// messages may be read from the memory of another process, where the system allows it: long messages,
    /// and those that come before their receive, are faster so.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is another rank's neighbourhood; [`Error::NoSuchPeer`] when a neighbour
    /// is outside that world.
    pub(crate) fn new(
        neighbourhood: &Arc<Neighbourhood>,
        own: Rank,
        world_size: u32,
        may_read: bool,
    ) -> Result<Self> {
        if neighbourhood.ranks().get(neighbourhood.own_place()) != Some(&own) {
            let why = format!("rank {own} was given the neighbourhood of another");
            return Err(Error::Unavailable { name: "shared memory", why });
        }
        let mut links: Vec<Option<Link>> = (0..world_size).map(|_| None).collect();
        for (place, rank) in neighbourhood.ranks().iter().enumerate() {
            let slot =
                links.get_mut(rank.index()).ok_or(Error::NoSuchPeer { rank: *rank, own, world_size })?;
            *slot = Link::new(neighbourhood, place, may_read);
        }
        let linked = (0..links.len()).filter(|index| links[*index].is_some()).collect();
        Ok(Self {
            neighbourhood: Arc::clone(neighbourhood),
            links,
            linked,
            awaited: Vec::new(),
            turns: 0,
            swept_in: 0,
        })
    }

    /// How many peers have a link.
    pub(crate) fn count(&self) -> usize {
        self.linked.len()
    }

    /// Readable when a neighbour wakes this rank.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.neighbourhood.bell()
    }

    /// What has become of a receive, if its peer has a link: else it is not for the links to say.
    #[inline]
    pub(crate) fn recv_outcome(&mut self, id: RecvId) -> Option<Option<Result<Arrival>>> {
        let (index, key) = split(id.0);
        let link = self.links.get_mut(index)?.as_mut()?;
        Some(link.receiver.outcome(key))
    }

    /// Looks up to `spins` times for a short message of the peer that a receive waits for, and takes it. Says
    /// whether there was one.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    #[inline]
    pub(crate) fn look_for(
        &mut self,
        peer: Rank,
        spins: u32,
        counts: &mut Statistics,
    ) -> std::result::Result<bool, (Rank, Error)> {
        let Some(Some(link)) = self.links.get_mut(peer.index()) else { return Ok(false) };
        link.look_for_small(spins, counts).map_err(|error| (peer, error))
    }

    #[inline]
    pub(crate) fn has(&self, peer: Rank) -> bool {
        matches!(self.links.get(peer.index()), Some(Some(_)))
    }

    /// Posts a message to a peer that has a link.
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
        self.list(to.index());
        match posted {
            Posted::Pending(key) => Posted::Pending(SendId(join(to, key))),
            Posted::Done(done) => Posted::Done(done),
        }
    }

    /// Sends a message of one part, if the peer has a link and the message can be on its way at once; says
    /// whether it is.
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

    /// Posts a receive from a peer that has a link.
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
        self.list(from.index());
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
        self.links.get_mut(index)?.as_mut()?.receiver.test(key)
    }

    pub(crate) fn cancel_send(&mut self, id: SendId, counts: &mut Statistics) {
        let (index, key) = split(id.0);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.cancel_send(key, counts);
        }
    }

    pub(crate) fn cancel_recv(&mut self, id: RecvId) {
        let (index, key) = split(id.0);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.cancel_recv(key);
        }
    }

    /// Polls the links that are awaited, and all of them once in a tick: a neighbour that nothing waits for must
    /// not wait for long where turns are rare. Says whether anything moved.
    ///
    /// # Errors
    /// What a neighbour has written that can't be, with the neighbour.
    #[inline]
    pub(crate) fn turn(&mut self, counts: &mut Statistics) -> std::result::Result<bool, (Rank, Error)> {
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

    /// Polls all links. Says whether anything moved.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub(crate) fn sweep(&mut self, counts: &mut Statistics) -> std::result::Result<bool, (Rank, Error)> {
        let mut moved = false;
        for position in 0..self.linked.len() {
            let index = self.linked[position];
            if let Some(Some(link)) = self.links.get_mut(index) {
                moved |= link.poll(QUOTA, counts).map_err(|error| (Rank(index as u32), error))?;
                self.list(index);
            }
        }
        Ok(moved)
    }

    /// Forgets the rings so far: in the first turn after a sleep, before that looks at anything.
    pub(crate) fn hear(&self) {
        self.neighbourhood.hear();
    }

    /// Says that this rank is about to sleep, and looks for news once more: it must not sleep if this says
    /// that anything moved.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub(crate) fn begin_sleep(
        &mut self,
        counts: &mut Statistics,
    ) -> std::result::Result<bool, (Rank, Error)> {
        for link in self.links.iter_mut().flatten() {
            link.sender.begin_sleep(link.receiver.has_offers());
        }
        self.neighbourhood.begin_sleep();
        self.sweep(counts)
    }

    /// Takes all that a peer has written, which writes no more.
    ///
    /// # Errors
    /// As [`Link::poll`].
    pub(crate) fn drain(&mut self, peer: Rank, counts: &mut Statistics) -> Result<()> {
        let Some(Some(link)) = self.links.get_mut(peer.index()) else { return Ok(()) };
        if link.receiver.has_cell() {
            link.poll(usize::MAX, counts)?;
        }
        Ok(())
    }

    /// The peer is gone; `has_left` says whether in good order. Says whether somebody still waited for it.
    pub(crate) fn finish(&mut self, peer: Rank, has_left: bool, counts: &mut Statistics) -> bool {
        let link = self.links.get_mut(peer.index()).and_then(Option::as_mut);
        link.is_some_and(|link| link.finish(has_left, counts))
    }

    /// Ends every operation with `error`; nothing is read or written any more.
    pub(crate) fn close(&mut self, error: &Error) {
        self.links.iter_mut().flatten().for_each(|link| link.close(error));
        self.awaited.clear();
    }

    /// The neighbours that operations wait for.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Rank> {
        let has_operations =
            |index: &&usize| matches!(self.links.get(**index), Some(Some(link)) if link.has_operations());
        self.awaited.iter().filter(has_operations).map(|index| Rank(*index as u32))
    }

    /// Whether something still has to be written.
    pub(crate) fn has_queued(&self) -> bool {
        self.links.iter().flatten().any(Link::has_queued)
    }

    /// Has a link polled in every turn for as long as an operation waits for it.
    #[inline]
    fn list(&mut self, index: usize) {
        if let Some(Some(link)) = self.links.get_mut(index)
            && !link.is_listed
            && link.is_awaited()
        {
            link.is_listed = true;
            self.awaited.push(index);
        }
    }
}
