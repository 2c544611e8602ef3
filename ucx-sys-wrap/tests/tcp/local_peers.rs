//! Ranks of one host that share memory: what a local peer may write, what is left of one that dies, sleeping.

mod delivery;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Port, scope, scope_in_turns};
use ucx_sys_wrap::shm::{LocalGroup, OwnArea};
use ucx_sys_wrap::tcp::{MAX_EAGER_BYTES, Tcp};
use ucx_sys_wrap::{Envelope, Error, Mark, Posted, Rank, Signature, Tag, Transport};

use super::world::*;

pub(crate) const CELLS_AT: usize = 4096;
pub(crate) const CELL_BYTES: usize = 128;

/// Rank 0 as a transport, and the memory through which rank 1, a stranger, writes to it.
pub(crate) fn with_stranger() -> (Vec<Tcp>, Vec<Row>, OwnArea, Vec<Arc<LocalGroup>>) {
    let (mut transports, strangers) = world_with_strangers(1, 2);
    let local_groups = LocalGroup::in_process(2).unwrap();
    transports[0].share_memory(&local_groups[0], true).unwrap();
    let block = local_groups[1].own_channel(0).unwrap();
    (transports, strangers, block, local_groups)
}

/// Writes the first line of the descriptor at `position`, like the transport.
pub(crate) fn write_cell(block: &OwnArea, position: u64, kind: u64, parts: u64, extra: u64, words: [u64; 7]) {
    let line = block.line(CELLS_AT + (position % 64) as usize * CELL_BYTES);
    for (word, value) in line[1..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    line[0].store((position + 1) | kind << 32 | parts << 40 | extra << 48, Ordering::Release);
}

pub(crate) fn words(round: u32, lengths: [u64; 3]) -> [u64; 7] {
    let envelope = envelope(1, round);
    let half = u64::from_le_bytes([7; 8]);
    [envelope.tag.0, half, half, 0, lengths[0], lengths[1], lengths[2]]
}

#[test]
fn what_a_local_peer_must_not_write_closes_the_transport() {
    let foreign = Tag::new(Rank(0), 1, 2, 0).0;
    let mut another = words(0, [8, 0, 0]);
    another[0] = foreign;
    type Case = (u64, u64, u64, [u64; 7]);
    let cases: [Case; 22] = [
        (0, 1, 0, words(0, [8, 0, 0])),
        (11, 1, 0, words(0, [8, 0, 0])),
        (255, 1, 0, words(0, [8, 0, 0])),
        (1, 4, 0, words(0, [8, 0, 0])),
        (1, 255, 0, words(0, [8, 0, 0])),
        (1, 1, 0, words(0, [2049, 0, 0])),
        (1, 1, 0, words(0, [u64::MAX, 0, 0])),
        (1, 0, 0, words(0, [1, 0, 0])),
        (1, 1, 0, another),
        (2, 1, 1, words(0, [MAX_EAGER_BYTES as u64 + 1, 0, 0])),
        (2, 3, 1, words(0, [u64::MAX, u64::MAX, 2])),
        (3, 0, 0, [64, 0, 0, 0, 0, 0, 0]),
        (5, 0, 0, [0; 7]),
        (6, 0, 0, [u64::MAX, 0, 0, 0, 0, 0, 0]),
        (7, 0, 0, [3, 0, 0, 0, 0, 0, 0]),
        (4, 1, 0, words(0, [1 << 41, 0, 0])),
        (9, 1, 8, another),
        (9, 1, 2049, words(0, [0; 3])),
        (10, 1, 112, words(0, [0; 3])),
        (10, 1, 32_769, words(0, [0; 3])),
        (10, 1, 1000, another),
        (9, 1, u64::from(u16::MAX), words(0, [0; 3])),
    ];
    for (case, (kind, parts, extra, line)) in cases.into_iter().chain(cases).enumerate() {
        let (mut transports, _strangers, block, _world) = with_stranger();
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[1024]);
        write_cell(&block, 0, kind, parts, extra, line);
        // A caller that looks sees a short message as early as a turn would.
        let looked = match receiving.posted {
            Posted::Pending(id) if case >= cases.len() => transports[0].recv_outcome(id, 2),
            _ => None,
        };
        let result = looked.unwrap_or_else(|| receive(&mut transports, 0, &mut receiving));
        assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "case {case}: {result:?}");
    }
}

