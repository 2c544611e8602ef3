//! One connection against a stream of bytes: any split of valid frames gives the messages, any bytes at all
//! no panic.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;

use proptest::prelude::*;

use super::connection::{Connection, Status};
use super::frame::{HEADER_BYTES, Header};
use super::fuzzing::loopback_pair;
use super::wire::Wire;
use crate::buffer::testing::lend_to_receive;
use crate::buffer::{Buffer, RawVec};
use crate::limits::MAX_EAGER_BYTES;
use crate::transport::{Posted, RecvDone, RecvParts};
use crate::{Envelope, MAX_PARTS, Mark, Rank, Result, Signature, Statistics, Tag};

pub(super) const WORLD_SIZE: u32 = 4;
pub(super) const PEER: Rank = Rank(1);
const SIZES: [usize; 8] = [0, 1, 63, 64, 100, 4096, 5000, 20_000];

/// A connection from [`PEER`] and the peer's end of it.
fn connection() -> (Connection, TcpStream) {
    let (own, peer) = loopback_pair().unwrap();
    peer.set_nonblocking(false).unwrap();
    let wire = Wire::from(own);
    (Connection::new(Rank(0), PEER, WORLD_SIZE, wire, std::sync::Arc::default()), peer)
}

#[derive(Clone, Debug)]
struct Message {
    round: u32,
    parts: Vec<Vec<u8>>,
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let lengths = self.parts.iter().map(Vec::len).collect();
        let Envelope { tag, signature, mark } = envelope(self.round);
        [&Header { tag, signature, mark, lengths }.encode()[..], &self.parts.concat()].concat()
    }
}

pub(super) fn envelope(round: u32) -> Envelope {
    Envelope { tag: Tag::new(PEER, 0, 0, round), signature: Signature([round as u8; 16]), mark: Mark(5) }
}

/// A receive and the memory that it has borrowed.
pub(super) struct Receiving {
    _memory: Vec<RawVec<u8>>,
    pub(super) posted: Posted<usize, RecvDone>,
}

impl Receiving {
    pub(super) fn post(
        connection: &mut Connection,
        round: u32,
        capacities: &[usize],
        statistics: &mut Statistics,
    ) -> Self {
        let mut memory: Vec<_> = capacities.iter().map(|capacity| vec![0u8; *capacity].into_raw()).collect();
        let mut parts = RecvParts::new();
        memory.iter_mut().for_each(|part| lend_to_receive::<Vec<u8>>(part, &mut parts));
        Self { posted: connection.post_recv(envelope(round), parts, statistics), _memory: memory }
    }

