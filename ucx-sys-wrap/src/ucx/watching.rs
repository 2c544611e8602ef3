//! Checks of peers between operations, and closing.

use std::time::{Duration, Instant};

use super::failure_flag::Closed;
use super::liveness::PeerEvent;
use super::{CHECK_INTERVAL, Closing, FLUSH_PATIENCE, Ucx};
use crate::link::Links;
use crate::told::later;
use crate::transport::Transport;
use crate::{Error, Failure, Rank};

/// An operation waits long when it was posted so many checks ago.
const LONG_ROUNDS: u32 = 2;

/// A peer that is gone has sent everything when nothing comes for this long: on this host, and over a
/// network.
const SETTLED_HERE: Duration = Duration::from_millis(2);
const SETTLED_FAR: Duration = Duration::from_millis(50);

/// How long a peer that can't be sent to may take to leave in good order: it sends what is queued first.
const GONE_WITHIN: Duration = FLUSH_PATIENCE.saturating_mul(5);

impl Ucx {
    /// Does what the handlers have deferred. Returns whether there was anything.
    #[inline]
    pub(super) fn run_deferred_work(&mut self) -> bool {
        let worked = self.engine.run_deferred() | self.engine.run_errands();
        self.handle_violation();
        worked
    }

    /// Closes the transport if a peer has broken the protocol, or an operation with it has failed.
    #[inline]
    pub(super) fn handle_violation(&mut self) {
        if self.engine.inbox().violation.is_some()
            && let Some((rank, error)) = self.engine.inbox().violation.take()
        {
            self.close_for_peer(rank, error);
        }
    }

    /// Closes the transport because of `peer`, unless a rank has reported another cause.
    #[cold]
    pub(super) fn close_for_peer(&mut self, peer: Rank, error: Error) {
        if self.closed.is_some() {
            return;
        }
        let cause = error.clone();
        later!(INFO, %peer, error = %cause, "closing the transport");
        let is_lost = matches!(error, Error::PeerLost { .. });
        match self.liveness.poll().filter(|_| is_lost).or_else(|| self.read_failure_flag(peer)) {
            Some(PeerEvent::Failed(cause)) => self.close_for(Some(cause), cause.into()),
            _ => self.close_for(Some(Failure::PeerLost(peer)), error),
        }
    }

    /// Checks the peers that operations wait for: long waits, or all if this rank is about to sleep.
    pub(super) fn check_peers(&mut self, about_to_sleep: bool) -> bool {
        self.round = self.round.wrapping_add(1);
        self.next_check = self.now() + CHECK_INTERVAL;
        if self.closed.is_some() {
            // Only to answer watchers.
            self.liveness.poll();
            return false;
        }
        let rounds = if about_to_sleep { 0 } else { LONG_ROUNDS };
        let mut waited = std::mem::take(&mut self.waited);
        waited.clear();
        let long = |(_, posted_in): &(Rank, u32)| self.round.wrapping_sub(*posted_in) >= rounds;
        waited.extend(self.waits().filter(long).map(|(peer, _)| peer));
        let linked = || self.links.iter().flat_map(Links::waits);
        waited.extend(linked().filter(|peer| about_to_sleep || self.waited_on_links.contains(peer)));
        self.waited_on_links.clear();
        self.waited_on_links.extend(linked());
        waited.sort_unstable();
        waited.dedup();
        for peer in &waited {
            let event = self.read_failure_flag(*peer).or_else(|| self.liveness.watch(*peer));
            self.handle_event(event);
        }
        self.waited = waited;
        let event = self.liveness.poll();
        self.handle_event(event) | self.discard_withdrawn() | self.check_unanswered()
    }

    /// Closes for a peer that waits for an answer which could not be sent: it is there, but can't be reached.
    /// Returns whether there was one.
    fn check_unanswered(&mut self) -> bool {
        let now = self.now();
        let new = std::mem::take(&mut self.engine.requests().unanswered);
        for peer in new {
            if !self.unanswered.iter().any(|(known, _)| *known == peer) {
                self.unanswered.push((peer, now + GONE_WITHIN));
            }
        }
        for (peer, end) in std::mem::take(&mut self.unanswered) {
            if self.closed.is_some() {
                return true;
            }
            match self.watch_peer(peer) {
                true => {}
                false if now < end => self.unanswered.push((peer, end)),
                false => self.close_for_peer(peer, Error::PeerLost { rank: peer }),
            }
        }
        false
    }

