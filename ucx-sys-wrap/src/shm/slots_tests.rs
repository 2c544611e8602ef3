//! Slots between threads with their own mappings.

use std::sync::atomic::Ordering;

use super::slots::*;
use super::{LocalGroup, OwnArea};
use crate::{Error, Mark, Rank, Signature};

fn pair() -> ([Slots; 2], [OwnArea; 2]) {
    let world = LocalGroup::in_process(2).unwrap();
    ([0, 1].map(|rank: usize| Slots::new(&world[rank])), [0, 1].map(|rank: usize| world[rank].own_slots(0)))
}

fn header(number: u8) -> Header {
    Header { signature: Signature([number; 16]), mark: Mark::NONE }
}

#[test]
fn published_bytes_can_be_read() {
    let ([mut writer, mut reader], _) = pair();
    for bytes in [0, 1, 8, 39, 40, 41, 64, 511, 512] {
        let (step, same) = (writer.take_steps(1), reader.take_steps(1));
        assert_eq!(step, same);
        assert_eq!(reader.published(0, step).unwrap(), None);
        let payload: Vec<u8> = (0..bytes).map(|index| (index * 7 + bytes) as u8).collect();
        let said = Header { mark: Mark(bytes as u64), ..header(bytes as u8) };
        writer.publish_inline(step, said, &payload);
        assert_eq!(reader.published(0, step).unwrap(), Some(said));
        let mut found = vec![0; bytes];
        reader.read_inline(0, step, 0, &mut found);
        assert_eq!(found, payload);
        assert_eq!(writer.published(1, step).unwrap(), None, "the reader has published nothing");
        writer.acknowledge(step);
        reader.acknowledge(step);
    }
}

#[test]
fn a_slot_is_free_when_all_have_finished_its_last_step() {
    let ([mut writer, mut reader], _) = pair();
    let first = writer.take_steps(DEPTH + 2);
    reader.take_steps(DEPTH + 2);
    for later in 0..DEPTH {
        assert_eq!(writer.in_the_way(first.plus(later)), None);
    }
    assert_eq!(writer.in_the_way(first.plus(DEPTH)), Some(1));
    reader.acknowledge(first);
    assert_eq!(writer.in_the_way(first.plus(DEPTH)), None);
    assert_eq!(writer.in_the_way(first.plus(DEPTH + 1)), Some(1));
    writer.has_come_to(1, first.plus(2));
    assert_eq!(writer.in_the_way(first.plus(DEPTH + 1)), None);
}

#[test]
fn chunks_arrive_by_every_way_to_write_and_read_them() {
    for bytes in [1, 63, 64, 511, 513, 5000, 100_000, CHUNK_BYTES] {
        let ([mut left, mut right], _) = pair();
        let payload =
            |seed: usize| -> Vec<u8> { (0..bytes).map(|index| ((index * 31 + seed) >> 2) as u8).collect() };
        let (step, _) = (left.take_steps(2), right.take_steps(2));
        left.write(step, 0, &payload(1));
        left.publish(step, header(1));
        assert!(right.published(0, step).unwrap().is_some());
        let mut found = vec![0; bytes];
        right.exchange((step, 0, &payload(2)), (0, step, 0), &mut found);
        assert_eq!(found, payload(1));
        right.publish(step, header(1));
        let mut found = vec![0; bytes];
        left.read(1, step, 0, &mut found);
        assert_eq!(found, payload(2));
        for start in 0..3.min(bytes) {
            let mut found = vec![0; bytes + 7];
            left.read_past_caches(1, step, start, &mut found[7..7 + bytes - start]);
            assert_eq!(found[7..7 + bytes - start], payload(2)[start..], "from {start} on");
            assert!(found[..7].iter().chain(&found[7 + bytes - start..]).all(|byte| *byte == 0), "outside");
        }
        assert!(!right.has_second(0, step).unwrap());
        left.publish_second(step);
        assert!(right.has_second(0, step).unwrap());
    }
}

