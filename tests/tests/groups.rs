//! Groups of some of the ranks of a job, beside each other and beside the group of all.

use std::thread;
use std::time::Duration;

use brevity::collectives::Error;
use brevity::transport::Rank;
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::mixed::any_call;
use brevity_tests::suite;
use brevity_tests::{on_host, on_local, on_transports};

/// Runs `body` on the ranks of a world over messages, and on one over shared memory.
fn on_both<R: Send + 'static>(world_size: u32, body: impl Fn(&Group) -> R + Send + Sync + Clone + 'static) {
    on_local(world_size, body.clone());
    on_host(world_size, Settings::default(), body);
}

fn sum(group: &Group, value: u32) -> u32 {
    let mut data = [value];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    data[0]
}

#[test]
fn ranks_of_one_colour_are_in_the_order_of_their_keys() {
    on_both(7, |group| {
        let rank = group.rank();
        let part = group.split((rank != 3).then_some(rank % 2), 10 - rank).unwrap();
        let Some(part) = part else { return assert_eq!(rank, 3) };
        let expected: Vec<Rank> =
            if rank % 2 == 0 { vec![6, 4, 2, 0] } else { vec![5, 1] }.into_iter().map(Rank).collect();
        assert_eq!(part.members(), expected);
        assert_eq!(part.members()[part.rank() as usize], Rank(rank));
        assert_eq!(sum(&part, rank), expected.iter().map(|rank| rank.0).sum());
        let tied = part.split(Some(0), 0).unwrap().unwrap();
        assert_eq!((tied.members(), tied.is_same(&part)), (part.members(), false));
    });
}

#[test]
fn every_collective_matches_its_oracle_in_a_part_of_the_ranks() {
    for world_size in [2, 5] {
        on_both(world_size, |group| {
            let duplicate = group.duplicate().unwrap();
            let part = group.split(Some(group.rank() / 3), group.rank()).unwrap().unwrap();
            for count in [0, 1, 1000, 100_000] {
                suite::run_on_group(&duplicate, count);
                suite::run_on_group(&part, count);
            }
        });
    }
}

#[test]
fn parts_of_a_host_share_memory() {
    let sent = on_host(5, Settings::default(), |group| {
        let part = group.split(Some(group.rank() / 3), group.rank()).unwrap().unwrap();
        let hosts = group.hosts().unwrap();
        assert_eq!(hosts.local.members(), group.members());
        assert_eq!(hosts.leaders.map(|leaders| leaders.world_size()), (group.rank() == 0).then_some(1));
        let before = group.statistics().messages_sent;
        suite::run_on_group(&part, 1000);
        assert!(part.statistics().bytes_shared > 0);
        group.statistics().messages_sent - before
    });
    assert_eq!(sent, [0; 5]);
}

/// Numbers and slots are free again when a group is dropped, and late messages do no harm.
#[test]
fn groups_come_and_go() {
    on_both(3, |group| {
        for turn in 0..1100 {
            let part = group.split((group.rank() != turn % 3).then_some(0), 0).unwrap();
            if let Some(part) = part {
                assert_eq!(sum(&part, 1), 2);
            }
        }
    });
}

#[test]
fn more_groups_than_there_are_numbers_are_refused_on_all_ranks() {
    on_local(2, |group| {
        let mut groups = Vec::new();
        let refused = loop {
            match group.duplicate() {
                Ok(duplicate) => groups.push(duplicate),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::TooManyGroups), "{refused}");
        assert_eq!((groups.len(), sum(&groups[500], 1)), (1007, 2));
        groups.truncate(1006);
        assert_eq!(sum(&group.duplicate().unwrap(), 2), 4);
    });
}

/// Splits at the same time, in an order that differs from rank to rank, on groups that overlap.
#[test]
fn splits_at_the_same_time_never_share_a_number() {
    on_both(4, |group| {
        let pairs: Vec<Group> = (0..3).map(|_| group.duplicate().unwrap()).collect();
        thread::scope(|threads| {
            for (which, parent) in pairs.iter().enumerate() {
                threads.spawn(move || {
                    for turn in 0..40 {
                        let part = parent.split(Some(parent.rank() % 2), 0).unwrap().unwrap();
                        let value = 1 << (8 * which) | turn;
                        assert_eq!(sum(&part, value), 2 * value);
                    }
                });
            }
        });
    });
}

