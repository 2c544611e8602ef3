//! What arrives of messages between local peers, when, and in which order.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// A rank that can't read the sender's memory gets everything eagerly, within the credit: sends complete
/// though nothing is received.
#[test]
fn what_nobody_can_read_waits_for_no_receive() {
    for (may_read, bytes, count) in [(false, 100_000, 3), (true, 16 << 10, 100)] {
        let mut transports = local_peers(2, may_read);
        let payload = pattern(1, bytes);
        let mut sends: Vec<_> =
            (0..count).map(|_| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&payload])).collect();
        let _other = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[8]);
        turn_until(&mut transports, |transports| {
            sends.iter_mut().all(|it| it.test(&mut transports[0]).is_some())
        });
        for _ in 0..count {
            let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes]);
            receive(&mut transports, 1, &mut receiving).unwrap();
            assert!(receiving.bytes() == [payload.clone()]);
        }
    }
}

/// A send of a message that may be read completes, whether or not its receive is ever posted, and whichever
/// rank sleeps.
#[test]
fn what_nobody_asks_for_is_read_a_turn_later() {
    let mut transports = local_peers(2, true);
    let bytes = pattern(1, 100_000);
    // Something else is awaited, so that every turn looks at the link.
    let _other = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[8]);
    // Behind a message that is not received, it starts with an RTS.
    let ahead = Sending::post(&mut transports[0], 1, envelope(0, 2), &[&[0; 8]]).test(&mut transports[0]);
    ahead.expect("it lies in its cell").unwrap();
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&bytes]);
    turn(&mut transports[1..], 1);
    turn(&mut transports[..1], 1);
    assert!(sending.test(&mut transports[0]).is_none(), "its receive may be posted now");
    turn(&mut transports[1..], 1);
    turn(&mut transports[..1], 1);
    assert!(sending.test(&mut transports[0]).is_some());
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes.len()]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    assert!(receiving.bytes() == [bytes]);
}

#[test]
fn what_a_dead_local_peer_has_sent_whole_arrives_and_the_rest_is_lost() {
    let (mut transports, mut strangers, block, _world) = with_stranger();
    let mut whole = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[1024]);
    let mut half = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[1024]);
    write_cell(&block, 0, 1, 1, 0, words(0, [8, u64::from_le_bytes(*b"last wor"), 0]));
    write_cell(&block, 1, 2, 1, 1, words(1, [1000, 0, 0]));
    // The kernel closes the sockets of a process that was killed.
    strangers.clear();
    let start = Instant::now();
    assert_lost(receive(&mut transports, 0, &mut half), 1);
    receive(&mut transports, 0, &mut whole).unwrap();
    assert_eq!(whole.bytes(), [b"last wor"]);
    assert!(start.elapsed() < PATIENCE);
    assert_lost(
        Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"]).test(&mut transports[0]).unwrap(),
        1,
    );
}

#[test]
fn canceled_messages_are_whole_or_never_were() {
    for may_read in [true, false] {
        // In a descriptor, through the ring, read from memory, by RTS.
        for size in [8, 3000, 100_000, 600_000, 3 << 20] {
            let mut transports = local_peers(2, may_read);
            // Fills the ring and the descriptors, so that there is something to cancel.
            let mut before: Vec<_> = (0..70)
                .map(|_| Sending::post(&mut transports[0], 1, envelope(0, 1), &[&pattern(9, 7000)]))
                .collect();
            let bytes = pattern(size, size);
            let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&bytes]);
            turn(&mut transports[..1], 3);
            let canceled = sending.cancel(&mut transports[0]).is_err();
            drop(sending);
            let mut after = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"after"]);
            let mut first = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size.max(8)]);
            receive(&mut transports, 1, &mut first).unwrap();
            if first.bytes() != [b"after"] {
                assert!(first.bytes() == [bytes], "{size} bytes, may_read {may_read}");
                let mut second = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[8]);
                receive(&mut transports, 1, &mut second).unwrap();
                assert_eq!(second.bytes(), [b"after"]);
            } else {
                assert!(canceled, "a message that was sent must arrive");
            }
            turn_until(&mut transports, |transports| after.test(&mut transports[0]).is_some());
            for _ in 0..70 {
                let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[7000]);
                receive(&mut transports, 1, &mut receiving).unwrap();
            }
            turn_until(&mut transports, |transports| {
                before.iter_mut().all(|it| it.test(&mut transports[0]).is_some())
            });
        }
    }
}

