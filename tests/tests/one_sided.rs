//! Memory that ranks of a group put to and get from, on every wire.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity::transport::buffer::RemoteRegion;
use brevity::transport::{Error as Fault, Rank};
use brevity::{Group, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::{on_groups, on_transports};

on_every_wire! {
    ring => |wire: Wire| drop(on_transports(wire.world(3), around));
    part_of_the_world => |wire: Wire| drop(on_transports(wire.world(4), part));
    misuse => |wire: Wire| drop(on_transports(wire.world(2), refused));
    itself => |wire: Wire| drop(on_transports(wire.world(2), itself));
    an_abort_in_mid_put => |wire: Wire| given_up(wire, true);
    an_abort_in_mid_get => |wire: Wire| given_up(wire, false);
    an_abort_between_copies => copies_until_closed;
    timeouts_close_nothing => |wire: Wire| drop(on_transports(wire.world(2), late));
    closed_groups => closed;
}

const LENGTHS: [usize; 5] = [0, 1, 1000, 40_000, 600_000];

const SOON: Duration = Duration::from_millis(30);

fn values(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|index| index * 7 + seed).collect()
}

/// Opens the region of `owner`, whose key it sends to `peer`.
fn exchange(group: &Group, key: &[u8], peer: u32, owner: u32) -> RemoteRegion {
    let sending = group.start_send(key.to_vec(), peer, 1);
    let mut bytes = Vec::<u8>::new();
    group.recv_vec(&mut bytes, 16 << 10, owner, 1).unwrap();
    sending.wait().1.unwrap();
    group.open_region(owner, &bytes).unwrap()
}

/// Each puts to the next, and gets it back.
fn around(group: &Group) {
    let (own, size) = (group.rank(), group.world_size());
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    for length in LENGTHS {
        let region = group.register(vec![5u32; length + 3]).unwrap();
        let remote = exchange(group, &region.key().to_bytes(), before, next);
        assert_eq!(remote.owner(), group.members()[next as usize]);
        group.put(&values(length, own), &remote, 8).unwrap();
        group.flush(next).unwrap();
        group.send(&[0u8], next, 2).unwrap();
        group.recv(&mut [0u8], before, 2).unwrap();
        let mut found = vec![0u32; length + 3];
        region.read(0, &mut found).unwrap();
        assert!(found[2..length + 2] == values(length, before));
        assert_eq!([found[0], found[1], found[length + 2]], [5; 3]);
        let mut back = vec![0u32; length];
        group.get(&mut back, &remote, 8).unwrap();
        assert!(back == values(length, own));
        group.barrier().unwrap();
    }
}

/// Ranks are those of the group.
fn part(group: &Group) {
    let part = group.split(Some(group.rank() % 2), 10 - group.rank()).unwrap().unwrap();
    let peer = 1 - part.rank();
    let region = part.register(vec![0u32; 4]).unwrap();
    let remote = exchange(&part, &region.key().to_bytes(), peer, peer);
    assert_eq!(remote.owner(), part.members()[peer as usize]);
    part.put(&[group.rank() + 1], &remote, 4).unwrap();
    part.flush(peer).unwrap();
    part.barrier().unwrap();
    let mut found = [0u32; 4];
    region.read(0, &mut found).unwrap();
    assert_eq!(found, [0, part.members()[peer as usize].0 + 1, 0, 0]);
    group.barrier().unwrap();
}

