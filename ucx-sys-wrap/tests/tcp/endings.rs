//! The errors of all ranks when one sends garbage, dies, leaves or aborts.

use std::io::{Read, Write};
use std::time::Duration;

use socket2::SockRef;
use ucx_sys_wrap::tcp::{MAX_EAGER_BYTES, Tcp};
use ucx_sys_wrap::{Error, Failure, Rank, Transport};

use super::world::*;

#[test]
fn garbage_closes_the_transport_and_the_others_are_told() {
    let (mut transports, mut strangers) = world_with_strangers(2, 3);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[8]);
    let mut bystander = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    strangers[0][0].as_mut().unwrap().write_all(&[0xff; 200]).unwrap();
    let result = receive(&mut transports, 0, &mut bystander);
    assert!(matches!(result, Err(Error::Protocol { rank: Rank(2), .. })), "{result:?}");
    assert_lost(receive(&mut transports, 1, &mut receiving), 2);
    assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(2))));
    assert_eq!(transports[1].failure(), Some(Failure::PeerLost(Rank(2))));
    // The stranger is told as well.
    let mut frame = [0; 64];
    strangers[0][1].as_mut().unwrap().read_exact(&mut frame).unwrap();
    assert_eq!(frame[..], lost_frame(1, 2));
}

#[test]
fn every_wrong_field_closes_the_transport() {
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
    for bytes in cases.iter().chain([&lost_frame(1, 2), &lost_frame(0, 1)]) {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
        strangers[0][0].as_mut().unwrap().write_all(bytes).unwrap();
        let result = receive(&mut transports, 0, &mut receiving);
        assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "{result:?}");
        let mut late = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"]);
        assert!(matches!(late.test(&mut transports[0]), Some(Err(Error::Protocol { .. }))));
    }
}

#[test]
fn a_rank_that_dies_in_the_middle_of_a_frame_is_named_by_all() {
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
        for (rank, receiving) in receives.iter_mut().enumerate() {
            assert_lost(receive(&mut transports, rank, receiving), 3);
        }
        assert_lost(receive(&mut transports, 1, &mut from_dead), 3);
        for transport in &mut transports {
            assert_eq!(transport.failure(), Some(Failure::PeerLost(Rank(3))));
            let mut later = Sending::post(transport, 3, envelope(transport.rank().index(), 0), &[b"x"]);
            assert_lost(later.test(transport).unwrap(), 3);
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
fn a_cause_that_somebody_names_comes_before_a_bare_end() {
    for messenger in 1..3 {
        let (mut transports, mut strangers) = world_with_strangers(1, 4);
        let mut receiving =
            Receiving::post(&mut transports[0], 3 - messenger, envelope(3 - messenger, 0), &[8]);
        let frame = lost_frame(messenger, 3);
        strangers[messenger - 1][0].as_mut().unwrap().write_all(&frame).unwrap();
        strangers.truncate(2);
        strangers.remove(2 - messenger);
        assert_lost(receive(&mut transports, 0, &mut receiving), 3);
    }
}

#[test]
fn survivors_that_leave_are_not_taken_for_the_dead() {
    let (mut transports, strangers) = world_with_strangers(3, 4);
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    let mut waiting = Receiving::post(&mut transports[2], 3, envelope(3, 0), &[8]);
    drop(strangers);
    turn_until(&mut transports[2..], |transports| waiting.test(&mut transports[0]).is_some());
    drop(transports.pop());
    let mut second = Receiving::post(&mut transports[1], 2, envelope(2, 0), &[8]);
    turn_until(&mut transports[1..], |transports| second.test(&mut transports[0]).is_some());
    assert_lost(second.test(&mut transports[1]).unwrap(), 3);
    drop(transports.pop());
    assert_lost(receive(&mut transports, 0, &mut receiving), 3);
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
    assert_eq!(transports[0].failure(), None);
    let _sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"on"]);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[2]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    // A rank that misses it tells all.
    let mut other = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[2]);
    assert_lost(
        Receiving::post(&mut transports[0], 2, envelope(2, 0), &[5]).test(&mut transports[0]).unwrap(),
        2,
    );
    assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(2))));
    assert_lost(receive(&mut transports, 1, &mut other), 2);
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
                assert_eq!(transports[0].failure(), None);
                Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"])
                    .test(&mut transports[0])
                    .unwrap()
            }
        };
        assert_lost(result, 1);
        assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(1))));
    }
}

#[test]
fn an_abort_is_told_to_all() {
    let mut transports = world(3);
    let mut receives: Vec<_> = (0..3)
        .map(|rank| Receiving::post(&mut transports[rank], (rank + 1) % 3, envelope((rank + 1) % 3, 0), &[8]))
        .collect();
    // A message in transit is not cut: the cause follows it.
    let _stuck = stuff(&mut transports[1], 0);
    transports[1].fail(Failure::Aborted(Rank(1)));
    transports[1].fail(Failure::PeerLost(Rank(0)));
    for (rank, receiving) in receives.iter_mut().enumerate() {
        let result = receive(&mut transports, rank, receiving);
        assert!(matches!(result, Err(Error::Aborted { rank: Rank(1) })), "{result:?}");
        assert_eq!(transports[rank].failure(), Some(Failure::Aborted(Rank(1))));
    }
}

/// Behind megabytes that the kernel still has to send, to a peer that keeps sending: a socket closed earlier
/// would drop them.
#[test]
fn a_cause_is_told_behind_what_the_kernel_has_not_sent() {
    let mut rows = mesh(2);
    let mut socket = rows[1][0].take().unwrap();
    // Enough that something is left, and little to read in the second that the drop waits.
    SockRef::from(&socket).set_recv_buffer_size(32 << 10).unwrap();
    SockRef::from(rows[0][1].as_ref().unwrap()).set_send_buffer_size(1 << 20).unwrap();
    let mut own = Tcp::new(Rank(0), 2, rows.remove(0)).unwrap();
    let _stuck = stuff(&mut own, 1);
    own.fail(Failure::Aborted(Rank(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(own));
        let (mut last, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            // Some of these arrive when no rank is left to read them.
            let _ = socket.write_all(&[0]);
            match socket.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    last.extend_from_slice(&piece[..count]);
                    last.drain(..last.len().saturating_sub(HEADER_BYTES as usize));
                }
                Err(error) => panic!("{error}: the end of what was sent is lost"),
            }
        }
        assert_eq!(last[..8], control(4, 0, 0)[..8], "the last frame says who has aborted");
    });
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
