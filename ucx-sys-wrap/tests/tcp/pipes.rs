//! Long messages that come through pipes, and what a neighbour may do to pipes.

use std::sync::atomic::Ordering;

use ucx_sys_wrap::shm::PeerArea;
use ucx_sys_wrap::tcp::Tcp;
use ucx_sys_wrap::{Error, Transport};

use super::neighbours::{CELL_BYTES, CELLS_AT, with_stranger, words, write_cell};
use super::world::*;

const MIB: usize = 1 << 20;

/// The sender looks small pages up for the receiver, which copies them.
#[test]
fn long_messages_on_small_pages_come_through_pipes() {
    for lengths in [&[3 * MIB][..], &[MIB + 1], &[16, 2 * MIB, MIB + 1], &[3 * MIB, 0, 5]] {
        for is_posted in [true, false] {
            for (is_sender_pooled, is_receiver_pooled) in [(false, false), (false, true), (true, false)] {
                let mut transports = neighbours(2, true);
                let post = if is_receiver_pooled { Receiving::post_pooled } else { Receiving::post };
                let early = is_posted.then(|| post(&mut transports[1], 0, envelope(0, 0), lengths));
                let parts: Vec<_> =
                    lengths.iter().enumerate().map(|(seed, length)| pattern(seed, *length)).collect();
                let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let send = if is_sender_pooled { Sending::post_pooled } else { Sending::post };
                let mut sending = send(&mut transports[0], 1, envelope(0, 0), &slices);
                turn(&mut transports, if is_posted { 0 } else { 100 });
                let mut receiving =
                    early.unwrap_or_else(|| post(&mut transports[1], 0, envelope(0, 0), lengths));
                receive(&mut transports, 1, &mut receiving).unwrap();
                assert!(receiving.bytes() == parts, "{lengths:?}");
                turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
                let copied =
                    [0, 1].map(|rank| transports[rank].statistics()).map(|it| (it.copies, it.bytes_copied));
                assert_eq!(copied, [(0, 0), (1, lengths.iter().sum::<usize>() as u64)], "{lengths:?}");
            }
        }
    }
}

/// A message of forty pieces that come through pipes, of which `turns` turns of both ranks have passed.
fn begun_in_pipes(turns: usize) -> (Vec<Tcp>, Sending, Receiving, Vec<u8>) {
    let mut transports = neighbours(2, true);
    let bytes = pattern(1, 5 * MIB + 77);
    let receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes.len()]);
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&bytes]);
    turn(&mut transports, turns);
    assert!(sending.test(&mut transports[0]).is_none(), "it is not yet there");
    (transports, sending, receiving, bytes)
}

#[test]
fn what_is_withdrawn_while_it_is_in_pipes_arrives_whole() {
    for turns in 0..8 {
        let (mut transports, mut sending, mut receiving, bytes) = begun_in_pipes(turns);
        assert!(matches!(sending.cancel(&mut transports[0]), Err(Error::Canceled)));
        drop(sending);
        let _other = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&pattern(2, bytes.len())]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [bytes], "after {turns} turns");
    }
}

#[test]
fn a_receive_that_is_canceled_while_its_message_is_in_pipes_gets_no_more() {
    for turns in 1..8 {
        let (mut transports, mut sending, mut first, bytes) = begun_in_pipes(turns);
        assert!(matches!(first.cancel(&mut transports[1]), Err(Error::Canceled)));
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        assert_eq!(transports[1].statistics().messages_received, 0);
        // The pipes are empty, and the next one goes through them.
        let mut second = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[bytes.len()]);
        let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&bytes]);
        receive(&mut transports, 1, &mut second).unwrap();
        assert!(second.bytes() == [&bytes[..]]);
        turn_until(&mut transports, |transports| behind.test(&mut transports[0]).is_some());
        assert_eq!(transports[0].statistics().bytes_copied, 0);
    }
}

