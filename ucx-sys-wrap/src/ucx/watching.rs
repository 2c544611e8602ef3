//! Checks of peers between operations, peers that are lost, and closing.

use std::time::{Duration, Instant};

use super::failure_flag::Closed;
use super::liveness::PeerEvent;
use super::{CHECK_INTERVAL, Closing, FLUSH_PATIENCE, Ucx};
use crate::link::Links;
use crate::told::later;
use crate::transport::{News, Transport};
use crate::{Error, Failure, Rank};

/// An operation waits long when it was posted so many checks ago.
const LONG_ROUNDS: u32 = 2;

/// A peer that is gone has sent everything when nothing comes for this long: on this host, and over a
/// network.
const SETTLED_HERE: Duration = Duration::from_millis(2);
const SETTLED_FAR: Duration = Duration::from_millis(50);

/// How long a peer that can't be sent to may take to leave in good order: it sends what is queued first.
const GONE_WITHIN: Duration = FLUSH_PATIENCE.saturating_mul(5);

/// How long UCX may take to end the operations with a lost peer.
const CUT_OFF_WITHIN: Duration = Duration::from_millis(100);

impl Ucx {
    /// Does what the handlers have deferred. Returns whether there was anything.
    #[inline]
    pub(super) fn run_deferred_work(&mut self) -> bool {
        let worked = self.engine.run_deferred() | self.engine.run_errands();
        self.handle_violation();
        worked
    }

    /// Gives peers up that have broken the protocol, or with whom an operation has failed.
    #[inline]
    pub(super) fn handle_violation(&mut self) {
        if !self.engine.inbox().violations.is_empty() {
            self.handle_violations();
        }
    }

    #[cold]
    fn handle_violations(&mut self) {
        while !self.engine.inbox().violations.is_empty() && !self.is_told() {
            let (rank, error) = self.engine.inbox().violations.remove(0);
            self.lose_peer(rank, error, false);
        }
    }

    /// Whether peers have told something that was not taken yet. The contexts that they have closed end with
    /// the cause that they gave, so that comes before a loss.
    fn is_told(&mut self) -> bool {
        self.liveness.hear();
        self.take_told();
        self.news.iter().any(|news| matches!(news, News::Told(..)))
    }

    /// Ends the operations with a peer with `error`, and does not use its endpoint any more. `is_gone` says
    /// that it has ended, or has torn its transport down.
    #[cold]
    pub(super) fn lose_peer(&mut self, peer: Rank, error: Error, is_gone: bool) {
        if self.check_open(peer).is_err() {
            return;
        }
        let is_gone = is_gone || self.gone.contains(&peer);
        let cause = error.clone();
        later!(INFO, %peer, error = %cause, "a peer is lost");
        // What peers have told comes first.
        self.liveness.hear();
        self.take_told();
        self.engine.run_deferred();
        self.lost.push((peer, error.clone()));
        (self.is_troubled, self.has_moved) = (true, true);
        let is_answered = !is_gone && !self.engine.is_closable[peer.index()];
        let inbox = self.engine.inbox();
        inbox.lose(peer, &error, is_answered);
        if let Some(links) = &mut self.links {
            links.lose(peer, &error);
        }
        self.sends.lose(peer, &error);
        self.accesses.lose(peer, &error);
        self.engine.requests().lose(peer, &error);
        self.engine.cut_off(peer);
        self.engine.run_deferred();
        self.engine.progress();
        match is_gone {
            true => self.reclaim(peer),
            false => self.liveness.renounce(peer),
        }
        if self.is_held(peer) {
            self.cut_off.push((peer, self.now() + CUT_OFF_WITHIN));
        }
        self.news.push_back(News::Lost(peer, error));
    }

