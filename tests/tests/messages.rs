//! Messages between two ranks of a group, beside its collectives, on every wire.

mod endings;
mod random;
mod simulated;

use std::thread;
use std::time::Duration;

use brevity::collectives::{Error, Message};
use brevity::transport::Rank;
use brevity::{Group, ReduceOp};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::{on_local, on_transports};

use endings::{asleep, at_once, canceled, closed, deaf, left, timeouts};

/// Tags have 31 bits.
const LAST_TAG: u32 = (1 << 31) - 1;

/// Short enough to be sent eagerly on every wire, long enough for the other ways.
const LENGTHS: [usize; 7] = [0, 1, 100, 5000, 50_000, 600_000, 1_100_000];

const SOON: Duration = Duration::from_millis(20);

on_every_wire! {
    every_form_of_send_and_receive => |wire: Wire| drop(on_transports(wire.world(3), forms));
    messages_of_any_source_and_length => |wire: Wire| drop(on_transports(wire.world(4), any));
    messages_to_oneself => |wire: Wire| drop(on_transports(wire.world(2), to_oneself));
    timeouts_close_nothing_and_lose_nothing => |wire: Wire| drop(on_transports(wire.world(2), timeouts));
    canceled_messages => |wire: Wire| drop(on_transports(wire.world(2), canceled));
    a_receive_of_any_rank_sleeps => |wire: Wire| drop(on_transports(wire.world(2), asleep));
    groups_of_some_ranks => |wire: Wire| drop(on_transports(wire.world(4), parts));
    misuse => |wire: Wire| drop(on_transports(wire.world(2), misuse));
    a_rank_that_does_not_receive_stops_its_senders => |wire: Wire| drop(on_transports(wire.world(2), deaf));
    sends_of_two_threads_without_waiting => |wire: Wire| drop(on_transports(wire.world(2), at_once));
    closed_groups => closed;
    ranks_that_leave => left;
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + seed) as u8).collect()
}

fn message(source: u32, tag: u32, bytes: usize) -> Message {
    Message { source, tag, bytes }
}

/// Ring-wise, with each form of sending and each of receiving.
fn forms(group: &Group) {
    let (own, world_size) = (group.rank(), group.world_size());
    let (next, before) = ((own + 1) % world_size, (own + world_size - 1) % world_size);
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let (mine, theirs) = (bytes(length, round + own as usize), bytes(length, round + before as usize));
        let expected = message(before, 1, length);

        let sending = group.start_send(mine.clone(), next, 1);
        let mut place = vec![0u8; length + 10];
        assert_eq!(group.recv(&mut place, before, 1).unwrap(), expected);
        assert!(place.starts_with(&theirs));
        let (same, sent) = sending.wait();
        sent.unwrap();
        assert_eq!(same, mine);

        let receiving = group.start_recv(vec![0u8; length], before, 1);
        let any = group.start_recv_vec(vec![9u8; 3], length, None, 2);
        group.send(&mine, next, 1).unwrap();
        group.send(&mine, next, 2).unwrap();
        assert_eq!(receiving.wait().1.unwrap(), expected);
        let (found, received) = any.wait();
        assert_eq!((received.unwrap(), found == theirs), (message(before, 2, length), true));

        let mut place = vec![0u8; length];
        let received = group.send_recv((&mine, next, 3), (&mut place, Some(before), None)).unwrap();
        assert_eq!((received, place == theirs), (message(before, 3, length), true));

        while !group.try_send(&mine, next, LAST_TAG).unwrap() {}
        assert_eq!(group.probe(None, LAST_TAG).unwrap(), message(before, LAST_TAG, length));
        assert_eq!(group.start_probe(before, None).wait().1.unwrap().tag, LAST_TAG);
        group.recv(&mut place, None, LAST_TAG).unwrap();
        assert!(place == theirs);
        assert_eq!(group.try_probe(None, None).unwrap(), None);
        sum(group);
    }
    let mut data = vec![0.0f64; 4];
    let received = group.send_recv((&[1.5f64, 2.5], next, 0), (&mut data, Some(before), Some(0)));
    assert_eq!((received.unwrap(), &*data), (message(before, 0, 16), &[1.5, 2.5, 0.0, 0.0][..]));
}

