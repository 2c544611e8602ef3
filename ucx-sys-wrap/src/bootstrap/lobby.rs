//! A listener that hears all its callers at once.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::conversation::{Conversation, Fault, Step};
use super::proof::{Opening, Party, Purpose};
use crate::{Error, Result};

/// Callers heard at a time; the others wait with the system.
const MAX_CALLERS: usize = 128;

/// A caller that has not proven itself by then is dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// When all places are taken, a caller that has proven nothing for this long makes room for the next.
const PATIENCE_WHEN_FULL: Duration = Duration::from_millis(200);

/// The same for a caller that has said nothing. A rank speaks first: what it says is there when it is taken
/// from a long queue, and is said again if it came too late.
const SILENCE_WHEN_FULL: Duration = Duration::from_millis(5);

/// Connections that wait with the system.
const BACKLOG: i32 = 4096;

/// How long the lobby may sleep when its listener failed or it waits to make room.
const RETRY: Duration = SILENCE_WHEN_FULL;

/// A listener and the callers that have not proven themselves yet.
pub(super) struct Lobby {
    listener: TcpListener,
    party: Arc<Party>,
    purpose: Purpose,
    callers: Vec<Conversation>,
    /// The listener may have more callers than were taken.
    more: bool,
    /// The last caller that did not hold the key.
    turned_away: Option<SocketAddr>,
}

impl Lobby {
    /// Listens on `address`; a port of 0 is the system's choice.
    ///
    /// `shared` allows another socket of this user to hold the same port.
    pub(super) fn listen(
        party: &Arc<Party>,
        purpose: Purpose,
        address: SocketAddr,
        shared: bool,
    ) -> std::io::Result<Self> {
        let socket = super::reserve::socket(address, shared)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            listener: socket.into(),
            party: party.clone(),
            purpose,
            callers: Vec::new(),
            more: true,
            turned_away: None,
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(|error| Error::system("can't tell the address of a listener", error))
    }

    /// Hears everybody as far as is possible without waiting; returns who has proven to hold the key.
    pub(super) fn turn(&mut self) -> Vec<(Opening, Channel)> {
        self.admit();
        let mut proven = Vec::new();
        for caller in std::mem::take(&mut self.callers) {
            match caller.advance() {
                Step::Pending(caller) if caller.since().elapsed() < PATIENCE => self.callers.push(caller),
                Step::Pending(_) => tracing::debug!("dropped a caller that did not prove itself in time"),
                Step::Proven(opening, channel) => proven.push((opening, channel)),
                Step::Failed(Fault::WrongKey, peer) => {
                    self.turned_away = Some(peer);
                    tracing::warn!(%peer, "turned away a caller that does not hold the key of this job");
                }
                Step::Failed(fault, peer) => tracing::debug!(%peer, ?fault, "dropped a caller"),
            }
        }
        proven
    }

    /// What to say beside the address when a rank was not heard: it may have another key.
    pub(super) fn hint(&self) -> String {
        self.turned_away.map_or_else(String::new, |peer| {
            format!(" (where {peer} was turned away: it does not hold this job's key; is BREVITY_KEY the same on all ranks?)")
        })
    }

    /// Sleeps until somebody calls or says something, here or on `others`, at most `longest`.
    pub(super) fn wait_with<'a>(
        &'a mut self,
        others: impl Iterator<Item = &'a mut Channel>,
        longest: Duration,
    ) {
        let full = self.callers.len() >= MAX_CALLERS;
        let longest = if self.more { longest.min(RETRY) } else { longest };
        let oldest = self.callers.iter().map(|caller| caller.since()).min();
        let expiry = oldest.map_or(longest, |since| PATIENCE.saturating_sub(since.elapsed()));
        let listener = (!full).then_some(&self.listener);
        let own = self.callers.iter_mut().map(Conversation::channel_mut);
        self.more |= super::channel::wait_for(listener, own.chain(others), longest.min(expiry));
    }

    /// Takes callers from the listener while there is room.
    fn admit(&mut self) {
        while self.more {
            if self.callers.len() >= MAX_CALLERS && !self.make_room() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, peer)) => self.greet(stream, peer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.more = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A caller that has gone again, or no descriptors left: heard again after a short sleep.
                Err(error) => {
                    tracing::debug!(%error, "can't accept a caller");
                    self.make_room();
                    return;
                }
            }
        }
    }

    fn greet(&mut self, stream: std::net::TcpStream, peer: SocketAddr) {
        let channel =
            Channel::accepted(stream, peer).map_err(|error| Error::system("can't take a caller", error));
        match channel.and_then(|channel| Conversation::answer(&self.party, self.purpose, channel)) {
            Ok(caller) => self.callers.push(caller),
            Err(error) => tracing::debug!(%peer, %error, "dropped a caller"),
        }
    }

    /// Drops the caller that has been silent for longest, or else the oldest one, if it had its time.
    fn make_room(&mut self) -> bool {
        let oldest =
            self.callers.iter().enumerate().min_by_key(|(_, caller)| (caller.has_opening(), caller.since()));
        let Some((position, caller)) = oldest else { return false };
        let waited = Instant::now().saturating_duration_since(caller.since());
        let expired = waited >= if caller.has_opening() { PATIENCE_WHEN_FULL } else { SILENCE_WHEN_FULL };
        if expired {
            self.callers.remove(position);
        }
        expired
    }
}

/// All addresses of this host, of the family of `like`.
pub(super) fn any_address(like: SocketAddr) -> SocketAddr {
    let any: IpAddr =
        if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(any, like.port())
}
