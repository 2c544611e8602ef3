//! How a process that was started again finds its job.
//!
//! Ranks that are left receive it at the place of return ([`super::returning`]). If the job has not begun
//! yet, because a rank was lost while they joined, rank 0 waits at the master's address; it answers there
//! that all join for the first time.
//!
//! Rank 0 that was started again can't know whether the job has begun. In turns, it calls those who may be
//! left, and listens at the master's address itself. The job has not begun if a rank calls there to join for
//! the first time. If all others call there to come back, nobody is left, and the job begins anew. Nobody can
//! come back while rank 0 listens; so it hangs up on those who have called, and they call again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::channel::Channel;
use super::deadline::Deadline;
use super::id::JobId;
use super::identity::{Identity, Introduction};
use super::invitation::Invitation;
use super::leaf::{self, Search};
use super::proof::{Party, Purpose};
use super::returning::at_the_place_of_return;
use super::root_listener;
use super::wire::{Frame, Verdict};
use crate::{Error, Rank, Result};

/// The pause of a rank that was hung up on.
const PAUSE: Duration = Duration::from_millis(100);

/// How long rank 0 calls at a time, and how long it listens after the last rank has called. Others call at
/// least four times a second.
const CALL: Duration = Duration::from_millis(300);
const LISTEN: Duration = Duration::from_millis(500);

/// How a process that was started again joins its job.
#[derive(Debug)]
pub enum Comeback {
    /// The ranks that are left have invited it: its identity, and where it is to go.
    Invited(Box<(Identity, Invitation)>),
    /// The job has not begun, or none of its ranks is left: it joins as the first process of its rank does.
    Begins,
}

/// Comes back to the job as a new process of a rank that was lost: waits until the lowest rank that is left
/// [receives](super::Reception) it, or until it finds that all ranks join for the first time; at most
/// [`Identity::join_timeout`].
///
/// # Errors
/// [`Error::NotTakenBack`] at the deadline; [`Error::Disagreement`] when another process of the rank is
/// there, or the job or the version differ; [`Error::Unauthenticated`] for another key;
/// [`Error::Environment`] when there is no place of return, or no key for other hosts.
pub fn come_back(identity: &Identity) -> Result<Comeback> {
    let deadline = Deadline::after(identity.join_timeout);
    let identity = match &identity.introduction {
        Introduction::Id(id) => id.resolve(identity)?,
        // The launcher's store has forgotten, or the process is started without it.
        _ => identity.clone(),
    };
    let (place, party) = at_the_place_of_return(&identity, identity.rank)?;
    let is_known = identity.published.is_some() || identity.master.port != 0;
    let mut places = vec![&place];
    if identity.place_of_return.is_some() && is_known {
        places.push(&identity);
    }
    // By an identifier, only the process that has made it can be rank 0.
    let may_be_root = identity.rank == Rank(0) && is_known && identity.published.is_none();
    loop {
        let mut search = Search::new(&places, &party, Purpose::Return, &deadline)?;
        let (opening, channel, master) = loop {
            let turn = if may_be_root { deadline.no_later_than(CALL) } else { deadline };
            match search.until(&turn)? {
                Some(found) => break found,
                None if deadline.passed() => {
                    return Err(match search.missing(&deadline) {
                        Error::MissingRanks { master, .. } => not_taken_back(&identity, &deadline, master),
                        error => error,
                    });
                }
                None if may_be_root && begins(&identity, &party, &deadline) => return Ok(Comeback::Begins),
                None => {}
            }
        };
        if let Some((subject, found, expected)) = party.difference(&opening) {
            let verdict = Verdict::Disagreement { subject, rank: party.rank, found, expected };
            return Err(verdict.into_error(master));
        }
        if opening.purpose == Purpose::Rendezvous {
            return Ok(Comeback::Begins);
        }
        match be_received(&identity, &party, channel, &deadline) {
            Received::Invited(invitation) => return Ok(Comeback::Invited(Box::new((identity, invitation)))),
            Received::Refused(verdict) => return Err(verdict.into_error(master)),
            Received::Failed(error) => return Err(error),
            // It has died, or has ended its waiting: another may listen later.
            Received::Gone if deadline.passed() => return Err(not_taken_back(&identity, &deadline, master)),
            Received::Gone => std::thread::sleep(PAUSE.min(deadline.remaining())),
        }
    }
}

