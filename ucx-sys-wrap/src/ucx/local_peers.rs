//! The links to ranks of this host, which carry their messages through shared memory.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{FLUSH_PATIENCE, Ucx};
use crate::limits::check_length;
use crate::link::Links;
use crate::process::PeerProcess;
use crate::shm::LocalGroup;
use crate::transport::{Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, Transport};
use crate::{Envelope, Error, Rank, Result};

/// Marks the numbers of operations on links.
const LINKED: u64 = 1 << 63;

/// Idle UCX is progressed every so many turns: peers that put or get may need that.
const TURNS_PER_IDLE_UCX: u32 = 8;

/// After UCX has moved something it is progressed for so many turns: peers' operations take several steps.
const BUSY_TURNS: u32 = 1000;

/// Links that nothing waits for are polled every so many turns.
const SWEEP_EVERY: u32 = 64;

impl Ucx {
    /// Sends messages to the ranks of this host through the memory that they share; UCX stays for other
    /// hosts, and for puts and gets. All of these ranks must call it before anything is posted.
    ///
    /// `may_read` says whether messages may be read from the memory of another process, where the system
    /// allows it, which speeds up long and unexpected messages.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is another rank's local group; [`Error::System`] when its wake receiver
    /// can't be watched.
    pub fn share_memory(&mut self, local_group: &Arc<LocalGroup>, may_read: bool) -> Result<()> {
        let links = Links::new(local_group, self.rank, self.world_size, may_read)?;
        epoll::add(&self.epoll, links.wake_receiver(), EventData::new_u64(2), EventFlags::IN)
            .map_err(|error| Error::system("can't watch the wake receiver of this rank", error))?;
        self.links = Some(links);
        Ok(())
    }

    /// Sets the processes of peers, by rank, which are watched with them.
    pub(crate) fn watch_processes(&mut self, processes: Vec<Option<PeerProcess>>) {
        self.liveness.add_processes(processes);
    }

    /// Whether messages to and from `peer` go through a link.
    #[inline]
    pub(super) fn is_linked(&self, peer: Rank) -> bool {
        self.links.as_ref().is_some_and(|links| links.has(peer))
    }

    #[inline]
    pub(super) fn post_send_linked(
        &mut self,
        to: Rank,
        envelope: Envelope,
        parts: SendParts,
    ) -> Posted<SendId, SendDone> {
        let Some(links) = &mut self.links else {
            return Posted::Done(SendDone { parts, result: Err(Error::Closed) });
        };
        if let Err(error) = check_length(self.rank, &parts) {
            return Posted::Done(SendDone { parts, result: Err(error) });
        }
        match links.post_send(to, envelope, parts, &mut self.engine.inbox().statistics) {
            Posted::Pending(id) => Posted::Pending(SendId(id.0 | LINKED)),
            Posted::Done(SendDone { parts, result }) => {
                Posted::Done(SendDone { parts, result: self.handle_linked_result(result) })
            }
        }
    }

    /// Sends a message of one part at once if there is room; returns whether it did.
    #[inline]
    pub(super) fn send_linked_at_once(&mut self, to: Rank, envelope: &Envelope, part: &[u8]) -> bool {
        let Some(links) = &mut self.links else { return false };
        links.send_at_once(to, envelope, part, &mut self.engine.inbox().statistics)
    }

    #[inline]
    pub(super) fn post_recv_linked(
        &mut self,
        from: Rank,
        envelope: Envelope,
        parts: RecvParts,
    ) -> Posted<RecvId, RecvDone> {
        let Some(links) = &mut self.links else {
            return Posted::Done(RecvDone { parts, result: Err(Error::Closed) });
        };
        match links.post_recv(from, envelope, parts, &mut self.engine.inbox().statistics) {
            Posted::Pending(id) => Posted::Pending(RecvId(id.0 | LINKED)),
            Posted::Done(RecvDone { parts, result }) => {
                Posted::Done(RecvDone { parts, result: self.handle_linked_result(result) })
            }
        }
    }