    fn finish(self, connection: &mut Connection) -> Option<Result<Vec<Vec<u8>>>> {
        let mut done = match self.posted {
            Posted::Done(done) => done,
            Posted::Pending(key) => connection.incoming.receives.take_ended(key)?,
        };
        Some(done.result.map(|arrival| {
            let parts = done.parts.iter_mut().zip(arrival.lengths);
            parts.map(|(part, length)| part.bytes_mut()[..length].to_vec()).collect()
        }))
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let sizes = proptest::collection::vec(0..SIZES.len(), 0..=MAX_PARTS);
    let message = (0u32..3, sizes, any::<u8>()).prop_map(|(round, sizes, seed)| {
        let part = |size: usize| (0..size).map(|i| (i * 7 + i / 251) as u8 ^ seed).collect();
        Message { round, parts: sizes.into_iter().map(|size| part(SIZES[size])).collect() }
    });
    proptest::collection::vec(message, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_split_and_any_order_of_posting_gives_the_messages_in_order(
        messages in messages(),
        steps in proptest::collection::vec((0u8..3, 1usize..6000, 0usize..2), 0..60),
    ) {
        let (mut connection, mut socket) = connection();
        let mut statistics = Statistics::default();
        let stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        let mut unwritten = &stream[..];
        // Receives are posted in the order of messages of another tag than the stream's: last tag first.
        let mut unposted: Vec<&Message> = messages.iter().collect();
        unposted.sort_by_key(|message| std::cmp::Reverse(message.round));
        let mut unposted = unposted.into_iter();
        let mut receives = Vec::new();
        let mut post = |connection: &mut Connection, extra: usize, statistics: &mut Statistics| {
            let Some(message) = unposted.next() else { return false };
            let capacities: Vec<_> = message.parts.iter().map(|part| part.len() + extra * 3000).collect();
            receives
                .push((message.round, Receiving::post(connection, message.round, &capacities, statistics)));
            true
        };
        for (step, count, extra) in steps {
            match step {
                0 => {
                    let (now, later) = unwritten.split_at(count.min(unwritten.len()));
                    socket.write_all(now).unwrap();
                    unwritten = later;
                }
                1 => drop(post(&mut connection, extra, &mut statistics)),
                _ => prop_assert!(matches!(connection.service(1 << 20, &mut statistics).1, Status::Open)),
            }
        }
        socket.write_all(unwritten).unwrap();
        while post(&mut connection, 0, &mut statistics) {}
        while statistics.bytes_received < stream.len() as u64 {
            prop_assert!(matches!(connection.service(3000, &mut statistics).1, Status::Open));
        }
        let mut expected: HashMap<u32, Vec<&Message>> = HashMap::new();
        messages.iter().rev().for_each(|message| expected.entry(message.round).or_default().push(message));
        for (round, receiving) in receives {
            let message = expected.get_mut(&round).unwrap().pop().unwrap();
            prop_assert_eq!(&receiving.finish(&mut connection).unwrap().unwrap(), &message.parts);
        }
        prop_assert_eq!(statistics.messages_received, messages.len() as u64);
        prop_assert_eq!(statistics.bytes_received, stream.len() as u64);
        prop_assert!(!connection.is_awaited());
    }

    #[test]
    fn no_bytes_do_harm(
        messages in messages(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        tail in proptest::collection::vec(any::<u8>(), 0..200),
        posted in proptest::collection::vec((0u32..3, 0usize..3, 0usize..10_000), 0..6),
    ) {
        let (mut connection, mut socket) = connection();
        let mut statistics = Statistics::default();
        let mut receives = Vec::new();
        for (round, parts, capacity) in posted {
            receives.push(Receiving::post(&mut connection, round, &vec![capacity; parts], &mut statistics));
        }
        let mut stream: Vec<u8> = messages.iter().flat_map(Message::encode).collect();
        for (index, value) in changes {
            let at = index.index(stream.len());
            stream[at] = value;
        }
        stream.extend(tail);
        socket.write_all(&stream).unwrap();
        drop(socket);
        let mut turns = 0;
        let status = loop {
            match connection.service(5000, &mut statistics).1 {
                Status::Open => turns += 1,
                status => break status,
            }
            prop_assert!(turns < 1_000_000);
        };
        prop_assert!(statistics.bytes_received <= stream.len() as u64);
        connection.close(&crate::Error::Closed, &mut statistics);
        for receiving in receives {
            prop_assert!(receiving.finish(&mut connection).is_some(), "after {:?}", status);
        }
    }
}

#[test]
fn memory_is_taken_as_bytes_come_and_not_as_announced() {
    let (mut connection, mut socket) = connection();
    let mut statistics = Statistics::default();
    let Envelope { tag, signature, mark } = envelope(0);
    let announced = MAX_EAGER_BYTES;
    let header = Header { tag, signature, mark, lengths: [announced].into_iter().collect() };
    socket.write_all(&header.encode()).unwrap();
    socket.write_all(&[1; 10_000]).unwrap();
    while statistics.bytes_received < (HEADER_BYTES + 10_000) as u64 {
        connection.service(1 << 20, &mut statistics);
    }
    let held = connection.incoming.receives.kept_capacity();
    assert!((10_000..200_000).contains(&held), "{held} bytes are held for 10,000");
}
