//! The descriptor exchange: with the ranks that belong to it, and with strangers.

use std::io::{Read, Write};

use super::*;
use crate::shm::{Layout, LocalGroup, PeerSegment, Prepared, WakeSender};

const KEY: &[u8] = b"correct horse battery";

fn party(rank: u32, key: &[u8]) -> Party {
    Party { key: key.to_vec(), job: "job".into(), rank, world_size: 3, wire_version: 1 }
}

fn listener(rank: u32) -> ([u8; SOCKET_NAME_BYTES], FdExchange) {
    let mut name = [rank as u8; SOCKET_NAME_BYTES];
    super::super::key::fill_random(&mut name[1..]).unwrap();
    (name, FdExchange::open(&name).unwrap())
}

fn blocking(stream: UnixStream) -> UnixStream {
    stream.set_nonblocking(false).unwrap();
    stream
}

fn prepared(rank: u32) -> Prepared {
    LocalGroup::prepare(Rank(rank), &[Rank(0), Rank(1), Rank(2)]).unwrap()
}

/// All of three ranks exchange, the last one after `disturb` has used the socket of rank 0, which is
/// open so long.
fn exchange(
    keys: [&[u8]; 3],
    patience: Duration,
    disturb: impl Fn(&[u8; SOCKET_NAME_BYTES]) + Sync,
) -> Vec<Result<Vec<(Rank, PassedDescriptors)>>> {
    let listeners: Vec<_> = (0..3).map(listener).collect();
    let names: Vec<_> = listeners.iter().map(|(name, _)| *name).collect();
    let give = |rank: u32| {
        let others = (0..3u32).filter(|other| *other != rank);
        let peers: Vec<_> = others.map(|other| (Rank(other), names[other as usize])).collect();
        let (party, deadline) = (party(rank, keys[rank as usize]), Deadline::after(patience));
        let own = prepared(rank);
        listeners[rank as usize].1.exchange(&party, &peers, &|to| own.passed(to), deadline, &mut || Ok(()))
    };
    std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(&names[0]));
        let give = &give;
        let early = [0, 1].map(|rank| scope.spawn(move || give(rank)));
        disturbing.join().unwrap();
        let last = give(2);
        early.into_iter().map(|rank| rank.join().unwrap()).chain([last]).collect()
    })
}

fn assert_all_given(results: Vec<Result<Vec<(Rank, PassedDescriptors)>>>) {
    for (rank, result) in results.into_iter().enumerate() {
        let mut received = result.unwrap();
        received.sort_by_key(|(sender, _)| sender.0);
        let senders: Vec<usize> = received.iter().map(|(sender, _)| sender.index()).collect();
        assert_eq!(senders, (0..3).filter(|other| *other != rank).collect::<Vec<_>>());
        for (sender, passed) in received {
            let [segment, _, wake_sender] = passed.descriptors;
            PeerSegment::new(sender, &segment, Layout::new(3)).unwrap();
            WakeSender::received(sender, wake_sender).unwrap();
        }
    }
}

#[test]
fn every_rank_gets_the_descriptors_of_the_others() {
    assert_all_given(exchange([KEY; 3], Duration::from_secs(20), |_| {}));
}

#[test]
fn strangers_get_nothing_and_block_nobody() {
    let results = exchange([KEY; 3], Duration::from_secs(20), |name| {
        let connect = || blocking(dial(name).unwrap());
        let silent: Vec<_> = (0..20).map(|_| connect()).collect();
        let mut noisy = connect();
        noisy.write_all(&[7; 4 * OPENING_BYTES]).unwrap();
        let mut liar = connect();
        let opening =
            party(2, b"another key entirely").opening(Purpose::FdExchange, Role::Caller, 0).unwrap();
        liar.write_all(&opening.encode()).unwrap();
        liar.read_exact(&mut [0; OPENING_BYTES]).unwrap();
        liar.write_all(&[0; PROOF_BYTES]).unwrap();
        assert_eq!(liar.read(&mut [0; 1]).unwrap(), 0, "a proof that is none is not answered");
        drop(silent);
    });
    assert_all_given(results);
}

/// The open sockets of this name, the listener among them.
fn sockets(name: &[u8; SOCKET_NAME_BYTES]) -> usize {
    let name = format!("@brevity-{}", hex(name));
    std::fs::read_to_string("/proc/self/net/unix")
        .unwrap()
        .lines()
        .filter(|line| line.ends_with(&name))
        .count()
}

#[test]
fn callers_that_have_gone_cost_no_descriptors() {
    let (name, listener) = listener(0);
    let nobody = [(Rank(1), name)];
    let deadline = Deadline::after(Duration::from_secs(3));
    std::thread::scope(|scope| {
        let left = scope.spawn(|| {
            for _ in 0..1000 {
                if let Ok(mut stranger) = dial(&name) {
                    let _ = stranger.write_all(&[7; OPENING_BYTES]);
                }
            }
            while sockets(&name) > 1 && !deadline.passed() {
                std::thread::sleep(POLL);
            }
            // While the listener is still open.
            (sockets(&name), deadline.passed())
        });
        let own = prepared(0);
        let missing =
            listener.exchange(&party(0, KEY), &nobody, &|to| own.passed(to), deadline, &mut || Ok(()));
        assert!(matches!(missing, Err(Error::MissingRanks { .. })));
        assert_eq!(
            left.join().unwrap(),
            (1, false),
            "sockets of callers that have gone, and whether they stay"
        );
    });
}

