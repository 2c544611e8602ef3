//! Tests of the inbox: messages out of order, unexpected or wrong.

use std::ptr::NonNull;

use proptest::prelude::*;

use super::flow::{CREDIT_BYTES, CreditUpdate};
use super::header::{FragmentHeader, Header, MAX_HEADER_BYTES, Plain};
use super::inbox::{Deferred, Inbox};
use super::notice::Withdrawal;
use super::payload::{Payload, Rts};
use crate::buffer::testing::{lend_to_receive, lent_to_send};
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Mark, Rank, Signature, Tag};

const OWN: Rank = Rank(0);
const PEER: Rank = Rank(1);

fn tag(round: u32) -> Tag {
    Tag::new(PEER, 1, 2, round)
}

fn envelope(round: u32) -> Envelope {
    // The epoch is that of messages without a signature.
    Envelope { tag: tag(round), signature: Signature(SIGNED), mark: Mark(3) }
}

const SIGNED: [u8; 16] = [9, 9, 9, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];

/// The header of the message with this serial number and these parts.
fn header(round: u32, serial: u16, buffers: &[Vec<u8>], packed_bytes: usize) -> Vec<u8> {
    let parts = lent_to_send(buffers);
    let mut header = Header::new(&envelope(round), &parts, packed_bytes).unwrap();
    header.serial = serial;
    let mut room = [0; MAX_HEADER_BYTES];
    let length = header.encode(&parts, &mut room);
    room[..length].to_vec()
}

fn send(inbox: &mut Inbox, round: u32, serial: u16, bytes: &[u8]) {
    inbox.message(&header(round, serial, &[bytes.to_vec()], 0), Payload::Eager(bytes));
}

/// Posts a receive into `place`, which the caller keeps until the receive has ended.
fn post(inbox: &mut Inbox, round: u32, place: &mut [u8]) -> Result<u64, crate::Result<usize>> {
    let mut parts = RecvParts::new();
    let mut raw = crate::buffer::Buffer::into_raw(place);
    lend_to_receive::<&mut [u8]>(&mut raw, &mut parts);
    match inbox.post(PEER, &envelope(round), parts, 0) {
        Posted::Pending(number) => Ok(number),
        Posted::Done((_, ended)) => Err(ended.result.map(|arrival| arrival.lengths[0])),
    }
}

fn rts(bytes: usize) -> Payload<'static> {
    Payload::Rendezvous(Rts { pointer: NonNull::dangling(), bytes })
}

#[test]
fn messages_that_overtake_others_are_delivered_in_order() {
    let mut inbox = Inbox::new(OWN, 2);
    let mut places = [[0u8; 1]; 4];
    let [first, places @ ..] = &mut places;
    let early = post(&mut inbox, 7, first).unwrap();
    for serial in [2, 3, 1] {
        send(&mut inbox, 7, serial, &[serial as u8]);
        assert!(inbox.take_ended(early).is_none());
    }
    send(&mut inbox, 7, 0, &[0]);
    assert!(inbox.take_ended(early).is_some());
    for place in places.iter_mut() {
        assert!(matches!(post(&mut inbox, 7, place), Err(Ok(1))));
    }
    assert_eq!(*places, [[1], [2], [3]]);
    assert!(inbox.violations.is_empty());
}

#[test]
fn many_messages_out_of_order_need_no_stack() {
    let take_all = || {
        let mut inbox = Inbox::new(OWN, 2);
        for serial in (1..=6000).chain([0]) {
            send(&mut inbox, 7, serial, &[serial as u8]);
        }
        for serial in 0..=6000 {
            let mut place = [0];
            assert!(matches!(post(&mut inbox, 7, &mut place), Err(Ok(1))));
            assert_eq!(place, [serial as u8]);
        }
        assert!(inbox.violations.is_empty());
    };
    std::thread::Builder::new().stack_size(512 << 10).spawn(take_all).unwrap().join().unwrap();
}

/// Sends a message of one byte, its serial number, which reports so many consumed blocks.
fn send_reporting(inbox: &mut Inbox, serial: u16, consumed: u8) {
    let buffers = [vec![serial as u8]];
    let parts = lent_to_send(&buffers);
    let mut header = Header::new(&envelope(7), &parts, 0).unwrap();
    (header.serial, header.consumed) = (serial, consumed);
    let mut room = [0; MAX_HEADER_BYTES];
    let length = header.encode(&parts, &mut room);
    inbox.message(&room[..length], Payload::Eager(&buffers[0]));
}