fn refused(group: &Group) {
    let (own, peer) = (group.rank(), 1 - group.rank());
    let region = group.register(vec![1u8; 100]).unwrap();
    let key = region.key().to_bytes();
    let remote = exchange(group, &key, peer, peer);
    let mut remote_key = [0; 16 << 10];
    let bytes = group.send_recv((&key, peer, 3), (&mut remote_key, Some(peer), Some(3))).unwrap().bytes;
    let remote_key = remote_key[..bytes].to_vec();
    for (offset, length) in [(0, 101), (100, 1), (usize::MAX, 2)] {
        let error = group.put(&vec![0u8; length], &remote, offset).unwrap_err();
        assert!(matches!(error, Error::Transport(Fault::OutOfRegion { .. })), "{error}");
        let error = group.get(&mut vec![0u8; length], &remote, offset).unwrap_err();
        assert!(matches!(error, Error::Transport(Fault::OutOfRegion { .. })), "{error}");
    }
    let is_protocol = |error: Error| assert!(matches!(error, Error::Transport(Fault::Protocol { .. })));
    is_protocol(group.open_region(peer, &key).unwrap_err());
    is_protocol(group.open_region(peer, &key[..20]).unwrap_err());
    is_protocol(group.open_region(own, &key[..20]).unwrap_err());
    is_protocol(group.open_region(own, &remote_key).unwrap_err());
    for error in [group.open_region(2, &key).unwrap_err(), group.flush(2).unwrap_err()] {
        assert!(matches!(error, Error::NoSuchRank { rank: 2, world_size: 2 }), "{error}");
    }
    group.barrier().unwrap();
    // What is given back is no longer reached.
    if region.unregister().is_some() {
        group.barrier().unwrap();
        let error = group.get(&mut [0u8], &remote, 0).unwrap_err();
        let gone = matches!(error, Error::Transport(Fault::NoSuchRegion { .. }));
        assert!(gone, "{error}");
    } else {
        group.barrier().unwrap();
    }
    group.barrier().unwrap();
    assert!(group.failure().is_none());
}

/// Puts and gets on a rank's own memory.
fn itself(group: &Group) {
    let own = group.rank();
    for length in LENGTHS {
        let region = group.register(vec![5u32; length + 3]).unwrap();
        let key = region.key().to_bytes();
        let opened = group.open_region(own, &key).unwrap();
        assert_eq!((opened.owner().0, opened.region_bytes()), (own, region.byte_count() as u64));
        let before = group.statistics();
        group.put(&values(length, own), &opened, 8).unwrap();
        group.flush(own).unwrap();
        let mut found = vec![0u32; length + 3];
        region.read(0, &mut found).unwrap();
        assert!(found[2..length + 2] == values(length, own));
        assert_eq!([found[0], found[1], found[length + 2]], [5; 3]);
        let mut back = vec![0u32; length];
        group.get(&mut back, &opened, 8).unwrap();
        assert!(back == values(length, own));
        let copied = group.statistics().bytes_copied - before.bytes_copied;
        assert_eq!(copied, 2 * 4 * length as u64, "one copy each");
        for error in
            [group.put(&[0u32; 4], &opened, 4 * length), group.get(&mut [0u32; 4], &opened, usize::MAX)]
        {
            assert!(matches!(error, Err(Error::Transport(Fault::OutOfRegion { .. }))), "{error:?}");
        }
        // What was registered under an earlier key is not reached by it.
        let is_back = region.unregister();
        assert!(is_back.is_none_or(|back| back[2..length + 2] == values(length, own)));
        let error = group.get(&mut [0u32], &opened, 0).unwrap_err();
        assert!(matches!(error, Error::Transport(Fault::NoSuchRegion { .. })), "{error}");
    }
    group.barrier().unwrap();
}

/// Longer than a scope waits before it abandons the transport.
const STILL: Duration = Duration::from_secs(3);

/// A group is aborted while a call waits for a rank that does not turn its transport: the call ends, and
/// another group of the job goes on.
fn given_up(wire: Wire, puts: bool) {
    let groups = wire.world(2).into_iter().map(|transport| Group::new(transport, Settings::default()));
    let has_ended = Arc::new(AtomicBool::new(false));
    on_groups(groups.collect(), move |group| {
        let other = group.duplicate().unwrap();
        let peer = 1 - group.rank();
        let region = group.register(vec![7u32; 1_000_000]).unwrap();
        let remote = exchange(group, &region.key().to_bytes(), peer, peer);
        group.barrier().unwrap();
        let start = Instant::now();
        if group.rank() == 1 {
            while !has_ended.load(Ordering::Acquire) && start.elapsed() < STILL {
                thread::sleep(Duration::from_millis(1));
            }
        } else {
            let sent = group.statistics().bytes_sent;
            let mut place = vec![9u32; 1_000_000];
            let outcome = thread::scope(|threads| {
                threads.spawn(|| {
                    // UCX may count what it sends later.
                    while group.statistics().bytes_sent == sent && start.elapsed() < STILL / 10 {
                        thread::yield_now();
                    }
                    group.abort();
                });
                if puts { group.put(&place, &remote, 0) } else { group.get(&mut place, &remote, 0) }
            });
            has_ended.store(true, Ordering::Release);
            // Without its owner, it may have been carried out before.
            assert!(matches!(outcome, Ok(()) | Err(Error::Aborted { rank: Rank(0) })), "{outcome:?}");
            assert!(group.failure().is_some());
        }
        other.barrier().unwrap();
        other.put(&[3u32], &remote, 4).unwrap();
        other.flush(peer).unwrap();
        other.barrier().unwrap();
        let mut place = [0u32];
        other.get(&mut place, &remote, 4).unwrap();
        assert_eq!(place, [3]);
        other.barrier().unwrap();
        assert!(other.failure().is_none());
    });
}

