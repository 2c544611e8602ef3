//! What a rank tells its peers over control connections.

use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::failure_flag::Closed;
use super::liveness::{ACCEPTED_AT_END, Liveness, Peer, Unsent};
use super::notice::{Notice, Withdrawal, encode};
use crate::Rank;
use crate::told::later;
use crate::transport;

/// How long a rank that goes tries to reach peers whose kernels do not answer at once.
const NOTIFY_PATIENCE: Duration = Duration::from_millis(100);

impl Liveness {
    /// Tells a peer that this rank wants a message back, now or at a later poll.
    pub(super) fn withdraw(&mut self, to: Rank, message: Withdrawal) {
        self.send(to, Notice::Withdrawn(message));
    }

    /// Tells a peer that this rank has closed a context, now or at a later poll.
    pub(super) fn tell(&mut self, to: Rank, notice: transport::Notice) {
        self.send(to, Notice::Told(self.own, notice));
    }

    /// Lets a peer that this rank has given up, but that may be there, give this rank up.
    pub(super) fn renounce(&mut self, peer: Rank) {
        self.send(peer, Notice::Renounced(self.own));
    }

    fn send(&mut self, to: Rank, notice: Notice) {
        self.unsent.push(Unsent { to, notice, sent: 0 });
        self.send_unsent();
    }

    pub(super) fn send_unsent(&mut self) {
        for mut unsent in std::mem::take(&mut self.unsent) {
            let to = unsent.to;
            // In order.
            if self.unsent.iter().any(|waiting| waiting.to == to) {
                self.unsent.push(unsent);
            } else if let Some(event) = self.watch(to) {
                self.events.push_back(event);
            } else if let Some(Some(Peer { token, watch: Some(watch), .. })) = self.peers.get_mut(to.index())
                && !watch.send(&encode(unsent.notice, token), &mut unsent.sent)
            {
                self.unsent.push(unsent);
            }
        }
    }

    /// Tells present and future watchers that this rank's transport is closed.
    pub(super) fn answer(&mut self, closed: Closed) {
        self.answer = Some(closed);
        let answer = encode(Notice::Closed(self.own, closed), &self.token);
        for (_, connection) in &mut self.accepted {
            connection.send(&answer, &mut 0);
        }
        self.accept(ACCEPTED_AT_END);
    }

    /// Stops listening, even if a forked child holds the listener and would seem to listen for ever.
    pub(super) fn stop_listening(&self) {
        if let Err(error) = shutdown(&self.listener, Shutdown::Both) {
            later!(DEBUG, %error, "can't close the control listener");
        }
    }

    /// Tells every peer that this rank's transport is torn down, or that it has given them all up, for at
    /// most 100 ms.
    pub(super) fn notify_all(&mut self, is_torn_down: bool) {
        let own = self.own;
        let mut notice = Notice::Renounced(own);
        if is_torn_down {
            self.answer(Closed::Abandoned);
            notice = Notice::Closed(own, Closed::Abandoned);
        }
        let peers = Rank::all(self.peers.len() as u32).filter(|peer| *peer != own);
        self.unsent.extend(peers.map(|to| Unsent { to, notice, sent: 0 }));
        self.flush();
    }

    /// Sends the notices that could not be sent at once, for at most 100 ms.
    pub(super) fn flush(&mut self) {
        let start = Instant::now();
        self.send_unsent();
        while !self.unsent.is_empty() && start.elapsed() <= NOTIFY_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            self.send_unsent();
        }
        self.unsent.clear();
    }
}