/// Spends all credit and has the peer report, after so many messages, that all was consumed.
fn spend_and_update(inbox: &mut Inbox, blocks: u64, sent_count: u32) {
    for consumed in 1..=blocks {
        assert!(inbox.flow(PEER).unwrap().spend(CREDIT_BYTES / 64));
        inbox.credit_update(&CreditUpdate { from: PEER, sent_count, consumed }.encode());
    }
}

fn assert_all_arrive(inbox: &mut Inbox, count: u8) {
    assert!(inbox.violations.is_empty(), "{:?}", inbox.violations);
    for serial in 0..count {
        let mut place = [u8::MAX];
        assert!(matches!(post(inbox, 7, &mut place), Err(Ok(1))));
        assert_eq!(place, [serial]);
    }
}

/// The report in the first message is outdated when the message is taken.
#[test]
fn a_message_that_overtakes_another_reports_credit_once() {
    let mut inbox = Inbox::new(OWN, 2);
    send(&mut inbox, 7, 1, &[1]);
    spend_and_update(&mut inbox, 150, 2);
    send_reporting(&mut inbox, 0, 150);
    assert_all_arrive(&mut inbox, 2);
}

#[test]
fn an_update_outdates_the_messages_it_overtakes() {
    for blocks in [1, 127, 128, 150, 200, 1000] {
        let mut inbox = Inbox::new(OWN, 2);
        spend_and_update(&mut inbox, blocks, 2);
        send_reporting(&mut inbox, 1, 0);
        send_reporting(&mut inbox, 0, 0);
        assert_all_arrive(&mut inbox, 2);
        let spent = (0..100).take_while(|_| inbox.flow(PEER).unwrap().spend(CREDIT_BYTES / 64)).count();
        assert_eq!(spent, 64, "after {blocks} blocks");
        // The next one was sent after them.
        send_reporting(&mut inbox, 2, (blocks + 65) as u8);
        assert!(matches!(inbox.violations[..], [(PEER, Error::Protocol { .. })]), "after {blocks} blocks");
    }
}

#[test]
fn a_message_outdates_those_it_overtakes() {
    let mut inbox = Inbox::new(OWN, 2);
    for serial in 2..=5 {
        let blocks = 60 * u64::from(serial - 1);
        (0..60).for_each(|_| assert!(inbox.flow(PEER).unwrap().spend(CREDIT_BYTES / 64)));
        send_reporting(&mut inbox, serial, blocks as u8);
    }
    send_reporting(&mut inbox, 1, 0);
    send_reporting(&mut inbox, 0, 0);
    assert_all_arrive(&mut inbox, 6);
    let spent = (0..100).take_while(|_| inbox.flow(PEER).unwrap().spend(CREDIT_BYTES / 64)).count();
    assert_eq!(spent, 64);
}

#[test]
fn other_bytes_than_a_credit_update_are_refused() {
    let update = CreditUpdate { from: PEER, sent_count: 0, consumed: 0 }.encode();
    let others =
        [OWN, Rank(2), Rank(u32::MAX)].map(|from| CreditUpdate { from, sent_count: 0, consumed: 0 }.encode());
    let wrong = [&update[..15], &[], &others[0], &others[1], &others[2]];
    for bytes in wrong {
        let mut inbox = Inbox::new(OWN, 2);
        inbox.credit_update(&update);
        assert!(inbox.violations.is_empty());
        inbox.credit_update(bytes);
        assert!(matches!(inbox.violations[..], [(PEER, Error::Protocol { .. })]), "{bytes:?}");
    }
}

/// A message like `send`'s without its signature.
fn send_unsigned(inbox: &mut Inbox, round: u32, serial: u16, bytes: &[u8]) {
    let plain = Plain { tag: tag(round), is_counted: true, consumed: 0, serial };
    inbox.message(&plain.encode(), Payload::Eager(bytes));
}

