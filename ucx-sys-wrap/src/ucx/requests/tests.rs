//! Two ranks that ask each other for memory, without UCX: what it would carry is carried here.

mod any_order;

use std::ptr::NonNull;

use brevity_ucx_sys::ucs_status_t;

use super::{Carried, Errand, MAX_REQUESTS, MAX_SERVED, Requests};
use crate::buffer::testing::{lend_to_receive, lent_to_send};
use crate::buffer::{Buffer, RegionMemory};
use crate::one_sided::frame::{FRAME_BYTES, Outcome, Place, RemoteFrame};
use crate::one_sided::{AccessParts, RegionKey};
use crate::transport::{Posted, RecvParts, Statistics};
use crate::ucx::payload::{Payload, Rts};
use crate::ucx::ucp_request::UcpRequests;
use crate::{Error, Rank};

const VISITOR: Rank = Rank(0);
const OWNER: Rank = Rank(1);

/// Payloads from here on are offered.
const OFFERED_BYTES: usize = 100;

/// The first of the owner's regions; what peers write must not get around it.
const REGION_BYTES: usize = 300;

struct Pair {
    ranks: [Requests; 2],
    /// Freed after `ranks`, whose flights they made.
    flights: UcpRequests,
    /// What is offered and not yet fetched or released.
    offered: Vec<Box<[u8]>>,
    statistics: Statistics,
    violation: Option<(Rank, String)>,
}

impl Pair {
    fn new() -> Self {
        let ranks = [VISITOR, OWNER].map(|rank| Requests::new(rank, 2));
        let (flights, offered, statistics) = (UcpRequests::new(), Vec::new(), Statistics::default());
        Self { ranks, flights, offered, statistics, violation: None }
    }

    fn expose(&mut self, length: usize) -> (RegionMemory, RegionKey) {
        let memory = RegionMemory::of_zeroes(length);
        memory.open_to_the_outside();
        let key = self.ranks[1].regions.add(OWNER, memory.clone()).unwrap();
        (memory, key)
    }

    /// Does what `rank` has for UCX to do, and brings what it sends. Says whether there was anything.
    fn carry(&mut self, rank: usize) -> bool {
        self.end_carried(rank);
        let Some(errand) = self.ranks[rank].errands.pop_front() else { return false };
        match errand {
            Errand::Send(to, frame, bytes, then) => {
                let (start, length) =
                    self.ranks[rank].source(&bytes).unwrap_or((NonNull::dangling().as_ptr(), 0));
                // SAFETY: memory that the errand keeps.
                let sent = unsafe { std::slice::from_raw_parts(start, length) }.to_vec();
                let flight = self.flights.take();
                flight.record().end(ucs_status_t::UCS_OK, 0);
                self.ranks[rank].carried.push(Carried { flight, bytes, expected: 0, then });
                self.bring(to, &frame.encode(Rank(rank as u32)), &sent);
            }
            Errand::Fetch(offer, into, then) => {
                let target = self.ranks[rank].target(&into);
                let bytes = self.take_back(offer);
                let Some((place, length)) = target else {
                    self.ranks[rank].end_work(then, Ok(()), false);
                    return true;
                };
                assert_eq!(length, bytes.len());
                // SAFETY: memory that the errand, or the operation of its part, keeps, of so many bytes.
                unsafe { place.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), length) };
                let flight = self.flights.take();
                flight.record().end(ucs_status_t::UCS_OK, length);
                self.ranks[rank].carried.push(Carried { flight, bytes: into, expected: length, then });
            }
            Errand::Release(offer) => drop(self.take_back(offer)),
        }
        true
    }

    fn end_carried(&mut self, rank: usize) {
        let requests = &mut self.ranks[rank];
        let is_torn_down = requests.is_torn_down;
        let is_over = |carried: &mut Carried| is_torn_down || carried.flight.is_over();
        let over: Vec<_> = requests.carried.extract_if(.., is_over).collect();
        for Carried { flight, expected, then, .. } in over {
            let is_done = flight.has_succeeded();
            assert!(!is_done || flight.record().bytes.get() == expected);
            let result = if is_done { Ok(()) } else { Err(Error::PeerLost { rank: OWNER }) };
            if !flight.is_over() {
                flight.record().end(ucs_status_t::UCS_ERR_CANCELED, 0);
            }
            self.flights.put(flight);
            self.ranks[rank].end_work(then, result, expected > 0);
        }
    }

    fn bring(&mut self, to: Rank, header: &[u8], bytes: &[u8]) {
        let payload = if bytes.len() < OFFERED_BYTES {
            Payload::Eager(bytes)
        } else {
            self.offered.push(bytes.into());
            let pointer = NonNull::from(self.offered.last_mut().unwrap().as_mut()).cast();
            Payload::Rendezvous(Rts { pointer, bytes: bytes.len() })
        };
        if let Err(violation) = self.ranks[to.index()].take_up(header, payload, &mut self.statistics) {
            self.violation.get_or_insert(violation);
        }
    }

    fn take_back(&mut self, offer: Rts) -> Box<[u8]> {
        let start = offer.pointer.as_ptr().cast::<u8>().cast_const();
        let position =
            self.offered.iter().position(|bytes| bytes.as_ptr() == start).expect("an offer, used once");
        self.offered.swap_remove(position)
    }

    fn settle(&mut self) {
        while self.carry(0) | self.carry(1) {}
    }

    /// How an operation of the visitor has ended.
    fn end(&mut self, number: usize) -> Option<Result<(), String>> {
        self.end_carried(0);
        let (result, _) = self.ranks[0].take_ended(OWNER, number)?;
        Some(result.map_err(|error| error.to_string()))
    }

    fn flush(&mut self) -> usize {
        match self.ranks[0].begin_flush(OWNER, 0) {
            Posted::Pending(number) => number,
            Posted::Done(_) => panic!("there are puts"),
        }
    }

    fn is_flushed(&mut self) -> bool {
        matches!(self.ranks[0].begin_flush(OWNER, 0), Posted::Done(Ok(())))
    }

    fn cancel(&mut self, number: usize) {
        self.ranks[0].of(OWNER).cancel(number);
    }

    /// A get into `place`, which the caller keeps.
    fn get(&mut self, key: &RegionKey, offset: u64, place: &mut [u8]) -> usize {
        let (mut raw, mut parts) = (place.into_raw(), RecvParts::new());
        lend_to_receive::<&mut [u8]>(&mut raw, &mut parts);
        self.ranks[0].begin(key, offset, AccessParts::Get(parts), 0)
    }

    fn put(&mut self, key: &RegionKey, offset: u64, buffers: &[Vec<u8>]) -> usize {
        self.ranks[0].begin(key, offset, AccessParts::Put(lent_to_send(buffers)), 0)
    }
}

