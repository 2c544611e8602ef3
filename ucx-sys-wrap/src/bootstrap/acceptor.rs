//! Accepts connections and lets all callers prove themselves at the same time.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::channel::Channel;
use super::conversation::{Conversation, Fault, Step};
use super::proof::{Opening, Party, Purpose};
use super::reserve::Ports;
use crate::Error;

/// Callers served at a time; the others wait in the listen queues.
const MAX_CALLERS: usize = 128;

/// The time that a caller has to prove itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same when the acceptor is full: afterwards the caller makes room for the next.
const PATIENCE_WHEN_FULL: Duration = Duration::from_millis(200);

/// The same for a caller that has sent nothing. A rank sends first, so its opening is there when the
/// connection leaves a long listen queue; a rank that is dropped calls again.
const SILENCE_WHEN_FULL: Duration = Duration::from_millis(5);

const BACKLOG: i32 = 4096;

/// The longest sleep while a listener has failed or the acceptor is full.
const RETRY: Duration = SILENCE_WHEN_FULL;

/// Listeners and the callers that have not proven themselves yet.
pub(super) struct Acceptor {
    listeners: Vec<TcpListener>,
    /// The listener to accept from next, round-robin: one with many callers does not starve the others.
    next: usize,
    party: Arc<Party>,
    purpose: Purpose,
    /// Whether callers are answered with their own purpose.
    echoes: bool,
    callers: Vec<Conversation>,
    /// Whether a listener may have more callers.
    more: bool,
    /// The last caller that did not hold the key.
    turned_away: Option<SocketAddr>,
}

impl Acceptor {
    /// Listens on those of `addresses` that this host has: a name may have an IPv6 address on a host without
    /// IPv6. `shared` allows another socket of this user to hold the same port.
    ///
    /// # Errors
    /// When this host has none of them, or one of its own can't be listened on.
    pub(super) fn listen(
        party: &Arc<Party>,
        purpose: Purpose,
        addresses: &[SocketAddr],
        shared: bool,
    ) -> io::Result<Self> {
        let mut listeners = Vec::new();
        let mut failure = ErrorKind::AddrNotAvailable.into();
        for &address in addresses {
            match listener(address, shared) {
                Ok(listener) => listeners.push(listener),
                Err(error) if is_elsewhere(&error) => failure = error,
                Err(error) => return Err(error),
            }
        }
        if listeners.is_empty() { Err(failure) } else { Ok(Self::over(listeners, party, purpose)) }
    }

    /// Listens on the first of these ports that is free; returns its address too.
    pub(super) fn listen_within(
        party: &Arc<Party>,
        purpose: Purpose,
        address: IpAddr,
        ports: Ports,
    ) -> io::Result<(Self, SocketAddr)> {
        let listener = ports.find(address, |address| listener(address, false))?;
        let address = listener.local_addr()?;
        Ok((Self::over(vec![listener], party, purpose), address))
    }

    fn over(listeners: Vec<TcpListener>, party: &Arc<Party>, purpose: Purpose) -> Self {
        let (callers, party) = (Vec::new(), party.clone());
        let (next, echoes, more, turned_away) = (0, false, true, None);
        Self { listeners, next, party, purpose, echoes, callers, more, turned_away }
    }

    /// The same for all callers that may be answered with this purpose, with their own purpose as answer.
    pub(super) fn echoing(self) -> Self {
        Self { echoes: true, ..self }
    }

    /// Whether nobody but this host can call.
    pub(super) fn is_loopback(&self) -> bool {
        let mut addresses = self.listeners.iter().map(TcpListener::local_addr);
        addresses.all(|address| address.is_ok_and(|address| address.ip().is_loopback()))
    }

    /// Serves all callers without blocking; returns those that have proven to hold the key.
    pub(super) fn turn(&mut self) -> Vec<(Opening, Channel)> {
        self.admit();
        let mut proven = Vec::new();
        for caller in std::mem::take(&mut self.callers) {
            match caller.advance() {
                Step::Pending(caller) if caller.since.elapsed() < PATIENCE => self.callers.push(caller),
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

    /// What an error adds to the address when ranks are missing: one may have another key.
    pub(super) fn hint(&self) -> String {
        self.turned_away.map_or_else(String::new, |peer| {
            format!(
                " (where {peer} was turned away: it does not hold this job's key; is BREVITY_KEY \
                the same on all ranks?)"
            )
        })
    }

    /// Sleeps until a listener, a caller or one of `others` is ready, at most `longest`.
    pub(super) fn wait_with<'a>(
        &'a mut self,
        others: impl Iterator<Item = &'a mut Channel>,
        longest: Duration,
    ) {
        let full = self.callers.len() >= MAX_CALLERS;
        let longest = if self.more { longest.min(RETRY) } else { longest };
        let oldest = self.callers.iter().map(|caller| caller.since).min();
        let expiry = oldest.map_or(longest, |since| PATIENCE.saturating_sub(since.elapsed()));
        let listeners = if full { &[][..] } else { &self.listeners };
        let own = self.callers.iter_mut().map(Conversation::channel_mut);
        self.more |= super::channel::wait_for(listeners, own.chain(others), longest.min(expiry));
    }

    /// Accepts callers while there is room.
    fn admit(&mut self) {
        let mut idle = 0;
        while self.more {
            if self.callers.len() >= MAX_CALLERS && !self.make_room() {
                return;
            }
            let accepted = self.listeners[self.next].accept();
            self.next = (self.next + 1) % self.listeners.len();
            match accepted {
                Ok((stream, peer)) => {
                    idle = 0;
                    let channel = Channel::accepted(stream, peer)
                        .map_err(|error| Error::system("can't take a caller", error));
                    let Self { party, purpose, echoes, .. } = &*self;
                    let answer = |channel| Conversation::answer(party, *purpose, channel, *echoes);
                    match channel.and_then(answer) {
                        Ok(caller) => self.callers.push(caller),
                        Err(error) => tracing::debug!(%peer, %error, "dropped a caller"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    idle += 1;
                    self.more = idle < self.listeners.len();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The caller has gone, or no descriptor is left: tries again after a short sleep.
                Err(error) => {
                    tracing::debug!(%error, "can't accept a caller");
                    self.make_room();
                    return;
                }
            }
        }
    }

    /// Drops the caller that has been silent for longest, or else the oldest one, if its time is over.
    fn make_room(&mut self) -> bool {
        let oldest =
            self.callers.iter().enumerate().min_by_key(|(_, caller)| (caller.has_opening(), caller.since));
        let Some((position, caller)) = oldest else { return false };
        let patience = if caller.has_opening() { PATIENCE_WHEN_FULL } else { SILENCE_WHEN_FULL };
        let expired = caller.since.elapsed() >= patience;
        if expired {
            self.callers.remove(position);
        }
        expired
    }
}

fn listener(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = super::reserve::socket(address, shared)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Whether this host has no such address, or nothing of its family.
fn is_elsewhere(error: &io::Error) -> bool {
    let no_family = Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_family)
}
