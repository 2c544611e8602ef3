//! Long messages that a local peer reads from their sender's memory, one fragment in each turn.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucx_sys_wrap::tcp::Tcp;
use ucx_sys_wrap::{Error, Transport};

use super::world::*;

const PIECE: usize = 4 << 20;
const MIB: usize = 1 << 20;
const CELLS: usize = 64;

/// A message of six fragments from rank 0 to rank 1, which has a receive for it and has read `pieces` of it.
fn begun(pieces: usize) -> (Vec<Tcp>, Sending, Receiving, Vec<u8>) {
    let mut transports = local_peers(2, true);
    let bytes = pattern(1, 5 * PIECE + 77);
    let receiving = Receiving::post_pooled(&mut transports[1], 0, envelope(0, 0), &[bytes.len()]);
    let mut sending = Sending::post_pooled(&mut transports[0], 1, envelope(0, 0), &[&bytes]);
    turn(&mut transports[1..], pieces);
    assert!(sending.test(&mut transports[0]).is_none(), "nothing was said yet");
    (transports, sending, receiving, bytes)
}

/// All parts, posted before and afterwards: the receiver copies each byte once.
#[test]
fn long_messages_on_huge_pages_are_copied_by_the_receiver_alone() {
    for is_posted in [true, false] {
        for lengths in
            [&[2 * PIECE][..], &[5 * PIECE + 3], &[16, 2 * PIECE, 3 * PIECE + 1], &[2 * PIECE, 0, PIECE - 1]]
        {
            let mut transports = local_peers(2, true);
            let parts: Vec<_> =
                lengths.iter().enumerate().map(|(seed, length)| pattern(seed, *length)).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let early =
                is_posted.then(|| Receiving::post_pooled(&mut transports[1], 0, envelope(0, 0), lengths));
            let mut sending = Sending::post_pooled(&mut transports[0], 1, envelope(0, 0), &slices);
            turn(&mut transports, if is_posted { 0 } else { 100 });
            let mut receiving = early
                .unwrap_or_else(|| Receiving::post_pooled(&mut transports[1], 0, envelope(0, 0), lengths));
            receive(&mut transports, 1, &mut receiving).unwrap();
            assert!(receiving.bytes() == parts, "{lengths:?}");
            turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
            let copied =
                [0, 1].map(|rank| transports[rank].statistics()).map(|it| (it.copies, it.bytes_copied));
            assert_eq!(
                copied,
                [(0, 0), (1, lengths.iter().sum::<usize>() as u64)],
                "{lengths:?}, posted {is_posted}"
            );
        }
    }
}

/// The kernel looks up ordinary pages one by one, so the ring is faster, unless the message is many times as
/// long as the ring.
#[test]
fn long_messages_on_ordinary_pages_come_through_the_ring_up_to_many_of_its_lengths() {
    for (bytes, is_read) in [(MIB + 1, false), (5 * MIB, false), (17 * MIB, true)] {
        for is_posted in [true, false] {
            for is_sender_pooled in [true, false] {
                let mut transports = local_peers(2, true);
                let sent = pattern(1, bytes);
                let early =
                    is_posted.then(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes]));
                let send = if is_sender_pooled { Sending::post_pooled } else { Sending::post };
                let mut sending = send(&mut transports[0], 1, envelope(0, 0), &[&sent]);
                turn(&mut transports, if is_posted { 0 } else { 100 });
                let mut receiving =
                    early.unwrap_or_else(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes]));
                receive(&mut transports, 1, &mut receiving).unwrap();
                assert!(receiving.bytes() == [sent], "{bytes} bytes");
                turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
                let copied = [0, 1].map(|rank| transports[rank].statistics().bytes_copied);
                let sender_copied = if is_read { 0 } else { bytes as u64 };
                assert_eq!(copied, [sender_copied, bytes as u64], "{bytes} bytes");
            }
        }
    }
}

