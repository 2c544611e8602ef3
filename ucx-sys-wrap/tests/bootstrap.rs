//! Joining a job: the rendezvous at rank 0, exchanges, and the mesh. Ranks are threads here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "bootstrap/deadlines.rs"]
mod deadlines;
#[path = "bootstrap/doors.rs"]
mod doors;
#[path = "bootstrap/strangers.rs"]
mod strangers;
#[path = "bootstrap/world.rs"]
mod world;

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use ucx_sys_wrap::bootstrap::{Choice, Identity, JobKey, MAX_BLOB_BYTES, connect_mesh, open, share_memory};
use ucx_sys_wrap::tcp::Wire;
use ucx_sys_wrap::{Error, Rank, Result};
use world::{AMPLE, Port, SHORT, all_ranks, error, joined, missing, rank};

#[test]
fn every_world_exchanges_blobs_in_rank_order() {
    for world_size in 1..=8 {
        let all = all_ranks(world_size, |identity, mut rendezvous| {
            let mine = |round: u32| vec![identity.rank.0 as u8; (identity.rank.0 * 7 + round) as usize];
            (0..5).map(|round| rendezvous.exchange(&mine(round))).collect::<Result<Vec<_>>>()
        });
        for rounds in all {
            for (round, blobs) in (0..).zip(rounds) {
                let expected: Vec<Vec<u8>> =
                    (0..world_size).map(|rank| vec![rank as u8; (rank * 7 + round) as usize]).collect();
                assert_eq!(blobs, expected, "P = {world_size}");
            }
        }
    }
}

#[test]
fn the_largest_blobs_arrive() {
    let all = all_ranks(5, |identity, mut rendezvous| {
        rendezvous.exchange(&vec![identity.rank.0 as u8 + 1; MAX_BLOB_BYTES])?;
        rendezvous.exchange(&vec![identity.rank.0 as u8; MAX_BLOB_BYTES])
    });
    for blobs in all {
        assert!((0..5).zip(&blobs).all(|(rank, blob)| *blob == vec![rank; MAX_BLOB_BYTES]));
    }
}

#[test]
fn a_longer_blob_is_refused_by_the_rank_that_has_it() {
    let sent = MAX_BLOB_BYTES as u64 + 1;
    all_ranks(2, move |identity, mut rendezvous| {
        let refused = rendezvous.exchange(&vec![0; MAX_BLOB_BYTES + 1]).unwrap_err();
        let Error::TooLong { rank, sent: found, .. } = refused else { panic!("{refused}") };
        assert_eq!((rank, found), (identity.rank, sent));
        rendezvous.exchange(b"fits")
    });
}

#[test]
fn missing_ranks_are_named_by_all_that_have_come() {
    let port = Port::reserve();
    let start = Instant::now();
    // Rank 4's deadline is the earliest and applies to all.
    let come: Vec<_> = [(0, AMPLE), (2, AMPLE), (4, SHORT)]
        .map(|(number, timeout)| rank(port.identity(number, 5, timeout), joined))
        .into();
    for rank in come {
        assert_eq!(missing(&error(rank)), [1, 3]);
    }
    assert!(start.elapsed() >= SHORT && start.elapsed() < AMPLE / 2, "{:?}", start.elapsed());
}

#[test]
fn without_rank_0_the_others_name_it() {
    let port = Port::reserve();
    let error = error(rank(port.identity(1, 2, SHORT), joined));
    assert_eq!(missing(&error), [0]);
    assert!(error.to_string().contains(&port.address().to_string()), "{error}");
}

#[test]
fn a_rank_that_does_not_take_part_in_an_exchange_is_named_by_all() {
    let port = Port::reserve();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let idle = rank(port.identity(2, 3, AMPLE), move |_, _rendezvous| {
        // Stays joined until the others are done.
        let _ = receiver.recv();
        Ok(())
    });
    let others: Vec<_> = [(0, AMPLE), (1, SHORT)]
        .map(|(number, timeout)| {
            rank(port.identity(number, 3, timeout), |_, mut rendezvous| {
                let first = rendezvous.exchange(b"mine").unwrap_err();
                let second = rendezvous.exchange(b"again").unwrap_err();
                assert_eq!(first.to_string(), second.to_string(), "a failure is final");
                Err::<(), _>(first)
            })
        })
        .into();
    for other in others {
        assert_eq!(missing(&error(other)), [2]);
    }
    drop(sender);
    idle.join().unwrap().unwrap();
}

#[test]
fn a_rank_that_ends_is_lost_to_all_at_once() {
    let port = Port::reserve();
    let start = Instant::now();
    let leaves = rank(port.identity(1, 4, AMPLE), joined);
    let stay: Vec<_> = [0, 2, 3]
        .map(|number| rank(port.identity(number, 4, AMPLE), |_, mut rendezvous| rendezvous.exchange(b"mine")))
        .into();
    leaves.join().unwrap().unwrap();
    for rank in stay {
        let error = error(rank);
        assert!(matches!(error, Error::PeerLost { rank: Rank(1) }), "{error}");
    }
    assert!(start.elapsed() < AMPLE / 2);
}

