//! How lost ranks come back to their job.
//!
//! The lowest rank that is left listens at the place of return. Who [comes back](super::comeback) proves, as
//! in every conversation, that it holds the job's key, and says which rank it is. Those who are left and
//! those who have come back are then a new world with a [`JobId`] of its own, which its first rank makes:
//!
//! | step | who | frame |
//! | --- | --- | --- |
//! | 1 | who comes back | its blob: its incarnation, 4 bytes |
//! | 2 | listener, only to the first rank of the new world | an empty gathered blob: make the identifier |
//! | 3 | that rank | its blob: the identifier |
//! | 4 | listener, to each | a gathered blob: the [`Invitation`] |

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::WIRE_VERSION;
use super::acceptor::Acceptor;
use super::call::resolve;
use super::channel::{Channel, close};
use super::deadline::Deadline;
use super::environment::RETURN;
use super::id::JobId;
use super::identity::Identity;
use super::interface::is_here;
use super::invitation::{Invitation, Member};
use super::leaf;
use super::proof::{Opening, Party, Purpose};
use super::root_listener;
use super::variables::not_set;
use super::wire::{Frame, MAX_BLOB_BYTES, Subject, Verdict};
use crate::{Error, Rank, Result};

/// How long those who have come back have to read the last frame.
const CLOSING: Duration = Duration::from_secs(1);

/// How long the first rank of the new world has to make the identifier.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long one that has proven itself may say nothing: it keeps other processes of its rank away.
const SILENCE: Duration = Duration::from_secs(2);

/// How many processes that were told why they can't be taken may stay connected.
const MAX_TURNED_AWAY: usize = 64;

const HERE: &str = "host:port on this host, whose rank is the lowest that is left";

/// The longest sleep of a listener.
const LOOK: Duration = Duration::from_millis(50);

/// Where lost ranks come back: the listener of the lowest rank that is left.
pub struct Reception {
    /// How the job began.
    identity: Identity,
    acceptor: Acceptor,
    party: Arc<Party>,
    arrivals: BTreeMap<u32, Arrival>,
    /// Processes that can't be taken, until they have read why.
    turned_away: Vec<Channel>,
    /// The ranks of which a process was refused that calls again: the log names each once.
    named: BTreeSet<u32>,
}

/// One that has come back.
struct Arrival {
    channel: Channel,
    since: Instant,
    /// `None` until it has said it.
    incarnation: Option<u32>,
}

/// Why one that has come back is not taken.
enum Refusal {
    /// It has gone.
    Gone,
    /// It may be lost without being known as such yet: it calls again.
    NotLost,
    /// It does not speak as a rank that comes back does.
    Protocol(&'static str),
    /// It is told what was found, and what was expected.
    Told(String, String),
}

impl Arrival {
    /// Reads which incarnation has come; `last` is the one that was lost.
    fn hear(&mut self, last: Option<u32>, max_body: usize) -> std::result::Result<(), Refusal> {
        self.channel.pump_frames(max_body);
        let said = match self.channel.take_frame(max_body) {
            Ok(None) if self.channel.ended() => return Err(Refusal::Gone),
            Ok(None) if self.incarnation.is_none() && self.since.elapsed() >= SILENCE => {
                return Err(Refusal::Protocol("nothing"));
            }
            Ok(None) => return Ok(()),
            Ok(Some(Frame::Blob(_, said))) if self.incarnation.is_none() => said,
            Ok(Some(_)) => return Err(Refusal::Protocol("a frame that was not expected")),
            Err(_) => return Err(Refusal::Protocol("an invalid frame")),
        };
        let said = <[u8; 4]>::try_from(&said[..]).map(u32::from_le_bytes);
        let said = said.map_err(|_| Refusal::Protocol("no incarnation"))?;
        match last.ok_or(Refusal::NotLost)? {
            last if said != 0 && said <= last => {
                let expected = format!("one after incarnation {last}");
                return Err(Refusal::Told(format!("incarnation {said}"), expected));
            }
            last => self.incarnation = Some(said.max(last.saturating_add(1))),
        }
        Ok(())
    }
}

impl Reception {
    /// Listens at the place of return of the job that `identity` began with.
    ///
    /// # Errors
    /// [`Error::System`] when the place is taken, or not on this host; [`Error::Environment`] when there is
    /// none, or it is for other hosts and the job has no key.
    pub fn open(identity: &Identity) -> Result<Self> {
        let (place, party) = at_the_place_of_return(identity, Rank(0))?;
        let deadline = Deadline::after(identity.join_timeout);
        let is_here = |address: &SocketAddr| address.ip().is_loopback() || is_here(address.ip());
        if identity.announce.is_none() && !resolve(&place.master, &deadline)?.iter().any(is_here) {
            let (variable, found) = ("BREVITY_RETURN", place.master.to_string());
            return Err(Error::Environment { variable, found, expected: HERE });
        }
        let (acceptor, _) = root_listener::listen(&place, &party, Purpose::Return, &deadline)?;
        let (arrivals, turned_away, named) = Default::default();
        Ok(Self { identity: identity.clone(), acceptor, party, arrivals, turned_away, named })
    }

