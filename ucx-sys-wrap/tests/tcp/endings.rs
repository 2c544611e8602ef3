//! The errors of all ranks when one sends garbage, dies, leaves or aborts.

use std::io::{Read, Write};
use std::time::Duration;

use ucx_sys_wrap::tcp::{CREDIT_BYTES, MAX_EAGER_BYTES};
use ucx_sys_wrap::{Envelope, Error, Failure, News, Notice, Rank, Signature, Tag, Transport, Which};

use super::world::*;

#[test]
fn garbage_loses_its_sender_and_the_others_go_on() {
    let (mut transports, mut strangers) = world_with_strangers(2, 3);
    let mut waiting = Receiving::post(&mut transports[0], 2, envelope(2, 0), &[8]);
    let mut bystander = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    strangers[0][0].as_mut().unwrap().write_all(&[0xff; 200]).unwrap();
    let result = receive(&mut transports, 0, &mut waiting);
    assert!(matches!(result, Err(Error::Protocol { rank: Rank(2), .. })), "{result:?}");
    assert_eq!((news(&mut transports[0]).0, news(&mut transports[1]).0), (vec![2], vec![]));
    let _sending = Sending::post(&mut transports[1], 0, envelope(1, 0), &[b"12345678"]);
    receive(&mut transports, 0, &mut bystander).unwrap();
    // The stranger finds its connection closed.
    let mut rest = Vec::new();
    strangers[0][0].as_mut().unwrap().read_to_end(&mut rest).unwrap();
}

#[test]
fn every_wrong_field_loses_its_sender() {
    let good = message(1, 0, b"12345678");
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        change(0, 0),
        change(0, 9),
        change(1, 4),
        change(1, 255),
        change(2, 1),
        change(15, 0xff),
        change(47, 0xff),
        change(63, 1),
    ];
    for bytes in cases.iter().chain([&notice(1, 2), &notice(0, 1)]) {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
        strangers[0][0].as_mut().unwrap().write_all(bytes).unwrap();
        let result = receive(&mut transports, 0, &mut receiving);
        assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "{result:?}");
        let mut late = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"]);
        assert_lost(late.test(&mut transports[0]).unwrap(), 1);
    }
}

#[test]
fn a_rank_that_dies_in_the_middle_of_a_frame_is_lost_to_all_and_the_others_go_on() {
    for cut in [0, 1, 63, 64, 1000, 70_000] {
        let (mut transports, mut strangers) = world_with_strangers(3, 4);
        let frame = message(3, 0, &pattern(1, 100_000));
        strangers[0][1].as_mut().unwrap().write_all(&frame[..cut]).unwrap();
        let mut receives: Vec<_> = (0..3)
            .map(|rank| {
                Receiving::post(&mut transports[rank], (rank + 1) % 3, envelope((rank + 1) % 3, 0), &[8])
            })
            .collect();
        let mut from_dead = Receiving::post(&mut transports[1], 3, envelope(3, 0), &[100_000]);
        turn(&mut transports, 200);
        drop(strangers);
        assert_lost(receive(&mut transports, 1, &mut from_dead), 3);
        for rank in 0..3 {
            let mut lost = Vec::new();
            turn_until(&mut transports, |transports| {
                lost.extend(news(&mut transports[rank]).0);
                !lost.is_empty()
            });
            assert_eq!(lost, [3]);
            let transport = &mut transports[rank];
            let mut later = Sending::post(transport, 3, envelope(rank, 0), &[b"x"]);
            assert_lost(later.test(transport).unwrap(), 3);
        }
        for (rank, receiving) in receives.iter_mut().enumerate() {
            let from = (rank + 1) % 3;
            let _sending = Sending::post(&mut transports[from], rank, envelope(from, 0), &[b"12345678"]);
            receive(&mut transports, rank, receiving).unwrap();
        }
    }
}

#[test]
fn a_rank_that_dies_while_it_is_written_to_is_named() {
    let (mut transports, strangers) = world_with_strangers(1, 2);
    let mut sends = stuff(&mut transports[0], 1);
    sends.push(Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 2 * MAX_EAGER_BYTES)]));
    turn(&mut transports, 10);
    drop(strangers);
    for sending in sends.iter_mut().rev().take(3) {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        assert_lost(sending.test(&mut transports[0]).unwrap(), 1);
    }
}

