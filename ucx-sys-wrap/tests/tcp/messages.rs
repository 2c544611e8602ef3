//! What is sent arrives: parts, order, places, copies, and messages that do not fit.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read};
use std::time::Instant;
use ucx_sys_wrap::tcp::{MAX_EAGER_BYTES, SEGMENT_BYTES, Tcp};
use ucx_sys_wrap::{Envelope, Error, Mark, Posted, Rank, Signature, Transport};

use super::world::*;

#[test]
fn every_rank_sends_to_every_other_in_all_sizes() {
    let sizes = [0, 1, 8, 4095, 4096, 4097, 65_536, (1 << 20) + 7];
    for world_size in [2, 3, 5, 8] {
        let mut transports = world(world_size);
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for post_receives_first in [true, false] {
            for (round, size) in sizes.iter().enumerate() {
                let round = round as u32 + if post_receives_first { 0 } else { 100 };
                for (a, b) in pairs(world_size) {
                    let payload = pattern(a * 10 + b, *size);
                    if post_receives_first {
                        let receiving = Receiving::post(&mut transports[b], a, envelope(a, round), &[*size]);
                        receives.push((a, b, *size, receiving));
                    }
                    sends.push((a, Sending::post(&mut transports[a], b, envelope(a, round), &[&payload])));
                }
            }
        }
        turn(&mut transports, 200);
        for (round, size) in sizes.iter().enumerate().rev() {
            for (a, b) in pairs(world_size) {
                let receiving =
                    Receiving::post(&mut transports[b], a, envelope(a, round as u32 + 100), &[*size + round]);
                receives.push((a, b, *size, receiving));
            }
        }
        for (a, b, size, mut receiving) in receives {
            receive(&mut transports, b, &mut receiving).unwrap();
            assert_eq!(receiving.bytes(), [pattern(a * 10 + b, size)], "{size} bytes from {a} to {b}");
        }
        for (a, mut sending) in sends {
            turn_until(&mut transports, |transports| sending.test(&mut transports[a]).is_some());
            sending.test(&mut transports[a]).unwrap().unwrap();
        }
    }
}

#[test]
fn parts_are_gathered_and_scattered() {
    let mut transports = world(2);
    for (round, lengths) in
        [[3, 0, 5], [100_000, 1, 70_000], [0, 0, 0], [5000, 5000, 5000]].iter().enumerate()
    {
        let parts: Vec<_> = lengths.iter().enumerate().map(|(part, length)| pattern(part, *length)).collect();
        // Larger places than needed: what follows in the stream must not be written there.
        let capacities = lengths.map(|length| length + round * 1000);
        let mut first = Receiving::post(&mut transports[1], 0, envelope(0, 1), &capacities);
        let mut second = Receiving::post(&mut transports[1], 0, envelope(0, 1), &capacities);
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let sends: Vec<_> =
            (0..2).map(|_| Sending::post(&mut transports[0], 1, envelope(0, 1), &slices)).collect();
        for receiving in [&mut first, &mut second] {
            let arrival = receive(&mut transports, 1, receiving).unwrap();
            assert_eq!((arrival.mark, &arrival.lengths[..]), (Mark(1), &lengths[..]));
            assert_eq!(receiving.bytes(), parts);
        }
        drop(sends);
    }
}

#[test]
fn a_wrong_guess_of_the_receive_changes_nothing() {
    let mut transports = world(2);
    let size = 200_000;
    for round in 0..50u32 {
        let mut one = Receiving::post(&mut transports[1], 0, envelope(0, 2 * round), &[size]);
        let mut two = Receiving::post(&mut transports[1], 0, envelope(0, 2 * round + 1), &[100, size]);
        let (a, b) = (pattern(1, size), pattern(2, size - 5));
        let _sends = [
            Sending::post(&mut transports[0], 1, envelope(0, 2 * round + 1), &[b"heads", &b]),
            Sending::post(&mut transports[0], 1, envelope(0, 2 * round), &[&a]),
        ];
        receive(&mut transports, 1, &mut one).unwrap();
        receive(&mut transports, 1, &mut two).unwrap();
        assert_eq!(one.bytes(), [a]);
        assert_eq!(two.bytes(), [b"heads".to_vec(), b]);
    }
}

#[test]
fn messages_of_one_tag_arrive_in_order() {
    let mut transports = world(2);
    let mut early: Vec<_> =
        (0..5).map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100_000])).collect();
    let sends: Vec<_> = (0..10)
        .map(|i| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(i, 1 + i * 9000)]))
        .collect();
    turn(&mut transports, 100);
    early.extend((0..5).map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100_000])));
    for (i, receiving) in early.iter_mut().enumerate() {
        receive(&mut transports, 1, receiving).unwrap();
        assert_eq!(receiving.bytes(), [pattern(i, 1 + i * 9000)]);
    }
    drop(sends);
}

#[test]
fn a_small_message_is_sent_when_it_is_posted() {
    let mut transports = world(2);
    let sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"12345678"]);
    assert!(matches!(sending.posted, Posted::Done(_)));
    let sent = transports[0].statistics();
    assert_eq!((sent.messages_sent, sent.bytes_sent), (1, HEADER_BYTES + 8));
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[8]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    let received = transports[1].statistics();
    assert_eq!((received.messages_received, received.bytes_received), (1, HEADER_BYTES + 8));
    assert_eq!((received.copies, received.bytes_copied), (1, 8));
}