    /// Takes back the memory of what is sent to a lost peer that is gone: UCX does not end it. What the peer
    /// sent before was taken.
    fn reclaim(&mut self, peer: Rank) {
        if self.engine.is_closable[peer.index()] || !self.teardown_ends_access {
            return;
        }
        // SAFETY: UCX at the peer is gone. UCX here reads the memory of a rendezvous only if the peer asks
        // for that, which it does not any more; that of an eager message if the peer's slots have room, which
        // nobody makes any more.
        unsafe { self.sends.take_back(peer) };
        let error = Error::PeerLost { rank: peer };
        // SAFETY: as above.
        unsafe { self.engine.requests().take_back(peer, &error) };
    }

    /// Whether UCX works on an operation with this peer.
    fn is_held(&self, peer: Rank) -> bool {
        self.waits().any(|(held, _)| held == peer)
    }

    /// Ends the transport as a whole if UCX does not end the operations with a lost peer.
    fn check_cut_off(&mut self) {
        self.engine.reap_closing();
        for (peer, end) in std::mem::take(&mut self.cut_off) {
            match self.is_held(peer) {
                false => {}
                true if self.now() < end => self.cut_off.push((peer, end)),
                true => {
                    later!(WARN, %peer, "UCX does not end operations with a lost peer: it is torn down");
                    let error = Error::PeerLost { rank: peer };
                    self.close_as(Closed::Abandoned, &error);
                    self.news.push_back(News::Ended(Failure::PeerLost(peer), error));
                    return;
                }
            }
        }
    }

    fn take_told(&mut self) {
        for (from, notice) in self.liveness.told.drain(..) {
            self.has_moved = true;
            self.news.push_back(News::Told(from, notice));
        }
    }

    /// Checks the peers that operations wait for: long waits, or all if this rank is about to sleep.
    pub(super) fn check_peers(&mut self, about_to_sleep: bool) -> bool {
        self.round = self.round.wrapping_add(1);
        self.next_check = self.now() + CHECK_INTERVAL;
        if self.closed.is_some() {
            // Only to answer watchers.
            while self.liveness.poll().is_some() {}
            self.liveness.told.clear();
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
            if self.check_open(*peer).is_ok()
                && let Some(event) = self.read_failure_flag(*peer).or_else(|| self.liveness.watch(*peer))
            {
                self.handle_event(event);
            }
        }
        self.waited = waited;
        for position in 0..self.cut_off.len() {
            let event = self.liveness.watch(self.cut_off[position].0);
            self.liveness.put_back.extend(event);
        }
        let mut is_new = false;
        self.liveness.take_up();
        while let Some(event) = self.liveness.poll() {
            is_new |= self.handle_event(event);
        }
        is_new |= !self.liveness.told.is_empty();
        self.take_told();
        self.handle_violation();
        self.check_reclaiming();
        self.check_cut_off();
        is_new | self.discard_withdrawn() | self.check_unanswered()
    }