#[test]
fn a_small_message_does_not_wait_for_a_large_one() {
    for may_read in [true, false] {
        let mut transports = local_peers(2, may_read);
        let bytes = pattern(1, 20 << 20);
        let mut large = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes.len()]);
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&bytes]);
        turn(&mut transports, 3);
        let mut small = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[8]);
        let posted = Sending::post(&mut transports[0], 1, envelope(0, 1), &[b"small"]);
        receive(&mut transports, 1, &mut small).unwrap();
        assert!(large.test(&mut transports[1]).is_none(), "the small one came first");
        receive(&mut transports, 1, &mut large).unwrap();
        assert!(large.bytes() == [bytes]);
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        drop(posted);
    }
}

#[test]
fn messages_of_all_sizes_arrive_in_order_and_whole() {
    let sizes = [
        0,
        1,
        15,
        16,
        17,
        31,
        32,
        1999,
        2000,
        4096,
        6143,
        6144,
        70_000,
        512 << 10,
        600_000,
        1 << 20,
        (1 << 20) + 1,
        5 << 20,
    ];
    for may_read in [true, false] {
        for post_first in [true, false] {
            let mut transports = local_peers(2, may_read);
            let mut receives = Vec::new();
            let mut sends = Vec::new();
            for step in [post_first, !post_first] {
                if step {
                    receives.extend(
                        sizes.map(|size| {
                            Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size, 9, 40])
                        }),
                    );
                } else {
                    sends.extend(sizes.iter().enumerate().map(|(i, size)| {
                        let parts: [&[u8]; 3] = [&pattern(i, *size), &pattern(i + 1, 9), &pattern(i + 2, 40)];
                        Sending::post(&mut transports[0], 1, envelope(0, 0), &parts)
                    }));
                }
                turn(&mut transports, 300);
            }
            for (i, receiving) in receives.iter_mut().enumerate() {
                receive(&mut transports, 1, receiving).unwrap();
                let expected = [pattern(i, sizes[i]), pattern(i + 1, 9), pattern(i + 2, 40)];
                assert!(
                    receiving.bytes() == expected,
                    "message {i}, may_read {may_read}, post_first {post_first}"
                );
            }
            for sending in &mut sends {
                turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
                sending.test(&mut transports[0]).unwrap().unwrap();
            }
        }
    }
}

/// Two ranks alternate and sleep whenever there is nothing to do; a lost wake-up hangs them.
#[test]
fn no_wake_up_is_lost() {
    for may_read in [true, false] {
        let ranks = local_peers(2, may_read);
        std::thread::scope(|scope| {
            for (own, rank) in ranks.into_iter().enumerate() {
                scope.spawn(move || play_asleep(rank, own));
            }
        });
    }
}

fn play_asleep(rank: Tcp, own: usize) {
    // Long messages fill the ring, so that senders sleep too.
    let messages = [8, 600, 100_000, 8, 3 << 20, 400_000].map(|size| pattern(1, size));
    let mut rank = [rank];
    for round in 0..1200u32 {
        let message = &messages[round as usize % messages.len()];
        if (round as usize + own).is_multiple_of(2) {
            let mut sending = Sending::post(&mut rank[0], 1 - own, envelope(own, round), &[message]);
            sleep_until(&mut rank, |rank| sending.test(&mut rank[0]).is_some(), round);
        } else {
            let mut receiving =
                Receiving::post(&mut rank[0], 1 - own, envelope(1 - own, round), &[message.len()]);
            sleep_until(&mut rank, |rank| receiving.test(&mut rank[0]).is_some(), round);
            assert!(receiving.bytes() == [&message[..]]);
        }
    }
}

fn sleep_until(rank: &mut [Tcp], mut done: impl FnMut(&mut [Tcp]) -> bool, round: u32) {
    loop {
        let moved = rank[0].progress();
        if done(rank) {
            return;
        }
        if moved {
            continue;
        }
        if let Some(descriptor) = rank[0].arm() {
            let longest = Timespec { tv_sec: Duration::from_secs(20).as_secs() as i64, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&longest)).unwrap();
            assert!(ready > 0, "nobody woke the rank in round {round}");
        }
    }
}