    /// Waits until all `lost` ranks have come back, at most so long, or until `is_over`. Both are asked at
    /// least ten times a second. Strangers can't lengthen it.
    pub fn wait(&mut self, lost: impl Fn() -> Vec<Member>, longest: Duration, is_over: impl Fn() -> bool) {
        let deadline = Deadline::after(longest);
        loop {
            for (opening, channel) in self.acceptor.turn() {
                self.admit(&opening, channel);
            }
            let lost = lost();
            self.listen(&lost);
            let is_known = |arrival: &&Arrival| arrival.incarnation.is_some();
            if self.arrivals.values().filter(is_known).count() >= lost.len() || deadline.passed() || is_over()
            {
                return;
            }
            let channels = self.arrivals.values_mut().map(|arrival| &mut arrival.channel);
            let channels = channels.chain(&mut self.turned_away);
            self.acceptor.wait_with(channels, deadline.remaining().min(LOOK));
        }
    }

    fn admit(&mut self, opening: &Opening, channel: Channel) {
        let (rank, peer) = (opening.rank, channel.peer());
        if let Some((subject, expected, found)) = self.party.difference(opening) {
            // It finds out by itself.
            tracing::warn!(%peer, rank, found, expected, ?subject, "turned away a rank that differs");
            return;
        }
        if rank >= self.party.world_size {
            tracing::warn!(%peer, rank, "turned away a rank that this world does not have");
            return;
        }
        if let Some(first) = self.arrivals.get_mut(&rank) {
            first.channel.pump_frames(Frame::max_body_bytes(self.party.world_size));
            if !first.channel.ended() {
                self.turn_away(rank, channel, "two that come back".into(), "one process".into());
                return;
            }
        }
        self.arrivals.insert(rank, Arrival { channel, since: Instant::now(), incarnation: None });
    }

    /// Reads which incarnations have come, and forgets those that have gone.
    fn listen(&mut self, lost: &[Member]) {
        let max_body = Frame::max_body_bytes(self.party.world_size);
        let mut refused = Vec::new();
        for (&rank, arrival) in &mut self.arrivals {
            let last = lost.iter().find(|lost| lost.rank.0 == rank).map(|lost| lost.incarnation);
            refused.extend(arrival.hear(last, max_body).err().map(|refusal| (rank, refusal)));
        }
        for (rank, refusal) in refused {
            let Some(Arrival { channel, .. }) = self.arrivals.remove(&rank) else { continue };
            match refusal {
                Refusal::Gone => {}
                Refusal::Told(found, expected) => self.turn_away(rank, channel, found, expected),
                Refusal::NotLost if self.named.insert(rank) => {
                    tracing::warn!(rank, "a rank that is still there would come back");
                }
                Refusal::Protocol(what) if self.named.insert(rank) => {
                    let peer = channel.peer();
                    tracing::warn!(%peer, rank, "a rank that would come back has sent {what}: hung up");
                }
                Refusal::NotLost | Refusal::Protocol(_) => {}
            }
        }
        self.turned_away.iter_mut().for_each(|channel| {
            channel.pump_frames(max_body);
            channel.discard();
        });
        self.turned_away.retain(|channel| !channel.ended());
    }

