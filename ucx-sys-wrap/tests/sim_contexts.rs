//! Contexts on the simulated network: a rank is killed after each of its messages.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, Task, TaskFuture};
use ucx_sys_wrap::sim::{Cluster, Fault, Links, run};
use ucx_sys_wrap::{Envelope, Error, Failure, Mark, Rank, Result, Signature, Tag};

/// A latency of 100 us and 1 ns a byte.
fn links() -> Links {
    Links::new(100e-6, 1e-9)
}

/// When all ranks have done everything.
const END: Duration = Duration::from_secs(1);

/// Long after anything that may still happen.
const TIMEOUT: Duration = Duration::from_secs(10);

fn envelope(context: u16, epoch: u8, source: Rank, round: u32) -> Envelope {
    let mut signature = Signature::default();
    signature.0[Signature::EPOCH_AT] = epoch;
    Envelope { tag: Tag::new(source, context, 0, round), signature, mark: Mark::NONE }
}

/// The members of a context, and what they do in it.
#[derive(Clone, Debug)]
struct Group {
    number: u16,
    members: Vec<Rank>,
    pattern: Pattern,
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Twice around the ring.
    Ring,
    /// Everyone sends to everyone, twice.
    AllToAll,
    /// The first member sends to the others one after another, and they answer; twice.
    Star,
}

const PATTERNS: [Pattern; 3] = [Pattern::Ring, Pattern::AllToAll, Pattern::Star];

impl Group {
    fn has(&self, rank: Rank) -> bool {
        self.members.contains(&rank)
    }

    /// What this rank does. All ranks wait for all others, directly or not.
    async fn run(&self, comm: &Comm<'_>) -> Result<()> {
        let own = comm.port().rank();
        let place = self.members.iter().position(|member| *member == own).unwrap();
        let (size, first) = (self.members.len(), self.members[0]);
        let peers = || self.members.iter().copied().filter(|member| *member != own);
        for round in 0..2 {
            match self.pattern {
                Pattern::Ring => {
                    for step in 0..size as u32 {
                        let round = round * size as u32 + step;
                        self.send(comm, self.members[(place + 1) % size], round).await?;
                        self.recv(comm, self.members[(place + size - 1) % size], round).await?;
                    }
                }
                Pattern::AllToAll => {
                    for peer in peers() {
                        self.send(comm, peer, round).await?;
                    }
                    for peer in peers() {
                        self.recv(comm, peer, round).await?;
                    }
                }
                Pattern::Star if own == first => {
                    for peer in peers() {
                        self.send(comm, peer, round).await?;
                        self.recv(comm, peer, round).await?;
                    }
                }
                Pattern::Star => {
                    self.recv(comm, first, round).await?;
                    self.send(comm, first, round).await?;
                }
            }
        }
        Ok(())
    }

    /// Small messages and large ones in turn, that name the context, the sender and the round.
    fn bytes(&self, source: Rank, round: u32) -> Vec<u8> {
        let length = if round.is_multiple_of(2) { 3 } else { 2000 };
        [self.number as u8, source.0 as u8, round as u8].into_iter().cycle().take(length).collect()
    }

    async fn send(&self, comm: &Comm<'_>, to: Rank, round: u32) -> Result<()> {
        let own = comm.port().rank();
        comm.send(to, envelope(self.number, 0, own, round), self.bytes(own, round)).await.map(|_| ())
    }

    async fn recv(&self, comm: &Comm<'_>, from: Rank, round: u32) -> Result<()> {
        let tag = envelope(self.number, 0, from, round);
        let (mut bytes, arrival) = comm.recv(from, tag, vec![0u8; 2000]).await?;
        bytes.truncate(arrival.lengths[0]);
        assert!(bytes == self.bytes(from, round), "{self:?}, from {from}, round {round}");
        Ok(())
    }
}

/// The results of a context: of the first run, of a second one afterwards, and why it is closed.
#[derive(Debug)]
struct InContext {
    number: u16,
    first: Result<()>,
    later: Result<()>,
    failure: Option<Failure>,
}

/// What a rank ends with.
#[derive(Debug)]
struct Ended {
    contexts: Vec<InContext>,
    messages: u64,
    at: Duration,
}

