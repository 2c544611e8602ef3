//! Operations that end early release their memory at once and keep the stream intact.

use std::io::{Read, Write};
use ucx_sys_wrap::tcp::{CREDIT_BYTES, MAX_EAGER_BYTES, SEGMENT_BYTES};
use ucx_sys_wrap::{Error, Posted, Transport};

use super::world::*;

#[test]
fn a_canceled_receive_ends_at_once_and_its_message_is_consumed() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let (first, second) = (message(1, 0, &pattern(1, 500_000)), message(1, 0, &pattern(2, 9)));
    for half in [10, 64, 70, 5000, 300_000] {
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[500_000]);
        socket.write_all(&first[..half]).unwrap();
        let before = transports[0].statistics().bytes_received;
        turn_until(&mut transports, |transports| {
            transports[0].statistics().bytes_received - before == half as u64
        });
        assert!(matches!(receiving.cancel(&mut transports[0]), Err(Error::Canceled)));
        drop(receiving);
        let mut next = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[500_000]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                socket.write_all(&first[half..]).unwrap();
                socket.write_all(&second).unwrap();
            });
            receive(&mut transports, 0, &mut next).unwrap();
        });
        // Before its header was read, the message was not matched and goes to the next receive.
        let expected = if half < 64 { pattern(1, 500_000) } else { pattern(2, 9) };
        assert_eq!(next.bytes(), [expected]);
        if half < 64 {
            let mut rest = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[9]);
            receive(&mut transports, 0, &mut rest).unwrap();
        }
    }
}

#[test]
fn a_canceled_send_is_whole_or_never_was() {
    let mut transports = world(2);
    let size = MAX_EAGER_BYTES;
    let mut sends = stuff(&mut transports[0], 1);
    // The kernel has taken the first ones, part of one, and nothing of the rest.
    let first = sends.iter_mut().position(|sending| sending.test(&mut transports[0]).is_none()).unwrap();
    let last = sends.len() - 1;
    assert!(first < last - 1);
    for i in [first, last - 1] {
        assert!(matches!(sends[i].cancel(&mut transports[0]), Err(Error::Canceled)));
    }
    let copied = transports[0].statistics().bytes_copied;
    assert!(copied > 0 && copied < size as u64, "the rest alone is copied: {copied}");
    for seed in (0..=last).filter(|seed| *seed != last - 1) {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 900), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(seed, size)], "message {seed}");
    }
    turn_until(&mut transports, |transports| sends[last].test(&mut transports[0]).is_some());
    sends[last].test(&mut transports[0]).unwrap().unwrap();
}

/// More is canceled than may be sent eagerly, and the next message is still sent eagerly.
#[test]
fn what_is_withdrawn_takes_no_credit() {
    let mut transports = world(2);
    let size = MAX_EAGER_BYTES;
    let mut before = Vec::new();
    while !matches!(before.last(), Some(Sending { posted: Posted::Pending(_), .. })) {
        before.push(Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]));
    }
    for _ in 0..=CREDIT_BYTES / size as u64 {
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&pattern(2, size)]);
        assert!(matches!(sending.cancel(&mut transports[0]), Err(Error::Canceled)));
    }
    // It has no receive: with an RTS, its send would not complete.
    let mut last = Sending::post(&mut transports[0], 1, envelope(0, 2), &[&pattern(3, size)]);
    turn_until(&mut transports, |transports| last.test(&mut transports[0]).is_some());
    last.test(&mut transports[0]).unwrap().unwrap();
}

#[test]
fn a_canceled_offer_is_whole_or_never_was() {
    let mut transports = world(2);
    let size = MAX_EAGER_BYTES + 1;
    let mut offered = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    turn(&mut transports, 200);
    assert!(matches!(offered.cancel(&mut transports[0]), Err(Error::Canceled)));
    assert_eq!(transports[0].statistics().bytes_copied, size as u64);
    let stuffing = stuff_with(&mut transports[0], 1, 64 << 10);
    let mut unsent = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(2, size)]);
    assert!(matches!(unsent.cancel(&mut transports[0]), Err(Error::Canceled)));
    assert_eq!(
        transports[0].statistics().bytes_copied,
        size as u64,
        "an offer that is not sent is withdrawn"
    );
    let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(3, size)]);
    for seed in [1, 3] {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(seed, size)], "message {seed}");
    }
    turn_until(&mut transports, |transports| behind.test(&mut transports[0]).is_some());
    behind.test(&mut transports[0]).unwrap().unwrap();
    drop(stuffing);
}

#[test]
fn a_send_that_is_canceled_while_its_data_is_written_is_whole() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let size = 32 << 20;
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(2, size)]);
    let socket = strangers[0][0].as_mut().unwrap();
    // Both get a CTS before any data of the second one is written.
    socket.write_all(&[grant(1, 0), grant(1, 1)].concat()).unwrap();
    let before = transports[0].statistics().bytes_sent;
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_sent > before + 1000);
    for sending in [&mut sending, &mut behind] {
        assert!(matches!(sending.cancel(&mut transports[0]), Err(Error::Canceled)));
    }
    drop((sending, behind));
    let pieces = size / SEGMENT_BYTES;
    let stream = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; 2 * (size + (1 + pieces) * HEADER_BYTES as usize)];
            socket.read_exact(&mut bytes).unwrap();
            bytes
        });
        turn_until(&mut transports, |_| reader.is_finished());
        reader.join().unwrap()
    });
    let (offers, mut rest) = stream.split_at(2 * HEADER_BYTES as usize);
    assert_eq!((offers[0], offers[64]), (6, 6));
    let mut found = [Vec::new(), Vec::new()];
    while !rest.is_empty() {
        let number = usize::from(rest[4]);
        let (frame, later) = rest.split_at(HEADER_BYTES as usize + SEGMENT_BYTES);
        assert!(frame == data(0, number as u32, &frame[64..]), "a piece of message {number}");
        found[number].extend_from_slice(&frame[64..]);
        rest = later;
    }
    assert!(found == [pattern(1, size), pattern(2, size)]);
}

