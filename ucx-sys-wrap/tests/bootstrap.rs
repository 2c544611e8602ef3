//! Ranks that find each other: who belongs together, who is missing, and strangers who disturb nobody.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ucx_sys_wrap::bootstrap::{Choice, Identity, JobKey, Master, Rendezvous, connect_mesh, open};
use ucx_sys_wrap::{Error, Rank, Result};

/// Only tells slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port of loopback that was free a moment ago.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn identity(rank: u32, world_size: u32, master: SocketAddr) -> Identity {
    let master = Master { host: master.ip().to_string(), port: master.port() };
    let mut identity = Identity::new(Rank(rank), world_size, master);
    identity.key = JobKey::parse("correct horse battery staple");
    identity.job = "a job".into();
    identity.join_timeout = Duration::from_secs(30);
    identity
}

/// Runs `body` for every identity in a thread of its own; the results in order.
fn together<R: Send + 'static>(
    identities: Vec<Identity>,
    body: impl Fn(&Identity) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let (sender, receiver) = mpsc::channel();
    let count = identities.len();
    for (position, identity) in identities.into_iter().enumerate() {
        let (sender, body) = (sender.clone(), body.clone());
        thread::spawn(move || sender.send((position, body(&identity))));
    }
    drop(sender);
    let mut results: Vec<(usize, R)> = (0..count).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
    results.sort_by_key(|(position, _)| *position);
    results.into_iter().map(|(_, result)| result).collect()
}

fn world(world_size: u32, master: SocketAddr) -> Vec<Identity> {
    (0..world_size).map(|rank| identity(rank, world_size, master)).collect()
}

#[test]
fn blobs_of_all_ranks_reach_all_ranks() {
    for world_size in 1..=8 {
        let expected: Vec<Vec<u8>> = (0..world_size).map(|rank| vec![rank as u8; rank as usize * 1000]).collect();
        let all = together(world(world_size, free_address()), move |identity| -> Result<_> {
            let mut rendezvous = Rendezvous::join(identity)?;
            let rank = identity.rank.0;
            let first = rendezvous.exchange(&vec![rank as u8; rank as usize * 1000])?;
            let second = rendezvous.exchange(&[])?;
            Ok((first, second))
        });
        for gathered in all {
            let (first, second) = gathered.unwrap();
            assert_eq!(first, expected);
            assert!(second.iter().all(Vec::is_empty));
        }
    }
}

#[test]
fn a_mesh_connects_every_pair() {
    for world_size in [2, 3, 8] {
        let checked = together(world(world_size, free_address()), |identity| -> Result<()> {
            let mut rendezvous = Rendezvous::join(identity)?;
            let mut streams = connect_mesh(identity, &mut rendezvous)?;
            for stream in streams.iter_mut().flatten() {
                stream.set_nonblocking(false).unwrap();
                stream.write_all(&[identity.rank.0 as u8]).unwrap();
            }
            for (peer, stream) in streams.iter_mut().enumerate() {
                assert_eq!(stream.is_none(), peer == identity.rank.index());
                if let Some(stream) = stream {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    assert_eq!(usize::from(byte[0]), peer);
                }
            }
            Ok(())
        });
        for outcome in checked {
            outcome.unwrap();
        }
    }
}

#[test]
fn missing_ranks_are_named_on_all_that_came() {
    let mut present = world(5, free_address());
    present.retain(|identity| ![2, 4].contains(&identity.rank.0));
    for identity in &mut present {
        identity.join_timeout = Duration::from_millis(1500);
    }
    let errors = together(present, |identity| Rendezvous::join(identity).map(drop).unwrap_err());
    for error in errors {
        let Error::MissingRanks { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing, &[Rank(2), Rank(4)]);
        assert!(error.to_string().starts_with("ranks 2, 4 did not join within"), "{error}");
    }
}

#[test]
fn without_rank_0_it_is_rank_0_that_is_missing() {
    let mut alone = identity(1, 2, free_address());
    alone.join_timeout = Duration::from_millis(300);
    let error = Rendezvous::join(&alone).map(drop).unwrap_err();
    assert!(matches!(&error, Error::MissingRanks { missing, .. } if *missing == [Rank(0)]), "{error}");
}

#[test]
fn a_rank_with_another_key_is_told_and_the_others_go_on() {
    let master = free_address();
    let mut identities = world(3, master);
    let mut impostor = identity(2, 3, master);
    impostor.key = JobKey::parse("another key that is as long");
    identities.push(impostor);
    let outcomes = together(identities, |identity| Rendezvous::join(identity).map(drop));
    assert!(outcomes[..3].iter().all(Result::is_ok), "{outcomes:?}");
    assert!(matches!(outcomes[3], Err(Error::Unauthenticated { .. } | Error::MissingRanks { .. })), "{outcomes:?}");
}