/// Puts that end at once show a rank that its group is closed.
fn copies_until_closed(wire: Wire) {
    let groups = wire.world(2).into_iter().map(|transport| Group::new(transport, Settings::default()));
    on_groups(groups.collect(), move |group| {
        let (own, other) = (group.rank(), group.duplicate().unwrap());
        let region = group.register(vec![7u32; 10]).unwrap();
        let opened = group.open_region(own, &region.key().to_bytes()).unwrap();
        group.barrier().unwrap();
        if own == 1 {
            group.abort();
        } else {
            let start = Instant::now();
            let error = loop {
                match group.put(&[1u32], &opened, 0) {
                    Ok(()) => assert!(start.elapsed() < Duration::from_secs(20), "it does not see the abort"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::Aborted { rank: Rank(1) }), "{error}");
        }
        other.barrier().unwrap();
    });
}

/// Rank 1 makes no progress for a while.
fn late(group: &Group) {
    const TIME: Duration = Duration::from_millis(400);
    let region = group.register(vec![7u32; 300_000]).unwrap();
    let peer = 1 - group.rank();
    let remote = exchange(group, &region.key().to_bytes(), peer, peer);
    group.barrier().unwrap();
    if group.rank() == 1 {
        thread::sleep(TIME);
    } else {
        let soft = group.with_timeout(SOON);
        let mut place = vec![0u32; 300_000];
        let start = Instant::now();
        let outcomes = [soft.get(&mut place, &remote, 0), soft.put(&place[..9], &remote, 0), soft.flush(1)];
        // UCX can't take back what has begun, and ends it when its peer makes progress.
        let is_in_time = group.transport() == "ucx" || start.elapsed() < TIME;
        assert!(is_in_time, "{:?}", start.elapsed());
        for outcome in outcomes {
            match outcome {
                Ok(()) => {}
                Err(error @ Error::OneSidedTimeout { rank: Rank(1), .. }) => {
                    assert!(error.to_string().contains("rank 1 did not end within 0."), "{error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    group.barrier().unwrap();
    assert!(group.failure().is_none());
    let mut place = vec![0u32; 300_000];
    group.get(&mut place, &remote, 0).unwrap();
    assert_eq!(place[100_000], 7);
    group.barrier().unwrap();
}

/// A group that is closed accesses no memory, and says why.
fn closed(wire: Wire) {
    let groups = wire.world(2).into_iter().map(|transport| Group::new(transport, Settings::default()));
    let both = Arc::new(Barrier::new(2));
    on_groups(groups.collect(), move |group| {
        let region = group.register(vec![7u32; 10]).unwrap();
        let peer = 1 - group.rank();
        let remote = exchange(group, &region.key().to_bytes(), peer, peer);
        let other = group.duplicate().unwrap();
        assert!(group.failure().is_none());
        both.wait();
        if group.rank() == 1 {
            group.abort();
        }
        let is_named = |error: Error| assert!(matches!(error, Error::Aborted { rank: Rank(1) }), "{error}");
        let start = Instant::now();
        let failure = loop {
            match group.failure() {
                Some(failure) => break failure,
                None => assert!(start.elapsed() < Duration::from_secs(20)),
            }
        };
        is_named(failure);
        is_named(group.put(&[1u8], &remote, 0).unwrap_err());
        is_named(group.get(&mut [1u8], &remote, 0).unwrap_err());
        is_named(group.flush(peer).unwrap_err());
        is_named(group.register(vec![1u8]).err().unwrap());
        // Another group of these ranks goes on.
        other.put(&[1u32], &remote, 0).unwrap();
        other.flush(peer).unwrap();
        other.barrier().unwrap();
        both.wait();
    });
}

#[test]
fn a_group_of_one_that_was_aborted_is_closed() {
    let group = Group::solo();
    assert!(group.failure().is_none());
    group.abort();
    assert!(matches!(group.failure(), Some(Error::Aborted { rank: Rank(0) })));
}