#[test]
fn what_somebody_tells_comes_before_a_bare_end() {
    for messenger in 1..3 {
        let (mut transports, mut strangers) = world_with_strangers(1, 4);
        strangers[messenger - 1][0].as_mut().unwrap().write_all(&notice(messenger, 3)).unwrap();
        strangers.truncate(2);
        strangers.remove(2 - messenger);
        let mut first = None;
        turn_until(&mut transports, |transports| {
            first = first.take().or_else(|| transports[0].next_news());
            first.is_some()
        });
        let cause = Failure::PeerLost(Rank(3));
        let told = Notice::closed(0, 0, cause);
        assert!(matches!(first, Some(News::Told(rank, found)) if rank.index() == messenger && found == told));
    }
}

#[test]
fn what_was_sent_before_a_bye_still_arrives_and_the_others_go_on() {
    let mut transports = world(3);
    let payload = pattern(1, MAX_EAGER_BYTES);
    let mut last = transports.pop().unwrap();
    let _small = Sending::post(&mut last, 0, envelope(2, 0), &[b"small"]);
    let _large = Sending::post(&mut last, 0, envelope(2, 1), &[&payload]);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| drop(last));
        turn_until(&mut transports, |_| leaving.is_finished());
    });
    turn(&mut transports, 200);
    let mut large = Receiving::post(&mut transports[0], 2, envelope(2, 1), &[MAX_EAGER_BYTES]);
    receive(&mut transports, 0, &mut large).unwrap();
    assert_eq!(large.bytes(), [payload]);
    let mut small = Receiving::post(&mut transports[0], 2, envelope(2, 0), &[5]);
    receive(&mut transports, 0, &mut small).unwrap();
    assert_eq!(news(&mut transports[0]).0, []);
    // A rank that misses it has lost it, and goes on with the others.
    assert_lost(
        Receiving::post(&mut transports[0], 2, envelope(2, 0), &[5]).test(&mut transports[0]).unwrap(),
        2,
    );
    assert_eq!((news(&mut transports[0]).0, news(&mut transports[1]).0), (vec![2], vec![]));
    let _sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"on"]);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[2]);
    receive(&mut transports, 1, &mut receiving).unwrap();
}

#[test]
fn who_waits_for_a_rank_that_leaves_or_sends_to_it_has_lost_it() {
    for way in 0..3 {
        let mut transports = world(2);
        let mut waiting = (way == 0).then(|| Receiving::post(&mut transports[0], 1, envelope(1, 0), &[5]));
        let mut stuck = (way == 1)
            .then(|| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 32 << 20)]));
        drop(transports.pop());
        turn(&mut transports, 200);
        let result = match (&mut waiting, &mut stuck) {
            (Some(waiting), _) => waiting.test(&mut transports[0]).unwrap().map(|_| ()),
            (_, Some(stuck)) => stuck.test(&mut transports[0]).unwrap(),
            _ => {
                assert_eq!(news(&mut transports[0]).0, []);
                Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"])
                    .test(&mut transports[0])
                    .unwrap()
            }
        };
        assert_lost(result, 1);
        assert_eq!(news(&mut transports[0]).0, [1]);
    }
}

