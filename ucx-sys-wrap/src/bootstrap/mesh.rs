//! A connection between any two ranks.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::channel::{Channel, wait_for};
use super::deadline::Deadline;
use super::environment::Identity;
use super::handshake::{Handshake, Progress};
use super::lobby::Lobby;
use super::proof::{Opening, Party, Purpose};
use super::rendezvous::{Rendezvous, listen, party};
use crate::{Error, Rank, Result};

/// The pause before another attempt to connect to a rank whose listener is known to be there.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects every rank with every other: `streams[rank]` for each, none at the own place.
///
/// The higher rank connects, the lower accepts, and both prove that they hold the job's key. All ranks call this at the
/// same point; blocks until this rank has all its connections, at most for the join timeout.
///
/// # Errors
/// [`Error::MissingRanks`] names the ranks without a connection; [`Error::Unauthenticated`] when a rank that is
/// connected to holds another key; else as [`Rendezvous::exchange`].
pub fn connect_mesh(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Vec<Option<TcpStream>>> {
    let party = party(identity);
    let listener = listen(rendezvous.own_address(identity)?, false)?;
    let unusable = |error| Error::system("can't set up this rank's listener", error);
    let own = listener.local_addr().map_err(unusable)?;
    let lobby = Lobby::new(listener, party.clone(), Purpose::Mesh).map_err(unusable)?;
    let addresses = rendezvous.exchange(own.to_string().as_bytes())?;
    let addresses = addresses.iter().enumerate().map(|(rank, bytes)| address(rank, bytes)).collect::<Result<_>>()?;
    let streams = Mesh::new(party, lobby, addresses).connect(identity)?;
    // Nobody goes on before everybody is connected, so that nobody's listener disappears too early.
    rendezvous.exchange(&[])?;
    Ok(streams)
}

fn address(rank: usize, bytes: &[u8]) -> Result<SocketAddr> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::Protocol {
        rank: Rank(rank as u32),
        what: format!("{:?} as its address", String::from_utf8_lossy(bytes)),
    })
}

struct Mesh {
    party: Party,
    lobby: Lobby,
    addresses: Vec<SocketAddr>,
    /// By rank: the connections that are proven.
    connected: Vec<Option<Channel>>,
    /// By rank, for lower ranks: the attempt under way.
    calls: Vec<Call>,
}

enum Call {
    Under(Box<Handshake>),
    NotBefore(Instant),
}

impl Mesh {
    fn new(party: Party, lobby: Lobby, addresses: Vec<SocketAddr>) -> Self {
        let connected = (0..party.world_size).map(|_| None).collect();
        let calls = (0..party.rank).map(|_| Call::NotBefore(Instant::now())).collect();
        Self { party, lobby, addresses, connected, calls }
    }

    fn connect(mut self, identity: &Identity) -> Result<Vec<Option<TcpStream>>> {
        let deadline = Deadline::after(identity.join_timeout);
        loop {
            for (opening, channel) in self.lobby.turn()? {
                self.admit(&opening, channel);
            }
            for peer in 0..self.party.rank {
                self.call(peer)?;
            }
            self.connected.iter_mut().flatten().for_each(|channel| channel.pump(0));
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(self.connected.into_iter().map(|channel| channel.map(Channel::into_stream)).collect());
            }
            if deadline.passed() {
                let master = self.addresses[missing[0].index()].to_string();
                return Err(Error::MissingRanks { missing, deadline: deadline.given(), master });
            }
            self.sleep(deadline.remaining().min(PAUSE));
        }
    }

    /// Ranks without a connection on which everything is written.
    fn missing(&self) -> Vec<Rank> {
        let is_done = |rank: Rank| self.connected[rank.index()].as_ref().is_some_and(Channel::flushed);
        Rank::all(self.party.world_size).filter(|&rank| rank.0 != self.party.rank && !is_done(rank)).collect()
    }

    /// Takes in a higher rank of this job that has not come yet.
    fn admit(&mut self, opening: &Opening, channel: Channel) {
        let expected =
            opening.job == self.party.job && opening.peer == self.party.rank && opening.rank > self.party.rank;
        match self.connected.get_mut(opening.rank as usize) {
            Some(place @ None) if expected => *place = Some(channel),
            _ => {
                tracing::warn!(rank = opening.rank, peer = %channel.peer(), "dropped a connection that was not expected")
            }
        }
    }

    /// Goes on with the connection to a lower rank.
    fn call(&mut self, peer: u32) -> Result<()> {
        let index = peer as usize;
        if self.connected[index].is_some() {
            return Ok(());
        }
        if let Call::NotBefore(time) = self.calls[index] {
            if time > Instant::now() {
                return Ok(());
            }
            match Channel::connect(self.addresses[index]) {
                Ok(channel) => {
                    self.calls[index] =
                        Call::Under(Box::new(Handshake::call(channel, &self.party, Purpose::Mesh, peer)?));
                }
                Err(_) => self.calls[index] = Call::NotBefore(Instant::now() + PAUSE),
            }
        }
        let again = Call::NotBefore(Instant::now() + PAUSE);
        let Call::Under(mut handshake) = std::mem::replace(&mut self.calls[index], again) else { return Ok(()) };
        match handshake.advance() {
            Progress::Pending => self.calls[index] = Call::Under(handshake),
            Progress::Proven(opening) if opening.rank == peer => self.connected[index] = Some(handshake.channel),
            Progress::Proven(_) | Progress::Stranger => {}
            Progress::Refused => {
                return Err(Error::Unauthenticated { who: format!("this rank (rank {peer} says so)") });
            }
        }
        Ok(())
    }

    fn sleep(&mut self, longest: Duration) {
        let (listener, callers) = self.lobby.parts();
        let calls = self.calls.iter_mut().filter_map(|call| match call {
            Call::Under(handshake) => Some(&mut handshake.channel),
            Call::NotBefore(_) => None,
        });
        let unwritten = self.connected.iter_mut().flatten().filter(|channel| !channel.flushed());
        wait_for(Some(listener), callers.chain(calls).chain(unwritten), longest);
    }
}
