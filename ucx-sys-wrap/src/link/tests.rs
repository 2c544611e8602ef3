//! Two links that face each other: eager sends, and peers that are gone in the middle of a message.

use super::descriptor::{DESCRIPTORS, MAX_FAST_BOX_BYTES, MAX_IN_RING_BYTES, SHORT_INLINE_BYTES};
use super::*;
use crate::buffer::testing::{lend_to_receive, lend_to_send};
use crate::buffer::{Buffer, RawVec};
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES};
use crate::tick::tick;
use crate::{Mark, Signature, Tag};

/// Two ranks' links to each other, and what is counted.
struct Pair {
    links: [Link; 2],
    counts: Statistics,
    _world: Vec<Arc<LocalGroup>>,
}

impl Pair {
    fn new() -> Self {
        Self::with_reads(false)
    }

    fn with_reads(may_read: bool) -> Self {
        let world = LocalGroup::in_process(2).unwrap();
        let links = [0, 1].map(|rank: usize| Link::new(&world[rank], 1 - rank, may_read).unwrap());
        Self { links, counts: Statistics::default(), _world: world }
    }

    /// Posts a message of rank 1.
    fn send(&mut self, bytes: Vec<u8>) -> RawVec<u8> {
        let memory = bytes.into_raw();
        let mut parts = SendParts::new();
        lend_to_send::<Vec<u8>>(&memory, &mut parts);
        let _ = self.links[1].post_send(envelope(), parts, &mut self.counts);
        memory
    }

    /// Posts a receive of rank 0 for so many bytes.
    fn receive(&mut self, bytes: usize) -> (RawVec<u8>, usize) {
        let mut memory = vec![0u8; bytes].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        match self.links[0].post_recv(envelope(), parts, &mut self.counts) {
            Posted::Pending(key) => (memory, key),
            Posted::Done(done) => panic!("{done:?}"),
        }
    }

    fn send_at_once(&mut self, envelope: Envelope, bytes: &[u8]) -> bool {
        self.links[1].send_at_once(&envelope, bytes, &mut self.counts)
    }

    fn poll(&mut self, rank: usize) {
        self.links[rank].poll(usize::MAX, &mut self.counts).unwrap();
    }
}

fn envelope() -> Envelope {
    Envelope { tag: Tag::new(Rank(1), 0, 0, 0), signature: Signature::default(), mark: Mark::NONE }
}

/// Of another call on the same context.
fn another_signature() -> Signature {
    let mut signature = Signature([1; 16]);
    signature.0[Signature::EPOCH_AT] = 0;
    signature
}

#[test]
fn immediate_sends_arrive_in_order_and_failed_ones_leave_no_trace() {
    let mut pair = Pair::new();
    let other = Envelope { signature: another_signature(), ..envelope() };
    assert!(!pair.send_at_once(other, &[0; 8]), "it has another signature");
    assert!(!pair.send_at_once(envelope(), &[0; MAX_IN_RING_BYTES + 1]), "it is too long");
    assert_eq!(pair.counts, Statistics::default());
    for number in 0..DESCRIPTORS {
        assert!(pair.send_at_once(envelope(), &[number as u8; 8]));
    }
    let full = pair.counts;
    assert!(!pair.send_at_once(envelope(), &[0; 8]), "no descriptor is free");
    assert_eq!((pair.counts, full.messages_sent), (full, DESCRIPTORS));

    let receives: Vec<_> = (0..DESCRIPTORS).map(|_| pair.receive(8)).collect();
    pair.poll(0);
    let receiver = &mut pair.links[0].receiver;
    for (number, (_, key)) in receives.iter().enumerate() {
        if number % 2 == 0 {
            let mut done = receiver.receives.take_ended(*key).unwrap();
            assert_eq!(
                (done.result.unwrap().lengths[0], done.parts[0].bytes_mut()),
                (8, &mut [number as u8; 8][..])
            );
        } else {
            assert_eq!(receiver.receives.take_outcome(*key).unwrap().unwrap().lengths[0], 8);
        }
        assert!(receiver.receives.take_outcome(*key).is_none(), "it was given back already");
    }
    // There is room again, and keys are reused.
    assert!(pair.send_at_once(envelope(), &[7; 8]));
    let (_memory, key) = pair.receive(8);
    assert!(receives.iter().any(|(_, used)| *used == key));
    pair.poll(0);
    assert_eq!(pair.links[0].receiver.receives.take_ended(key).unwrap().parts[0].bytes_mut(), [7; 8]);

    pair.links[1].close(&Error::Closed);
    let closed = pair.counts;
    assert!(!pair.send_at_once(envelope(), &[0; 8]) && pair.counts == closed);
}

