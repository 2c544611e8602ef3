//! Slots between threads that each have their own mapping.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::slots::*;
use super::{Neighbourhood, OwnArea, PIPED_BYTES};
use crate::{Error, Mark, Rank, Signature};

fn pair() -> ([Slots; 2], [OwnArea; 2]) {
    let world = Neighbourhood::in_process(2).unwrap();
    ([0, 1].map(|rank: usize| Slots::new(&world[rank])), [0, 1].map(|rank: usize| world[rank].own_slots()))
}

fn header(number: u8) -> Header {
    Header { signature: Signature([number; 16]), mark: Mark::NONE }
}

#[test]
fn what_is_published_is_read_once_it_is() {
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
        reader.read_inline(0, step, &mut found);
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
fn chunks_arrive_whole_by_every_way_to_write_and_read_them() {
    for bytes in [1, 63, 64, 511, 513, 5000, 100_000, CHUNK_BYTES] {
        let ([mut left, mut right], _) = pair();
        let payload = |seed: usize| -> Vec<u8> { (0..bytes).map(|index| ((index * 31 + seed) >> 2) as u8).collect() };
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
fn reductions_are_in_the_order_of_places() {
    let world = Neighbourhood::in_process(3).unwrap();
    let mut ranks: Vec<Slots> = world.iter().map(Slots::new).collect();
    let vector = |place: usize| -> Vec<u32> { (0..1000).map(|index| index * 3 + place as u32).collect() };
    let steps: Vec<Step> = ranks.iter_mut().map(|slots| slots.take_steps(1)).collect();
    for (place, slots) in ranks.iter_mut().enumerate() {
        slots.write(steps[0], 64, bytemuck::cast_slice(&vector(place)));
        slots.publish(steps[0], header(0));
    }
    // Not associative, so that the order shows.
    let combine = |into: &mut [u32], from: &[u32]| {
        for (into, from) in into.iter_mut().zip(from) {
            *into = into.wrapping_add(*from).wrapping_mul(31);
        }
    };
    let mut expected = vector(0);
    combine(&mut expected, &vector(1));
    combine(&mut expected, &vector(2));
    expected.iter_mut().for_each(|value| *value += 1);
    for (place, slots) in ranks.iter_mut().enumerate() {
        let mut own = vector(place);
        let finish = |block: &mut [u32]| block.iter_mut().for_each(|value| *value += 1);
        // The last one alone may write its result where the others have read what it came from.
        slots.reduce((steps[0], 64), &mut own, place == 2, combine, finish);
        assert_eq!(own, expected, "place {place}");
    }
}

#[test]
fn a_step_of_the_future_is_an_error_and_no_panic() {
    let ([_, mut reader], [peer, _]) = pair();
    let step = reader.take_steps(1);
    for at in (0..8192).step_by(8) {
        peer.word(at).store(u64::MAX, Ordering::Relaxed);
    }
    let is_refused = |error: Error| matches!(error, Error::Protocol { rank: Rank(0), .. });
    assert!(is_refused(reader.published(0, step).unwrap_err()));
    assert!(is_refused(reader.has_second(0, step).unwrap_err()));
    assert_eq!(reader.in_the_way(step.plus(100)), None, "it says that it has finished everything: its own loss");
    let mut bytes = [0; 512];
    reader.read_inline(0, step, &mut bytes);
    reader.read(0, step, 0, &mut bytes);
}

#[test]
fn what_does_not_fit_is_a_mistake_of_the_caller() {
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

/// Lends `bytes` for one step, which the reader copies to a place that does not begin where a page does.
fn lend([writer, reader]: &mut [Slots; 2], bytes: &[u8]) -> Option<Vec<u8>> {
    let (step, _) = (writer.take_steps(1), reader.take_steps(1));
    if !writer.lend(step, bytes) {
        writer.publish(step, header(1));
        assert!(!reader.is_lent(0, step));
        reader.acknowledge(step);
        return None;
    }
    writer.publish_lent(step, header(1));
    assert!(reader.published(0, step).unwrap().is_some() && reader.is_lent(0, step));
    let mut found = vec![0; bytes.len() + 3];
    assert!(reader.read_lent(0, step, &mut found[3..]).unwrap());
    writer.acknowledge(step);
    reader.acknowledge(step);
    Some(found.split_off(3))
}

#[test]
fn lent_bytes_arrive_from_the_second_time_on() {
    let (mut slots, _) = pair();
    let all: Vec<u8> = (0..PIPED_BYTES as u32 + 64).map(|index| ((index * 31) >> 3) as u8).collect();
    assert_eq!(lend(&mut slots, &all[..10]), None, "not invited");
    slots[1].invite(0);
    for (start, bytes) in [(0, 1), (5, 4096), (17, PIPED_BYTES), (63, 65_537), (0, 0), (1, PIPED_BYTES - 1)] {
        let piece = &all[start..start + bytes];
        assert_eq!(lend(&mut slots, piece).as_deref(), Some(piece), "{bytes} bytes from {start} on");
    }
    assert!(slots[0].is_lending() && !slots[1].is_lending());
    slots[0].end_loan();
    slots[0].take_back();
    assert!(lend(&mut slots, &all[..10]).is_some(), "there was nothing to be taken back");
}

/// The memory may have changed: what is copied from it afterwards is not to be taken for what was lent.
#[test]
fn what_was_taken_back_is_not_read() {
    let ([mut writer, mut reader], _) = pair();
    reader.invite(0);
    let (step, _) = (writer.take_steps(1), reader.take_steps(1));
    let mut memory = vec![1; 10_000];
    assert!(writer.lend(step, &memory));
    writer.publish_lent(step, header(1));
    writer.take_back();
    memory.fill(2);
    assert!(!reader.read_lent(0, step, &mut vec![0; 10_000]).unwrap());
}

#[test]
fn fewer_bytes_than_a_step_has_are_an_error() {
    let ([mut writer, mut reader], _) = pair();
    let step = writer.take_steps(1);
    let is_refused = |result: crate::Result<bool>| matches!(result, Err(Error::Protocol { rank: Rank(0), .. }));
    assert!(is_refused(reader.read_lent(0, step, &mut [0; 8])), "it has not invited anybody");
    reader.invite(0);
    assert!(is_refused(reader.read_lent(0, step, &mut [0; 8])));
    assert!(writer.lend(step, &[1; 7]));
    assert!(is_refused(reader.read_lent(0, step, &mut [0; 8])));
}

/// It would end a process that does not ignore the signal.
#[test]
fn a_pipe_whose_receiver_has_gone_is_not_broken() {
    let (mut slots, _) = pair();
    slots[1].invite(0);
    assert!(lend(&mut slots, &[1; 100]).is_some());
    let [mut writer, reader] = slots;
    drop(reader);
    let steps = writer.take_steps(1000);
    for later in 0..LENT_DEPTH {
        assert!(writer.lend(steps.plus(later), &[2; 100]));
    }
    let memory = vec![3; PIPED_BYTES];
    let is_full = (LENT_DEPTH..100).any(|later| !writer.lend(steps.plus(later), &memory));
    assert!(is_full, "nobody takes anything out, and nobody waits");
}

#[test]
fn what_is_no_pipe_is_not_lent_through() {
    let number = |descriptor: &dyn AsRawFd| u64::from(descriptor.as_raw_fd().cast_unsigned()) + 1;
    let null = std::fs::File::open("/dev/null").unwrap();
    let (out, into) = std::io::pipe().unwrap();
    let (other_out, other_into) = std::io::pipe().unwrap();
    let said = [
        u64::MAX,
        5,
        7 << 32,
        ((1 << 31) | (1 << 63)) + 1,
        0x4000_0000_4000_0000,
        number(&null) << 32 | number(&null),
        // What is read there would be written into the memory that is lent.
        number(&into) << 32 | number(&out),
        number(&out) << 32 | number(&other_out),
        number(&other_into) << 32 | number(&into),
        number(&out) << 32 | number(&other_into),
    ];
    for word in said {
        let world = Neighbourhood::in_process(2).unwrap();
        let mut slots = [0, 1].map(|rank: usize| Slots::new(&world[rank]));
        let block = world[1].own_block(0).unwrap();
        (0..LENT_DEPTH as usize).for_each(|index| block.word(1024 + 8 * index).store(word, Ordering::Release));
        assert_eq!(lend(&mut slots, &[1; 100]), None, "{word:#x}");
        slots[1].invite(0);
        assert_eq!(lend(&mut slots, &[1; 100]), None, "it is not asked again");
    }
}

#[test]
fn who_closes_its_pipes_says_so_before() {
    let world = Neighbourhood::in_process(2).unwrap();
    let [mut writer, mut reader] = [0, 1].map(|rank: usize| Slots::new(&world[rank]));
    let word = || world[0].peer_block(1).unwrap().load(1024);
    reader.invite(0);
    assert_ne!(word(), 0);
    drop(reader);
    assert_eq!(word(), 0);
    let step = writer.take_steps(1);
    assert!(!writer.lend(step, &[1; 100]));
}

#[test]
fn many_ranks_have_no_pipes() {
    for (ranks, has) in [(8, true), (9, false)] {
        let world = Neighbourhood::in_process(ranks).unwrap();
        Slots::new(&world[1]).invite(0);
        let mut slots = Slots::new(&world[1]);
        slots.invite(0);
        assert_eq!(world[0].peer_block(1).unwrap().load(1024) != 0, has, "{ranks} ranks");
    }
}

#[test]
fn a_place_in_a_slot_moves_on_with_its_steps_and_stays_inside() {
    let world = Neighbourhood::in_process(1).unwrap();
    let mut slots = Slots::new(&world[0]);
    for bytes in [1, 64, 65, 4096, 100_000, CHUNK_BYTES / 2 + 1, CHUNK_BYTES] {
        let places: Vec<_> = (0..3000).map(|_| slots.take_steps(1).place_for(bytes)).collect();
        let mut different = places.clone();
        different.sort_unstable();
        different.dedup();
        let rooms = CHUNK_BYTES / bytes.next_multiple_of(64);
        // Four steps one after another have slots of their own.
        assert!(different.len() == rooms || different.len() >= 750 && rooms > 750, "{bytes}: {}", different.len());
        assert!(different.iter().all(|place| place.is_multiple_of(64) && place + bytes <= CHUNK_BYTES), "{bytes}");
        assert!(different.windows(2).all(|pair| pair[1] - pair[0] >= bytes), "{bytes}");
    }
}