#[test]
fn who_awaits_a_message_and_nothing_else_sees_it_before_others_have_a_turn() {
    let ports: Vec<_> = local_peers(2, true).into_iter().map(|rank| Port::new(Box::new(rank))).collect();
    let envelope =
        Envelope { tag: Tag::new(Rank(1), 1, 2, 0), signature: Signature::default(), mark: Mark::NONE };
    let turns_of = |spins, count| {
        for number in 0..count {
            scope(&ports[1], |_| (), async |comm| comm.send(Rank(0), envelope, vec![number; 8]).await)
                .unwrap();
        }
        let mut turns = 0;
        scope_in_turns(
            &ports[0],
            spins,
            |_, _| turns += 1,
            async |comm| {
                let receives: Vec<_> =
                    (0..count).map(|_| comm.recv(Rank(1), envelope, vec![0u8; 8])).collect();
                for (number, receive) in (0..count).zip(receives) {
                    assert_eq!(receive.await.unwrap().0, [number; 8]);
                }
            },
        );
        turns
    };
    assert_eq!(turns_of(2, 1), 0);
    assert_eq!(turns_of(0, 1), 1, "it was not to look");
    assert_eq!(turns_of(2, 2), 1, "another is in flight");
    let mut turns = 0;
    scope_in_turns(
        &ports[0],
        2,
        |_, _| turns += 1,
        async |comm| {
            for number in 0..64 {
                scope(&ports[1], |_| (), async |comm| comm.send(Rank(0), envelope, vec![number; 8]).await)
                    .unwrap();
                assert_eq!(comm.recv(Rank(1), envelope, vec![0u8; 8]).await.unwrap().0, [number; 8]);
            }
        },
    );
    assert_eq!(turns, 4, "others have a turn however fast messages come");
}

#[test]
fn who_looks_for_its_message_and_takes_anothers_lets_nobody_sleep_on_it() {
    let (mut ranks, _strangers, block, _world) = with_stranger();
    let mut receives = [0, 1, 2].map(|round| Receiving::post(&mut ranks[0], 1, envelope(1, round), &[8]));
    write_cell(&block, 0, 1, 1, 0, words(0, [8, 0, 0]));
    receive(&mut ranks, 0, &mut receives[0]).unwrap();
    let start = Instant::now();
    while ranks[0].arm().is_none() {
        assert!(start.elapsed() < Duration::from_secs(100), "something moves all the time");
    }
    write_cell(&block, 1, 9, 1, 8, words(1, [0; 3]));
    let Posted::Pending(third) = receives[2].posted else { panic!("it has not come") };
    assert!(ranks[0].recv_outcome(third, 100).is_none());
    assert_eq!(ranks[0].statistics().messages_received, 2, "the message was not taken at once");
    assert!(ranks[0].arm().is_none(), "another message has come");
    assert!(receives[1].test(&mut ranks[0]).is_some());
    assert!(ranks[0].arm().is_some());
}

#[test]
fn pieces_are_bounded_by_their_message_and_the_ring() {
    for piece in [0, 1001 - 64, u64::MAX, 1 << 40] {
        let (mut transports, _strangers, block, _world) = with_stranger();
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[1024]);
        write_cell(&block, 0, 2, 1, 1, words(0, [1000, 0, 0]));
        write_cell(&block, 1, 3, 0, 0, [piece, 0, 0, 0, 0, 0, 0]);
        let result = receive(&mut transports, 0, &mut receiving);
        assert!(
            matches!(result, Err(Error::Protocol { rank: Rank(1), .. })),
            "a piece of {piece}: {result:?}"
        );
    }
}

#[test]
fn false_acknowledgements_close_the_transport() {
    for (at, value) in [(128, 1 << 40), (136, 64), (144, u64::MAX), (152, 1)] {
        let (mut transports, _strangers, block, _world) = with_stranger();
        block.word(at).store(value, Ordering::Release);
        // More than there are descriptors, so that the acknowledgements are read.
        let mut sends: Vec<_> = (0..80)
            .map(|round| Sending::post(&mut transports[0], 1, envelope(0, round), &[b"12345678"]))
            .collect();
        let last = sends.len() - 1;
        turn_until(&mut transports, |transports| sends[last].test(&mut transports[0]).is_some());
        let result = sends[last].test(&mut transports[0]);
        assert!(matches!(result, Some(Err(Error::Protocol { rank: Rank(1), .. }))), "word {at}: {result:?}");
    }
}