#[test]
fn another_key_is_refused_and_the_job_goes_on() {
    let port = Port::reserve();
    let root = rank(port.identity(0, 2, AMPLE), joined);
    let mut intruder = port.identity(1, 2, AMPLE);
    for key in [JobKey::parse("another key of 16 bytes"), None] {
        intruder.key = key;
        let error = error(rank(intruder.clone(), joined));
        assert!(matches!(error, Error::Unauthenticated { .. }), "{error}");
    }
    let late = rank(port.identity(1, 2, AMPLE), joined);
    late.join().unwrap().unwrap();
    root.join().unwrap().unwrap();
}

#[test]
fn a_rank_of_another_job_is_turned_away_and_the_job_goes_on() {
    let port = Port::reserve();
    let root = rank(port.identity(0, 2, AMPLE), joined);
    let mut stray = port.identity(1, 2, AMPLE);
    stray.job = "other".into();
    let error = error(rank(stray, joined));
    assert_eq!(error.to_string(), "job: rank 1 has \"other\", expected \"test\"");
    rank(port.identity(1, 2, AMPLE), joined).join().unwrap().unwrap();
    root.join().unwrap().unwrap();
}

#[test]
fn another_world_size_is_named_by_all_even_by_those_that_come_later() {
    let port = Port::reserve();
    let mut ranks = vec![rank(port.identity(0, 4, AMPLE), joined), rank(port.identity(1, 4, AMPLE), joined)];
    ranks.push(rank(port.identity(2, 5, AMPLE), joined));
    thread::sleep(Duration::from_millis(300));
    ranks.push(rank(port.identity(3, 4, AMPLE), joined));
    for rank in ranks {
        assert_eq!(error(rank).to_string(), "world size: rank 2 has 5, expected 4");
    }
}

#[test]
fn the_second_process_of_a_rank_is_turned_away_every_time() {
    let port = Port::reserve();
    let root = rank(port.identity(0, 3, AMPLE), joined);
    let first = rank(port.identity(1, 3, AMPLE), joined);
    thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        let error = error(rank(port.identity(1, 3, AMPLE), joined));
        let Error::Disagreement { rank, .. } = error else { panic!("{error}") };
        assert_eq!(rank, Rank(1));
    }
    rank(port.identity(2, 3, AMPLE), joined).join().unwrap().unwrap();
    first.join().unwrap().unwrap();
    root.join().unwrap().unwrap();
}

#[test]
fn every_two_ranks_of_a_mesh_are_connected_to_each_other() {
    for world_size in 1..=8 {
        let all = all_ranks(world_size, |identity, mut rendezvous| {
            let wires = connect_mesh(identity, &mut rendezvous)?;
            for (peer, wire) in (0..).zip(&wires) {
                assert_eq!(wire.is_some(), peer != identity.rank.0);
                if let Some(stream) = wire.as_ref().map(Wire::socket) {
                    stream.set_nonblocking(false).unwrap();
                    (&mut &*stream).write_all(&[identity.rank.0 as u8, peer as u8]).unwrap();
                }
            }
            for (peer, wire) in (0u32..).zip(&wires) {
                let mut pair = [0; 2];
                let Some(mut stream) = wire.as_ref().map(Wire::socket) else { continue };
                stream.set_read_timeout(Some(AMPLE)).unwrap();
                stream.read_exact(&mut pair).unwrap();
                assert_eq!(pair, [peer as u8, identity.rank.0 as u8]);
            }
            Ok(wires.len())
        });
        assert_eq!(all, vec![world_size as usize; world_size as usize]);
    }
}

#[test]
fn a_rank_that_ends_before_the_mesh_is_no_reason_to_wait_for_the_deadline() {
    let port = Port::reserve();
    let start = Instant::now();
    let leaves = rank(port.identity(1, 3, AMPLE), joined);
    let stay: Vec<_> = [0, 2]
        .map(|number| {
            rank(port.identity(number, 3, AMPLE), |identity, mut rendezvous| {
                connect_mesh(identity, &mut rendezvous)
            })
        })
        .into();
    leaves.join().unwrap().unwrap();
    for rank in stay {
        let error = error(rank);
        assert!(matches!(error, Error::PeerLost { rank: Rank(1) }), "{error}");
    }
    assert!(start.elapsed() < AMPLE / 2);
}

