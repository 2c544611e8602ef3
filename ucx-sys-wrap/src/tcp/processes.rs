//! Peers whose processes have ended while their sockets stay open.
//!
//! A process that has forked a child shares its sockets with it, so they stay open when it dies and no end of
//! stream follows. What it has sent may still be on its way: the peer is lost once nothing has come for a
//! while.

use std::time::{Duration, Instant};

use super::connection::{Connection, Status};
use super::wire::Wire;
use super::{QUOTA, Tcp};
use crate::process::PeerProcess;

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
        let Some(socket) = self.wire().map(Wire::socket) else { return false };
        let ends = (socket.local_addr(), socket.peer_addr());
        matches!(ends, (Ok(own), Ok(other)) if own.ip() == other.ip() || own.ip().is_loopback())
    }
}

impl Tcp {
    /// Also watches the processes of peers, given by rank.
    pub(crate) fn watch_processes(&mut self, processes: Vec<Option<PeerProcess>>) {
        self.poller.add_processes(processes);
    }

    /// Receives what peers whose processes have ended have sent, and handles those as lost of which nothing
    /// more comes; says whether anything moved.
    #[cold]
    pub(super) fn settle_ended(&mut self) -> bool {
        let now = Instant::now();
        for index in std::mem::take(&mut self.poller.ended) {
            let is_here = matches!(self.connections.get(index), Some(Some(connection)) if connection.is_inside_network());
            let patience = if is_here { SETTLED_HERE } else { SETTLED_FAR };
            self.ended.push(Ended { index, quiet_since: now, patience });
        }
        let mut moved = false;
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain_mut(|peer| {
            // A peer that sent its close frame first has finished by now, or finishes when this is read.
            let connection = self.connections.get(peer.index).and_then(Option::as_ref);
            if self.closed.is_some() || connection.is_none_or(|connection| connection.is_finished()) {
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
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::one_sided::frame::Place;
    use crate::one_sided::frame::RemoteFrame;
    use crate::process::ProcessName;
    use crate::transport::Transport;
    use crate::{Failure, Rank};

    /// As when a child has the socket as well: no end of it tells that the peer is dead.
    #[test]
    fn what_a_peer_has_sent_is_taken_before_it_is_lost_with_its_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut transport = Tcp::new(Rank(0), 2, vec![None, Some(listener.accept().unwrap().0)]).unwrap();
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(process.id()).unwrap();
        transport.watch_processes(vec![None, name.open(&ProcessName::own().unwrap())]);
        for _ in 0..10_000 {
            transport.progress();
        }
        assert_eq!(transport.failure(), None, "it lives");
        let place = Place { region: 1, nonce: [0; 16], offset: 0 };
        let sent: Vec<u8> =
            (0..100).flat_map(|number| RemoteFrame::Get(number, place, 8).encode(Rank(1))).collect();
        socket.write_all(&sent).unwrap();
        drop(process.stdin.take());
        process.wait().unwrap();
        let start = Instant::now();
        while transport.failure().is_none() {
            transport.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "nobody notices");
        }
        assert_eq!(transport.failure(), Some(Failure::PeerLost(Rank(1))));
        assert_eq!(transport.statistics().bytes_received, sent.len() as u64);
    }
}