/// Lengths on either side of the limits of descriptors, fast box and ring, in mixed order.
#[test]
fn polling_for_a_short_message_leaves_others_to_a_turn() {
    let mut pair = Pair::new();
    let look = |pair: &mut Pair| pair.links[0].poll_short(3, &mut pair.counts).unwrap();
    let receives: Vec<_> = (0..4).map(|_| pair.receive(MAX_IN_RING_BYTES)).collect();
    assert!(!look(&mut pair), "nothing has come");
    let other = Envelope { signature: another_signature(), ..envelope() };
    let sent = [8, MAX_FAST_BOX_BYTES, MAX_IN_RING_BYTES].map(|length| vec![length as u8; length]);
    for bytes in &sent {
        assert!(pair.send_at_once(envelope(), bytes));
    }
    assert!(look(&mut pair) && look(&mut pair), "one in a descriptor, one in the fast box");
    assert!(!look(&mut pair), "one in the ring");
    let ended =
        |pair: &mut Pair, number: usize| pair.links[0].receiver.receives.take_ended(receives[number].1);
    for (number, bytes) in sent.iter().enumerate() {
        if number == 2 {
            assert!(ended(&mut pair, number).is_none());
            pair.poll(0);
        }
        let mut done = ended(&mut pair, number).unwrap();
        assert_eq!(done.result.unwrap().lengths[..], [bytes.len()]);
        assert_eq!(done.parts[0].bytes_mut()[..bytes.len()], bytes[..]);
    }
    // A message that carries its signature is left for a turn too.
    let said = vec![1u8; 8].into_raw();
    let mut parts = SendParts::new();
    lend_to_send::<Vec<u8>>(&said, &mut parts);
    assert!(matches!(pair.links[1].post_send(other, parts, &mut pair.counts), Posted::Done(_)));
    assert!(!look(&mut pair) && ended(&mut pair, 3).is_none());
    pair.poll(0);
    assert!(matches!(ended(&mut pair, 3).unwrap().result, Err(Error::Mismatch { .. })), "it has another");
}

#[test]
fn messages_that_find_the_fast_box_full_arrive_in_order() {
    let lengths = [
        8,
        SHORT_INLINE_BYTES,
        SHORT_INLINE_BYTES + 1,
        1000,
        1024,
        MAX_FAST_BOX_BYTES,
        MAX_FAST_BOX_BYTES + 1,
        5000,
    ];
    let mut pair = Pair::new();
    for turn in 0..5u8 {
        let sent: Vec<usize> = lengths.iter().cycle().take(DESCRIPTORS as usize).copied().collect();
        for (number, length) in sent.iter().enumerate() {
            assert!(pair.send_at_once(envelope(), &vec![number as u8 ^ turn; *length]), "{number}");
        }
        let receives: Vec<_> = sent.iter().map(|length| pair.receive(*length)).collect();
        pair.poll(0);
        for (number, (_, key)) in receives.iter().enumerate() {
            let mut done = pair.links[0].receiver.receives.take_ended(*key).unwrap();
            assert_eq!(done.result.unwrap().lengths[0], sent[number]);
            assert!(done.parts[0].bytes_mut().iter().all(|byte| *byte == number as u8 ^ turn), "{number}");
        }
    }
}

/// A peer that has left in good order has canceled the message; one that has died has not, and nothing is
/// received in its place.
#[test]
fn only_a_peer_that_left_in_good_order_has_canceled_a_cut_message() {
    for has_left in [true, false] {
        let mut pair = Pair::new();
        let (_place, key) = pair.receive(4 * MAX_EAGER_BYTES);
        let _cut = pair.send(vec![1; 4 * MAX_EAGER_BYTES]);
        let _whole = pair.send(vec![2; 8]);
        // The first gets RTS, CTS and some fragments; the second lies in a descriptor.
        [0, 1, 0].into_iter().for_each(|rank| pair.poll(rank));
        assert!(pair.links[0].receiver.receives.take_ended(key).is_none(), "it is there already");
        assert_eq!(pair.links[0].finish(has_left, &mut pair.counts), !has_left);
        let mut done = pair.links[0].receiver.receives.take_ended(key).unwrap();
        match done.result {
            Ok(arrival) => {
                assert!(has_left);
                assert_eq!(done.parts[0].bytes_mut()[..arrival.lengths[0]], [2; 8]);
            }
            Err(error) => assert!(!has_left && matches!(error, Error::PeerLost { rank: Rank(1) }), "{error}"),
        }
    }
}