    /// Gives a peer up that waits for an answer which could not be sent: it is there, but can't be reached.
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
            match self.watch_peer(peer) || self.check_open(peer).is_err() {
                true => {}
                false if now < end => self.unanswered.push((peer, end)),
                false => self.lose_peer(peer, Error::PeerLost { rank: peer }, false),
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
        if self.check_open(peer).is_err() {
            return false;
        }
        if self.gone.contains(&peer) {
            return true;
        }
        match self.read_failure_flag(peer).or_else(|| self.liveness.watch(peer)) {
            None => false,
            Some(PeerEvent::Gone(_)) => true,
            Some(event) => {
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
        match self.failure_flags.get(peer.index())?.as_ref()?.read() {
            Closed::No => None,
            Closed::Left => Some(PeerEvent::Gone(peer)),
            // It may not be torn down yet.
            Closed::Abandoned => Some(PeerEvent::Renounced(peer)),
        }
    }

    /// Acts on an event. Returns whether a peer is lost.
    pub(super) fn handle_event(&mut self, event: PeerEvent) -> bool {
        let peer = match event {
            PeerEvent::Died(peer)
            | PeerEvent::Gone(peer)
            | PeerEvent::Renounced(peer)
            | PeerEvent::Violated(peer) => peer,
        };
        let is_gone = matches!(event, PeerEvent::Died(_) | PeerEvent::Gone(_));
        if self.check_open(peer).is_err() {
            // Found lost before, and gone now.
            if is_gone && self.is_held(peer) {
                self.drain_ucx(peer);
                self.reclaim(peer);
            }
            return false;
        }
        if matches!(event, PeerEvent::Violated(_)) {
            let what = "a notice that no rank sends".into();
            self.lose_peer(peer, Error::Protocol { rank: peer, what }, false);
            return true;
        }
        // Draining keeps the transport from calls, so what peers have told comes before.
        if self.puts_back(event) {
            return true;
        }
        if !self.drained.contains(&peer) {
            self.drain_ucx(peer);
        }
        self.drain_link(peer);
        if self.puts_back(event) {
            if is_gone {
                self.drained.push(peer);
            }
            return true;
        }
        self.drained.retain(|drained| *drained != peer);
        // What it sent may have shown that it is to be given up.
        if self.check_open(peer).is_err() {
            return true;
        }
        let flag = self.read_failure_flag(peer);
        let has_left = matches!(flag, Some(PeerEvent::Gone(_)));
        let statistics = &mut self.engine.inbox().statistics;
        let is_missed = self.links.as_mut().is_some_and(|links| links.finish(peer, has_left, statistics));
        let is_in_order =
            matches!(event, PeerEvent::Gone(_)) && !matches!(flag, Some(PeerEvent::Renounced(_)));
        if is_in_order && !is_missed && !self.is_held(peer) {
            if !self.gone.contains(&peer) {
                self.gone.push(peer);
            }
            return false;
        }
        self.lose_peer(peer, Error::PeerLost { rank: peer }, is_gone);
        true
    }

    /// Leaves an event to the next check if peers have told something that was not taken yet.
    fn puts_back(&mut self, event: PeerEvent) -> bool {
        self.has_moved = true;
        let is_told = self.is_told();
        if is_told {
            self.liveness.put_back.push(event);
            self.next_check = Duration::ZERO;
        }
        is_told
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
        // A peer that fetches memory given back now must learn that it was.
        let reported = if is_under_way { Closed::Abandoned } else { Closed::Left };
        let error = Error::Aborted { rank: self.rank };
        if self.closed.is_none() {
            self.close_as(reported, &error);
            self.news.push_back(News::Ended(Failure::Aborted(self.rank), error.clone()));
        }
        self.liveness.stop_listening();
        if !self.engine.is_torn_down() {
            self.tear_down();
            self.end_all(&error);
        }
    }

    pub(super) fn tear_down(&mut self) {
        self.accesses.release(&self.engine);
        self.engine.destroy_worker();
        self.accesses.unmap_all(&self.engine);
        self.engine.destroy_context();
    }

    /// Ends everything with `error`, tells the peers, and tears UCX down. The first error stays.
    pub(super) fn close_as(&mut self, reported: Closed, error: &Error) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(Closing { error: error.clone(), reported });
        (self.is_troubled, self.has_moved) = (true, true);
        self.cut_off.clear();
        self.reclaiming.clear();
        self.liveness.flush();
        // Before the memory is taken back.
        if let Err(error) = self.failure_flag.write(reported) {
            self.teardown_ends_access = false;
            later!(ERROR, %error, "memory lent to peers can't be taken back");
        }
        if self.teardown_ends_access {
            self.tear_down();
        }
        // Peers take memory back once they are told, and UCX must not take anything from it after that.
        match reported {
            Closed::Abandoned => self.liveness.notify_all(self.teardown_ends_access),
            Closed::No | Closed::Left => self.liveness.answer(reported),
        }
        self.end_all(error);
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
        let PeerEvent::Renounced(_) = self.read_failure_flag(peer)? else { return None };
        let error = Error::PeerLost { rank: peer };
        self.lose_peer(peer, error.clone(), false);
        Some(error)
    }
}
