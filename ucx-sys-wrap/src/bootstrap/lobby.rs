//! Where callers wait until they have proven who they are: strangers neither stop nor delay a job.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::handshake::{Handshake, Progress};
use super::proof::{Opening, Party, Purpose};
use crate::Result;

/// How long a caller may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Callers that may be proving themselves at the same time; beyond it the oldest is dropped.
const MOST_CALLERS: usize = 512;

/// Callers that are accepted in one turn, so that a flood of them leaves time for the others.
const ACCEPTED_A_TURN: usize = 64;

/// A listener and the callers that have not proven themselves yet.
pub(super) struct Lobby {
    listener: TcpListener,
    party: Party,
    purpose: Purpose,
    callers: Vec<(Instant, Handshake)>,
}

impl Lobby {
    /// Takes over a listener, which is made non-blocking.
    pub(super) fn new(listener: TcpListener, party: Party, purpose: Purpose) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, party, purpose, callers: Vec::new() })
    }

    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// The listener and the connections of callers, to be polled together.
    pub(super) fn parts(&mut self) -> (&TcpListener, impl Iterator<Item = &mut Channel>) {
        (&self.listener, self.callers.iter_mut().map(|(_, handshake)| &mut handshake.channel))
    }

    /// Accepts, goes on with every caller, and returns those that have proven who they are.
    pub(super) fn turn(&mut self) -> Result<Vec<(Opening, Channel)>> {
        self.accept()?;
        let mut proven = Vec::new();
        for (since, mut handshake) in std::mem::take(&mut self.callers) {
            match handshake.advance() {
                Progress::Proven(opening) => proven.push((opening, handshake.channel)),
                Progress::Pending if since.elapsed() < PATIENCE => self.callers.push((since, handshake)),
                Progress::Pending | Progress::Refused | Progress::Stranger => {
                    tracing::debug!(peer = %handshake.channel.peer(), "a caller did not prove itself");
                }
            }
        }
        Ok(proven)
    }

    fn accept(&mut self) -> Result<()> {
        for _ in 0..ACCEPTED_A_TURN {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Nobody there, or a caller that has gone, or no descriptors left for the moment.
                Err(_) => break,
            };
            if self.callers.len() >= MOST_CALLERS {
                self.callers.remove(0);
            }
            // A connection that can't be set up is one that has gone.
            if let Ok(channel) = Channel::accepted(stream, peer) {
                let handshake = Handshake::answer(channel, &self.party, self.purpose)?;
                self.callers.push((Instant::now(), handshake));
            }
        }
        Ok(())
    }
}