/// Listens for a while in rank 0's place. Returns whether another rank joins for the first time, or all
/// others have been started again.
fn begins(identity: &Identity, party: &Arc<Party>, deadline: &Deadline) -> bool {
    let mut turn = deadline.no_later_than(LISTEN);
    // If the port is taken, somebody receives there.
    let listened = root_listener::listen(identity, party, Purpose::Rendezvous, &turn);
    let listened = listened.inspect_err(|error| tracing::debug!(%error, "not in rank 0's place"));
    let Ok((acceptor, _)) = listened else { return false };
    let (mut acceptor, max_body) = (acceptor.echoing(), Frame::max_body_bytes(party.world_size));
    let mut back: BTreeMap<u32, Channel> = BTreeMap::new();
    loop {
        for (opening, channel) in acceptor.turn() {
            let is_other = (1..party.world_size).contains(&opening.rank);
            if !is_other || party.difference(&opening).is_some() {
                continue;
            }
            if opening.purpose == Purpose::Rendezvous {
                return true;
            }
            if back.insert(opening.rank, channel).is_none() {
                turn = deadline.no_later_than(LISTEN);
            }
        }
        back.retain(|_, channel| {
            channel.pump_frames(max_body);
            !channel.ended()
        });
        if back.len() + 1 == party.world_size as usize {
            return true;
        }
        if turn.passed() {
            return false;
        }
        acceptor.wait_with(back.values_mut(), turn.remaining());
    }
}

enum Received {
    Invited(Invitation),
    Refused(Verdict),
    Gone,
    Failed(Error),
}

fn be_received(identity: &Identity, party: &Party, mut channel: Channel, deadline: &Deadline) -> Received {
    let said = identity.incarnation.to_le_bytes().to_vec();
    channel.queue(Frame::Blob(deadline.told(), said).encode());
    let max_body = Frame::max_body_bytes(party.world_size);
    let mut made: Option<MadeId> = None;
    loop {
        match leaf::next_frame(&mut channel, max_body, deadline) {
            Some(Frame::Gathered(empty)) if empty.is_empty() && made.is_none() => {
                let id = match JobId::of(&identity.elsewhere()) {
                    Ok(id) => id,
                    Err(error) => return Received::Failed(error),
                };
                channel.queue(Frame::Blob(deadline.told(), id.to_bytes().to_vec()).encode());
                made = Some(MadeId { id, is_kept: false });
            }
            Some(Frame::Gathered(invitation)) => {
                let invitation = Invitation::decode(&invitation, party.world_size);
                let own = (Rank(party.rank), true);
                let is_own = |invitation: &Invitation| {
                    invitation.members().iter().any(|(member, is_new)| (member.rank, *is_new) == own)
                };
                let Some(invitation) = invitation.filter(is_own) else { return Received::Gone };
                made.iter_mut().for_each(|made| made.is_kept = true);
                return Received::Invited(invitation);
            }
            Some(Frame::Verdict(verdict)) => return Received::Refused(verdict),
            Some(_) | None => return Received::Gone,
        }
    }
}

/// An identifier that nobody can join with, unless it is kept.
struct MadeId {
    id: JobId,
    is_kept: bool,
}

impl Drop for MadeId {
    fn drop(&mut self) {
        if !self.is_kept {
            self.id.forget();
        }
    }
}

