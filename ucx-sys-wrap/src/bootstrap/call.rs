//! Calling a rank until it answers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::conversation::{Conversation, Fault, Step};
use super::deadline::{Deadline, nap};
use super::master::Master;
use super::proof::{Opening, Party, Purpose};
use crate::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The longest that one attempt lasts: a full listener drops connections without notice.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Attempts to reach one rank at one of its addresses.
pub(super) struct Call {
    party: Arc<Party>,
    purpose: Purpose,
    peer: u32,
    addresses: Vec<SocketAddr>,
    attempts: usize,
    current: Option<Conversation>,
    next_attempt: Instant,
    pause: Duration,
    /// Whether to hang up on a rank of another job and try again.
    is_choosy: bool,
    /// Whether somebody answered that is no rank of this job.
    met_a_stranger: bool,
    /// The rank that holds another key, where the rank that is called may be at another place.
    refused_by: Option<String>,
}

impl Call {
    pub(super) fn new(party: &Arc<Party>, purpose: Purpose, peer: u32, addresses: Vec<SocketAddr>) -> Self {
        Self {
            party: party.clone(),
            purpose,
            peer,
            addresses,
            attempts: 0,
            current: None,
            next_attempt: Instant::now(),
            pause: FIRST_PAUSE,
            is_choosy: false,
            met_a_stranger: false,
            refused_by: None,
        }
    }

    /// Begins after `delay`, and hangs up on ranks of other jobs: the rank may be at one of several places.
    pub(super) fn one_of_several(self, delay: Duration) -> Self {
        Self { next_attempt: self.next_attempt + delay, is_choosy: true, ..self }
    }

    /// Makes as much progress as is possible without blocking; `Some` once the rank has proven itself.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] when the rank holds another key, unless the rank may be at another place.
    /// After other failures it tries again.
    pub(super) fn turn(&mut self) -> Result<Option<(Opening, Channel)>> {
        if self.current.is_none() && self.next_attempt <= Instant::now() {
            self.current = self.dial();
        }
        let Some(conversation) = self.current.take() else { return Ok(None) };
        match conversation.advance() {
            Step::Pending(conversation) if conversation.since.elapsed() < ATTEMPT => {
                self.current = Some(conversation)
            }
            Step::Pending(conversation) => {
                self.met_a_stranger |= conversation.is_unanswered();
                self.pause();
            }
            Step::Proven(opening, channel) => return Ok(Some((opening, channel))),
            Step::Failed(Fault::WrongKey, address) => {
                let who = format!("rank {} at {address}", self.peer);
                if !self.is_choosy {
                    return Err(Error::Unauthenticated { who });
                }
                self.refused_by = Some(who);
                self.pause();
            }
            Step::Failed(fault, address) => {
                self.met_a_stranger |= matches!(fault, Fault::Stranger | Fault::OtherJob);
                tracing::trace!(peer = self.peer, %address, ?fault, "call failed");
                self.pause();
            }
        }
        Ok(None)
    }

    /// The refusal that explains why the rank was not found, if there was one.
    pub(super) fn refusal(&mut self) -> Option<Error> {
        self.refused_by.take().map(|who| Error::Unauthenticated { who })
    }

    /// What an error adds to the address when the rank was not found.
    pub(super) fn hint(&self) -> &'static str {
        if self.met_a_stranger || self.current.as_ref().is_some_and(Conversation::is_unanswered) {
            " (something listens there that does not answer as a rank of this job: is the port another \
             program's?)"
        } else {
            ""
        }
    }

    pub(super) fn channel_mut(&mut self) -> Option<&mut Channel> {
        self.current.as_mut().map(Conversation::channel_mut)
    }

    /// The time until the next [`turn`](Self::turn) if nothing happens on the connection.
    pub(super) fn patience(&self) -> Duration {
        match &self.current {
            Some(conversation) => ATTEMPT.saturating_sub(conversation.since.elapsed()),
            None => self.next_attempt.saturating_duration_since(Instant::now()),
        }
    }

    fn dial(&mut self) -> Option<Conversation> {
        let address = *self.addresses.get(self.attempts % self.addresses.len().max(1))?;
        self.attempts += 1;
        let call = Conversation::call(&self.party, self.purpose, self.peer, address, self.is_choosy);
        call.inspect_err(|error| {
            tracing::trace!(peer = self.peer, %address, %error, "call failed");
            self.pause();
        })
        .ok()
    }

    fn pause(&mut self) {
        self.next_attempt = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// The addresses of the master's name, without duplicates; asks again until there are some or the deadline
/// passes. `localhost` means loopback of both families.
///
/// # Errors
/// [`Error::System`] when the name is not known by the deadline.
pub(super) fn resolve(master: &Master, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
    if let Some(address) = master.address() {
        return Ok(vec![SocketAddr::new(address, master.port)]);
    }
    if master.is_loopback() {
        let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        return Ok(both.map(|address| SocketAddr::new(address, master.port)).into());
    }
    let (sender, receiver) = mpsc::channel();
    let (name, closing) = ((master.host.clone(), master.port), *deadline);
    // The system's resolver takes no deadline, so it runs on a thread that may outlive this call.
    let asking = thread::Builder::new().spawn(move || {
        loop {
            let found = name.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let known = found.as_ref().is_ok_and(|addresses| !addresses.is_empty());
            if sender.send(found).is_err() || known || closing.passed() {
                return;
            }
            thread::sleep(LONGEST_PAUSE);
        }
    });
    asking
        .map_err(|error| Error::system("can't start a thread that asks for the master's address", error))?;
    let mut failure = std::io::Error::from(std::io::ErrorKind::TimedOut);
    loop {
        match nap(deadline.remaining(), |longest| receiver.recv_timeout(longest)) {
            Ok(Ok(mut addresses)) if !addresses.is_empty() => {
                let mut known = HashSet::new();
                addresses.retain(|address| known.insert(*address));
                return Ok(addresses);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => failure = error,
            Err(mpsc::RecvTimeoutError::Timeout) if !deadline.passed() => {}
            Err(_) => {
                return Err(Error::system(format!("can't find the address of {:?}", master.host), failure));
            }
        }
    }
}