    /// The peers of operations on UCX that are not over, each with the round of its posting.
    fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        let context = self.engine.handler_context_ref();
        let arriving = context.inbox.waits().chain(context.requests.waits());
        self.sends.waits().chain(arriving).chain(self.accesses.waits())
    }

    /// Watches a peer that no operation waits for; returns whether it has left.
    pub(super) fn watch_peer(&mut self, peer: Rank) -> bool {
        if self.closed.is_some() {
            return false;
        }
        if self.gone.contains(&peer) {
            return true;
        }
        match self.read_failure_flag(peer).or_else(|| self.liveness.watch(peer)) {
            None => false,
            Some(PeerEvent::Gone(_)) => true,
            event => {
                self.handle_event(event);
                false
            }
        }
    }

    fn discard_withdrawn(&mut self) -> bool {
        let mut found = false;
        for message in self.liveness.withdrawn.drain(..) {
            found |= self.engine.inbox().withdraw(message);
        }
        found && self.run_deferred_work()
    }

    fn read_failure_flag(&self, peer: Rank) -> Option<PeerEvent> {
        match self.failure_flags.get(peer.index())?.as_ref()?.read(self.world_size) {
            Closed::No => None,
            Closed::Left => Some(PeerEvent::Gone(peer)),
            Closed::Failed(cause) => Some(PeerEvent::Failed(cause)),
        }
    }

    /// Acts on an event. Returns whether there was anything to do.
    pub(super) fn handle_event(&mut self, event: Option<PeerEvent>) -> bool {
        if self.closed.is_some() {
            return false;
        }
        let lost = match event {
            None => return false,
            Some(PeerEvent::Failed(cause)) => {
                later!(INFO, ?cause, "a peer reports a failure");
                self.close_for(Some(cause), cause.into());
                return true;
            }
            Some(PeerEvent::Died(peer) | PeerEvent::Gone(peer)) => peer,
        };
        // A rank that fails writes the cause before it goes.
        let flag = self.read_failure_flag(lost);
        let has_left = matches!(flag, Some(PeerEvent::Gone(_)));
        let cause = match flag {
            Some(PeerEvent::Failed(cause)) => cause,
            _ => Failure::PeerLost(lost),
        };
        self.drain_ucx(lost);
        self.drain_link(lost);
        self.has_moved = true;
        if cause != Failure::PeerLost(lost) {
            self.close_for(Some(cause), cause.into());
            return true;
        }
        let statistics = &mut self.engine.inbox().statistics;
        let is_missed = self.links.as_mut().is_some_and(|links| links.finish(lost, has_left, statistics));
        let is_waited_for = is_missed || self.waits().any(|(peer, _)| peer == lost);
        if matches!(event, Some(PeerEvent::Gone(_))) && !is_waited_for {
            if !self.gone.contains(&lost) {
                self.gone.push(lost);
            }
            return false;
        }
        later!(INFO, rank = %lost, ?cause, "a peer is gone");
        self.close_for(Some(cause), cause.into());
        true
    }

    /// Takes what a peer sent before it went.
    fn drain_ucx(&mut self, peer: Rank) {
        let is_here = self.failure_flags.get(peer.index()).is_some_and(Option::is_some);
        let patience = if is_here { SETTLED_HERE } else { SETTLED_FAR };
        let mut quiet_since = Instant::now();
        let start = quiet_since;
        while quiet_since.elapsed() < patience && start.elapsed() < 10 * patience && self.closed.is_none() {
            if self.engine.progress() | self.run_deferred_work() {
                quiet_since = Instant::now();
            }
        }
    }

    /// Ends everything with `error`, tells the peers, and tears UCX down. The first cause stays.
    pub(super) fn close_for(&mut self, cause: Option<Failure>, error: Error) {
        self.close_as(Closed::Failed(cause.unwrap_or(Failure::PeerLost(self.rank))), cause, error);
    }

    /// Leaves at process exit, in good order if nothing is under way. Tears UCX down, or forgets it if it is
    /// gone.
    pub(super) fn leave_at_exit(&mut self, is_library_there: bool) {
        let awaits_local_peers = self.links.iter().any(|links| links.waits().next().is_some());
        // Peers' puts and gets count where they may write the memory themselves.
        let serves = !self.teardown_ends_access && self.engine.handler_context_ref().requests.serves();
        let is_under_way = awaits_local_peers || serves || self.waits().next().is_some();
        if !is_library_there {
            self.engine.forget();
        } else if self.closed.is_none() && !is_under_way {
            self.flush_links();
            self.accesses.release(&self.engine);
            self.engine.close_endpoints(FLUSH_PATIENCE);
        }
        if is_under_way && !self.teardown_ends_access {
            // The user's settings let peers write until the process is gone: the memory is not given back to
            // other threads, which go on until then.
            self.engine.forget();
            self.engine.is_left_open = true;
        }
        let cause = Failure::Aborted(self.rank);
        // A peer that fetches memory given back now must learn that it was.
        let reported = if is_under_way { Closed::Failed(cause) } else { Closed::Left };
        self.close_as(reported, Some(cause), cause.into());
        self.liveness.stop_listening();
        if !self.engine.is_torn_down() {
            self.tear_down();
            self.end_all(&cause.into());
        }
    }

    fn tear_down(&mut self) {
        self.accesses.release(&self.engine);
        self.engine.destroy_worker();
        self.accesses.unmap_all(&self.engine);
        self.engine.destroy_context();
    }

    fn close_as(&mut self, reported: Closed, cause: Option<Failure>, error: Error) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(Closing { error: error.clone(), cause, reported });
        self.has_moved = true;
        if let Err(error) = self.failure_flag.write(reported) {
            self.teardown_ends_access = false;
            later!(ERROR, %error, "memory lent to peers can't be taken back");
        }
        self.liveness.notify_all(reported);
        if self.teardown_ends_access {
            self.tear_down();
        }
        self.end_all(&error);
    }

    /// Ends every operation that neither UCX nor a local peer holds.
    fn end_all(&mut self, error: &Error) {
        if let Some(links) = &mut self.links {
            links.close(error);
        }
        self.engine.end_receives(error);
        self.sends.end_all(error);
        self.accesses.end_all(error);
        let is_torn_down = self.engine.is_torn_down() && !self.engine.is_left_open;
        self.engine.close_requests(error, is_torn_down);
    }

    /// The error if a peer had taken its memory back, which makes a message fetched from it void.
    pub(super) fn has_taken_back(&mut self, peer: Rank) -> Option<Error> {
        let PeerEvent::Failed(cause) = self.read_failure_flag(peer)? else { return None };
        self.close_for(Some(cause), cause.into());
        self.closed.as_ref().map(|closed| closed.error.clone())
    }
}