    /// The links and the number there, if an operation is on a link.
    #[inline]
    pub(super) fn linked(&mut self, number: u64) -> Option<(&mut Links, u64)> {
        let number = linked(number)?;
        Some((self.links.as_mut()?, number))
    }

    /// Looks up to `spins` times for a short message of a posted receive. Returns whether anything moved.
    #[inline]
    pub(super) fn look_for_linked(&mut self, peer: Rank, spins: u32) -> bool {
        let Some(links) = &mut self.links else { return false };
        let turn = links.look_for(peer, spins, &mut self.engine.inbox().statistics);
        let moved = self.handle_turn(turn);
        self.has_moved |= moved;
        moved
    }

    /// Polls the links. Returns whether anything moved.
    #[inline]
    pub(super) fn turn_links(&mut self) -> bool {
        let is_sweep_due = self.may_have_slept || self.is_listening || self.turns.is_multiple_of(SWEEP_EVERY);
        let Some(links) = &mut self.links else { return false };
        if self.may_have_slept {
            links.hear();
        }
        let counts = &mut self.engine.inbox().statistics;
        let turn = if is_sweep_due { links.sweep(counts) } else { links.turn(counts) };
        self.handle_turn(turn)
    }

    /// Progresses UCX if it is due. Returns whether anything moved.
    #[inline]
    pub(super) fn turn_ucx(&mut self) -> bool {
        self.is_ucx_due() && self.progress_ucx()
    }

    #[inline]
    pub(super) fn progress_ucx(&mut self) -> bool {
        let moved = self.engine.progress() | self.run_deferred_work();
        self.busy_turns = if moved { BUSY_TURNS } else { self.busy_turns.saturating_sub(1) };
        moved
    }

    /// True while an operation waits for UCX, something has just moved there, or there are no links.
    #[inline]
    fn is_ucx_due(&self) -> bool {
        self.links.is_none()
            || self.may_have_slept
            || self.is_listening
            || self.busy_turns > 0
            || self.turns.is_multiple_of(TURNS_PER_IDLE_UCX)
            || !(self.sends.is_empty() && self.accesses.is_empty() && self.engine.is_idle())
    }

    /// Tells the local peers that this rank is about to sleep. True if it must not, because something has
    /// moved.
    pub(super) fn begin_sleep(&mut self) -> bool {
        let Some(links) = &mut self.links else { return false };
        let turn = links.begin_sleep(&mut self.engine.inbox().statistics);
        self.handle_turn(turn)
    }

    /// Takes what a local peer sent before it went.
    pub(super) fn drain_link(&mut self, peer: Rank) {
        if let Some(links) = &mut self.links
            && let Err(error) = links.drain(peer, &mut self.engine.inbox().statistics)
        {
            self.handle_turn(Err((peer, error)));
        }
    }

    /// Writes what is queued for local peers, for a short while, before they are told that this rank has
    /// left.
    pub(super) fn flush_links(&mut self) {
        let start = Instant::now();
        while self.links.as_ref().is_some_and(Links::has_queued) && start.elapsed() < FLUSH_PATIENCE {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
    }

    /// The result of a turn; gives a local peer up that has broken the protocol.
    #[inline]
    fn handle_turn(&mut self, turn: std::result::Result<bool, (Rank, Error)>) -> bool {
        turn.unwrap_or_else(|(peer, error)| {
            self.lose_peer(peer, error, false);
            true
        })
    }

    /// Gives a local peer up if an operation has found that it has left.
    #[inline]
    fn handle_linked_result<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ Error::PeerLost { rank }) = &result {
            self.lose_peer(*rank, error.clone(), false);
        }
        result
    }
}

#[inline]
pub(super) fn linked(number: u64) -> Option<u64> {
    (number & LINKED != 0).then_some(number & !LINKED)
}