#[test]
fn a_timeout_is_that_of_the_group_or_of_the_call() {
    on_both(2, |group| {
        let part = group.duplicate().unwrap();
        assert_eq!(part.timeout(), group.timeout());
        part.set_timeout(Duration::from_millis(50));
        assert_eq!(part.clone().timeout(), Duration::from_millis(50));
        assert_eq!(part.with_timeout(Duration::from_secs(9)).timeout(), Duration::from_secs(9));
        if group.rank() == 0 {
            let late = part.barrier().unwrap_err();
            assert!(matches!(late, Error::Timeout { rank: Rank(1), .. }), "{late}");
        } else {
            while !part.is_closed() {
                thread::yield_now();
            }
        }
        assert!(part.barrier().is_err() && part.is_closed() && !group.is_closed());
        assert_eq!(sum(group, 1), 2);
    });
}

#[test]
fn an_abort_closes_one_group() {
    on_both(3, |group| {
        let (one, two) = (group.duplicate().unwrap(), group.duplicate().unwrap());
        if group.rank() == 1 {
            one.abort();
        }
        let aborted = one.barrier().unwrap_err();
        assert!(matches!(aborted, Error::Aborted { rank: Rank(1) }), "{aborted}");
        for _ in 0..100 {
            assert_eq!((sum(&two, 1), sum(group, 2)), (3, 6));
        }
    });
}

#[test]
fn a_lost_rank_closes_the_groups_that_it_is_a_member_of() {
    on_both(4, |group| {
        let rank = group.rank();
        let with = group.split((rank != 0).then_some(0), 0).unwrap();
        let without = group.split((rank != 3).then_some(0), 0).unwrap();
        if rank == 3 {
            return;
        }
        let without = without.unwrap();
        for turn in 0..200 {
            assert_eq!(sum(&without, turn), 3 * turn);
        }
        let lost = group.barrier().unwrap_err();
        assert!(matches!(lost, Error::PeerLost { rank: Rank(3) }), "{lost}");
        if let Some(with) = with {
            let lost = with.barrier().unwrap_err();
            assert!(matches!(lost, Error::PeerLost { rank: Rank(3) }), "{lost}");
        }
        for turn in 0..200 {
            assert_eq!(sum(&without, turn), 3 * turn);
        }
        let part = without.split(Some(0), rank).unwrap().unwrap();
        assert_eq!(sum(&part, 5), 15);
    });
}

on_every_wire! {
    many_collectives_on_groups_that_overlap => |wire: Wire| drop(on_transports(wire.world(5), overlap));
}

#[test]
fn many_collectives_on_groups_that_overlap_on_a_host() {
    on_host(5, Settings::default(), overlap);
}

/// Four groups that overlap, three threads a rank: 1,000 collectives in all, blocking and not.
fn overlap(group: &Group) {
    let rank = group.rank();
    let part = |members: &[u32]| group.split(members.contains(&rank).then_some(0), rank).unwrap();
    let groups = [part(&[0, 1, 2]), part(&[2, 3, 4]), part(&[0, 2, 4]), part(&[0, 1, 2, 3, 4])];
    // A thread for each of three groups, and the fourth in the thread of one of them.
    thread::scope(|threads| {
        for which in 0..3 {
            let mine: Vec<_> = groups[which].iter().chain(groups[3].iter().filter(|_| which == 0)).collect();
            threads.spawn(move || {
                for turn in 0..250 {
                    mine.iter().for_each(|part| any_call(part, turn).unwrap());
                }
            });
        }
    });
}

on_every_wire! {
    a_soft_deadline_ends_its_messages_and_closes_nothing => |wire: Wire| {
        use brevity::transport::{Envelope, Error, Mark, Signature, Tag};
        on_transports(wire.world(2), |group| {
            let (own, peer) = (Rank(group.rank()), Rank(1 - group.rank()));
            let envelope = |source| {
                let (tag, signature) = (Tag::new(source, 1020, 0, 0), Signature::default());
                Envelope { tag, signature, mark: Mark::NONE }
            };
            let none = group.engine().run_softly(Duration::from_millis(20), async |comm| {
                comm.recv(peer, envelope(peer), vec![0u8; 3]).await.map(drop)
            });
            assert!(matches!(none, Err(Error::Timeout { .. })), "{none:?}");
            assert_eq!((sum(group, 1), group.is_closed()), (2, false));
            let found = group.engine().run_softly(Duration::from_secs(60), async |comm| {
                let sent = comm.send(peer, envelope(own), vec![7u8; 3]);
                let found = comm.recv(peer, envelope(peer), vec![0u8; 3]).await.unwrap().0;
                sent.await.unwrap();
                found
            });
            assert_eq!(found, [7; 3]);
            assert_eq!(sum(group, 1), 2);
        });
    };
}