/// Runs all contexts at once on every rank; then each rank tries its contexts once more.
fn simulate(world_size: u32, groups: &[Group], fault: Option<Fault>) -> Vec<Ended> {
    let cluster = Cluster::new(world_size, links()).with_faults(fault);
    let ended = run(cluster, |transport| {
        let port = Port::new(transport);
        let own: Vec<Group> = groups.iter().filter(|group| group.has(port.rank())).cloned().collect();
        async move {
            for group in &own {
                port.open_context(group.number, 0, group.members.clone().into(), OnLoss::Close);
            }
            let first = all(&port, own.clone(), |comm, group| Box::pin(group.run(comm))).await;
            let messages = port.statistics().messages_sent;
            let at = port.now();
            // A closed context refuses everything; in the others this is once more the same.
            let later = all(&port, own.clone(), |comm, group| Box::pin(group.run(comm))).await;
            // A rank that leaves is lost for those that still need it.
            poll_fn(|_| {
                port.progress();
                if port.now() >= END { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let contexts = own.iter().zip(first.into_iter().zip(later));
            let contexts = contexts
                .map(|(group, (first, later))| {
                    let (number, failure) = (group.number, port.failure(group.number));
                    InContext { number, first, later, failure }
                })
                .collect();
            Ended { contexts, messages, at }
        }
    });
    ended.unwrap()
}

/// Runs a task for each group at the same time.
async fn all(
    port: &Arc<Port>,
    groups: Vec<Group>,
    body: for<'comm> fn(&'comm Comm<'_>, &'comm Group) -> TaskFuture<'comm, Result<()>>,
) -> Vec<Result<()>> {
    let mut results: Vec<_> = groups.iter().map(|_| None).collect();
    let mut tasks: Vec<_> = groups
        .into_iter()
        .map(|group| Task::new(port, group, move |comm, group| body(comm, group)))
        .collect();
    poll_fn(|context| {
        port.progress();
        for (task, result) in tasks.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if port.now() >= TIMEOUT {
                task.comm().expire();
            }
            if let Poll::Ready((_, ended)) = task.poll(context) {
                *result = Some(ended);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

fn is_lost(result: &Result<()>, victim: Rank) -> bool {
    matches!(result, Err(Error::PeerLost { rank }) if *rank == victim)
}

/// Kills the first rank after each of its messages. It is in the first context and not in the second.
fn kill_everywhere(world_size: u32, victim: Rank, groups: &[Group; 2]) {
    assert!(groups[0].has(victim) && !groups[1].has(victim));
    let calm = simulate(world_size, groups, None);
    assert!(calm.iter().flat_map(|ended| &ended.contexts).all(|it| it.first.is_ok() && it.later.is_ok()));
    for messages in 0..=calm[victim.index()].messages {
        let case = format!("{groups:?}, rank {victim} killed after {messages} messages");
        let ended = simulate(world_size, groups, Some(Fault::KillAfter { rank: victim, messages }));
        assert_eq!(ended[victim.index()].messages, messages, "{case}");
        for (rank, ended) in Rank::all(world_size).zip(&ended) {
            assert!(ended.at < END / 2, "{case}: {ended:?}");
            for InContext { number, first, later, failure } in &ended.contexts {
                if *number == groups[1].number {
                    assert!(first.is_ok() && later.is_ok() && failure.is_none(), "{case}: {ended:?}");
                    continue;
                }
                // Who had all that it needed before the death may have ended well.
                assert!(first.is_ok() || is_lost(first, victim), "{case}: rank {rank}: {ended:?}");
                assert!(is_lost(later, victim), "{case}: rank {rank}: {ended:?}");
                assert_eq!(*failure, Some(Failure::PeerLost(victim)), "{case}: rank {rank}");
            }
        }
    }
}

fn group(number: u16, members: &[u32], pattern: Pattern) -> Group {
    Group { number, members: members.iter().map(|rank| Rank(*rank)).collect(), pattern }
}

/// The dead is the first member of its context, or another one. In each context of the dead is a member of
/// the other, so that both use the same transports.
fn kill_in_worlds(worlds: &[(u32, &[u32], &[u32])]) {
    for (world_size, with, without) in worlds {
        for (first, second) in PATTERNS.iter().flat_map(|first| PATTERNS.map(|second| (*first, second))) {
            for turned in 0..with.len() {
                let mut members = with.to_vec();
                members.rotate_left(turned);
                let groups = [group(1, &members, first), group(2, without, second)];
                kill_everywhere(*world_size, Rank(0), &groups);
            }
        }
    }
}

#[test]
fn of_three_ranks_a_death_after_any_message_ends_its_contexts_alone() {
    kill_in_worlds(&[(3, &[0, 1], &[1, 2]), (3, &[0, 1, 2], &[1, 2])]);
}

#[test]
fn of_four_ranks_a_death_after_any_message_ends_its_contexts_alone() {
    kill_in_worlds(&[(4, &[0, 1, 2], &[1, 2, 3]), (4, &[0, 1, 2, 3], &[1, 2, 3]), (4, &[0, 3], &[1, 2, 3])]);
}

/// A rank dies when it posts its last message, which still arrives; none of a later one is posted.
#[test]
fn a_rank_dies_when_it_has_posted_its_last_message() {
    for count in 0..4u64 {
        let kill = Fault::KillAfter { rank: Rank(0), messages: count };
        let later = Fault::KillAfter { rank: Rank(0), messages: count + 1 };
        let results = run(Cluster::new(2, links()).with_faults([later, kill, later]), move |transport| {
            let port = Port::new(transport);
            let mut task = Task::new(&port, (), move |comm, ()| {
                Box::pin(async move {
                    let mut ended = 0;
                    for round in 0..4 {
                        let envelope = envelope(0, 0, Rank(0), round);
                        let result = match comm.port().rank() {
                            Rank(0) => comm.send(Rank(1), envelope, ()).await.map(|_| ()),
                            _ => comm.recv(Rank(0), envelope, ()).await.map(|_| ()),
                        };
                        if result.is_err() {
                            assert!(is_lost(&result, Rank(0)), "{result:?}");
                            break;
                        }
                        ended += 1;
                    }
                    (ended, comm.now())
                })
            });
            async move {
                let ((), (ended, at)) = poll_fn(|context| {
                    port.progress();
                    task.poll(context)
                })
                .await;
                (ended, at, port.failure(0))
            }
        });
        let (none, all) = (Duration::ZERO, Some(Failure::PeerLost(Rank(0))));
        assert_eq!(results.unwrap(), [(count, none, all), (count, Duration::from_micros(100), all)]);
    }
}

/// Ranks 0 and 2 are one process, and 1 and 3: it posts in both worlds by turns, and dies in both.
#[test]
fn twins_die_together_after_the_messages_of_both() {
    for count in 0..=5u64 {
        let kill = Fault::KillAfter { rank: Rank(0), messages: count };
        let cluster = Cluster::new(4, links()).with_twins().with_faults([kill]);
        let ports = RefCell::new(Vec::new());
        let results = run(cluster.clone(), |transport| {
            let own = transport.rank();
            ports.borrow_mut().push(Port::new(transport));
            let ports = &ports;
            async move {
                let mut ended = 0;
                while own.0 < 2 && ended < 4 {
                    let place = own.0 + ended as u32 % 2 * 2;
                    let port = Arc::clone(&ports.borrow()[place as usize]);
                    let mut task = Task::new(&port, (), |comm, ()| {
                        Box::pin(async move {
                            let source = Rank(comm.port().rank().0 & 2);
                            let envelope = envelope(0, 0, source, 0);
                            match comm.port().rank() {
                                own if own == source => {
                                    comm.send(Rank(own.0 + 1), envelope, ()).await.map(|_| ())
                                }
                                _ => comm.recv(source, envelope, ()).await.map(|_| ()),
                            }
                        })
                    });
                    let ((), result) = poll_fn(|context| {
                        port.progress();
                        task.poll(context)
                    })
                    .await;
                    if result.is_err() {
                        assert!(is_lost(&result, Rank(place & 2)), "{result:?}");
                        break;
                    }
                    ended += 1;
                }
                ended
            }
        });
        assert_eq!(results.unwrap(), [count.min(4), count.min(4), 0, 0]);
        assert_eq!(cluster.messages_sent(Rank(2)), count.min(4));
    }
}

/// Nobody waits for the dead; the members learn of it from the one that does.
#[test]
fn all_members_are_told_one_latency_after_the_first_has_found_out() {
    let kill = Fault::Kill { rank: Rank(3), at: Duration::from_millis(1) };
    let told = run(Cluster::new(4, links()).with_faults([kill]), |transport| {
        let port = Port::new(transport);
        let mut task = (port.rank() == Rank(0)).then(|| {
            Task::new(&port, (), |comm, ()| {
                Box::pin(async { drop(comm.recv(Rank(3), envelope(0, 0, Rank(3), 0), ()).await) })
            })
        });
        poll_fn(move |context| {
            port.progress();
            let _ = task.as_mut().is_some_and(|task| task.poll(context).is_ready()).then(|| task = None);
            match port.failure(0) {
                Some(failure) => Poll::Ready((failure, port.now(), port.lost())),
                None => Poll::Pending,
            }
        })
    });
    let lost = Failure::PeerLost(Rank(3));
    let at = |alphas| Duration::from_millis(1) + alphas * Duration::from_micros(100);
    let told = told.unwrap();
    assert_eq!(told[0], (lost, at(1), vec![Rank(3)]));
    assert_eq!(told[1], (lost, at(2), vec![]));
    assert_eq!(told[2], (lost, at(2), vec![]));
    assert_eq!((told[3].0, told[3].1), (lost, at(0)));
}

/// Messages of an old epoch are dropped before and after their receive is posted.
#[test]
fn a_receive_gets_the_message_of_its_epoch() {
    let results = run(Cluster::new(2, links()), |transport| {
        let port = Port::new(transport);
        let epoch = |epoch| port.open_context(1, epoch, [Rank(0), Rank(1)].into(), OnLoss::Close);
        epoch(if port.rank() == Rank(0) { 1 } else { 2 });
        let mut task = Task::new(&port, (), move |comm, ()| {
            Box::pin(async move {
                let tag = |epoch, round| envelope(1, epoch, Rank(0), round);
                for round in [0, 1] {
                    if comm.port().rank() == Rank(0) {
                        for size in 0..100 {
                            comm.send(Rank(1), tag(1, round), vec![0xeeu8; size]).await?;
                        }
                        comm.send(Rank(1), tag(2, round), vec![1u8; 50]).await?;
                        comm.send(Rank(1), envelope(0, 0, Rank(0), round), ()).await?;
                        continue;
                    }
                    let recv = (round == 0).then(|| comm.recv(Rank(0), tag(2, round), vec![0u8; 100]));
                    comm.recv(Rank(0), envelope(0, 0, Rank(0), round), ()).await?;
                    let recv = recv.unwrap_or_else(|| comm.recv(Rank(0), tag(2, round), vec![0u8; 100]));
                    let (bytes, arrival) = recv.await?;
                    assert_eq!((arrival.lengths[0], &bytes[..50]), (50, &[1u8; 50][..]));
                }
                Ok::<(), Error>(())
            })
        });
        poll_fn(move |context| {
            port.progress();
            task.poll(context)
        })
    });
    assert!(results.unwrap().iter().all(|((), result)| result.is_ok()));
}

/// Every member tells every other.
#[test]
fn a_death_among_many_ranks_is_told_to_all() {
    let kill = Fault::Kill { rank: Rank(500), at: Duration::from_millis(1) };
    let told = run(Cluster::new(512, links()).with_faults([kill]), |transport| {
        let port = Port::new(transport);
        let mut task = Task::new(&port, (), |comm, ()| {
            let previous = Rank((comm.port().rank().0 + 511) % 512);
            Box::pin(async move { comm.recv(previous, envelope(0, 0, previous, 0), ()).await.map(|_| ()) })
        });
        poll_fn(move |context| {
            port.progress();
            task.poll(context)
        })
    });
    assert!(told.unwrap().iter().all(|((), result)| is_lost(result, Rank(500))));
}