#[test]
fn a_large_message_is_received_in_place() {
    let mut transports = world(2);
    for parts in [&[400_000][..], &[1 << 10, 400_000], &[1 << 20], &[1 << 10, 1 << 20]] {
        let before = [transports[0].statistics(), transports[1].statistics()];
        let payload: Vec<_> = parts.iter().map(|length| pattern(1, *length)).collect();
        let slices: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), parts);
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &slices);
        receive(&mut transports, 1, &mut receiving).unwrap();
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        assert_eq!(receiving.bytes(), payload);
        assert_eq!(transports[0].statistics().bytes_copied, before[0].bytes_copied);
        let copied = transports[1].statistics().bytes_copied - before[1].bytes_copied;
        assert!(copied <= 4096, "{copied} bytes of {parts:?} were copied");
        let payload_bytes = parts.iter().sum::<usize>();
        // A large one starts with an RTS and comes in fragments.
        let is_offered = payload_bytes > MAX_EAGER_BYTES;
        let headers = if is_offered { 1 + payload_bytes.div_ceil(SEGMENT_BYTES) as u64 } else { 1 };
        let frame_bytes = headers * HEADER_BYTES + payload_bytes as u64;
        assert_eq!(transports[0].statistics().bytes_sent - before[0].bytes_sent, frame_bytes);
        assert_eq!(transports[1].statistics().bytes_received - before[1].bytes_received, frame_bytes);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_consumed() {
    let mut transports = world(2);
    for (size, early) in [(10usize, true), (10, false), (300_000, true), (300_000, false)] {
        let mut other = envelope(0, 0);
        other.signature = another_signature();
        let sent = pattern(3, size);
        let posts: [(Envelope, &[usize]); 4] = [
            (envelope(0, 0), &[size - 1]),
            (envelope(0, 0), &[size, 0]),
            (other, &[size]),
            (envelope(0, 0), &[size]),
        ];
        let mut receives = Vec::new();
        if early {
            receives.extend(
                posts
                    .iter()
                    .map(|(envelope, places)| Receiving::post(&mut transports[1], 0, *envelope, places)),
            );
        }
        let _sends: Vec<_> =
            (0..4).map(|_| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&sent])).collect();
        if !early {
            turn(&mut transports, 200);
            receives.extend(
                posts
                    .iter()
                    .map(|(envelope, places)| Receiving::post(&mut transports[1], 0, *envelope, places)),
            );
        }
        let results: Vec<_> =
            receives.iter_mut().map(|receiving| receive(&mut transports, 1, receiving)).collect();
        let rank = Rank(0);
        assert!(
            matches!(results[0], Err(Error::TooLong { rank: r, part: 0, .. }) if r == rank),
            "{results:?}"
        );
        assert!(
            matches!(results[1], Err(Error::TooLong { rank: r, part: 1, .. }) if r == rank),
            "{results:?}"
        );
        assert!(
            matches!(results[2], Err(Error::Mismatch { rank: r, found: Signature([7, ..]), .. }) if r == rank)
        );
        assert!(results[3].is_ok());
        assert_eq!(receives[3].bytes(), [sent]);
    }
}

#[test]
fn who_is_no_peer_is_refused() {
    let mut transports = world(2);
    for peer in [0, 2, 5_000_000] {
        let mut sending = Sending::post(&mut transports[0], peer, envelope(0, 0), &[b"x"]);
        assert!(matches!(sending.test(&mut transports[0]), Some(Err(Error::NoSuchPeer { .. }))));
        let mut receiving = Receiving::post(&mut transports[0], peer, envelope(peer, 0), &[1]);
        assert!(matches!(receiving.test(&mut transports[0]), Some(Err(Error::NoSuchPeer { .. }))));
    }
    assert!(matches!(Tcp::new(Rank(0), 3, vec![None, None]), Err(Error::Unavailable { .. })));
    assert!(Tcp::new(Rank(0), 1, vec![None]).is_ok());
}

fn is_readable(transport: &mut Tcp, milliseconds: i64) -> bool {
    let start = Instant::now();
    let descriptor = loop {
        if let Some(descriptor) = transport.arm() {
            break descriptor;
        }
        assert!(start.elapsed() < PATIENCE, "a transport at rest can be slept on");
    };
    let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn a_sleeper_is_woken_by_bytes_room_and_deaths() {
    let (mut transports, mut strangers) = world_with_strangers(2, 3);
    assert!(!is_readable(&mut transports[0], 20));
    // Bytes without a posted receive wake too, and are taken in one turn.
    let _sending = Sending::post(&mut transports[1], 0, envelope(1, 0), &[b"hello"]);
    assert!(is_readable(&mut transports[0], 5000));
    assert!(transports[0].progress());
    assert!(!is_readable(&mut transports[0], 20));
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[5]);
    assert!(receiving.test(&mut transports[0]).is_some());
    // A queue that does not get shorter does not wake; one that can be written does.
    let mut stuck = stuff(&mut transports[0], 2).pop().unwrap();
    while transports[0].progress() {}
    assert!(!is_readable(&mut transports[0], 20));
    let socket = strangers[0][0].as_mut().unwrap();
    let mut buffer = vec![0; 1 << 20];
    socket.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while stuck.test(&mut transports[0]).is_none() {
        match socket.read(&mut buffer) {
            Ok(count) => assert!(count > 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if is_readable(&mut transports[0], 1) {
            transports[0].progress();
        }
        assert!(start.elapsed() < PATIENCE);
    }
    drop(strangers);
    assert!(is_readable(&mut transports[0], 5000));
    transports[0].progress();
    assert_eq!(news(&mut transports[0]).0, [2]);
}