#[test]
fn a_canceled_receive_that_has_granted_discards_the_data() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let payload = pattern(1, 100_000);
    for (round, half) in [0, 64, 5000].into_iter().enumerate() {
        let round = round as u32;
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, round), &[100_000]);
        socket.write_all(&offer(1, round, round, 100_000)).unwrap();
        turn_until(&mut transports, |transports| {
            transports[0].statistics().bytes_sent == HEADER_BYTES * u64::from(round + 1)
        });
        let mut frame = [0; 64];
        socket.read_exact(&mut frame).unwrap();
        assert_eq!(frame[..], grant(0, round));
        let sent = data(1, round, &payload);
        socket.write_all(&sent[..half]).unwrap();
        turn(&mut transports, 100);
        assert!(matches!(receiving.cancel(&mut transports[0]), Err(Error::Canceled)));
        drop(receiving);
        socket.write_all(&sent[half..]).unwrap();
        socket.write_all(&message(1, round, b"next")).unwrap();
        let mut next = Receiving::post(&mut transports[0], 1, envelope(1, round), &[4]);
        receive(&mut transports, 0, &mut next).unwrap();
        assert_eq!(next.bytes(), [b"next"]);
    }
}

/// A rank that waits for a message whose RTS was canceled by a rank that then left gets the next message that
/// this rank has sent.
#[test]
fn what_was_taken_back_before_leaving_is_passed_over() {
    let makes = [|| world(2), || local_peers(2, false)];
    for (make, size) in makes.iter().flat_map(|make| [MAX_EAGER_BYTES + 1, 20 << 20].map(|size| (make, size)))
    {
        let mut transports = make();
        let tag = envelope(0, 0);
        let mut receives: Vec<_> =
            (0..2).map(|_| Receiving::post(&mut transports[1], 0, tag, &[size])).collect();
        let mut own = vec![transports.remove(0)];
        let mut taken_back: Vec<_> =
            (0..3).map(|seed| Sending::post(&mut own[0], 1, tag, &[&pattern(seed, size)])).collect();
        turn(&mut own, 10);
        for sending in &mut taken_back {
            assert!(matches!(sending.cancel(&mut own[0]), Err(Error::Canceled)));
        }
        for text in [b"one", b"two", b"six"] {
            let mut sending = Sending::post(&mut own[0], 1, tag, &[text]);
            turn_until(&mut own, |own| sending.test(&mut own[0]).is_some());
            sending.test(&mut own[0]).unwrap().unwrap();
        }
        // It has left before the other polls.
        drop(own);
        receives.push(Receiving::post(&mut transports[0], 0, tag, &[size]));
        for (receiving, text) in receives.iter_mut().zip([b"one", b"two", b"six"]) {
            receive(&mut transports, 0, receiving).unwrap();
            assert_eq!(receiving.bytes(), [text], "of messages of {size} bytes");
        }
        let mut more = Receiving::post(&mut transports[0], 0, tag, &[size]);
        assert_lost(receive(&mut transports, 0, &mut more), 0);
    }
}

/// The same for a rank that has begun to read the message from the memory of the rank that leaves.
#[test]
fn what_was_taken_back_while_it_is_read_is_passed_over() {
    let (mut transports, size) = (local_peers(2, true), 8 << 20);
    let tag = envelope(0, 0);
    let mut receiving = Receiving::post_pooled(&mut transports[1], 0, tag, &[size]);
    let mut own = vec![transports.remove(0)];
    let mut taken_back = Sending::post_pooled(&mut own[0], 1, tag, &[&pattern(1, size)]);
    turn(&mut transports, 1);
    let seen = transports[0].statistics();
    assert_eq!(
        (seen.bytes_received, seen.bytes_sent),
        (64 + (4 << 20), 0),
        "it has the offer, asks for nothing, and reads"
    );
    assert!(matches!(taken_back.cancel(&mut own[0]), Err(Error::Canceled)));
    let mut sending = Sending::post(&mut own[0], 1, tag, &[b"next"]);
    sending.test(&mut own[0]).unwrap().unwrap();
    drop(own);
    receive(&mut transports, 0, &mut receiving).unwrap();
    assert_eq!(receiving.bytes(), [b"next"]);
    assert_eq!(transports[0].statistics().messages_received, 1);
}

/// A receive that was posted later has got a later message: the receive posted before gets no message that is
/// later still.
#[test]
fn nobody_is_passed_over_out_of_order() {
    for make in [|| world(2), || local_peers(2, false)] {
        let mut transports = make();
        let (tag, size) = (envelope(0, 0), 20 << 20);
        let mut receives: Vec<_> =
            (0..2).map(|_| Receiving::post(&mut transports[1], 0, tag, &[size])).collect();
        let mut own = vec![transports.remove(0)];
        let mut taken_back = Sending::post(&mut own[0], 1, tag, &[&pattern(1, size)]);
        turn(&mut own, 10);
        assert!(matches!(taken_back.cancel(&mut own[0]), Err(Error::Canceled)));
        for text in [b"one", b"two"] {
            let mut sending = Sending::post(&mut own[0], 1, tag, &[text]);
            turn_until(&mut own, |own| sending.test(&mut own[0]).is_some());
        }
        drop(own);
        receive(&mut transports, 0, &mut receives[1]).unwrap();
        assert_eq!(receives[1].bytes(), [b"one"]);
        assert_lost(receive(&mut transports, 0, &mut receives[0]), 0);
    }
}
