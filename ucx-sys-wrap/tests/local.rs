//! The copies of the transport between threads.

#[allow(dead_code, reason = "the battery belongs to others")]
mod common;

use brevity_testing::worlds::boxed;
use common::{block, envelope, pattern};
use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::{Envelope, Found, Rank, Statistics, Tag, Wanted, local};

fn world(world_size: u32) -> common::World {
    boxed(local::world(world_size))
}

#[test]
fn small_messages_are_copied_twice_and_large_ones_once() {
    for (length, sender_copies) in [(0, 0), (local::COPIED_BYTES, 1), (local::COPIED_BYTES + 1, 0)] {
        common::run("copies", world(2), move |port| {
            block(&port, async |comm| {
                if port.rank() == Rank(0) {
                    comm.send(Rank(1), envelope(Rank(0), 1, 0), pattern(1, length)).await.unwrap();
                } else {
                    comm.recv(Rank(0), envelope(Rank(0), 1, 0), vec![0u8; length]).await.unwrap();
                }
            });
            let Statistics { copies, bytes_copied, .. } = port.statistics();
            let expected = if port.rank() == Rank(0) { sender_copies } else { u64::from(length > 0) };
            assert_eq!((copies, bytes_copied), (expected, expected * length as u64), "{length} bytes");
        });
    }
}

/// Any number of parts is one message.
#[test]
fn a_header_indices_and_values_are_copied_as_one() {
    for (lengths, sender_copies) in
        [([16, 400, 400], 1), ([16, 2040, 2040], 1), ([16, 2040, 2041], 0), ([16, 0, 0], 1)]
    {
        let whole = lengths.iter().sum::<usize>() as u64;
        common::run("copies of parts", world(2), move |port| {
            let sparse = |[head, indices, values]: [Vec<u8>; 3]| (head, (indices, values));
            block(&port, async |comm| {
                if port.rank() == Rank(0) {
                    let parts = sparse(lengths.map(|length| pattern(length, length)));
                    comm.send(Rank(1), envelope(Rank(0), 1, 0), parts).await.unwrap();
                } else {
                    let places = sparse(lengths.map(|length| vec![0u8; length]));
                    let (found, _) = comm.recv(Rank(0), envelope(Rank(0), 1, 0), places).await.unwrap();
                    assert_eq!(found, sparse(lengths.map(|length| pattern(length, length))));
                }
            });
            let Statistics { copies, bytes_copied, .. } = port.statistics();
            let expected = if port.rank() == Rank(0) { sender_copies } else { 1 };
            assert_eq!((copies, bytes_copied), (expected, expected * whole), "{lengths:?}");
        });
    }
}

/// Whoever has looked for a message in vain looks again before it sleeps, though no receive waits for what
/// came, and whatever took the mail.
#[test]
fn mail_that_nobody_waits_for_keeps_its_owner_awake() {
    let ports: Vec<_> = world(2).into_iter().map(Port::new).collect();
    let send = |tag| {
        block(&ports[0], async |comm| {
            comm.send(Rank(1), envelope(Rank(0), 1, tag), vec![1u8; 8]).await.unwrap();
        });
    };
    assert!(!ports[1].progress());
    send(1);
    assert!(ports[1].progress());
    assert!(ports[1].arm().is_none());
    send(2);
    // Posting takes the mail too.
    block(&ports[1], async |comm| drop(comm.recv(Rank(0), envelope(Rank(0), 1, 9), vec![0u8; 8])));
    assert!(ports[1].arm().is_none());
    assert!(ports[1].arm().is_some());
}

/// A sender gives a message up on its own thread whenever it likes: also while the receiver makes a place.
#[test]
fn the_message_that_was_found_is_received_though_its_sender_gives_it_up() {
    for has_place in [true, false] {
        let ports: Vec<_> = world(2).into_iter().map(Port::new).collect();
        let user = Envelope { tag: Tag::of_user(Rank(0), 0, 5), ..envelope(Rank(0), 0, 0) };
        let wanted = Wanted { context: 0, epoch: 0, source: None, tag: Some(5), after: Rank(0) };
        let bytes = |found: &Found| found.lengths.iter().sum::<usize>();
        let long = pattern(1, local::COPIED_BYTES + 1);
        block(&ports[0], async |sender| {
            let given_up = sender.send(Rank(1), user, long.clone());
            sender.send(Rank(1), user, pattern(2, 1)).await.unwrap();
            block(&ports[1], async |receiver| {
                let place = |found: &Found| {
                    drop(given_up);
                    has_place.then(|| vec![0u8; bytes(found)])
                };
                let found = receiver.recv_found(&wanted, user.signature, place).unwrap();
                assert_eq!(found.is_some(), has_place);
                if let Some((_, receive)) = found {
                    assert_eq!(receive.await.unwrap().0, long);
                }
            });
            // Either way it is gone, and the next one is there.
            assert_eq!(ports[1].probe(&wanted).unwrap().map(|found| bytes(&found)), Some(1));
        });
    }
}

#[test]
fn small_sends_end_when_posted_until_the_mailbox_is_full() {
    let ports: Vec<_> = world(2).into_iter().map(Port::new).collect();
    let mut posted = 0;
    // There is no receive, and still nothing hangs: what does not fit stays with its sender.
    block(&ports[0], async |comm| {
        let sends: Vec<_> = (0..10_000)
            .map(|index| comm.send(Rank(1), envelope(Rank(0), 1, 0), pattern(index, 4000)))
            .collect();
        posted = sends.len();
    });
    let copied = ports[0].statistics().bytes_copied;
    assert!(copied <= 16 << 20 && copied > 16 << 19, "{copied} of {posted} messages");
    block(&ports[1], async |comm| {
        for index in 0..copied as usize / 4000 {
            let (bytes, _) = comm.recv(Rank(0), envelope(Rank(0), 1, 0), vec![0u8; 4000]).await.unwrap();
            assert_eq!(bytes, pattern(index, 4000));
        }
    });
}

#[test]
fn who_has_left_harms_only_those_who_wait_for_it() {
    let mut ports: Vec<_> = world(3).into_iter().map(Port::new).collect();
    drop(ports.pop());
    block(&ports[0], async |comm| comm.send(Rank(1), envelope(Rank(0), 1, 0), vec![1u8]).await.unwrap());
    block(&ports[1], async |comm| comm.recv(Rank(0), envelope(Rank(0), 1, 0), vec![0u8]).await.unwrap());
    assert_eq!((ports[0].failure(0), ports[1].failure(0)), (None, None));
}
