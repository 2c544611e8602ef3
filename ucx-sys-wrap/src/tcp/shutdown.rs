//! Dropping a transport: writes what is queued and a close frame, and waits until the kernel has sent it.

use std::time::{Duration, Instant};

use super::Tcp;
use super::connection::Connection;
use super::frame::Frame;
use crate::link::Links;
use crate::told::later;
use crate::transport::Transport;

/// How long a dropped transport writes what is queued, and one that has lost a peer also waits for the
/// kernel.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How long a transport dropped in good order waits for the kernel to send what is written.
const LINGER_PATIENCE: Duration = Duration::from_secs(10);

const LINGER_STEP: Duration = Duration::from_millis(1);

impl Tcp {
    /// Sends the close frame and writes what is queued for a short while.
    pub(super) fn shut_down(&mut self) {
        let start = Instant::now();
        while self.links.as_ref().is_some_and(Links::has_queued) && start.elapsed() < FLUSH_PATIENCE {
            // Bye must follow what was sent.
            if !self.progress() {
                std::thread::yield_now();
            }
        }
        if self.closed.is_none() {
            for connection in self.connections.iter_mut().flatten() {
                connection.push_close_frame(&Frame::Bye);
            }
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
        let until =
            if self.closed.is_none() { Instant::now() + LINGER_PATIENCE } else { start + FLUSH_PATIENCE };
        self.linger(until);
    }

    /// Waits until the kernel has sent what was written, and discards what comes.
    fn linger(&mut self, until: Instant) {
        loop {
            let mut unsent = self.connections.iter_mut().flatten().filter_map(Connection::linger);
            let Some(first) = unsent.next() else { return };
            if Instant::now() > until {
                later!(WARN, rank = %first, "a peer has not read what was sent to it: it may lose the end");
                return;
            }
            std::thread::sleep(LINGER_STEP);
        }
    }
}