#[test]
fn a_step_from_the_future_is_an_error() {
    let ([_, mut reader], [peer, _]) = pair();
    let step = reader.take_steps(1);
    for at in (0..8192).step_by(8) {
        peer.word(at).store(u64::MAX, Ordering::Relaxed);
    }
    let is_refused = |error: Error| matches!(error, Error::Protocol { rank: Rank(0), .. });
    assert!(is_refused(reader.published(0, step).unwrap_err()));
    assert!(is_refused(reader.has_second(0, step).unwrap_err()));
    assert_eq!(
        reader.in_the_way(step.plus(100)),
        None,
        "it says that it has finished everything: its own loss"
    );
    let mut bytes = [0; 512];
    reader.read_inline(0, step, 0, &mut bytes);
    reader.read(0, step, 0, &mut bytes);
}

#[test]
fn bytes_that_do_not_fit_panic() {
    let refused = |act: fn(&mut Slots, Step)| {
        let ([mut slots, _], _) = pair();
        let step = slots.take_steps(1);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&mut slots, step))).is_err()
    };
    assert!(refused(|slots, step| slots.publish_inline(step, Header::default(), &[0; INLINE_BYTES + 1])));
    assert!(refused(|slots, step| slots.write(step, CHUNK_BYTES, &[0])));
    assert!(refused(|slots, step| slots.read(1, step, usize::MAX, &mut [0])));
    assert!(refused(|slots, step| slots.read(0, step, 0, &mut [0])));
    assert!(refused(|slots, step| slots.read(2, step, 0, &mut [0])));
}

#[test]
fn the_offset_in_a_slot_changes_with_each_step() {
    let world = LocalGroup::in_process(1).unwrap();
    let mut slots = Slots::new(&world[0]);
    for bytes in [1, 64, 65, 4096, 100_000, CHUNK_BYTES / 2 + 1, CHUNK_BYTES] {
        let places: Vec<_> = (0..3000).map(|_| slots.take_steps(1).place_for(bytes)).collect();
        let mut different = places.clone();
        different.sort_unstable();
        different.dedup();
        let rooms = CHUNK_BYTES / bytes.next_multiple_of(64);
        // Four successive steps have slots of their own.
        assert!(
            different.len() == rooms || different.len() >= 750 && rooms > 750,
            "{bytes}: {}",
            different.len()
        );
        assert!(
            different.iter().all(|place| place.is_multiple_of(64) && place + bytes <= CHUNK_BYTES),
            "{bytes}"
        );
        assert!(different.windows(2).all(|pair| pair[1] - pair[0] >= bytes), "{bytes}");
    }
}

#[test]
fn a_set_is_used_by_one_group_after_another() {
    let world = LocalGroup::in_process(3).unwrap();
    let over = |rank: usize, generation, members: &[usize]| {
        Slots::over(&world[rank], SlotSet { index: 1, generation }, members)
    };
    let header = Header { signature: Signature([1; 16]), ..Header::default() };
    let mut first = [0, 1].map(|rank| over(rank, 0, &[0, 1]));
    let step = first[0].take_steps(1);
    first[0].publish_inline(step, header, &[7; 8]);
    first[0].acknowledge(step);
    assert!(!first[0].is_at_rest(&[]), "rank 1 may still read it");
    assert!(first[0].is_at_rest(&[Rank(1)]), "it is lost");
    assert_eq!(first[1].take_steps(1), step);
    first[1].acknowledge(step);
    assert!(first[0].is_at_rest(&[]) && first[1].is_at_rest(&[]));
    // In another order, with a rank that has not used the set before.
    let mut zero = over(0, 1, &[2, 0]);
    let step = zero.take_steps(1);
    assert_eq!((zero.in_the_way(step), zero.rank_at(0), zero.own_place()), (Some(0), Rank(2), 1));
    let mut two = over(2, 1, &[2, 0]);
    assert_eq!((zero.in_the_way(step), two.take_steps(1)), (None, step));
    assert_eq!(two.published(1, step).unwrap(), None, "what was there is of an earlier group");
    zero.publish_inline(step, header, &[8; 8]);
    assert_eq!(two.published(1, step).unwrap(), Some(header));
}
