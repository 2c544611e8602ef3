//! Decides which peer has died or left, and what the others are told.
//!
//! A process that has forked a child shares its sockets with it, so they stay open when it dies and no end of
//! stream follows. Therefore the ends of processes are watched too. What a process has sent may still be on
//! its way then: the peer is lost once nothing has come for a while.

use std::time::{Duration, Instant};

use super::connection::{Connection, Status};
use super::wire::Wire;
use super::{QUOTA, Tcp};
use crate::told::later;
use crate::transport::News;
use crate::{Error, Rank};

/// The most that is read from a connection to find out who died first, in bytes: more than kernels buffer.
const SUSPECT_QUOTA: usize = 64 << 20;

/// After this much silence nothing more comes of a peer whose process has ended. Inside one network namespace
/// packets are not lost; between two of them they may be, and are sent again.
const SETTLED_HERE: Duration = Duration::from_millis(50);
const SETTLED_FAR: Duration = Duration::from_millis(500);

/// A peer whose process has ended.
pub(super) struct Ended {
    index: usize,
    quiet_since: Instant,
    patience: Duration,
}

impl Connection {
    /// Whether its packets stay in one network namespace: then both ends have the same address.
    fn is_inside_network(&self) -> bool {
        let Some(socket) = self.wire.as_ref().map(Wire::socket) else { return false };
        let ends = (socket.local_addr(), socket.peer_addr());
        matches!(ends, (Ok(own), Ok(other)) if own.ip() == other.ip() || own.ip().is_loopback())
    }
}

impl Tcp {
    pub(super) fn handle_status(&mut self, index: usize, status: Status) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let peer = Rank(index as u32);
        match status {
            Status::Open => {}
            Status::Lost => {
                self.drain_link(peer);
                if !self.suspects.contains(&peer) {
                    self.suspects.push(peer);
                }
            }
            Status::Closed => {
                self.poller.remove(connection);
                let mut is_missed = connection.finish(&mut self.statistics);
                self.drain_link(peer);
                if let Some(links) = &mut self.links {
                    is_missed |= links.finish(peer, true, &mut self.statistics);
                }
                if is_missed {
                    self.lose_left(peer);
                }
            }
            Status::Violation(error) => {
                let told = error.clone();
                later!(INFO, error = %told, "a peer violates the protocol");
                self.give_up(peer, error);
            }
        }
    }

    /// Decides which peer died when connections have ended without a close frame.
    ///
    /// The other sockets are read first: what peers tell comes before what the end of a connection suggests.
    pub(super) fn find_dead_peer(&mut self) {
        for index in 0..self.connections.len() {
            if !self.suspects.contains(&Rank(index as u32)) {
                self.service(index, SUSPECT_QUOTA);
            }
        }
        for rank in std::mem::take(&mut self.suspects) {
            later!(INFO, %rank, "a connection ended without a word");
            self.lose_left(rank);
        }
    }

    /// Gives up a peer that has died, or has left although it is needed.
    pub(super) fn lose_left(&mut self, peer: Rank) {
        self.give_up(peer, Error::PeerLost { rank: peer });
    }

    /// Ends every operation with a peer, and drops its connection. The first reason counts.
    pub(super) fn give_up(&mut self, peer: Rank, error: Error) {
        let Some(Some(connection)) = self.connections.get_mut(peer.index()) else { return };
        if self.lost.contains(&peer) || self.closed.is_some() {
            return;
        }
        self.lost.push(peer);
        self.poller.remove(connection);
        connection.close(&error, &mut self.statistics);
        if let Some(links) = &mut self.links {
            links.lose(peer, &error);
        }
        self.news.push_back(News::Lost(peer, error));
        self.has_moved = true;
    }

    /// Takes the notices that a peer has sent.
    #[inline]
    pub(super) fn take_notices(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !connection.incoming.notices.is_empty()
        {
            let notices = connection.incoming.notices.drain(..);
            self.news.extend(notices.map(|notice| News::Told(Rank(index as u32), notice)));
            self.has_moved = true;
        }
    }

    /// Receives what peers whose processes have ended have sent, and handles those as lost of which nothing
    /// more comes; says whether anything moved.
    #[cold]
    pub(super) fn settle_ended(&mut self) -> bool {
        let now = Instant::now();
        for index in std::mem::take(&mut self.poller.ended) {
            let connection = self.connections.get(index).and_then(Option::as_ref);
            let is_here = connection.is_some_and(Connection::is_inside_network);
            let patience = if is_here { SETTLED_HERE } else { SETTLED_FAR };
            self.ended.push(Ended { index, quiet_since: now, patience });
        }
        let mut moved = false;
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain_mut(|peer| {
            // A peer that sent its close frame first has finished by now, or finishes when this is read.
            let connection = self.connections.get(peer.index).and_then(Option::as_ref);
            if self.closed.is_some() || connection.is_none_or(|connection| connection.wire.is_none()) {
                return false;
            }
            if self.service(peer.index, QUOTA) {
                (moved, peer.quiet_since) = (true, Instant::now());
                return true;
            }
            if peer.quiet_since.elapsed() < peer.patience {
                return true;
            }
            self.handle_status(peer.index, Status::Lost);
            moved = true;
            false
        });
        self.ended = ended;
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::Rank;
    use crate::one_sided::frame::Place;
    use crate::one_sided::frame::RemoteFrame;
    use crate::process::ProcessName;
    use crate::tcp::fuzzing::loopback_pair;
    use crate::transport::Transport;

    /// As when a child has the socket as well: no end of it tells that the peer is dead.
    #[test]
    fn what_a_peer_has_sent_is_taken_before_it_is_lost_with_its_process() {
        let (own, mut socket) = loopback_pair().unwrap();
        let mut transport = Tcp::new(Rank(0), 2, vec![None, Some(own)]).unwrap();
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(process.id()).unwrap();
        transport.watch_processes(vec![None, name.open(&ProcessName::own().unwrap())]);
        for _ in 0..10_000 {
            transport.progress();
        }
        assert!(transport.next_news().is_none(), "it lives");
        let place = Place { region: 1, nonce: [0; 16], offset: 0 };
        let sent: Vec<u8> =
            (0..100).flat_map(|number| RemoteFrame::Get(number, place, 8).encode(Rank(1))).collect();
        socket.write_all(&sent).unwrap();
        drop(process.stdin.take());
        process.wait().unwrap();
        let start = Instant::now();
        let mut lost = None;
        while lost.is_none() {
            transport.progress();
            lost = transport.next_news();
            assert!(start.elapsed() < Duration::from_secs(60), "nobody notices");
        }
        assert!(matches!(lost, Some(News::Lost(Rank(1), Error::PeerLost { .. }))), "{lost:?}");
        assert_eq!(transport.statistics().bytes_received, sent.len() as u64);
    }
}