/// A sender may take its memory back at any time: the message then arrives whole in another way, whatever was
/// read before.
#[test]
fn what_is_withdrawn_while_it_is_read_arrives_whole() {
    for pieces in 0..=5 {
        let (mut transports, mut sending, mut receiving, bytes) = begun(pieces);
        assert!(matches!(sending.cancel(&mut transports[0]), Err(Error::Canceled)));
        // Its memory is gone or reused.
        drop(sending);
        let _other = Sending::post_pooled(&mut transports[0], 1, envelope(0, 1), &[&pattern(2, bytes.len())]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [bytes], "after {pieces} pieces");
    }
}

/// The memory of a canceled receive is no longer written, and its sender does not wait forever.
#[test]
fn a_receive_that_is_canceled_while_its_message_is_read_gets_no_more() {
    for pieces in 0..=5 {
        let (mut transports, mut sending, mut first, bytes) = begun(pieces);
        assert!(matches!(first.cancel(&mut transports[1]), Err(Error::Canceled)));
        let mut second = Receiving::post_pooled(&mut transports[1], 0, envelope(0, 1), &[bytes.len()]);
        // A message that is not matched yet belongs to the next receive of its tag.
        let third = Receiving::post_pooled(&mut transports[1], 0, envelope(0, 0), &[bytes.len()]);
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        turn(&mut transports, 10);
        assert!(second.test(&mut transports[1]).is_none(), "nothing was sent to it");
        let expected = if pieces == 0 { 1 } else { 0 };
        assert_eq!(transports[1].statistics().messages_received, expected, "after {pieces} pieces");
        let mut behind = Sending::post_pooled(&mut transports[0], 1, envelope(0, 1), &[&bytes]);
        receive(&mut transports, 1, &mut second).unwrap();
        assert!(second.bytes() == [&bytes[..]]);
        turn_until(&mut transports, |transports| behind.test(&mut transports[0]).is_some());
        drop(third);
    }
}

/// The rank has left, and its memory, which no test may free, has not: what is read there is right or
/// nothing.
#[test]
fn a_receive_whose_sender_leaves_in_between_ends() {
    for pieces in 0..=5 {
        let (mut transports, sending, mut receiving, bytes) = begun(pieces);
        drop(transports.remove(0));
        match receive(&mut transports, 0, &mut receiving) {
            Ok(_) => assert!(receiving.bytes() == [bytes], "after {pieces} pieces"),
            lost => assert_lost(lost, 0),
        }
        drop(sending);
    }
}

#[test]
fn a_small_message_does_not_wait_until_a_long_one_is_read() {
    let (mut transports, mut sending, mut long, bytes) = begun(2);
    let mut small = Receiving::post_pooled(&mut transports[1], 0, envelope(0, 1), &[8]);
    Sending::post(&mut transports[0], 1, envelope(0, 1), &[b"small"])
        .test(&mut transports[0])
        .expect("in its cell")
        .unwrap();
    turn(&mut transports[1..], 1);
    small.test(&mut transports[1]).expect("it came before the rest").unwrap();
    assert!(long.test(&mut transports[1]).is_none(), "the small one came first");
    receive(&mut transports, 1, &mut long).unwrap();
    assert!(long.bytes() == [bytes]);
    turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
}

/// A receive ends only when its sender can be told, and a rank that sleeps until then is woken.
#[test]
fn what_can_not_be_answered_is_read_when_it_can() {
    let (mut transports, mut sending, mut receiving, bytes) = begun(2);
    for round in 0..CELLS as u32 {
        let sent =
            Sending::post(&mut transports[1], 0, envelope(1, round), &[b"eight by"]).test(&mut transports[1]);
        sent.expect("it lies in its cell").unwrap();
    }
    let wake_receiver = (0..100).find_map(|_| transports[1].arm()).expect("nothing moves: it can sleep");
    let rings =
        || poll(&mut [PollFd::new(&wake_receiver, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0;
    assert!(!rings(), "nothing has happened");
    assert!(receiving.test(&mut transports[1]).is_none(), "its sender could not be told");
    // Rank 0 receives what was sent to it.
    turn(&mut transports[..1], 10);
    assert!(rings(), "there are cells for the answer, and nobody says so");
    receive(&mut transports, 1, &mut receiving).unwrap();
    assert!(receiving.bytes() == [bytes]);
    // Rank 1 does not poll from here on.
    turn_until(&mut transports[..1], |ranks| sending.test(&mut ranks[0]).is_some());
}