#[test]
fn a_wrong_key_is_named_while_the_rendezvous_waits() {
    let master = free_address();
    let mut root = identity(0, 2, master);
    root.join_timeout = Duration::from_secs(3);
    let mut impostor = identity(1, 2, master);
    impostor.key = None;
    let outcomes = together(vec![root, impostor], |identity| Rendezvous::join(identity).map(drop).unwrap_err());
    assert!(matches!(&outcomes[0], Error::MissingRanks { missing, .. } if *missing == [Rank(1)]), "{outcomes:?}");
    assert!(matches!(outcomes[1], Error::Unauthenticated { .. }), "{outcomes:?}");
}

#[test]
fn another_world_size_fails_all_and_names_the_rank() {
    let master = free_address();
    let identities = vec![identity(0, 3, master), identity(1, 3, master), identity(2, 4, master)];
    for error in together(identities, |identity| Rendezvous::join(identity).map(drop).unwrap_err()) {
        let text = error.to_string();
        assert!(matches!(error, Error::Disagreement { rank: Rank(2), .. }), "{text}");
        assert_eq!(text, "world size: rank 2 has 4, expected 3");
    }
}

#[test]
fn a_second_process_of_a_rank_is_turned_away() {
    let master = free_address();
    let mut identities = world(2, master);
    identities.insert(1, identity(1, 3, master));
    identities[1].world_size = 2;
    let outcomes = together(identities, |identity| {
        let outcome = Rendezvous::join(identity).map(drop);
        thread::sleep(Duration::from_millis(200));
        outcome
    });
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert_eq!(refused.len(), 1, "{outcomes:?}");
}

#[test]
fn a_rank_of_another_job_is_turned_away_and_the_job_goes_on() {
    let master = free_address();
    let mut lost = identity(1, 2, master);
    lost.job = "another job".into();
    let root = identity(0, 2, master);
    let (sender, receiver) = mpsc::channel();
    let joined = thread::spawn(move || Rendezvous::join(&root).map(drop));
    thread::spawn(move || sender.send(Rendezvous::join(&lost).map(drop)));
    let error = receiver.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(error, Error::Disagreement { what: "job", .. }), "{error}");
    Rendezvous::join(&identity(1, 2, master)).unwrap();
    joined.join().unwrap().unwrap();
}

#[test]
fn strangers_neither_stop_nor_delay_a_job() {
    let master = free_address();
    let root = thread::spawn(move || Rendezvous::join(&identity(0, 2, master)).map(drop));
    let start = Instant::now();
    let mut strangers = Vec::new();
    while strangers.len() < 1000 {
        assert!(start.elapsed() < PATIENCE);
        let Ok(mut stranger) = TcpStream::connect(master) else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        // Nothing, garbage, and the beginning of something good; a stranger that was dropped already is one.
        let _ = match strangers.len() % 3 {
            0 => Ok(()),
            1 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n"),
            _ => stranger.write_all(b"BREVITY\x01\x01\x00"),
        };
        strangers.push(stranger);
    }
    let joining = Instant::now();
    Rendezvous::join(&identity(1, 2, master)).unwrap();
    root.join().unwrap().unwrap();
    assert!(joining.elapsed() < Duration::from_secs(20), "joining took {:?}", joining.elapsed());
}

#[test]
fn a_master_that_others_can_reach_needs_a_key() {
    let mut open_to_all = identity(0, 2, free_address());
    open_to_all.master.host = "0.0.0.0".into();
    open_to_all.key = None;
    let error = Rendezvous::join(&open_to_all).map(drop).unwrap_err();
    assert!(matches!(error, Error::Environment { variable: "BREVITY_KEY", .. }), "{error}");
}

#[test]
fn a_transport_is_opened_as_rank_0_asks() {
    let mut identities = world(3, free_address());
    identities[0].transport = Choice::Tcp;
    identities[1].transport = Choice::Ucx;
    let opened = together(identities, |identity| {
        open(identity).map(|transport| (transport.name(), transport.rank(), transport.world_size()))
    });
    for (rank, opened) in opened.into_iter().enumerate() {
        assert_eq!(opened.unwrap(), ("tcp", Rank(rank as u32), 3));
    }
    let alone = open(&identity(0, 1, free_address())).unwrap();
    assert_eq!(alone.world_size(), 1);
}