/// Another user than the one that runs this.
fn somebody() -> u32 {
    geteuid().as_raw().wrapping_add(1)
}

#[test]
fn other_users_are_not_served() {
    let (name, mut listener) = listener(0);
    listener.user = somebody();
    let mut caller = blocking(dial(&name).unwrap());
    assert!(listener.accept().is_none());
    assert_eq!(caller.read(&mut [0]).unwrap(), 0, "the connection is closed");
    listener.user = geteuid().as_raw();
    let _caller = dial(&name).unwrap();
    assert!(listener.accept().is_some());
}

#[test]
fn nothing_is_sent_to_a_listener_of_another_user() {
    let (name, theirs) = listener(0);
    let refused = Link::call(&party(1, KEY), Rank(0), dial(&name).unwrap(), somebody()).map(drop);
    let Err(Error::Unauthenticated { who }) = &refused else { panic!("{refused:?}") };
    assert_eq!(*who, format!("a process of user {}", geteuid().as_raw()));
    assert_eq!(theirs.accept().unwrap().read(&mut [0]).unwrap(), 0, "not a word");
}

#[test]
fn a_listener_without_the_key_gets_nothing() {
    type Forgery = fn(&[u8], &[u8]) -> [u8; PROOF_BYTES];
    let forgeries: [Forgery; 2] = [
        |_, _| [0x5a; PROOF_BYTES],
        |caller, answerer| prove(b"another key entirely", Role::Answerer, caller, answerer),
    ];
    for forge in forgeries {
        let (name, impostor) = listener(0);
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| {
                let (own, party) = (prepared(1), party(1, KEY));
                let mut link = Link::call(&party, Rank(0), dial(&name).unwrap(), geteuid().as_raw()).unwrap();
                loop {
                    match link.advance(&|to| own.passed(to)) {
                        Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                        outcome => break outcome.map(drop),
                    }
                }
            });
            let stream = std::iter::repeat_with(|| impostor.accept()).flatten().next().unwrap();
            let mut stream = blocking(stream);
            let mut theirs = [0; OPENING_BYTES];
            stream.read_exact(&mut theirs).unwrap();
            let mine = party(0, b"").opening(Purpose::FdExchange, Role::Answerer, 1).unwrap();
            stream.write_all(&mine.encode()).unwrap();
            stream.read_exact(&mut [0; PROOF_BYTES]).unwrap();
            let forged = forge(&theirs, &mine.encode());
            send(&stream, &forged, &prepared(0).passed(Rank(1)).unwrap()).unwrap();
            let refused = calling.join().unwrap();
            assert!(matches!(refused, Err(Error::Unauthenticated { .. })), "{refused:?}");
            assert!(stream.read_exact(&mut [0]).is_err(), "the caller's memory was given");
        });
    }
}

/// Rank 1 gets nothing from a local peer with this socket.
fn call_in_vain(name: [u8; SOCKET_NAME_BYTES]) {
    let ((_, listener), own) = (listener(1), prepared(1));
    let deadline = Deadline::after(Duration::from_millis(400));
    let result =
        listener.exchange(&party(1, KEY), &[(Rank(0), name)], &|to| own.passed(to), deadline, &mut || Ok(()));
    assert!(matches!(result, Err(Error::MissingRanks { missing, .. }) if missing == [Rank(0)]));
}

#[test]
fn a_full_listen_queue_blocks_nobody() {
    let mut name = [9; SOCKET_NAME_BYTES];
    super::super::key::fill_random(&mut name[1..]).unwrap();
    let listener = socket().unwrap();
    bind(&listener, &address(&name).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    let waiting: Vec<_> = std::iter::from_fn(|| dial(&name).ok()).take(100).collect();
    assert!((1..100).contains(&waiting.len()), "{} wait", waiting.len());
    call_in_vain(name);
}

#[test]
fn a_slow_local_peer_blocks_nobody() {
    let (name, slow) = listener(0);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| call_in_vain(name));
        let mut stream = std::iter::repeat_with(|| slow.accept()).flatten().next().unwrap();
        // Each byte in time, all of them not.
        let said = (0..OPENING_BYTES).take_while(|_| {
            std::thread::sleep(Duration::from_millis(50));
            stream.write_all(&[1]).is_ok()
        });
        assert!(said.count() < OPENING_BYTES, "it was heard to the end");
        calling.join().unwrap();
    });
}

#[test]
fn a_rank_with_another_key_is_missing() {
    let results = exchange([KEY, KEY, b"another key entirely"], Duration::from_millis(400), |_| {});
    for (result, expected) in results.into_iter().zip([vec![Rank(2)], vec![Rank(2)], vec![Rank(0), Rank(1)]])
    {
        match result {
            Err(Error::MissingRanks { missing, .. }) => assert_eq!(missing, expected),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("ranks with different keys have given"),
        }
    }
}