fn failed(error: &Error) -> Option<Result<(), String>> {
    Some(Err(error.to_string()))
}

fn read(memory: &RegionMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

#[test]
fn parts_are_put_and_got_one_behind_the_other_short_and_long() {
    for lengths in [[3, 5, 2], [0, 7, 0], [150, 10, 120], [0, 0, 0]] {
        let mut pair = Pair::new();
        let (memory, key) = pair.expose(REGION_BYTES);
        let buffers: Vec<Vec<u8>> = (1..).zip(lengths).map(|(value, length)| vec![value; length]).collect();
        let put = pair.put(&key, 9, &buffers);
        assert_eq!(pair.ranks[0].waits().collect::<Vec<_>>(), [(OWNER, 0)]);
        let flush = pair.flush();
        assert!(pair.end(put).is_none() && pair.end(flush).is_none());
        pair.settle();
        assert_eq!((pair.end(put), pair.end(flush)), (Some(Ok(())), Some(Ok(()))));
        let sent = buffers.concat();
        let expected = [vec![0; 9], sent.clone(), vec![0; REGION_BYTES - 9 - sent.len()]].concat();
        assert_eq!(read(&memory), expected, "{lengths:?}");

        let mut places = lengths.map(|length| vec![9u8; length]);
        let mut parts = RecvParts::new();
        let mut raws: Vec<_> = places.iter_mut().map(|place| place.as_mut_slice().into_raw()).collect();
        raws.iter_mut().for_each(|raw| lend_to_receive::<&mut [u8]>(raw, &mut parts));
        let get = pair.ranks[0].begin(&key, 9, AccessParts::Get(parts), 0);
        pair.settle();
        assert_eq!(pair.end(get), Some(Ok(())));
        assert_eq!(places.concat(), sent, "{lengths:?}");
        assert!(pair.violation.is_none() && pair.offered.is_empty());
        assert!(pair.ranks.iter().all(Requests::is_idle));
        let copied: usize = lengths.iter().filter(|length| **length < OFFERED_BYTES).sum();
        assert_eq!(pair.statistics.bytes_copied, 2 * copied as u64, "what is long is not copied");
    }
}

#[test]
fn what_is_not_inside_or_names_no_region_is_refused_and_nothing_is_written() {
    for length in [8, 200] {
        let mut pair = Pair::new();
        let (memory, key) = pair.expose(REGION_BYTES);
        let guess = RegionKey { nonce: [7; 16], ..key.clone() };
        let longer = RegionKey { length: 1 << 40, ..key.clone() };
        let bytes = [vec![1u8; length]];
        let guessed = pair.put(&guess, 0, &bytes);
        let outside = pair.put(&longer, REGION_BYTES as u64 - 4, &bytes);
        pair.settle();
        assert_eq!(pair.end(guessed), failed(&Error::NoSuchRegion { rank: OWNER }));
        let expected = Error::OutOfRegion {
            rank: OWNER,
            offset: REGION_BYTES as u64 - 4,
            bytes: length as u64,
            region_bytes: 1 << 40,
        };
        assert_eq!(pair.end(outside), failed(&expected));
        assert_eq!(read(&memory), [0; REGION_BYTES]);
        assert!(pair.is_flushed(), "what was refused is not waited for");
        assert!(pair.offered.is_empty(), "the offer was given back");
    }
}

#[test]
fn a_region_that_ends_is_not_touched_by_what_has_come_and_is_kept_for_what_goes_on() {
    let mut pair = Pair::new();
    let (memory, key) = pair.expose(REGION_BYTES);
    let bytes = [vec![1u8; 200]];
    assert!(pair.ranks[1].conceal(&key), "nothing was begun");
    let late = pair.put(&key, 0, &bytes);
    pair.settle();
    assert_eq!(pair.end(late), failed(&Error::NoSuchRegion { rank: OWNER }));
    assert_eq!(read(&memory), [0; REGION_BYTES]);

    let (_, key) = pair.expose(REGION_BYTES);
    let put = pair.put(&key, 0, &bytes);
    assert!(pair.carry(0));
    assert!(!pair.ranks[1].conceal(&key), "it is about to be fetched");
    assert!(pair.carry(1));
    assert!(!pair.ranks[1].conceal(&key), "it is being fetched");
    pair.settle();
    assert_eq!(pair.end(put), Some(Ok(())));
    assert!(pair.ranks[1].conceal(&key));

    let (_, key) = pair.expose(REGION_BYTES);
    let mut place = vec![0; 8];
    let get = pair.get(&key, 0, &mut place);
    assert!(pair.carry(0) && pair.carry(1));
    assert!(!pair.ranks[1].conceal(&key), "it is being sent");
    pair.settle();
    assert_eq!(pair.end(get), Some(Ok(())));
}

#[test]
fn more_than_a_peer_takes_is_held_back() {
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let bytes = [vec![1u8; 1]];
    let puts: Vec<usize> = (0..MAX_REQUESTS + 10).map(|_| pair.put(&key, 0, &bytes)).collect();
    while pair.carry(0) {}
    let has_come = |errand: &Errand| matches!(errand, Errand::Send(..));
    let answers = std::iter::from_fn(|| pair.ranks[1].errands.pop_front()).filter(has_come).count();
    assert_eq!(answers, MAX_REQUESTS);
    assert!(pair.violation.is_none());
    pair.ranks[0].close(&Error::Closed, true);
    for put in puts {
        assert_eq!(pair.end(put), failed(&Error::Closed));
    }
}

#[test]
fn what_is_held_back_is_asked_for_as_answers_come_and_in_the_end_all_is_done() {
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let bytes = [vec![1u8; 1]];
    let puts: Vec<usize> = (0..MAX_REQUESTS + 10).map(|_| pair.put(&key, 0, &bytes)).collect();
    let (canceled, others) = puts.split_last().unwrap();
    pair.cancel(*canceled);
    assert_eq!(pair.end(*canceled), failed(&Error::Canceled), "it was not asked for");
    let flush = pair.flush();
    pair.settle();
    for put in others.iter().chain([&flush]) {
        assert_eq!(pair.end(*put), Some(Ok(())));
    }
    assert!(pair.violation.is_none() && pair.ranks.iter().all(Requests::is_idle));
}

#[test]
fn who_asks_without_end_is_named() {
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let header = RemoteFrame::Put(0, Place::of(&key, 0), 1).encode(VISITOR);
    for _ in 0..MAX_SERVED {
        pair.bring(OWNER, &header, &[1]);
    }
    assert!(pair.violation.is_none());
    pair.bring(OWNER, &header, &[1]);
    assert_eq!(pair.violation.map(|(rank, _)| rank), Some(VISITOR));
}

#[test]
fn what_ucx_could_not_send_fails_and_is_not_waited_for() {
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let mut place = vec![0; 8];
    let get = pair.get(&key, 0, &mut place);
    let Some(Errand::Send(_, _, bytes, then)) = pair.ranks[0].errands.pop_front() else {
        panic!("a request")
    };
    let flight = pair.flights.take();
    flight.record().begin();
    pair.ranks[0].carried.push(Carried { flight, bytes, expected: 0, then });
    assert!(pair.end(get).is_none());
    pair.ranks[0].close(&Error::Closed, false);
    assert!(pair.end(get).is_none(), "UCX still has it");
    pair.ranks[0].close(&Error::Closed, true);
    assert_eq!(pair.end(get), failed(&Error::Closed));

    let mut pair = Pair::new();
    let get = pair.get(&key, 0, &mut place);
    let Some(Errand::Send(_, _, bytes, then)) = pair.ranks[0].errands.pop_front() else {
        panic!("a request")
    };
    let flight = pair.flights.take();
    flight.record().end(ucs_status_t::UCS_ERR_CONNECTION_RESET, 0);
    pair.ranks[0].carried.push(Carried { flight, bytes, expected: 0, then });
    assert_eq!(pair.end(get), failed(&Error::PeerLost { rank: OWNER }));
}

#[test]
fn what_a_closed_rank_had_begun_has_ended_and_what_comes_later_is_not_taken() {
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let bytes = [vec![1u8; 200]];
    let (done, put) = (pair.put(&key, 0, &bytes), pair.put(&key, 0, &bytes));
    while pair.end(done).is_none() {
        assert!(pair.carry(0) | pair.carry(1));
        if pair.ranks[0].waits().count() == 1 {
            break;
        }
    }
    let flush = pair.flush();
    pair.ranks[0].close(&Error::PeerLost { rank: OWNER }, true);
    for operation in [put, flush] {
        assert_eq!(pair.end(operation), failed(&Error::PeerLost { rank: OWNER }));
    }
    pair.settle();
    assert!(pair.violation.is_none(), "late answers are nobody's fault");
}

#[test]
fn a_canceled_operation_ends_once_ucx_has_done_with_its_memory_and_late_answers_find_nothing() {
    for length in [8, 200] {
        let mut pair = Pair::new();
        let (memory, key) = pair.expose(REGION_BYTES);
        let bytes = [vec![1u8; length]];
        let mut place = vec![9; length];
        let put = pair.put(&key, 0, &bytes);
        let get = pair.get(&key, 0, &mut place);
        let flush = pair.flush();
        while pair.carry(0) {}
        for operation in [put, get, flush] {
            assert!(pair.end(operation).is_none());
            pair.cancel(operation);
            pair.cancel(operation);
            assert_eq!(pair.end(operation), failed(&Error::Canceled));
            assert!(pair.end(operation).is_none(), "told once");
        }
        assert_eq!(pair.ranks[0].waits().count(), 0);
        let flush = pair.flush();
        assert!(pair.end(flush).is_none(), "the put is still on its way");
        pair.settle();
        assert_eq!(pair.end(flush), Some(Ok(())));
        assert_eq!(place, vec![9; length], "nothing is written that was given back");
        assert_eq!(read(&memory)[..length], bytes[0]);
        assert!(pair.violation.is_none() && pair.offered.is_empty());
        assert!(pair.ranks.iter().all(Requests::is_idle));
        assert!(pair.ranks[0].of(OWNER).is_empty(), "nothing is left of it");
    }
}

#[test]
fn answers_that_nobody_has_asked_for_are_refused() {
    let place = Place { region: 0, nonce: [0; 16], offset: 0 };
    let frames = [
        RemoteFrame::Bytes(0, 8),
        RemoteFrame::Ended(0, Outcome::Done),
        RemoteFrame::Ended(3, Outcome::NoSuchRegion),
        RemoteFrame::Ended(u32::MAX, Outcome::Done),
        RemoteFrame::Put(0, place, 8),
        RemoteFrame::Get(0, place, 8),
    ];
    for frame in &frames[..4] {
        let mut pair = Pair::new();
        let bytes = if matches!(frame, RemoteFrame::Bytes(..)) { 8 } else { 0 };
        pair.bring(VISITOR, &frame.encode(OWNER), &[1; 8][..bytes]);
        assert_eq!(pair.violation.map(|(rank, _)| rank), Some(OWNER), "{frame:?}");
    }
    for frame in frames {
        let [own, peer, stranger] = [VISITOR, OWNER, Rank(2)].map(|rank| frame.encode(rank));
        for (header, bytes) in [(&peer[..63], 8), (&own, 8), (&stranger, 8), (&peer, 9)] {
            let mut pair = Pair::new();
            pair.bring(VISITOR, header, &[1; 9][..bytes]);
            assert!(pair.violation.is_some(), "{frame:?}");
        }
    }
    // An answer that comes twice.
    let mut pair = Pair::new();
    let (_, key) = pair.expose(REGION_BYTES);
    let mut place = vec![0u8; 200];
    let get = pair.get(&key, 0, &mut place);
    assert!(pair.carry(0));
    for _ in 0..2 {
        pair.bring(VISITOR, &RemoteFrame::Bytes(0, 200).encode(OWNER), &[1; 200]);
    }
    assert!(pair.violation.is_some());
    while pair.carry(0) {}
    assert_eq!(pair.end(get), Some(Ok(())));
}