fn sum(group: &Group) {
    let mut data = [group.rank() + 1];
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    assert_eq!(data[0], group.world_size() * (group.world_size() + 1) / 2);
}

/// All send to rank 0, which knows neither who does nor how long a message is.
fn any(group: &Group) {
    const EACH: u32 = 24;
    if group.rank() > 0 {
        for turn in 0..EACH {
            group.send(&bytes(length_of(group.rank(), turn), turn as usize), 0, turn).unwrap();
        }
    } else {
        let (mut next, mut data) = ([0; 4], Vec::new());
        for turn in 0..EACH * (group.world_size() - 1) {
            let found = if turn % 2 == 0 {
                group.recv_vec(&mut data, 1 << 20, None, None).unwrap()
            } else {
                let found = group.probe(None, None).unwrap();
                data = vec![0; found.bytes];
                assert_eq!(group.recv(&mut data, found.source, found.tag).unwrap(), found);
                found
            };
            assert_eq!(found.tag, next[found.source as usize], "in the order of sending");
            assert_eq!((found.bytes, data.len()), (length_of(found.source, found.tag), found.bytes));
            assert!(data == bytes(data.len(), found.tag as usize));
            next[found.source as usize] += 1;
        }
    }
    sum(group);
    // A rank that sends much does not keep others waiting.
    if group.rank() > 0 {
        let many = if group.rank() == 1 { 300 } else { 3 };
        (0..many).for_each(|_| group.send(&[group.rank()], 0, 5).unwrap());
        sum(group);
    } else {
        sum(group);
        let turns: Vec<u32> = (0..306).map(|_| group.recv(&mut [0u32], None, 5).unwrap().source).collect();
        let late = turns.iter().rposition(|source| *source != 1).unwrap();
        assert!(late < 60, "{turns:?}");
    }
}

fn length_of(source: u32, turn: u32) -> usize {
    LENGTHS[turn as usize % 6] + source as usize
}

fn to_oneself(group: &Group) {
    let own = group.rank();
    for length in LENGTHS {
        group.send(&bytes(length, 3), own, 7).unwrap();
        assert_eq!(group.try_probe(None, None).unwrap(), Some(message(own, 7, length)));
        let mut data = Vec::<u8>::new();
        assert_eq!(group.recv_vec(&mut data, length, own, None).unwrap(), message(own, 7, length));
        assert!(data == bytes(length, 3));
    }
    // A thread that sleeps in a receive.
    thread::scope(|threads| {
        let receiving = threads.spawn(|| group.recv(&mut [0u32; 3], None, 8).unwrap());
        thread::sleep(SOON);
        group.send(&[1u32, 2], own, 8).unwrap();
        assert_eq!(receiving.join().unwrap(), message(own, 8, 8));
    });
    sum(group);
}

#[test]
fn messages_to_oneself_are_bounded() {
    on_local(2, bounded);
}

/// There is room for one alone that is longer than 64 MiB, and for no other.
fn bounded(group: &Group) {
    let own = group.rank();
    let long = vec![1u8; (64 << 20) + 1];
    assert!(group.try_send(&long, own, 1).unwrap());
    let full = group.with_timeout(SOON).send(&[1u8], own, 1).unwrap_err();
    assert!(matches!(full, Error::MessageTimeout { .. }), "{full}");
    assert!(group.try_send(&[2u8], own, 1).unwrap(), "one waits");
    assert!(!group.try_send(&[3u8], own, 1).unwrap());
    let mut data = Vec::<u8>::new();
    group.recv_vec(&mut data, usize::MAX, None, 1).unwrap();
    assert_eq!(data.len(), long.len());
    while !group.try_send(&[3u8], own, 1).unwrap() {}
    for expected in [2, 3] {
        let mut data = [0u8];
        assert_eq!(group.recv(&mut data, own, 1).unwrap().bytes, 1);
        assert_eq!(data, [expected]);
    }
    sum(group);
}