#[test]
fn a_message_has_the_signature_of_the_one_before() {
    let mut inbox = Inbox::new(OWN, 2);
    let mut places = [[0u8; 1]; 5];
    // No message has had a signature yet.
    let [first, second, third, fourth, fifth] = &mut places;
    let number = post(&mut inbox, 7, first).unwrap();
    send_unsigned(&mut inbox, 7, 0, &[1]);
    let (_, ended) = inbox.take_ended(number).unwrap();
    assert!(matches!(ended.result, Err(Error::Mismatch { found, .. }) if found == Signature::default()));
    // In the order of serial numbers, with or without a posted receive.
    send_unsigned(&mut inbox, 7, 2, &[3]);
    send(&mut inbox, 7, 1, &[2]);
    send_unsigned(&mut inbox, 7, 3, &[4]);
    for place in [second, third, fourth] {
        assert!(matches!(post(&mut inbox, 7, place), Err(Ok(1))));
    }
    let number = post(&mut inbox, 7, fifth).unwrap();
    send_unsigned(&mut inbox, 7, 4, &[5]);
    let (_, ended) = inbox.take_ended(number).unwrap();
    assert_eq!(ended.result.unwrap().lengths[..], [1]);
    assert_eq!(places, [[0], [2], [3], [4], [5]]);
    assert!(inbox.violations.is_empty());
}

#[test]
fn a_plain_message_fits_its_place_or_ends_its_receive() {
    let mut inbox = Inbox::new(OWN, 2);
    let mut places = [[0u8; 2]; 3];
    let [first, second, third] = &mut places;
    let first = post(&mut inbox, 7, first).unwrap();
    send(&mut inbox, 7, 0, &[1]);
    assert!(inbox.take_ended(first).unwrap().1.result.is_ok());
    let second = post(&mut inbox, 7, second).unwrap();
    send_unsigned(&mut inbox, 7, 1, &[2; 3]);
    let ended = inbox.take_ended(second).unwrap().1;
    assert!(matches!(ended.result, Err(Error::TooLong { rank: PEER, part: 0, sent: 3, capacity: 2 })));
    let third = post(&mut inbox, 7, third).unwrap();
    send_unsigned(&mut inbox, 7, 2, &[3; 2]);
    assert!(inbox.take_ended(third).unwrap().1.result.is_ok());
    assert_eq!(places, [[1, 0], [0, 0], [3, 3]]);
    assert_eq!((inbox.statistics.messages_received, inbox.statistics.copies), (3, 2));
    assert!(inbox.violations.is_empty());
}

/// The outcomes of messages of these sizes, in order, received into places of 5 bytes each: by rendezvous or
/// not, with a receive posted before it or after. `is_plain`: whether those after the first omit their
/// signature.
fn outcomes(messages: &[(usize, bool, bool)], is_plain: bool) -> (Vec<String>, u64, u64) {
    let mut inbox = Inbox::new(OWN, 2);
    let mut places = vec![[0u8; 5]; messages.len()];
    let mut outcomes = Vec::new();
    for (serial, ((bytes, is_rendezvous, is_early), place)) in (0..).zip(messages.iter().zip(&mut places)) {
        let (content, mut number) = (vec![serial as u8 + 1; *bytes], None);
        let mut ended = None;
        let mut receive = |inbox: &mut Inbox| match post(inbox, 7, place) {
            Ok(posted) => number = Some(posted),
            Err(result) => ended = Some(result),
        };
        if !is_early {
            receive(&mut inbox);
        }
        let payload = if *is_rendezvous { rts(*bytes) } else { Payload::Eager(&content) };
        match is_plain && serial > 0 {
            true => {
                let plain = Plain { tag: tag(7), is_counted: false, consumed: 0, serial };
                inbox.message(&plain.encode(), payload);
            }
            false => inbox.message(&header(7, serial, std::slice::from_ref(&content), 0), payload),
        }
        if *is_early {
            receive(&mut inbox);
        }
        let ended =
            ended.or_else(|| Some(inbox.take_ended(number?)?.1.result.map(|arrival| arrival.lengths[0])));
        outcomes.push(format!("{ended:?}"));
        while let Some(work) = inbox.deferred.pop_front() {
            outcomes.push(match work {
                Deferred::Fetch { number: found, part, rts } => {
                    format!("{} {part} {}", Some(found) == number, rts.bytes)
                }
                Deferred::Release(rts) => format!("release {}", rts.bytes),
                Deferred::SendCredit(rank) => format!("tell {rank}"),
            });
        }
    }
    assert!(inbox.violations.is_empty());
    outcomes.push(format!("{places:?}"));
    (outcomes, inbox.statistics.messages_received, inbox.statistics.copies)
}