/// Whatever the local peer writes, and wherever: an error that names it, or nothing, and no byte outside the
/// receive.
#[test]
fn garbage_of_a_local_peer_is_an_error_or_nothing() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut refused = 0;
    for _ in 0..60 {
        let (mut transports, _strangers, block, _world) = with_stranger();
        let mut receives: Vec<_> = (0..3)
            .map(|round| Receiving::post(&mut transports[0], 1, envelope(1, round), &[1000, 10]))
            .collect();
        let _sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 100_000)]);
        for position in 0..40 {
            let mut line: [u64; 7] = std::array::from_fn(|_| next() >> (next() % 64));
            line[0] = if next() % 4 > 0 { envelope(1, next() as u32 % 3).tag.0 } else { line[0] };
            write_cell(&block, position, next() % 11, next() % 4, next() % 20, line);
            if next() % 8 == 0 {
                block.word(next() as usize % 3 * 8 + 128).store(next() % 200, Ordering::Release);
            }
            turn(&mut transports, 1);
        }
        for receiving in &mut receives {
            if let Some(Err(error)) = receiving.test(&mut transports[0]) {
                let is_named = matches!(
                    error,
                    Error::Protocol { rank: Rank(1), .. }
                        | Error::Mismatch { rank: Rank(1), .. }
                        | Error::TooLong { rank: Rank(1), .. }
                );
                assert!(is_named, "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 60, "{refused} receives were refused");
}

#[test]
fn a_short_message_has_signature_and_mark_of_the_last_that_said_them() {
    let (mut transports, _strangers, block, _world) = with_stranger();
    let mut receives =
        [8, 20, 20].map(|capacity| Receiving::post(&mut transports[0], 1, envelope(1, 0), &[capacity]));
    let mut said = words(0, [8, 1, 2]);
    said[3] = 5;
    write_cell(&block, 0, 1, 1, 0, said);
    let tag = said[0];
    write_cell(&block, 1, 9, 1, 20, [tag, 1, 2, 3, 4, 5, 6]);
    // Longer than the receive.
    write_cell(&block, 2, 9, 1, 21, [tag, 1, 2, 3, 4, 5, 6]);
    assert_eq!(receive(&mut transports, 0, &mut receives[0]).unwrap().mark, Mark(5));
    assert_eq!(receive(&mut transports, 0, &mut receives[1]).unwrap().mark, Mark(5));
    let whole = [1u64, 2, 3].map(u64::to_le_bytes).concat();
    assert_eq!(receives[1].bytes(), [&whole[..20]]);
    let result = receive(&mut transports, 0, &mut receives[2]);
    assert!(matches!(result, Err(Error::TooLong { sent: 21, capacity: 20, .. })), "{result:?}");
    // And before anything was sent, only zeros.
    let (mut transports, _strangers, block, _world) = with_stranger();
    let expected = Envelope { signature: of_one_context(7), ..envelope(1, 0) };
    let mut other = Receiving::post(&mut transports[0], 1, expected, &[20]);
    write_cell(&block, 0, 9, 1, 8, [tag, 1, 2, 3, 4, 5, 6]);
    let result = receive(&mut transports, 0, &mut other);
    let zeros = Signature::default();
    assert!(matches!(result, Err(Error::Mismatch { found, .. }) if found == zeros), "{result:?}");
}

/// The ring holds as many bytes as the descriptor says, and those of the next message begin on a new line.
#[test]
fn a_middling_message_lies_in_the_ring() {
    let (mut transports, _strangers, block, _world) = with_stranger();
    let ring = block.area(28672..block.bytes());
    let sent = [pattern(3, 1000), pattern(4, 529)];
    ring.write(0, &sent[0]);
    ring.write(1024, &sent[1]);
    let lengths = [8, 1000, 529];
    let mut receives = lengths.map(|bytes| Receiving::post(&mut transports[0], 1, envelope(1, 0), &[bytes]));
    let said = words(0, [8, 1, 2]);
    write_cell(&block, 0, 1, 1, 0, said);
    write_cell(&block, 1, 10, 1, 1000, [said[0], 0, 0, 0, 0, 0, 0]);
    write_cell(&block, 2, 10, 1, 529, [said[0], 0, 0, 0, 0, 0, 0]);
    for receiving in &mut receives {
        receive(&mut transports, 0, receiving).unwrap();
    }
    assert_eq!([receives[1].bytes(), receives[2].bytes()].concat(), sent);
}

/// Whatever the earlier messages contained, each arrives as it was sent.
#[test]
fn signatures_and_marks_arrive_in_any_order_of_lengths() {
    let sizes =
        [0, 1, 8, 48, 79, 80, 81, 112, 113, 512, 2048, 2049, 7000, 8192, 8193, 32_768, 32_769, 100_000];
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for (may_read, post_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut transports = local_peers(2, may_read);
        for _ in 0..60 {
            let messages: Vec<_> = (0..6)
                .map(|seed| {
                    let said = Envelope {
                        signature: of_one_context(next(2) as u8),
                        mark: Mark(next(2) as u64),
                        ..envelope(0, next(2) as u32)
                    };
                    let parts = [pattern(seed, sizes[next(sizes.len())]), pattern(seed + 9, 30)];
                    (said, parts[..if next(5) == 0 { 2 } else { 1 }].to_vec())
                })
                .collect();
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for posts_receives in [post_first, !post_first] {
                for (said, parts) in &messages {
                    if posts_receives {
                        let lengths: Vec<_> = parts.iter().map(Vec::len).collect();
                        receives.push(Receiving::post(&mut transports[1], 0, *said, &lengths));
                    } else {
                        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                        sends.push(Sending::post(&mut transports[0], 1, *said, &parts));
                    }
                }
                turn(&mut transports, next(20));
            }
            for ((said, parts), receiving) in messages.iter().zip(&mut receives) {
                let arrival = receive(&mut transports, 1, receiving).unwrap();
                assert_eq!(arrival.mark, said.mark);
                assert!(receiving.bytes() == *parts, "{} bytes, may_read {may_read}", parts[0].len());
            }
            turn_until(&mut transports, |transports| {
                sends.iter_mut().all(|it| it.test(&mut transports[0]).is_some())
            });
        }
    }
}

/// One of two signatures, of the same epoch.
fn of_one_context(which: u8) -> Signature {
    let mut signature = Signature([which; 16]);
    signature.0[Signature::EPOCH_AT] = 0;
    signature
}