    fn turn_away(&mut self, rank: u32, mut channel: Channel, found: String, expected: String) {
        tracing::warn!(peer = %channel.peer(), rank, found, "turned away a rank that would come back");
        let verdict = Verdict::Disagreement { subject: Subject::Processes, rank, found, expected };
        channel.queue(Frame::Verdict(verdict).encode());
        if self.turned_away.len() == MAX_TURNED_AWAY {
            self.turned_away.remove(0);
        }
        self.turned_away.push(channel);
    }

    /// Invites those of the lost ranks who have come back, and gives the invitation for those who are left,
    /// who include this process as the first; `None` if nobody has come.
    ///
    /// # Errors
    /// When the system has no port or no random bytes.
    pub fn invite(mut self, left: &[Member], lost: &[Member]) -> Result<Option<Invitation>> {
        self.arrivals.retain(|_, arrival| arrival.incarnation.is_some());
        let id = loop {
            let Some((&first, _)) = self.arrivals.first_key_value() else { return Ok(None) };
            if left.first().is_some_and(|left| left.rank.0 < first) {
                break JobId::of(&self.identity.elsewhere())?;
            }
            match self.ask(first) {
                Some(id) => break id,
                None => drop(self.arrivals.remove(&first)),
            }
        };
        let back = self.arrivals.iter().filter_map(|(&rank, arrival)| {
            Some((Member { rank: Rank(rank), incarnation: arrival.incarnation? }, true))
        });
        let mut members: Vec<_> = left.iter().map(|left| (*left, false)).chain(back).collect();
        members.sort();
        let is_absent = |lost: &&Member| !self.arrivals.contains_key(&lost.rank.0);
        let invitation = Invitation::new(id, members, lost.iter().filter(is_absent).copied().collect());
        let told = invitation.encode();
        if told.len() > MAX_BLOB_BYTES {
            invitation.forget();
            let (sent, capacity) = (told.len() as u64, MAX_BLOB_BYTES);
            return Err(Error::TooLong { rank: Rank(self.party.rank), part: 0, sent, capacity });
        }
        let frame = Frame::Gathered(told).encode();
        let invited = self.arrivals.into_values().map(|Arrival { mut channel, .. }| {
            channel.queue(Arc::clone(&frame));
            channel
        });
        close(invited.chain(self.turned_away).collect(), CLOSING);
        Ok(Some(invitation))
    }

    /// Has the first rank of the new world make its identifier.
    fn ask(&mut self, rank: u32) -> Option<JobId> {
        let deadline = Deadline::after(PATIENCE);
        let Arrival { channel, .. } = self.arrivals.get_mut(&rank)?;
        channel.queue(Frame::Gathered(Vec::new()).encode());
        match leaf::next_frame(channel, Frame::max_body_bytes(self.party.world_size), &deadline)? {
            Frame::Blob(_, id) => JobId::from_bytes(&id).ok(),
            _ => None,
        }
    }
}

/// The identity with the place of return as the place to meet, and what this process says there as `rank`.
pub(super) fn at_the_place_of_return(identity: &Identity, rank: Rank) -> Result<(Identity, Arc<Party>)> {
    let party = Party {
        key: identity.key.as_ref().map_or(Vec::new(), |key| key.bytes().to_vec()),
        job: identity.job_and_port(),
        rank: rank.0,
        world_size: identity.world_size,
        wire_version: WIRE_VERSION,
    };
    let place = match &identity.place_of_return {
        Some(place) => Identity { master: place.clone(), ..identity.elsewhere() },
        None if identity.published.is_some() || identity.master.port == 0 => {
            return Err(not_set("BREVITY_RETURN", RETURN));
        }
        None => identity.clone(),
    };
    Ok((place, Arc::new(party)))
}

#[cfg(test)]
#[path = "returning_tests.rs"]
mod hostile_tests;

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::bootstrap::{Comeback, JobKey, Master, come_back};

    pub(super) const WORLD_SIZE: u32 = 4;

    /// The identities of a job on a port that is reserved as `brevity run` does it.
    pub(super) fn job() -> (socket2::Socket, impl Fn(u32, u32) -> Identity) {
        let holder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        holder.set_reuse_port(true).unwrap();
        holder.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = holder.local_addr().unwrap().as_socket().unwrap().port();
        let key = JobKey::generate().unwrap();
        let identity = move |rank, incarnation| {
            let master = Master { host: "127.0.0.1".into(), port };
            let mut identity = Identity::new(Rank(rank), WORLD_SIZE, master);
            (identity.port_reserved, identity.incarnation) = (true, incarnation);
            (identity.job, identity.key) = ("return".into(), Some(key.clone()));
            identity.join_timeout = Duration::from_secs(20);
            identity
        };
        (holder, identity)
    }

