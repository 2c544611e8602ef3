//! Messages of earlier contexts, and contexts that end.

use std::ptr::NonNull;

use super::flow::cost;
use super::header::{Header, MAX_HEADER_BYTES};
use super::inbox::{Deferred, Inbox};
use super::payload::{Payload, Rts};
use crate::buffer::testing::{lend_to_receive, lent_to_send};
use crate::buffer::{Buffer, RawVec};
use crate::transport::{Posted, RecvParts, Which};
use crate::{Envelope, Error, Mark, Rank, Signature, Tag};

const PEER: Rank = Rank(1);
const OLD: u8 = 3;
const NEW: u8 = 4;

fn envelope(group: u16, epoch: u8) -> Envelope {
    let mut signature = Signature([9; 16]);
    signature.0[Signature::EPOCH_AT] = epoch;
    Envelope { tag: Tag::new(PEER, group, 2, 5), signature, mark: Mark(3) }
}

/// An inbox, the messages that it has got, and memory for receives.
struct Bench {
    inbox: Inbox,
    serial: u16,
    places: Vec<RawVec<u8>>,
}

impl Bench {
    fn new() -> Self {
        Self { inbox: Inbox::new(Rank(0), 3), serial: 0, places: Vec::new() }
    }

    fn post(&mut self, group: u16, bytes: usize) -> u64 {
        let mut parts = RecvParts::new();
        let mut memory = vec![0u8; bytes].into_raw();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        self.places.push(memory);
        match self.inbox.post(PEER, &envelope(group, NEW), parts, 0) {
            Posted::Pending(number) => number,
            Posted::Done((_, ended)) => panic!("{:?}", ended.result),
        }
    }

    /// A message of one part, or by rendezvous.
    fn arrive(&mut self, group: u16, epoch: u8, bytes: usize, is_rendezvous: bool) {
        let buffers = [vec![epoch; bytes]];
        let parts = lent_to_send(&buffers);
        let mut header = Header::new(&envelope(group, epoch), &parts, 0).unwrap();
        (header.serial, header.is_signed, header.is_counted) = (self.serial, true, !is_rendezvous);
        self.serial += 1;
        let mut room = [0; MAX_HEADER_BYTES];
        let length = header.encode(&parts, &mut room);
        let payload = match is_rendezvous {
            true => Payload::Rendezvous(Rts { pointer: NonNull::dangling(), bytes }),
            false => Payload::Eager(&buffers[0]),
        };
        self.inbox.message(&room[..length], payload);
        assert!(self.inbox.violations.is_empty(), "{:?}", self.inbox.violations);
    }

    fn released(&mut self) -> usize {
        self.inbox.deferred.drain(..).filter(|work| matches!(work, Deferred::Release(_))).count()
    }

    fn has_right_message(&mut self, number: u64) {
        let (mut parts, ended) = self.inbox.take_ended(number).expect("it has ended");
        assert_eq!(ended.result.unwrap().lengths[0], 8);
        assert_eq!(parts[0].bytes_mut()[..8], [NEW; 8]);
    }
}

const EAGER: usize = 30_000;

#[test]
fn late_messages_of_an_old_epoch_are_dropped_before_a_posted_receive() {
    let mut bench = Bench::new();
    let number = bench.post(1, EAGER);
    for _ in 0..100 {
        bench.arrive(1, OLD, 8, false);
        bench.arrive(1, OLD, EAGER, false);
        bench.arrive(1, OLD, 1 << 20, true);
    }
    assert!(bench.inbox.receive(number).is_some_and(|receive| receive.is_waiting()));
    // Three times the whole credit has come back.
    let consumed = 100 * (cost(8) + cost(EAGER));
    assert!(consumed > 2 * super::CREDIT_BYTES);
    let report = bench.inbox.flow(PEER).unwrap().credit_update(Rank(0));
    assert_eq!(report.consumed, consumed / (super::CREDIT_BYTES / 64));
    assert_eq!(bench.released(), 100);
    bench.arrive(1, NEW, 8, false);
    bench.arrive(1, NEW, 8, false);
    bench.has_right_message(number);
}

#[test]
fn messages_of_an_old_epoch_that_have_come_are_dropped_by_the_next_receive() {
    let mut bench = Bench::new();
    for (epoch, bytes, is_rendezvous) in [(OLD, 8, false), (OLD, EAGER, false), (OLD, 1 << 20, true)] {
        bench.arrive(1, epoch, bytes, is_rendezvous);
    }
    let first = bench.post(1, EAGER);
    let second = bench.post(1, EAGER);
    assert_eq!(bench.released(), 1);
    for epoch in [OLD, NEW, NEW] {
        bench.arrive(1, epoch, 8, false);
    }
    bench.has_right_message(first);
    bench.has_right_message(second);
}

#[test]
fn discarding_a_context_leaves_others_and_one_epoch() {
    let mut bench = Bench::new();
    for (group, epoch) in [(1, OLD), (1, NEW), (2, OLD)] {
        bench.arrive(group, epoch, 8, false);
        bench.arrive(group, epoch, 1 << 20, true);
    }
    bench.inbox.discard_context(1, Which::OfOtherEpochs(NEW));
    assert_eq!(bench.released(), 1);
    bench.inbox.discard_context(2, Which::All);
    assert_eq!(bench.released(), 1);
    bench.inbox.discard_context(1, Which::All);
    assert_eq!(bench.released(), 1);
    let consumed = bench.inbox.flow(PEER).unwrap().consume(0);
    assert!(!consumed, "three small messages");
}

#[test]
fn a_context_that_ends_takes_its_receives_alone() {
    let mut bench = Bench::new();
    let (ended, fetching, other) = (bench.post(1, 8), bench.post(1, 1 << 20), bench.post(2, 8));
    // The first of the context is ended; the second gets the message, which is being fetched.
    bench.inbox.cancel(ended);
    bench.inbox.take_ended(ended).unwrap();
    bench.arrive(1, NEW, 1 << 20, true);
    let waiting = bench.post(1, 8);
    bench.inbox.end_context(1, &Error::Closed);
    let (_, outcome) = bench.inbox.take_ended(waiting).unwrap();
    assert!(matches!(outcome.result, Err(Error::Closed)));
    assert!(bench.inbox.take_ended(fetching).is_none(), "UCX writes its memory");
    bench.inbox.receive(fetching).unwrap().comes(None);
    let (_, outcome) = bench.inbox.take_ended(fetching).unwrap();
    assert!(matches!(outcome.result, Err(Error::Closed)));
    // The queue of the ended context is empty: its next message is unexpected.
    bench.arrive(1, NEW, 8, false);
    bench.arrive(2, NEW, 8, false);
    bench.has_right_message(other);
    bench.inbox.deferred.clear();
}

#[test]
fn a_lost_peer_is_not_heard_any_more() {
    let mut bench = Bench::new();
    let (waiting, fetching) = (bench.post(1, 8), bench.post(2, 1 << 20));
    bench.arrive(2, NEW, 1 << 20, true);
    bench.arrive(3, NEW, 8, false);
    let lost = Error::PeerLost { rank: PEER };
    bench.inbox.lose(PEER, &lost, false);
    for number in [waiting, fetching] {
        let (_, outcome) = bench.inbox.take_ended(number).unwrap();
        assert!(matches!(outcome.result, Err(Error::PeerLost { rank: PEER })));
    }
    bench.arrive(3, NEW, 8, false);
    let number = bench.post(3, 8);
    assert!(bench.inbox.receive(number).is_some_and(|receive| receive.is_waiting()));
    bench.inbox.deferred.clear();
}