#[test]
fn only_loopback_is_served_without_a_key() {
    let needs_key = |identity: Identity| {
        let error = error(rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous)));
        assert!(matches!(error, Error::Environment { variable: "BREVITY_KEY", .. }), "{error}");
    };
    let port = Port::reserve();
    for number in [0, 1] {
        let mut open_to_all = port.identity(number, 2, AMPLE);
        open_to_all.master.host = "0.0.0.0".into();
        open_to_all.key = None;
        needs_key(open_to_all);
    }
    let Some(outside) =
        if_addrs::get_if_addrs().unwrap().into_iter().find(|interface| !interface.is_loopback())
    else {
        println!("skipped: no network interface but loopback");
        return;
    };
    let mut inside = port.identity(0, 2, AMPLE);
    inside.key = None;
    let mut open_to_all = inside.clone();
    open_to_all.rank = Rank(1);
    open_to_all.interface = Some(outside.name);
    let root = rank(inside, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous));
    needs_key(open_to_all);
    assert_eq!(missing(&error(root)), [1]);
}

#[test]
fn a_transport_is_opened_as_rank_0_asks() {
    let alone = Identity::from_lookup(|_| None).unwrap();
    assert_eq!(open(&alone).unwrap().transport.world_size(), 1);
    let port = Port::reserve();
    let ranks: Vec<_> = [Choice::Tcp, Choice::Ucx, Choice::Auto]
        .into_iter()
        .zip(0..)
        .map(|(transport, number)| {
            let mut identity = port.identity(number, 3, AMPLE);
            identity.transport = transport;
            thread::spawn(move || {
                open(&identity)
                    .map(|open| (open.transport.name(), open.transport.rank(), open.transport.world_size()))
            })
        })
        .collect();
    for (number, rank) in (0..).zip(ranks) {
        assert_eq!(rank.join().unwrap().unwrap(), ("tcp", Rank(number), 3));
    }
}

#[test]
fn a_mesh_is_all_encrypted_or_not_at_all() {
    for encrypt in [true, false] {
        let port = Port::reserve();
        let ranks = (0..3).map(|number| {
            let mut identity = port.identity(number, 3, AMPLE);
            identity.encrypt = encrypt;
            rank(identity, |identity, mut rendezvous| connect_mesh(identity, &mut rendezvous))
        });
        for (number, rank) in ranks.collect::<Vec<_>>().into_iter().enumerate() {
            let wires = rank.join().unwrap().unwrap();
            assert!((0..3).all(|peer| wires[peer].is_some() == (peer != number)));
            assert!(wires.iter().flatten().all(|wire| wire.is_encrypted() == encrypt));
        }
    }
}

#[test]
fn encryption_is_agreed_on_or_nothing_is_opened() {
    let opened = |encrypts: [bool; 3], keyed: bool| -> Vec<Result<&'static str>> {
        let port = Port::reserve();
        let ranks = (0..).zip(encrypts).map(|(number, encrypt)| {
            let mut identity = port.identity(number, 3, AMPLE);
            identity.encrypt = encrypt;
            identity.key = identity.key.filter(|_| keyed);
            thread::spawn(move || open(&identity).map(|open| open.transport.name()))
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    };
    // Rank 0 decides, and rejects a transport that a rank lacks.
    for result in opened([true, false, false], true) {
        assert_eq!(result.unwrap(), "tcp");
    }
    // A rank that insists on a transport accepts no other.
    for result in opened([false, false, true], true) {
        let error = result.unwrap_err().to_string();
        assert_eq!(error, "BREVITY_ENCRYPT: rank 2 has 1, expected 0, as rank 0 has: set it for all ranks");
    }
    for result in opened([true; 3], false) {
        assert!(matches!(result, Err(Error::Environment { variable: "BREVITY_KEY", .. })), "{result:?}");
    }
}

/// For each of five ranks, the ranks that it shares memory with; `change` makes their identities differ.
fn sharing(change: fn(&mut Identity)) -> Vec<Option<Vec<u32>>> {
    let port = Port::reserve();
    let ranks = (0..5).map(|number| {
        let mut identity = port.identity(number, 5, AMPLE);
        change(&mut identity);
        rank(identity, |identity, mut rendezvous| share_memory(identity, &mut rendezvous))
    });
    let ranks: Vec<_> = ranks.collect();
    let mut sharing = Vec::new();
    for (number, rank) in ranks.into_iter().enumerate() {
        let local_group = rank.join().unwrap().unwrap();
        if let Some(local_group) = &local_group {
            assert_eq!(local_group.ranks()[local_group.own_place()].index(), number);
        }
        sharing.push(local_group.map(|shared| shared.ranks().iter().map(|rank| rank.0).collect()));
    }
    sharing
}

#[test]
fn the_ranks_of_a_host_share_memory() {
    let all = Some(vec![0, 1, 2, 3, 4]);
    assert_eq!(sharing(|_| {}), vec![all.clone(); 5]);
    assert_eq!(sharing(|identity| identity.shared_memory = identity.rank != Rank(0)), vec![None; 5]);
    assert_eq!(sharing(|identity| identity.shared_memory = identity.rank == Rank(0)), vec![all; 5]);
    let (even, odd) = (Some(vec![0, 2, 4]), Some(vec![1, 3]));
    let by_id = sharing(|identity| identity.host_id = Some((identity.rank.0 % 2).to_string()));
    assert_eq!(by_id, [even.clone(), odd.clone(), even.clone(), odd, even]);
}