fn parts(group: &Group) {
    let part = group.split(Some(group.rank() % 2), 10 - group.rank()).unwrap().unwrap();
    let (own, peer) = (part.rank(), 1 - part.rank());
    assert_eq!(part.members()[own as usize], Rank(group.rank()));
    for turn in 0..3u32 {
        // The same tags on both groups.
        group.send(&[turn], part.members()[peer as usize].0, turn).unwrap();
        part.send(&[turn + 100, group.rank()], peer, turn).unwrap();
        let mut place = [0u32; 2];
        assert_eq!(part.recv(&mut place, None, None).unwrap(), message(peer, turn, 8));
        assert_eq!(place, [turn + 100, part.members()[peer as usize].0]);
        let found = group.recv(&mut place, None, None).unwrap();
        assert_eq!((found.source, place[0]), (part.members()[peer as usize].0, turn));
    }
    // Messages that nobody received are not found by a later group of the same number.
    part.send(&[1u8; 100], peer, 0).unwrap();
    sum(group);
    drop(part);
    sum(group);
    let part = group.split(Some(group.rank() % 2), 0).unwrap().unwrap();
    sum(group);
    assert_eq!(part.try_probe(None, None).unwrap(), None);
}

fn misuse(group: &Group) {
    let peer = 1 - group.rank();
    let refused = |error: Error, text: &str| assert_eq!(error.to_string(), text);
    refused(
        group.send(&[0u8], peer, 1 << 31).unwrap_err(),
        "tag 2147483648 has more than 31 bits: use 0 to 2147483647",
    );
    refused(group.try_send(&[0u8], 2, 0).unwrap_err(), "2 is no rank of a group of 2");
    refused(group.recv(&mut [0u8], 2, 0).unwrap_err(), "2 is no rank of a group of 2");
    assert!(matches!(group.recv(&mut [0u8], None, u32::MAX), Err(Error::Tag { tag: u32::MAX })));
    assert!(group.start_send(vec![0u8], 2, 0).wait().1.is_err());
    assert!(group.start_recv(vec![0u8], None, u32::MAX).wait().1.is_err());
    assert!(group.start_probe(2, None).wait().1.is_err() && group.try_probe(2, None).is_err());

    // A message that does not fit is dropped, and the next one is not.
    for length in LENGTHS.into_iter().filter(|length| *length > 1) {
        let limit = length / 2;
        let is_right = |error: Error, limit: usize| match error {
            Error::MessageTooLong { rank, tag: 4, bytes, limit: found } => {
                assert_eq!((rank, bytes, found), (Rank(peer), length as u64, limit as u64));
            }
            error => panic!("{error}"),
        };
        let sent = [length, length, length, 1].map(|length| group.start_send(bytes(length, 0), peer, 4));
        is_right(group.recv(&mut vec![0u8; limit], peer, 4).unwrap_err(), limit);
        is_right(group.recv_vec(&mut vec![0u32; 1], limit / 4, None, None).unwrap_err(), limit / 4 * 4);
        is_right(group.start_recv(Vec::<u8>::new(), None, 4).wait().1.unwrap_err(), 0);
        assert_eq!(group.recv(&mut [0u8], None, None).unwrap(), message(peer, 4, 1));
        sent.into_iter().for_each(|sent| sent.wait().1.unwrap());
    }
    for own in [peer, group.rank()] {
        let sent = [7, 5].map(|length| group.start_send(bytes(length, 0), own, 4));
        let odd = group.recv(&mut [0u32; 2], own, 4).unwrap_err();
        assert!(odd.to_string().ends_with("sent 7 bytes with tag 4, expected a multiple of 4"), "{odd}");
        let odd = group.recv_vec(&mut vec![0u32; 2], 9, None, None).unwrap_err();
        assert!(matches!(odd, Error::MessageElements { bytes: 5, element_bytes: 4, .. }), "{odd}");
        sent.into_iter().for_each(|sent| sent.wait().1.unwrap());
    }
    sum(group);
}