#[test]
fn a_plain_message_is_taken_as_any_other() {
    let cases = [(0, false), (1, false), (5, false), (6, false), (1, true), (5, true), (6, true)];
    let both = cases
        .iter()
        .flat_map(|&(bytes, is_rendezvous)| [false, true].map(|is_early| (bytes, is_rendezvous, is_early)));
    let messages: Vec<_> = [(1, false, false)].into_iter().chain(both).collect();
    assert_eq!(outcomes(&messages, true), outcomes(&messages, false));
    let fetched = outcomes(&[(1, false, false), (5, true, false)], true).0;
    assert_eq!(fetched[1..3], ["None".to_owned(), "true 0 5".to_owned()]);
}

#[test]
fn a_message_that_comes_twice_is_a_violation() {
    let mut inbox = Inbox::new(OWN, 2);
    send(&mut inbox, 7, 0, &[0]);
    send(&mut inbox, 7, 0, &[0]);
    assert!(matches!(inbox.violations[..], [(PEER, Error::Protocol { .. })]));
}

#[test]
fn rts_are_fetched_for_a_receive_and_released_without_one() {
    let mut inbox = Inbox::new(OWN, 2);
    let large = vec![0u8; 100_000];
    for serial in 0..2 {
        inbox.message(&header(5, serial, std::slice::from_ref(&large), 0), rts(large.len()));
    }
    assert!(inbox.deferred.pop_front().is_none());
    let mut place = vec![0u8; large.len()];
    let number = post(&mut inbox, 5, &mut place).unwrap();
    assert!(matches!(inbox.deferred.pop_front(), Some(Deferred::Fetch { number: found, part: 0, rts })
        if found == number && rts.bytes == 100_000));
    let mut short = [0u8; 10];
    assert!(matches!(
        post(&mut inbox, 5, &mut short),
        Err(Err(Error::TooLong { sent: 100_000, capacity: 10, .. }))
    ));
    assert!(matches!(inbox.deferred.pop_front(), Some(Deferred::Release(_))));
}

#[test]
fn a_withdrawn_message_is_found_before_and_after_it_comes() {
    let mut inbox = Inbox::new(OWN, 2);
    let parts = [vec![0u8; 100_000], vec![0u8; 200_000]];
    let fragment = |serial| FragmentHeader { from: PEER, serial, part: 1, is_counted: false }.encode();
    let released = |inbox: &mut Inbox| {
        std::iter::from_fn(|| inbox.deferred.pop_front())
            .filter(|work| matches!(work, Deferred::Release(_)))
            .count()
    };
    inbox.message(&header(5, 0, &parts, 4096), rts(100_000));
    inbox.fragment(&fragment(0), rts(200_000));
    assert!(inbox.withdraw(Withdrawal { tag: tag(5), serial: 0 }));
    assert_eq!(released(&mut inbox), 2);
    assert!(!inbox.withdraw(Withdrawal { tag: tag(5), serial: 1 }), "it has not come");
    inbox.message(&header(5, 1, &parts, 4096), rts(100_000));
    assert_eq!(released(&mut inbox), 1);
    inbox.fragment(&fragment(1), rts(200_000));
    assert_eq!(released(&mut inbox), 1);
    assert!(!inbox.withdraw(Withdrawal { tag: tag(5), serial: 1 }), "it is gone");
    // The next one is not mistaken for it.
    send(&mut inbox, 5, 2, &[4]);
    let mut place = [0u8; 1];
    assert!(matches!(post(&mut inbox, 5, &mut place), Err(Ok(1))));
    assert_eq!(place, [4]);
    assert!(inbox.violations.is_empty());
}