fn not_taken_back(identity: &Identity, deadline: &Deadline, place: String) -> Error {
    Error::NotTakenBack { rank: identity.rank, place, deadline: deadline.given }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{Scope, ScopedJoinHandle, scope};
    use std::time::Instant;

    use super::*;
    use crate::bootstrap::{Cancel, JobKey, Master, Member, Reception, Rendezvous};

    const WORLD_SIZE: u32 = 4;

    /// Only a hang reaches it.
    const AMPLE: Duration = Duration::from_secs(60);

    /// A job on a port of this host, which is reserved as `brevity run` does it, or free.
    struct Job {
        _held: Option<socket2::Socket>,
        port: u16,
        key: JobKey,
    }

    impl Job {
        fn new(is_reserved: bool) -> Self {
            let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            held.set_reuse_port(true).unwrap();
            held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            let port = held.local_addr().unwrap().as_socket().unwrap().port();
            Self { _held: Some(held).filter(|_| is_reserved), port, key: JobKey::generate().unwrap() }
        }

        fn identity(&self, rank: u32, incarnation: u32) -> Identity {
            let master = Master { host: "127.0.0.1".into(), port: self.port };
            let mut identity = Identity::new(Rank(rank), WORLD_SIZE, master);
            (identity.port_reserved, identity.incarnation) = (self._held.is_some(), incarnation);
            (identity.job, identity.key) = ("comeback".into(), Some(self.key.clone()));
            identity.join_timeout = AMPLE;
            identity
        }

        /// A rank that joins, after it has found that the job begins if it was started again.
        fn join<'scope>(
            &'scope self,
            threads: &'scope Scope<'scope, '_>,
            rank: u32,
            incarnation: u32,
        ) -> ScopedJoinHandle<'scope, ()> {
            threads.spawn(move || {
                let identity = self.identity(rank, incarnation);
                if incarnation > 0 {
                    let comeback = come_back(&identity).unwrap();
                    assert!(matches!(comeback, Comeback::Begins), "rank {rank}: {comeback:?}");
                }
                let blobs = Rendezvous::join(&identity).unwrap().exchange(&[rank as u8]).unwrap();
                assert!((0..).zip(&blobs).all(|(rank, blob)| *blob == [rank]), "{blobs:?}");
            })
        }
    }

    #[test]
    fn ranks_that_are_lost_before_the_job_begins_join_it() {
        let lost: [&[u32]; 5] = [&[2], &[0], &[0, 3], &[1, 2, 3], &[0, 1, 2, 3]];
        for (lost, is_reserved) in lost.into_iter().zip([true, false].into_iter().cycle()) {
            let (job, start) = (Job::new(is_reserved), Instant::now());
            scope(|threads| {
                for rank in 0..WORLD_SIZE {
                    job.join(threads, rank, if lost.contains(&rank) { 2 } else { 0 });
                }
            });
            assert!(start.elapsed() < AMPLE / 2, "{lost:?} after {:?}", start.elapsed());
        }
    }

    /// Rank 0 goes while the others are with it.
    #[test]
    fn ranks_that_have_met_rank_0_wait_for_the_one_that_is_started_again() {
        let job = Job::new(true);
        scope(|threads| {
            let cancel = Cancel::default();
            let first = threads.spawn({
                let (identity, cancel) = (job.identity(0, 0), cancel.clone());
                move || cancel.during(|| Rendezvous::join(&identity).map(drop))
            });
            for rank in [1, 2] {
                job.join(threads, rank, 0);
            }
            // The others have called it, or do so soon.
            std::thread::sleep(Duration::from_millis(300));
            cancel.cancel();
            assert!(first.join().unwrap().is_err());
            job.join(threads, 0, 1);
            job.join(threads, 3, 1);
        });
    }

    /// Rank 0 does not take the place of those who receive, whatever the others do meanwhile.
    #[test]
    fn a_job_of_which_a_rank_is_left_does_not_begin_anew() {
        for is_reserved in [true, false] {
            let job = Job::new(is_reserved);
            let (sender, back) = mpsc::channel();
            scope(|threads| {
                for rank in 0..3 {
                    let (sender, identity) = (sender.clone(), job.identity(rank, 1));
                    threads.spawn(move || sender.send((rank, come_back(&identity).unwrap())));
                }
                // They look for each other first.
                std::thread::sleep(Duration::from_millis(1200));
                let mut reception = Reception::open(&job.identity(3, 0)).unwrap();
                let [left, lost] = [3..4, 0..3].map(|ranks| {
                    let member = |rank| Member { rank: Rank(rank), incarnation: 0 };
                    ranks.map(member).collect::<Vec<_>>()
                });
                reception.wait(|| lost.clone(), AMPLE, || false);
                let invitation = reception.invite(&left, &lost).unwrap().unwrap();
                assert_eq!(invitation.members().len(), 4);
                for _ in 0..3 {
                    let (rank, comeback) = back.recv_timeout(AMPLE).unwrap();
                    let Comeback::Invited(invited) = comeback else { panic!("rank {rank} begins") };
                    assert_eq!(invited.1, invitation);
                }
                invitation.forget();
            });
        }
    }

    /// The place of return is another one than that where rank 0 listens.
    #[test]
    fn one_that_has_another_place_of_return_calls_rank_0_too() {
        let (job, other) = (Job::new(true), Job::new(true));
        scope(|threads| {
            for rank in [0, 1, 2] {
                job.join(threads, rank, 0);
            }
            let mut identity = job.identity(3, 1);
            identity.place_of_return = Some(Master { host: "127.0.0.1".into(), port: other.port });
            assert!(matches!(come_back(&identity).unwrap(), Comeback::Begins));
            job.join(threads, 3, 0);
        });
    }
}