#[test]
fn a_receive_whose_sender_leaves_while_its_message_is_in_pipes_ends() {
    for turns in 0..8 {
        let (mut transports, sending, mut receiving, _) = begun_in_pipes(turns);
        drop(transports.remove(0));
        assert_lost(receive(&mut transports, 0, &mut receiving), 0);
        drop(sending);
    }
}

/// Two at a time, and small ones between them.
#[test]
fn messages_in_pipes_come_one_after_the_other_and_small_ones_between() {
    let (mut transports, mut first, mut early, bytes) = begun_in_pipes(2);
    let other = pattern(5, 3 * MIB + 1);
    let mut late = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[other.len()]);
    let mut small = Receiving::post(&mut transports[1], 0, envelope(0, 2), &[5]);
    let mut second = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&other]);
    let mut third = Sending::post(&mut transports[0], 1, envelope(0, 2), &[b"small"]);
    third.test(&mut transports[0]).expect("it lies in its cell").unwrap();
    receive(&mut transports, 1, &mut small).unwrap();
    assert!(early.test(&mut transports[1]).is_none(), "the small one came first");
    receive(&mut transports, 1, &mut early).unwrap();
    receive(&mut transports, 1, &mut late).unwrap();
    assert!(early.bytes() == [bytes] && late.bytes() == [other]);
    for sending in [&mut first, &mut second] {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    }
}

/// What kind of cell a rank has written at `position` for the neighbour that has this block.
fn kind_at(block: &PeerArea, position: u64) -> u64 {
    let stamp = block.load(CELLS_AT + (position % 64) as usize * CELL_BYTES);
    if stamp as u32 == position as u32 + 1 { stamp >> 32 & 0xff } else { 0 }
}

/// Pipes that are none, and none at all.
#[test]
fn who_can_not_put_into_pipes_sends_through_the_ring() {
    for word in [0, 7, u64::MAX, 0x4000_0000_4000_0000] {
        let (mut transports, _strangers, block, world) = with_stranger();
        let seen = world[1].peer_block(0).unwrap();
        block.word(8).store(1, Ordering::Release);
        let _sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 3 << 20)]);
        assert_eq!(kind_at(&seen, 0), 4, "an offer");
        for at in [1088, 1096] {
            block.word(at).store(word, Ordering::Release);
        }
        write_cell(&block, 0, 12, 0, 0, [0; 7]);
        turn(&mut transports, 3);
        assert_eq!(
            [1, 2].map(|position| kind_at(&seen, position)),
            [7, 3],
            "{word:#x}: data, and a piece in the ring"
        );
    }
}

/// Who was asked for pipes may send through the ring all the same: it can't do otherwise.
#[test]
fn what_comes_through_the_ring_after_all_arrives() {
    const PIECE: usize = 64 << 10;
    let (mut transports, _strangers, block, world) = with_stranger();
    let seen = world[1].peer_block(0).unwrap();
    let sent = pattern(3, (1 << 20) + PIECE);
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[sent.len()]);
    block.word(256).store(5, Ordering::Release);
    let place = [3, 0, 5, 0, 0x1008, 0, 0, 0];
    for (word, value) in block.line(CELLS_AT + 64).iter().zip(place) {
        word.store(value, Ordering::Relaxed);
    }
    write_cell(&block, 0, 4, 1, 0, words(0, [sent.len() as u64, 0, 0]));
    turn(&mut transports, 1);
    assert_eq!(kind_at(&seen, 0), 12, "it asks for pipes");
    write_cell(&block, 1, 7, 0, 0, [3, 0, 0, 0, 0, 0, 0]);
    let ring = block.area(49152..block.bytes());
    for (index, piece) in sent.chunks(PIECE).enumerate() {
        ring.write(index * PIECE % ring.bytes(), piece);
        write_cell(&block, index as u64 + 2, 3, 0, 0, [PIECE as u64, 0, 0, 0, 0, 0, 0]);
        turn(&mut transports, 1);
    }
    receive(&mut transports, 0, &mut receiving).unwrap();
    assert!(receiving.bytes() == [sent]);
}