#[test]
fn fragments_that_are_longer_than_announced_are_refused() {
    let mut inbox = Inbox::new(OWN, 2);
    let parts = [vec![0u8; 5000], vec![0u8; 6000]];
    let (mut left, mut right) = (vec![0u8; 5000], vec![0u8; 6000]);
    let mut places = RecvParts::new();
    let mut raw = crate::buffer::Buffer::into_raw((&mut left[..], &mut right[..]));
    lend_to_receive::<(&mut [u8], &mut [u8])>(&mut raw, &mut places);
    assert!(matches!(inbox.post(PEER, &envelope(5), places, 0), Posted::Pending(_)));
    inbox.message(&header(5, 0, &parts, 4096), Payload::Eager(&parts[0]));
    inbox.fragment(&FragmentHeader { from: PEER, serial: 0, part: 1, is_counted: false }.encode(), rts(6001));
    assert!(inbox.deferred.pop_front().is_none());
    assert!(matches!(inbox.violations[..], [(PEER, Error::Protocol { .. })]));
}

/// A header, indices and values, all unexpected; the values come first.
#[test]
fn what_is_kept_is_counted_as_copied() {
    let mut inbox = Inbox::new(OWN, 2);
    let parts = [vec![1u8; 16], vec![2u8; 3000], vec![3u8; 2000]];
    let copied = |inbox: &Inbox| (inbox.statistics.copies, inbox.statistics.bytes_copied);
    inbox.fragment(
        &FragmentHeader { from: PEER, serial: 1, part: 2, is_counted: false }.encode(),
        Payload::Eager(&parts[2]),
    );
    assert_eq!(copied(&inbox), (1, 2000));
    inbox.message(&header(5, 1, &parts, 4096), Payload::Eager(&parts[1]));
    assert_eq!(copied(&inbox), (3, 5016), "overtook another message");
    send(&mut inbox, 6, 0, &[]);
    assert_eq!(copied(&inbox), (5, 8032), "is its sender's next");

    let mut places = RecvParts::new();
    let (mut head, mut indices, mut values) = ([0u8; 16], vec![0u8; 3000], vec![0u8; 2000]);
    let mut raw = crate::buffer::Buffer::into_raw((&mut head[..], (&mut indices[..], &mut values[..])));
    lend_to_receive::<(&mut [u8], (&mut [u8], &mut [u8]))>(&mut raw, &mut places);
    match inbox.post(PEER, &envelope(5), places, 0) {
        Posted::Pending(number) => assert!(inbox.take_ended(number).is_some()),
        Posted::Done((_, ended)) => assert!(ended.result.is_ok()),
    }
    assert_eq!(copied(&inbox), (8, 13_048), "to its places");
    assert_eq!((&head[..], indices, values), (&parts[0][..], parts[1].clone(), parts[2].clone()));
}

proptest! {
    /// Whatever arrives, nothing panics, and nothing is fetched into a shorter place.
    #[test]
    fn any_bytes_are_taken_or_refused(
        messages in proptest::collection::vec(
            (
                0u8..4,
                proptest::collection::vec(any::<u8>(), 0..120),
                0usize..300,
                any::<bool>(),
                any::<bool>(),
            ),
            0..20,
        ),
    ) {
        let mut inbox = Inbox::new(OWN, 2);
        let mut place = [0u8; 100];
        let number = post(&mut inbox, 5, &mut place).unwrap();
        for (kind, mut bytes, payload_bytes, is_rendezvous, is_ours) in messages {
            if is_ours && bytes.len() >= 28 {
                let ours = header(5, 0, &[], 0);
                bytes[..24].copy_from_slice(&ours[..24]);
                bytes[24] &= 31;
                bytes[25..28].fill(0);
            }
            let here = vec![7; payload_bytes];
            let payload = if is_rendezvous { rts(payload_bytes) } else { Payload::Eager(&here) };
            match kind {
                0 | 1 => inbox.message(&bytes, payload),
                2 => inbox.fragment(&bytes, payload),
                _ => {
                    let (from, consumed) = (Rank(payload_bytes as u32 % 3), bytes.len() as u64);
                    inbox.credit_update(&CreditUpdate { from, sent_count: 0, consumed }.encode());
                }
            }
        }
        while let Some(work) = inbox.deferred.pop_front() {
            if let Deferred::Fetch { number: found, part, rts } = work {
                prop_assert!(found == number && part == 0 && rts.bytes <= 100);
            }
        }
    }
}