    pub(super) const fn member(rank: u32, incarnation: u32) -> Member {
        Member { rank: Rank(rank), incarnation }
    }

    #[test]
    fn those_who_come_back_are_invited_with_those_who_are_left() {
        for (lost, incarnation) in [(vec![2], 1), (vec![0, 3], 0), (vec![0, 1, 2], 7)] {
            let (_holder, identity) = job();
            let left: Vec<u32> = (0..WORLD_SIZE).filter(|rank| !lost.contains(rank)).collect();
            thread::scope(|threads| {
                let back: Vec<_> = lost
                    .iter()
                    .map(|&rank| (rank, identity(rank, incarnation)))
                    .map(|(rank, identity)| (rank, threads.spawn(move || come_back(&identity).unwrap())))
                    .collect();
                let mut reception = Reception::open(&identity(left[0], 0)).unwrap();
                let members = |ranks: &[u32]| ranks.iter().map(|&rank| member(rank, 0)).collect::<Vec<_>>();
                reception.wait(|| members(&lost), Duration::from_secs(20), || false);
                let invitation = reception.invite(&members(&left), &members(&lost)).unwrap().unwrap();
                let expected: Vec<_> = (0..WORLD_SIZE)
                    .map(|rank| {
                        let is_new = lost.contains(&rank);
                        (member(rank, if is_new { incarnation.max(1) } else { 0 }), is_new)
                    })
                    .collect();
                assert_eq!(invitation.members(), expected);
                for (rank, back) in back {
                    let Comeback::Invited(invited) = back.join().unwrap() else { panic!("rank {rank}") };
                    let (identity, told) = *invited;
                    assert_eq!(told, invitation);
                    let accepted = told.accept(&identity, Rank(rank)).unwrap();
                    assert_eq!((accepted.rank, accepted.world_size), (Rank(rank), WORLD_SIZE));
                }
                invitation.forget();
            });
        }
    }

    #[test]
    fn who_is_not_lost_or_not_newer_is_not_taken() {
        let (_holder, identity) = job();
        thread::scope(|threads| {
            let refused = [(1, 1), (2, 3)].map(|(rank, incarnation)| {
                let mut identity = identity(rank, incarnation);
                identity.join_timeout = Duration::from_millis(1500);
                threads.spawn(move || come_back(&identity).unwrap_err().to_string())
            });
            let mut reception = Reception::open(&identity(0, 0)).unwrap();
            let lost = [member(2, 3), member(3, 0)];
            reception.wait(|| lost.to_vec(), Duration::from_secs(1), || false);
            let start = Instant::now();
            let is_over = || start.elapsed() > Duration::from_millis(10);
            reception.wait(|| lost.to_vec(), Duration::from_secs(60), is_over);
            assert!(start.elapsed() < Duration::from_secs(5), "it is over");
            assert_eq!(reception.invite(&[member(0, 0), member(1, 0)], &lost).unwrap(), None);
            let [present, old] = refused.map(|refused| refused.join().unwrap());
            assert!(present.contains("rank 1 was not taken back at 127.0.0.1"), "{present}");
            assert_eq!(
                old,
                "processes of one rank: rank 2 has incarnation 3, expected one after incarnation 3"
            );
        });
    }

    #[test]
    fn who_is_not_received_is_told_by_its_deadline() {
        let (_holder, identity) = job();
        let start = Instant::now();
        let mut late = identity(2, 1);
        late.join_timeout = Duration::from_millis(300);
        let error = come_back(&late).unwrap_err();
        assert!(matches!(error, Error::NotTakenBack { rank: Rank(2), .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        let mut nowhere = identity(2, 1);
        nowhere.master.port = 0;
        let error = come_back(&nowhere).unwrap_err();
        assert!(matches!(error, Error::Environment { variable: "BREVITY_RETURN", .. }), "{error}");
    }
}
