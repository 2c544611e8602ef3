//! Messages to local peers through shared memory, and how often the sockets are served beside that.

use std::sync::Arc;

use super::{SWEEP_EVERY, SWEEP_LINKED_EVERY, Tcp};
use crate::link::Links;
use crate::shm::LocalGroup;
use crate::tick::tick;
use crate::told::later;
use crate::{Error, Rank, Result};

impl Tcp {
    /// Sends messages to the local peers through shared memory; their sockets stay for failure detection,
    /// puts and gets. All ranks of the local group must call this before anything is posted.
    ///
    /// With `may_read`, messages are read from the memory of the sending process where the system allows it;
    /// that is faster for long messages and for unexpected ones.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is another rank's local group; [`Error::System`] when its wake receiver
    /// can't be watched.
    pub fn share_memory(&mut self, local_group: &Arc<LocalGroup>, may_read: bool) -> Result<()> {
        let links = Links::new(local_group, self.rank, self.world_size, may_read)?;
        self.poller.add_wake_receiver(links.wake_receiver())?;
        self.links = Some(links);
        Ok(())
    }

    /// Whether it is time to serve connections that are not awaited. Where all peers are local, sockets only
    /// detect failures and carry puts and gets, which make their connection awaited for a while: then this is
    /// seldom while the rank is busy, and at once when it sleeps.
    #[inline]
    pub(super) fn is_sweep_due(&self) -> bool {
        let is_all_seen = self.awaited.len() + 1 >= self.connections.len();
        let every = match &self.links {
            None if is_all_seen && self.poller.processes.is_empty() => return false,
            // Only the ends of processes are not seen by every turn.
            None if is_all_seen => SWEEP_LINKED_EVERY,
            Some(links) if links.count() + 1 >= self.connections.len() && self.awaited.is_empty() => {
                SWEEP_LINKED_EVERY
            }
            _ => SWEEP_EVERY,
        };
        self.turns.is_multiple_of(every)
    }

    /// Whether a tick has passed since the sockets of local peers were served. A count of turns would not do:
    /// a turn may take milliseconds where processors are scarce.
    #[inline]
    pub(super) fn is_look_due(&mut self) -> bool {
        let is_linked = self.links.as_ref().is_some_and(|links| links.count() + 1 >= self.connections.len());
        if !is_linked {
            return false;
        }
        let now = tick();
        std::mem::replace(&mut self.looked_in, now) != now
    }

    /// Gives up a local peer that has violated the protocol; says whether anything moved.
    #[inline]
    pub(super) fn handle_link_result(&mut self, turn: std::result::Result<bool, (Rank, Error)>) -> bool {
        turn.unwrap_or_else(|(peer, error)| {
            let told = error.clone();
            later!(INFO, error = %told, "a local peer violates the protocol");
            self.give_up(peer, error);
            true
        })
    }

    /// Receives what a local peer has sent before its end.
    pub(super) fn drain_link(&mut self, peer: Rank) {
        if let Some(links) = &mut self.links
            && let Err(error) = links.drain(peer, &mut self.statistics)
        {
            self.handle_link_result(Err((peer, error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::one_sided::frame::Place;
    use crate::one_sided::frame::RemoteFrame;
    use crate::tcp::frame::HEADER_BYTES;
    use crate::tcp::fuzzing::loopback_pair;
    use crate::transport::Transport;

    /// A rank that shares memory with a stranger, and the stranger's end of their socket.
    fn with_stranger() -> (Tcp, TcpStream) {
        let (own, stranger) = loopback_pair().unwrap();
        let mut transport = Tcp::new(Rank(0), 2, vec![None, Some(own)]).unwrap();
        transport.share_memory(&LocalGroup::in_process(2).unwrap()[0], true).unwrap();
        (transport, stranger)
    }

    fn looks(transport: &mut Tcp, turns: u32) -> u64 {
        let before = transport.looks;
        (0..turns).for_each(|_| _ = transport.progress());
        transport.looks - before
    }

    /// No operation waits here, and messages do not use the socket, but the peer waits for each answer.
    #[test]
    fn after_a_get_the_next_is_looked_for_in_every_turn_for_a_while() {
        let (mut transport, mut stranger) = with_stranger();
        assert_eq!(looks(&mut transport, 1000), 0, "nothing has come");
        let place = Place { region: 1, nonce: [0; 16], offset: 0 };
        stranger.write_all(&RemoteFrame::Get(0, place, 8).encode(Rank(1))).unwrap();
        let start = Instant::now();
        while transport.statistics.bytes_received < HEADER_BYTES as u64 {
            transport.progress();
            assert!(start.elapsed() < Duration::from_secs(100), "it does not come");
        }
        assert_eq!(looks(&mut transport, 500), 500);
        looks(&mut transport, 500);
        // In 1000 turns is at most one sweep.
        assert!(looks(&mut transport, 1000) <= 1, "nothing more has come");
    }
}
