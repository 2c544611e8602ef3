//! How a transport that is dropped leaves: what is queued is written, the last word said, and nothing lost
//! behind it.

use std::time::{Duration, Instant};

use super::Tcp;
use super::connection::Connection;
use crate::Failure;
use crate::link::Links;
use crate::told::later;
use crate::transport::Transport;

/// How long a transport that is dropped goes on writing what is queued, and one that has failed waits for the
/// kernel too.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How long a transport that is dropped in good order waits for peers to make room for what the kernel has
/// not sent.
const LINGER_PATIENCE: Duration = Duration::from_secs(10);

/// How often is looked, in that time.
const LINGER_STEP: Duration = Duration::from_millis(1);

impl Tcp {
    /// Says bye, or the cause of the failure, and writes what is queued for a short while.
    pub(super) fn part(&mut self) {
        if std::thread::panicking() {
            self.fail(Failure::PeerLost(self.rank));
        }
        let start = Instant::now();
        while self.links.as_ref().is_some_and(Links::has_queued) && start.elapsed() < FLUSH_PATIENCE {
            // Bye must not come before what was sent.
            if !self.progress() {
                std::thread::yield_now();
            }
        }
        if self.closed.is_none() {
            self.connections.iter_mut().flatten().for_each(Connection::say_bye);
        }
        loop {
            self.sweep_next = true;
            (0..self.connections.len()).for_each(|index| self.list(index));
            self.progress();
            let has_queued = self.connections.iter().flatten().any(Connection::has_queued);
            if !has_queued || start.elapsed() > FLUSH_PATIENCE {
                break;
            }
            self.watch_all();
            self.poller.wait(Duration::from_millis(10));
        }
        // Nobody who fails waits longer for peers that may have failed as well.
        let until =
            if self.closed.is_none() { Instant::now() + LINGER_PATIENCE } else { start + FLUSH_PATIENCE };
        self.linger(until);
    }

    /// Waits until the kernel has sent what was written, the last word among it, and throws away what comes.
    fn linger(&mut self, until: Instant) {
        // Who is lost reads nothing more.
        let lost = match self.failure() {
            Some(Failure::PeerLost(rank)) => Some(rank),
            _ => None,
        };
        loop {
            let mut unsent = self.connections.iter_mut().flatten().filter_map(Connection::linger);
            let Some(first) = unsent.find(|rank| Some(*rank) != lost) else { return };
            if Instant::now() > until {
                later!(WARN, rank = %first, "a peer has not read what was sent to it: it may lose the end");
                return;
            }
            std::thread::sleep(LINGER_STEP);
        }
    }
}