/// The messages of a context end, whatever they wait for, and those of another go on.
#[test]
fn a_context_ends_alone() {
    let mut transports = world(2);
    let large = pattern(1, 3 * MAX_EAGER_BYTES);
    let in_context = |source: usize, round: u32, context: u16| {
        let tag = Tag::new(Rank(source as u32), context, 0, round);
        Envelope { tag, ..envelope(source, round) }
    };
    let mut ended: Vec<Sending> = Vec::new();
    let mut others: Vec<Sending> = Vec::new();
    for round in 0..40 {
        for (context, sends) in [(1, &mut ended), (2, &mut others)] {
            let payload = if round % 2 == 0 { &large[..100_000] } else { &large };
            sends.push(Sending::post(&mut transports[0], 1, in_context(0, round, context), &[payload]));
        }
    }
    let mut receives: Vec<_> = [(1, 3), (2, 3), (1, 5), (2, 5)]
        .map(|(context, round)| {
            Receiving::post(&mut transports[1], 0, in_context(0, round, context), &[large.len()])
        })
        .into();
    turn(&mut transports, 20);
    let error = Error::Aborted { rank: Rank(0) };
    for transport in &mut transports {
        transport.end_context(1, Failure::Aborted(Rank(0)), &error);
        transport.discard(1, Which::All);
    }
    for sending in &mut ended {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    }
    for (place, receiving) in receives.iter_mut().enumerate() {
        let result = receive(&mut transports, 1, receiving);
        // A message of the context may have arrived before.
        assert!(result.is_ok() || place % 2 == 0, "{result:?}");
    }
    for round in (0..40).filter(|round| ![3, 5].contains(round)) {
        let length = if round % 2 == 0 { 100_000 } else { large.len() };
        let mut receiving = Receiving::post(&mut transports[1], 0, in_context(0, round, 2), &[length]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [&large[..length]], "round {round}");
        // What comes late of the other context is dropped, and takes no room.
        transports[1].discard(1, Which::All);
    }
    for sending in &mut others {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        sending.test(&mut transports[0]).unwrap().unwrap();
    }
}

/// More than the credit of messages that nobody will receive.
#[test]
fn messages_of_an_earlier_context_are_dropped() {
    let mut transports = world(2);
    let payload = pattern(1, MAX_EAGER_BYTES);
    let of_epoch = |source: usize, epoch: u8| {
        let mut envelope = envelope(source, 0);
        envelope.signature.0[Signature::EPOCH_AT] = epoch;
        envelope
    };
    for turn in 0..3 * (CREDIT_BYTES as usize / MAX_EAGER_BYTES) {
        let length = [0, 100, MAX_EAGER_BYTES][turn % 3];
        let mut old = Sending::post(&mut transports[0], 1, of_epoch(0, 1), &[&payload[..length]]);
        // Before the message has come, or after.
        let early = (turn % 2 == 0)
            .then(|| Receiving::post(&mut transports[1], 0, of_epoch(0, 2), &[MAX_EAGER_BYTES]));
        self::turn(&mut transports, 3);
        let mut receiving = early
            .unwrap_or_else(|| Receiving::post(&mut transports[1], 0, of_epoch(0, 2), &[MAX_EAGER_BYTES]));
        let mut new = Sending::post(&mut transports[0], 1, of_epoch(0, 2), &[&payload[..length / 2 + 1]]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        for sending in [&mut old, &mut new] {
            turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        }
    }
}

#[test]
fn an_abandoned_transport_holds_no_memory() {
    let mut transports = world(2);
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 32 << 20)]);
    assert!(sending.test(&mut transports[0]).is_none());
    transports[0].abandon().unwrap();
    assert!(matches!(receiving.test(&mut transports[0]), Some(Err(Error::Closed))));
    assert!(matches!(sending.test(&mut transports[0]), Some(Err(Error::Closed))));
    let mut other = Receiving::post(&mut transports[1], 0, envelope(0, 3), &[8]);
    assert_lost(receive(&mut transports, 1, &mut other), 0);
}

#[test]
fn the_last_message_arrives_though_its_sender_has_gone() {
    let mut transports = world(2);
    let mut leaving = transports.pop().unwrap();
    // So much that the kernel takes it but can't send all of it while the peer does not read.
    let payload = pattern(3, MAX_EAGER_BYTES);
    let mut sending = Sending::post(&mut leaving, 0, envelope(1, 0), &[&payload]);
    turn_until(std::slice::from_mut(&mut leaving), |leaving| sending.test(&mut leaving[0]).is_some());
    sending.test(&mut leaving).unwrap().unwrap();
    let ending = std::thread::spawn(move || drop(leaving));
    // Data for a rank that has left must not destroy what that rank has sent.
    for i in 0..100 {
        let _ = Sending::post(&mut transports[0], 1, envelope(0, i), &[b"hello"]);
        std::thread::sleep(Duration::from_millis(3));
    }
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[MAX_EAGER_BYTES]);
    receive(&mut transports, 0, &mut receiving).unwrap();
    assert_eq!(receiving.bytes(), [payload]);
    ending.join().unwrap();
}