/// The peer takes one message at a time, and there is always another one to take its place.
#[test]
fn small_messages_without_end_let_a_large_one_through() {
    let mut pair = Pair::new();
    let (_place, large) = pair.receive(4 * MAX_EAGER_BYTES);
    let _large = pair.send(vec![1; 4 * MAX_EAGER_BYTES]);
    // RTS and CTS.
    pair.poll(0);
    let small = Envelope { tag: Tag::new(Rank(1), 0, 1, 0), ..envelope() };
    let fragments = 4 * MAX_EAGER_BYTES / (64 << 10);
    let most = 20 * fragments;
    let mut received = 0;
    let mut queued = None;
    while pair.links[0].receiver.receives.take_ended(large).is_none() {
        assert!(received < most, "{received} small messages, and the large one is not through");
        while queued.is_none() {
            let memory = vec![2u8; 8].into_raw();
            let mut parts = SendParts::new();
            lend_to_send::<Vec<u8>>(&memory, &mut parts);
            if let Posted::Pending(key) = pair.links[1].post_send(small, parts, &mut pair.counts) {
                queued = Some((memory, key));
            }
        }
        let mut memory = vec![0u8; 8].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        if let Posted::Pending(key) = pair.links[0].post_recv(small, parts, &mut pair.counts) {
            while pair.links[0].receiver.receives.take_outcome(key).is_none() {
                pair.links[0].poll(1, &mut pair.counts).unwrap();
                pair.poll(1);
            }
        }
        received += 1;
        queued = queued.take().filter(|(_, key)| pair.links[1].sender.test(*key).is_none());
    }
    assert!(received > fragments, "small ones came in between");
}

/// A rank that rarely takes a turn keeps no sender waiting for long.
#[test]
fn an_idle_link_is_polled_in_every_tick() {
    let world = LocalGroup::in_process(2).unwrap();
    let [mut idle, mut busy] =
        [0, 1].map(|rank: u32| Links::new(&world[rank as usize], Rank(rank), 2, false).unwrap());
    let mut counts = Statistics::default();
    let memory = vec![1u8; 1024].into_raw();
    let send = |links: &mut Links, counts: &mut Statistics| {
        let mut parts = SendParts::new();
        lend_to_send::<Vec<u8>>(&memory, &mut parts);
        links.post_send(Rank(0), envelope(), parts, counts)
    };
    for _ in 0..3 {
        let id = loop {
            if let Posted::Pending(id) = send(&mut busy, &mut counts) {
                break id;
            }
        };
        for _ in 0..4 {
            let now = tick();
            while tick() == now {
                std::thread::yield_now();
            }
            idle.turn(&mut counts).unwrap();
        }
        busy.turn(&mut counts).unwrap();
        assert!(busy.test_send(id).is_some(), "there is no room, and nobody has polled");
    }
}

/// What is read to the heap takes credit until its receive is posted, as eager messages do.
#[test]
fn the_credit_bounds_all_unexpected_bytes() {
    const LONG: usize = CREDIT_BYTES as usize / MAX_EAGER_BYTES + 2;
    let mut pair = Pair::with_reads(true);
    for _ in 0..2 {
        let _sent: Vec<_> = (0..LONG).map(|_| pair.send(vec![1; MAX_EAGER_BYTES])).collect();
        (0..8).for_each(|turn| pair.poll(turn % 2));
        let mut short = 0;
        for _ in 0..2000 {
            short += usize::from(pair.send_at_once(envelope(), &[2; MAX_FAST_BOX_BYTES]));
            pair.poll(0);
        }
        let kept = pair.links[0].receiver.receives.kept_bytes();
        let bounds = CREDIT_BYTES as usize - MAX_EAGER_BYTES..=CREDIT_BYTES as usize;
        assert!(bounds.contains(&kept), "{kept} bytes are kept");
        for number in 0..LONG + short {
            let mut memory = vec![0u8; MAX_EAGER_BYTES].into_raw();
            let mut parts = RecvParts::new();
            lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
            let arrival = match pair.links[0].post_recv(envelope(), parts, &mut pair.counts) {
                Posted::Done(done) => done.result,
                Posted::Pending(key) => loop {
                    [1, 0].into_iter().for_each(|rank| pair.poll(rank));
                    if let Some(outcome) = pair.links[0].receiver.receives.take_outcome(key) {
                        break outcome;
                    }
                },
            };
            let expected = if number < LONG { MAX_EAGER_BYTES } else { MAX_FAST_BOX_BYTES };
            assert_eq!(arrival.unwrap().lengths[0], expected);
        }
        pair.poll(1);
    }
}
