//! The tcp transport over loopback sockets: what it moves, what it refuses, and what it says when somebody dies.
//!
//! All ranks of a test are driven from one thread, so that what happens between two steps is known.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // Nothing here but tests.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucx_sys_wrap::buffer::{Buffer, RawVec, RecvBuffer, SendBuffer};
use ucx_sys_wrap::tcp::{CREDIT_BYTES, MAX_EAGER_BYTES, Tcp};
use ucx_sys_wrap::{
    Arrival, Envelope, Error, Failure, Mark, Posted, Rank, RecvDone, RecvId, RecvParts, Result, SendDone, SendId,
    SendParts, Signature, Tag, Transport,
};

const HEADER_BYTES: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(20);

type Row = Vec<Option<TcpStream>>;

/// Sockets between all ranks: `mesh[rank][peer]`.
fn mesh(world_size: usize) -> Vec<Row> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut rows: Vec<Row> = (0..world_size).map(|_| (0..world_size).map(|_| None).collect()).collect();
    for (low, high) in pairs(world_size).filter(|(low, high)| low < high) {
        rows[high][low] = Some(TcpStream::connect(address).unwrap());
        rows[low][high] = Some(listener.accept().unwrap().0);
    }
    rows
}

fn world(world_size: usize) -> Vec<Tcp> {
    let rows = mesh(world_size).into_iter().enumerate();
    rows.map(|(rank, row)| Tcp::new(Rank(rank as u32), world_size as u32, row).unwrap()).collect()
}

/// A world in which only the first `real` ranks are transports; the others are bare sockets.
fn world_with_strangers(real: usize, world_size: usize) -> (Vec<Tcp>, Vec<Row>) {
    let mut rows = mesh(world_size);
    let strangers = rows.split_off(real);
    let rows = rows.into_iter().enumerate();
    (rows.map(|(rank, row)| Tcp::new(Rank(rank as u32), world_size as u32, row).unwrap()).collect(), strangers)
}

fn envelope(source: usize, round: u32) -> Envelope {
    let tag = Tag::new(Rank(source as u32), 1, 2, round);
    Envelope { tag, signature: Signature([7; 16]), mark: Mark(u64::from(round)) }
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) ^ (i >> 9) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// A header as the wire format says, for strangers.
fn header(kind: u8, rank: u32, tag: Tag, signature: Signature, lengths: &[u64]) -> Vec<u8> {
    let mut bytes = vec![kind, lengths.len() as u8, 0, 0];
    bytes.extend(rank.to_le_bytes());
    bytes.extend(tag.0.to_le_bytes());
    bytes.extend(signature.0);
    bytes.extend(0u64.to_le_bytes());
    for part in 0..3 {
        bytes.extend(lengths.get(part).copied().unwrap_or(0).to_le_bytes());
    }
    bytes
}

fn message(source: usize, round: u32, payload: &[u8]) -> Vec<u8> {
    let Envelope { tag, signature, .. } = envelope(source, round);
    let mut bytes = header(1, 0, tag, signature, &[payload.len() as u64]);
    bytes.extend(payload);
    bytes
}

fn control(kind: u8, source: usize, number: u32) -> Vec<u8> {
    header(kind, number, Tag::new(Rank(source as u32), 0, 0, 0), Signature::default(), &[])
}

fn lost_frame(source: usize, rank: u32) -> Vec<u8> {
    control(3, source, rank)
}

fn offer(source: usize, round: u32, number: u32, length: usize) -> Vec<u8> {
    let Envelope { tag, signature, .. } = envelope(source, round);
    header(6, number, tag, signature, &[length as u64])
}

fn grant(source: usize, number: u32) -> Vec<u8> {
    control(7, source, number)
}

fn data(source: usize, number: u32, payload: &[u8]) -> Vec<u8> {
    [control(9, source, number), payload.to_vec()].concat()
}

/// More than the kernel takes for a peer that does not read, in messages that are sent without asking.
fn stuff(transport: &mut Tcp, to: usize) -> Vec<Sending> {
    let from = transport.rank().index();
    let count = CREDIT_BYTES as usize / (MAX_EAGER_BYTES + 128);
    (0..count).map(|i| Sending::post(transport, to, envelope(from, 900), &[&pattern(i, MAX_EAGER_BYTES)])).collect()
}

/// A send and the memory that it has borrowed.
struct Sending {
    _parts: Vec<RawVec<u8>>,
    posted: Posted<SendId, SendDone>,
}

impl Sending {
    fn post(transport: &mut Tcp, to: usize, envelope: Envelope, parts: &[&[u8]]) -> Self {
        let raw: Vec<_> = parts.iter().map(|part| part.to_vec().into_raw()).collect();
        let mut leases = SendParts::new();
        raw.iter().for_each(|part| <Vec<u8> as SendBuffer>::lend(part, &mut leases));
        Self { posted: transport.post_send(Rank(to as u32), envelope, leases), _parts: raw }
    }

    fn test(&mut self, transport: &mut Tcp) -> Option<Result<()>> {
        if let Posted::Pending(id) = self.posted {
            self.posted = Posted::Done(transport.test_send(id)?);
        }
        match &self.posted {
            Posted::Done(done) => Some(done.result.clone()),
            Posted::Pending(_) => None,
        }
    }

    fn cancel(&mut self, transport: &mut Tcp) -> Result<()> {
        if let Posted::Pending(id) = self.posted {
            transport.cancel_send(id);
        }
        self.test(transport).expect("a canceled send ends at once")
    }
}

/// A receive and the memory that it has borrowed.
struct Receiving {
    _parts: Vec<RawVec<u8>>,
    posted: Posted<RecvId, RecvDone>,
}

impl Receiving {
    fn post(transport: &mut Tcp, from: usize, envelope: Envelope, capacities: &[usize]) -> Self {
        let mut raw: Vec<_> = capacities.iter().map(|capacity| vec![0xAA; *capacity].into_raw()).collect();
        let mut leases = RecvParts::new();
        raw.iter_mut().for_each(|part| <Vec<u8> as RecvBuffer>::lend(part, &mut leases));
        Self { posted: transport.post_recv(Rank(from as u32), envelope, leases), _parts: raw }
    }

    fn test(&mut self, transport: &mut Tcp) -> Option<Result<Arrival>> {
        if let Posted::Pending(id) = self.posted {
            self.posted = Posted::Done(transport.test_recv(id)?);
        }
        match &self.posted {
            Posted::Done(done) => Some(done.result.clone()),
            Posted::Pending(_) => None,
        }
    }

    fn cancel(&mut self, transport: &mut Tcp) -> Result<Arrival> {
        if let Posted::Pending(id) = self.posted {
            transport.cancel_recv(id);
        }
        self.test(transport).expect("a canceled receive ends at once")
    }

    /// The bytes that arrived, part by part.
    fn bytes(&mut self) -> Vec<Vec<u8>> {
        let Posted::Done(done) = &mut self.posted else { panic!("the receive goes on") };
        let lengths = done.result.clone().unwrap().lengths;
        done.parts.iter_mut().zip(lengths).map(|(part, length)| part.bytes_mut()[..length].to_vec()).collect()
    }
}

/// Turns all transports until `done` says so.
fn turn_until(transports: &mut [Tcp], mut done: impl FnMut(&mut [Tcp]) -> bool) {
    let start = Instant::now();
    while !done(transports) {
        for transport in transports.iter_mut() {
            transport.progress();
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened for {PATIENCE:?}");
    }
}

fn turn(transports: &mut [Tcp], times: usize) {
    for _ in 0..times {
        transports.iter_mut().for_each(|transport| {
            transport.progress();
        });
    }
}

fn receive(transports: &mut [Tcp], at: usize, receiving: &mut Receiving) -> Result<Arrival> {
    turn_until(transports, |transports| receiving.test(&mut transports[at]).is_some());
    receiving.test(&mut transports[at]).unwrap()
}

fn assert_lost(result: Result<impl std::fmt::Debug>, expected: u32) {
    match result {
        Err(Error::PeerLost { rank }) => assert_eq!(rank, Rank(expected)),
        other => panic!("{other:?}, expected that rank {expected} is lost"),
    }
}

#[test]
fn battery() {
    common::battery("tcp", |world_size| {
        world(world_size as usize).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
    });
}

#[test]
fn every_rank_sends_to_every_other_in_all_sizes() {
    let sizes = [0, 1, 8, 4095, 4096, 4097, 65_536, (1 << 20) + 7];
    for world_size in [2, 3, 5, 8] {
        let mut transports = world(world_size);
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for post_receives_first in [true, false] {
            for (round, size) in sizes.iter().enumerate() {
                let round = round as u32 + if post_receives_first { 0 } else { 100 };
                for (a, b) in pairs(world_size) {
                    let payload = pattern(a * 10 + b, *size);
                    if post_receives_first {
                        let receiving = Receiving::post(&mut transports[b], a, envelope(a, round), &[*size]);
                        receives.push((a, b, *size, receiving));
                    }
                    sends.push((a, Sending::post(&mut transports[a], b, envelope(a, round), &[&payload])));
                }
            }
        }
        turn(&mut transports, 200);
        for (round, size) in sizes.iter().enumerate().rev() {
            for (a, b) in pairs(world_size) {
                let receiving =
                    Receiving::post(&mut transports[b], a, envelope(a, round as u32 + 100), &[*size + round]);
                receives.push((a, b, *size, receiving));
            }
        }
        for (a, b, size, mut receiving) in receives {
            receive(&mut transports, b, &mut receiving).unwrap();
            assert_eq!(receiving.bytes(), [pattern(a * 10 + b, size)], "{size} bytes from {a} to {b}");
        }
        for (a, mut sending) in sends {
            turn_until(&mut transports, |transports| sending.test(&mut transports[a]).is_some());
            sending.test(&mut transports[a]).unwrap().unwrap();
        }
    }
}

fn pairs(world_size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..world_size).flat_map(move |a| (0..world_size).filter(move |b| *b != a).map(move |b| (a, b)))
}

#[test]
fn parts_are_gathered_and_scattered() {
    let mut transports = world(2);
    for (round, lengths) in [[3, 0, 5], [100_000, 1, 70_000], [0, 0, 0], [5000, 5000, 5000]].iter().enumerate() {
        let parts: Vec<_> = lengths.iter().enumerate().map(|(part, length)| pattern(part, *length)).collect();
        // Larger places than needed: what follows in the stream must not land in them.
        let capacities = lengths.map(|length| length + round * 1000);
        let mut first = Receiving::post(&mut transports[1], 0, envelope(0, 1), &capacities);
        let mut second = Receiving::post(&mut transports[1], 0, envelope(0, 1), &capacities);
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let sends: Vec<_> = (0..2).map(|_| Sending::post(&mut transports[0], 1, envelope(0, 1), &slices)).collect();
        for receiving in [&mut first, &mut second] {
            let arrival = receive(&mut transports, 1, receiving).unwrap();
            assert_eq!((arrival.mark, &arrival.lengths[..]), (Mark(1), &lengths[..]));
            assert_eq!(receiving.bytes(), parts);
        }
        drop(sends);
    }
}

#[test]
fn a_wrong_guess_of_the_receive_changes_nothing() {
    let mut transports = world(2);
    let size = 200_000;
    for round in 0..50u32 {
        let mut one = Receiving::post(&mut transports[1], 0, envelope(0, 2 * round), &[size]);
        let mut two = Receiving::post(&mut transports[1], 0, envelope(0, 2 * round + 1), &[100, size]);
        let (a, b) = (pattern(1, size), pattern(2, size - 5));
        let _sends = [
            Sending::post(&mut transports[0], 1, envelope(0, 2 * round + 1), &[b"heads", &b]),
            Sending::post(&mut transports[0], 1, envelope(0, 2 * round), &[&a]),
        ];
        receive(&mut transports, 1, &mut one).unwrap();
        receive(&mut transports, 1, &mut two).unwrap();
        assert_eq!(one.bytes(), [a]);
        assert_eq!(two.bytes(), [b"heads".to_vec(), b]);
    }
}

#[test]
fn messages_of_one_tag_arrive_in_order() {
    let mut transports = world(2);
    let mut early: Vec<_> =
        (0..5).map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100_000])).collect();
    let sends: Vec<_> =
        (0..10).map(|i| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(i, 1 + i * 9000)])).collect();
    turn(&mut transports, 100);
    early.extend((0..5).map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100_000])));
    for (i, receiving) in early.iter_mut().enumerate() {
        receive(&mut transports, 1, receiving).unwrap();
        assert_eq!(receiving.bytes(), [pattern(i, 1 + i * 9000)]);
    }
    drop(sends);
}

#[test]
fn a_small_message_is_sent_when_it_is_posted() {
    let mut transports = world(2);
    let sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"12345678"]);
    assert!(matches!(sending.posted, Posted::Done(_)));
    let sent = transports[0].statistics();
    assert_eq!((sent.messages_sent, sent.bytes_sent), (1, HEADER_BYTES + 8));
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[8]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    let received = transports[1].statistics();
    assert_eq!((received.messages_received, received.bytes_received), (1, HEADER_BYTES + 8));
    assert_eq!((received.copies, received.bytes_copied), (1, 8));
}

#[test]
fn a_large_message_is_received_in_place() {
    let mut transports = world(2);
    for parts in [&[400_000][..], &[1 << 10, 400_000], &[1 << 20], &[1 << 10, 1 << 20]] {
        let before = [transports[0].statistics(), transports[1].statistics()];
        let payload: Vec<_> = parts.iter().map(|length| pattern(1, *length)).collect();
        let slices: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), parts);
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &slices);
        receive(&mut transports, 1, &mut receiving).unwrap();
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        assert_eq!(receiving.bytes(), payload);
        assert_eq!(transports[0].statistics().bytes_copied, before[0].bytes_copied);
        let copied = transports[1].statistics().bytes_copied - before[1].bytes_copied;
        assert!(copied <= 4096, "{copied} bytes of {parts:?} were copied");
        let payload_bytes = parts.iter().sum::<usize>();
        // A large one is offered first.
        let headers = if payload_bytes > MAX_EAGER_BYTES { 2 } else { 1 };
        let frame_bytes = headers * HEADER_BYTES + payload_bytes as u64;
        assert_eq!(transports[0].statistics().bytes_sent - before[0].bytes_sent, frame_bytes);
        assert_eq!(transports[1].statistics().bytes_received - before[1].bytes_received, frame_bytes);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_consumed() {
    let mut transports = world(2);
    for (size, early) in [(10usize, true), (10, false), (300_000, true), (300_000, false)] {
        let mut other = envelope(0, 0);
        other.signature = Signature([9; 16]);
        let sent = pattern(3, size);
        let posts: [(Envelope, &[usize]); 4] =
            [(envelope(0, 0), &[size - 1]), (envelope(0, 0), &[size, 0]), (other, &[size]), (envelope(0, 0), &[size])];
        let mut receives = Vec::new();
        if early {
            receives.extend(
                posts.iter().map(|(envelope, places)| Receiving::post(&mut transports[1], 0, *envelope, places)),
            );
        }
        let _sends: Vec<_> = (0..4).map(|_| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&sent])).collect();
        if !early {
            turn(&mut transports, 200);
            receives.extend(
                posts.iter().map(|(envelope, places)| Receiving::post(&mut transports[1], 0, *envelope, places)),
            );
        }
        let results: Vec<_> = receives.iter_mut().map(|receiving| receive(&mut transports, 1, receiving)).collect();
        let rank = Rank(0);
        assert!(matches!(results[0], Err(Error::TooLong { rank: r, part: 0, .. }) if r == rank), "{results:?}");
        assert!(matches!(results[1], Err(Error::TooLong { rank: r, part: 1, .. }) if r == rank), "{results:?}");
        assert!(matches!(results[2], Err(Error::Mismatch { rank: r, found: Signature([7, ..]), .. }) if r == rank));
        assert!(results[3].is_ok());
        assert_eq!(receives[3].bytes(), [sent]);
    }
}

#[test]
fn who_is_no_peer_is_refused() {
    let mut transports = world(2);
    for peer in [0, 2, 5_000_000] {
        let mut sending = Sending::post(&mut transports[0], peer, envelope(0, 0), &[b"x"]);
        assert!(matches!(sending.test(&mut transports[0]), Some(Err(Error::NoSuchPeer { .. }))));
        let mut receiving = Receiving::post(&mut transports[0], peer, envelope(peer, 0), &[1]);
        assert!(matches!(receiving.test(&mut transports[0]), Some(Err(Error::NoSuchPeer { .. }))));
    }
    assert!(matches!(Tcp::new(Rank(0), 3, vec![None, None]), Err(Error::Unavailable { .. })));
    assert!(Tcp::new(Rank(0), 1, vec![None]).is_ok());
}

#[test]
fn a_canceled_receive_ends_at_once_and_its_message_is_consumed() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let (first, second) = (message(1, 0, &pattern(1, 500_000)), message(1, 0, &pattern(2, 9)));
    for half in [10, 64, 70, 5000, 300_000] {
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[500_000]);
        socket.write_all(&first[..half]).unwrap();
        let before = transports[0].statistics().bytes_received;
        turn_until(&mut transports, |transports| transports[0].statistics().bytes_received - before == half as u64);
        assert!(matches!(receiving.cancel(&mut transports[0]), Err(Error::Canceled)));
        drop(receiving);
        let mut next = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[500_000]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                socket.write_all(&first[half..]).unwrap();
                socket.write_all(&second).unwrap();
            });
            receive(&mut transports, 0, &mut next).unwrap();
        });
        // Before its header was read, the message was not matched and goes to the next receive.
        let expected = if half < 64 { pattern(1, 500_000) } else { pattern(2, 9) };
        assert_eq!(next.bytes(), [expected]);
        if half < 64 {
            let mut rest = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[9]);
            receive(&mut transports, 0, &mut rest).unwrap();
        }
    }
}

#[test]
fn a_canceled_send_is_whole_or_never_was() {
    let mut transports = world(2);
    let size = MAX_EAGER_BYTES;
    let mut sends = stuff(&mut transports[0], 1);
    // The kernel has taken the first ones, some of one, and nothing of the rest.
    let first = sends.iter_mut().position(|sending| sending.test(&mut transports[0]).is_none()).unwrap();
    let last = sends.len() - 1;
    assert!(first < last - 1);
    for i in [first, last - 1] {
        assert!(matches!(sends[i].cancel(&mut transports[0]), Err(Error::Canceled)));
    }
    let copied = transports[0].statistics().bytes_copied;
    assert!(copied > 0 && copied < size as u64, "the rest alone is copied: {copied}");
    for seed in (0..=last).filter(|seed| *seed != last - 1) {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 900), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(seed, size)], "message {seed}");
    }
    turn_until(&mut transports, |transports| sends[last].test(&mut transports[0]).is_some());
    sends[last].test(&mut transports[0]).unwrap().unwrap();
}

#[test]
fn a_canceled_offer_is_whole_or_never_was() {
    let mut transports = world(2);
    let size = MAX_EAGER_BYTES + 1;
    let mut offered = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    turn(&mut transports, 200);
    assert!(matches!(offered.cancel(&mut transports[0]), Err(Error::Canceled)));
    assert_eq!(transports[0].statistics().bytes_copied, size as u64);
    let stuffing = stuff(&mut transports[0], 1);
    let mut unsent = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(2, size)]);
    assert!(matches!(unsent.cancel(&mut transports[0]), Err(Error::Canceled)));
    assert_eq!(transports[0].statistics().bytes_copied, size as u64, "an offer that is not sent is withdrawn");
    let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(3, size)]);
    for seed in [1, 3] {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(seed, size)], "message {seed}");
    }
    turn_until(&mut transports, |transports| behind.test(&mut transports[0]).is_some());
    behind.test(&mut transports[0]).unwrap().unwrap();
    drop(stuffing);
}

#[test]
fn a_send_that_is_canceled_while_its_data_is_written_is_whole() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let size = 32 << 20;
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    let mut behind = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(2, size)]);
    let socket = strangers[0][0].as_mut().unwrap();
    // Both are granted before anything of the second one's data is written.
    socket.write_all(&[grant(1, 0), grant(1, 1)].concat()).unwrap();
    let before = transports[0].statistics().bytes_sent;
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_sent > before + 1000);
    for sending in [&mut sending, &mut behind] {
        assert!(matches!(sending.cancel(&mut transports[0]), Err(Error::Canceled)));
    }
    drop((sending, behind));
    let expected =
        [offer(0, 0, 0, size), offer(0, 0, 1, size), data(0, 0, &pattern(1, size)), data(0, 1, &pattern(2, size))];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; 2 * size + 4 * HEADER_BYTES as usize];
            socket.read_exact(&mut bytes).unwrap();
            bytes
        });
        turn_until(&mut transports, |_| reader.is_finished());
        assert!(without_marks(reader.join().unwrap()) == without_marks(expected.concat()));
    });
}

/// Offers carry the sender's mark, which [`offer`] leaves at zero.
fn without_marks(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[32..40].fill(0);
    bytes[96..104].fill(0);
    bytes
}

#[test]
fn a_canceled_receive_that_has_granted_discards_the_data() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let payload = pattern(1, 100_000);
    for (round, half) in [0, 64, 5000].into_iter().enumerate() {
        let round = round as u32;
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, round), &[100_000]);
        socket.write_all(&offer(1, round, round, 100_000)).unwrap();
        turn_until(&mut transports, |transports| {
            transports[0].statistics().bytes_sent == HEADER_BYTES * u64::from(round + 1)
        });
        let mut frame = [0; 64];
        socket.read_exact(&mut frame).unwrap();
        assert_eq!(frame[..], grant(0, round));
        let sent = data(1, round, &payload);
        socket.write_all(&sent[..half]).unwrap();
        turn(&mut transports, 100);
        assert!(matches!(receiving.cancel(&mut transports[0]), Err(Error::Canceled)));
        drop(receiving);
        socket.write_all(&sent[half..]).unwrap();
        socket.write_all(&message(1, round, b"next")).unwrap();
        let mut next = Receiving::post(&mut transports[0], 1, envelope(1, round), &[4]);
        receive(&mut transports, 0, &mut next).unwrap();
        assert_eq!(next.bytes(), [b"next"]);
    }
}

#[test]
fn garbage_closes_the_transport_and_the_others_are_told() {
    let (mut transports, mut strangers) = world_with_strangers(2, 3);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[8]);
    let mut bystander = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    strangers[0][0].as_mut().unwrap().write_all(&[0xff; 200]).unwrap();
    let result = receive(&mut transports, 0, &mut bystander);
    assert!(matches!(result, Err(Error::Protocol { rank: Rank(2), .. })), "{result:?}");
    assert_lost(receive(&mut transports, 1, &mut receiving), 2);
    assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(2))));
    assert_eq!(transports[1].failure(), Some(Failure::PeerLost(Rank(2))));
    // The stranger is told as well.
    let mut frame = [0; 64];
    strangers[0][1].as_mut().unwrap().read_exact(&mut frame).unwrap();
    assert_eq!(frame[..], lost_frame(1, 2));
}

#[test]
fn every_wrong_field_closes_the_transport() {
    let good = message(1, 0, b"12345678");
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let cases = [
        change(0, 0),
        change(0, 9),
        change(1, 4),
        change(1, 255),
        change(2, 1),
        change(15, 0xff),
        change(47, 0xff),
        change(63, 1),
    ];
    for bytes in cases.iter().chain([&lost_frame(1, 2), &lost_frame(0, 1)]) {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
        strangers[0][0].as_mut().unwrap().write_all(bytes).unwrap();
        let result = receive(&mut transports, 0, &mut receiving);
        assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "{result:?}");
        let mut late = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"]);
        assert!(matches!(late.test(&mut transports[0]), Some(Err(Error::Protocol { .. }))));
    }
}

#[test]
fn a_rank_that_dies_in_the_middle_of_a_frame_is_named_by_all() {
    for cut in [0, 1, 63, 64, 1000, 70_000] {
        let (mut transports, mut strangers) = world_with_strangers(3, 4);
        let frame = message(3, 0, &pattern(1, 100_000));
        strangers[0][1].as_mut().unwrap().write_all(&frame[..cut]).unwrap();
        let mut receives: Vec<_> = (0..3)
            .map(|rank| Receiving::post(&mut transports[rank], (rank + 1) % 3, envelope((rank + 1) % 3, 0), &[8]))
            .collect();
        let mut from_dead = Receiving::post(&mut transports[1], 3, envelope(3, 0), &[100_000]);
        turn(&mut transports, 200);
        drop(strangers);
        for (rank, receiving) in receives.iter_mut().enumerate() {
            assert_lost(receive(&mut transports, rank, receiving), 3);
        }
        assert_lost(receive(&mut transports, 1, &mut from_dead), 3);
        for transport in &mut transports {
            assert_eq!(transport.failure(), Some(Failure::PeerLost(Rank(3))));
            let mut later = Sending::post(transport, 3, envelope(transport.rank().index(), 0), &[b"x"]);
            assert_lost(later.test(transport).unwrap(), 3);
        }
    }
}

#[test]
fn a_rank_that_dies_while_it_is_written_to_is_named() {
    let (mut transports, strangers) = world_with_strangers(1, 2);
    let mut sends = stuff(&mut transports[0], 1);
    sends.push(Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 2 * MAX_EAGER_BYTES)]));
    turn(&mut transports, 10);
    drop(strangers);
    for sending in sends.iter_mut().rev().take(3) {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        assert_lost(sending.test(&mut transports[0]).unwrap(), 1);
    }
}

#[test]
fn a_cause_that_somebody_names_comes_before_a_bare_end() {
    for messenger in 1..3 {
        let (mut transports, mut strangers) = world_with_strangers(1, 4);
        let mut receiving = Receiving::post(&mut transports[0], 3 - messenger, envelope(3 - messenger, 0), &[8]);
        let frame = lost_frame(messenger, 3);
        strangers[messenger - 1][0].as_mut().unwrap().write_all(&frame).unwrap();
        strangers.truncate(2);
        strangers.remove(2 - messenger);
        assert_lost(receive(&mut transports, 0, &mut receiving), 3);
    }
}

#[test]
fn survivors_that_leave_are_not_taken_for_the_dead() {
    let (mut transports, strangers) = world_with_strangers(3, 4);
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    let mut waiting = Receiving::post(&mut transports[2], 3, envelope(3, 0), &[8]);
    drop(strangers);
    turn_until(&mut transports[2..], |transports| waiting.test(&mut transports[0]).is_some());
    drop(transports.pop());
    let mut second = Receiving::post(&mut transports[1], 2, envelope(2, 0), &[8]);
    turn_until(&mut transports[1..], |transports| second.test(&mut transports[0]).is_some());
    assert_lost(second.test(&mut transports[1]).unwrap(), 3);
    drop(transports.pop());
    assert_lost(receive(&mut transports, 0, &mut receiving), 3);
}

#[test]
fn what_was_sent_before_a_bye_still_arrives_and_the_others_go_on() {
    let mut transports = world(3);
    let payload = pattern(1, MAX_EAGER_BYTES);
    let mut last = transports.pop().unwrap();
    let _small = Sending::post(&mut last, 0, envelope(2, 0), &[b"small"]);
    let _large = Sending::post(&mut last, 0, envelope(2, 1), &[&payload]);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| drop(last));
        turn_until(&mut transports, |_| leaving.is_finished());
    });
    turn(&mut transports, 200);
    let mut large = Receiving::post(&mut transports[0], 2, envelope(2, 1), &[MAX_EAGER_BYTES]);
    receive(&mut transports, 0, &mut large).unwrap();
    assert_eq!(large.bytes(), [payload]);
    let mut small = Receiving::post(&mut transports[0], 2, envelope(2, 0), &[5]);
    receive(&mut transports, 0, &mut small).unwrap();
    assert_eq!(transports[0].failure(), None);
    let _sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"on"]);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[2]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    // Who misses it says so to all.
    let mut other = Receiving::post(&mut transports[1], 0, envelope(0, 1), &[2]);
    assert_lost(Receiving::post(&mut transports[0], 2, envelope(2, 0), &[5]).test(&mut transports[0]).unwrap(), 2);
    assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(2))));
    assert_lost(receive(&mut transports, 1, &mut other), 2);
}

#[test]
fn who_waits_for_a_rank_that_leaves_or_sends_to_it_has_lost_it() {
    for way in 0..3 {
        let mut transports = world(2);
        let mut waiting = (way == 0).then(|| Receiving::post(&mut transports[0], 1, envelope(1, 0), &[5]));
        let mut stuck =
            (way == 1).then(|| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 32 << 20)]));
        drop(transports.pop());
        turn(&mut transports, 200);
        let result = match (&mut waiting, &mut stuck) {
            (Some(waiting), _) => waiting.test(&mut transports[0]).unwrap().map(|_| ()),
            (_, Some(stuck)) => stuck.test(&mut transports[0]).unwrap(),
            _ => {
                assert_eq!(transports[0].failure(), None);
                Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"x"]).test(&mut transports[0]).unwrap()
            }
        };
        assert_lost(result, 1);
        assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(1))));
    }
}

#[test]
fn an_abort_is_told_to_all() {
    let mut transports = world(3);
    let mut receives: Vec<_> = (0..3)
        .map(|rank| Receiving::post(&mut transports[rank], (rank + 1) % 3, envelope((rank + 1) % 3, 0), &[8]))
        .collect();
    // A message on its way is not cut: the cause follows it.
    let _stuck = stuff(&mut transports[1], 0);
    transports[1].fail(Failure::Aborted(Rank(1)));
    transports[1].fail(Failure::PeerLost(Rank(0)));
    for (rank, receiving) in receives.iter_mut().enumerate() {
        let result = receive(&mut transports, rank, receiving);
        assert!(matches!(result, Err(Error::Aborted { rank: Rank(1) })), "{result:?}");
        assert_eq!(transports[rank].failure(), Some(Failure::Aborted(Rank(1))));
    }
}

#[test]
fn an_abandoned_transport_holds_no_memory() {
    let mut transports = world(2);
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, 32 << 20)]);
    assert!(sending.test(&mut transports[0]).is_none());
    transports[0].abandon().unwrap();
    assert!(matches!(receiving.test(&mut transports[0]), Some(Err(Error::Closed))));
    assert!(matches!(sending.test(&mut transports[0]), Some(Err(Error::Closed))));
    let mut other = Receiving::post(&mut transports[1], 0, envelope(0, 3), &[8]);
    assert_lost(receive(&mut transports, 1, &mut other), 0);
}

#[test]
fn messages_that_nobody_receives_are_bounded_and_not_lost() {
    let size = 500 << 10;
    let count = 200;
    let mut transports = world(2);
    let mut sends: Vec<_> =
        (0..count).map(|i| Sending::post(&mut transports[0], 1, envelope(0, i as u32), &[&pattern(i, size)])).collect();
    let mut pass = Sending::post(&mut transports[0], 1, envelope(0, 500), &[b"pass"]);
    turn(&mut transports, 5000);
    let received = transports[1].statistics().bytes_received;
    assert!(received > CREDIT_BYTES * 9 / 10 && received < CREDIT_BYTES + (1 << 16), "{received} bytes are kept");
    assert!(sends[0].test(&mut transports[0]).is_some() && sends[count - 1].test(&mut transports[0]).is_none());
    // None stands in the way of another.
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 500), &[4]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    assert_eq!(receiving.bytes(), [b"pass"]);
    turn_until(&mut transports, |transports| pass.test(&mut transports[0]).is_some());
    for i in (0..count).rev() {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, i as u32), &[size]);
        receive(&mut transports, 1, &mut receiving).unwrap();
        assert!(receiving.bytes() == [pattern(i, size)], "message {i}");
    }
    for sending in &mut sends {
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    }
    // The credit is back: a message is sent without asking again.
    turn(&mut transports, 200);
    let sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[b"again"]);
    assert!(matches!(sending.posted, Posted::Done(_)));
}

#[test]
fn credit_is_given_seldom() {
    let size = MAX_EAGER_BYTES;
    let mut transports = world(2);
    for i in 0..200 {
        let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, i), &[size]);
        let _sending = Sending::post(&mut transports[0], 1, envelope(0, i), &[&pattern(i as usize, size)]);
        receive(&mut transports, 1, &mut receiving).unwrap();
    }
    // Every quarter of the credit, so with every 32nd message.
    assert_eq!(transports[1].statistics().bytes_sent, 200 / 32 * HEADER_BYTES);
}

#[test]
fn large_and_small_messages_of_one_tag_keep_their_order() {
    for post_first in [true, false] {
        let mut transports = world(2);
        let sizes = [10, MAX_EAGER_BYTES + 1, 0, MAX_EAGER_BYTES, 20 << 20, 7];
        let capacity = 20 << 20;
        let mut receives = Vec::new();
        if post_first {
            receives.extend(sizes.map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[capacity])));
        }
        let mut sends: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, size)| Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(i, *size)]))
            .collect();
        turn(&mut transports, 500);
        if !post_first {
            receives.extend(sizes.map(|_| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[capacity])));
        }
        for (i, receiving) in receives.iter_mut().enumerate().rev() {
            receive(&mut transports, 1, receiving).unwrap();
            assert!(receiving.bytes() == [pattern(i, sizes[i])], "message {i}");
        }
        for sending in &mut sends {
            turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
            sending.test(&mut transports[0]).unwrap().unwrap();
        }
    }
}

#[test]
fn an_offer_that_does_not_fit_is_refused_without_its_data() {
    let mut transports = world(2);
    let size = 32 << 20;
    for post_first in [true, false] {
        let before = transports[1].statistics().bytes_received;
        let early = post_first.then(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100]));
        let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
        turn(&mut transports, 200);
        let mut receiving = early.unwrap_or_else(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), &[100]));
        let result = receive(&mut transports, 1, &mut receiving);
        assert!(matches!(result, Err(Error::TooLong { rank: Rank(0), part: 0, .. })), "{result:?}");
        turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
        sending.test(&mut transports[0]).unwrap().unwrap();
        assert_eq!(transports[1].statistics().bytes_received - before, HEADER_BYTES);
    }
}

#[test]
fn who_sends_or_answers_without_being_asked_is_refused() {
    let too_much: Vec<u8> = (0..CREDIT_BYTES >> 19).flat_map(|_| message(1, 9, &vec![0; 1 << 19])).collect();
    let mut credit = control(5, 1, 0);
    credit[32] = 1;
    let cases = [
        message(1, 9, &vec![0; MAX_EAGER_BYTES + 1]),
        too_much,
        credit,
        grant(1, 0),
        control(8, 1, 3),
        data(1, 0, b""),
        [offer(1, 9, 4, 10), data(1, 4, b"")].concat(),
        [offer(1, 9, 4, 10), offer(1, 9, 4, 10)].concat(),
    ];
    for (case, bytes) in cases.iter().enumerate() {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[8]);
        let socket = strangers[0][0].as_mut().unwrap();
        std::thread::scope(|scope| {
            // Fails when the transport closes before it has read everything.
            scope.spawn(|| drop(socket.write_all(bytes)));
            let result = receive(&mut transports, 0, &mut receiving);
            assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "case {case}: {result:?}");
            drop(transports);
        });
    }
}

fn is_readable(transport: &mut Tcp, milliseconds: i64) -> bool {
    let start = Instant::now();
    let descriptor = loop {
        if let Some(descriptor) = transport.arm() {
            break descriptor;
        }
        assert!(start.elapsed() < PATIENCE, "a transport at rest can be slept on");
    };
    let timeout = Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

#[test]
fn a_sleeper_is_woken_by_bytes_room_and_deaths() {
    let (mut transports, mut strangers) = world_with_strangers(2, 3);
    assert!(!is_readable(&mut transports[0], 20));
    // Bytes for which no receive is posted wake too, and are taken up in one turn.
    let _sending = Sending::post(&mut transports[1], 0, envelope(1, 0), &[b"hello"]);
    assert!(is_readable(&mut transports[0], 5000));
    assert!(transports[0].progress());
    assert!(!is_readable(&mut transports[0], 20));
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[5]);
    assert!(receiving.test(&mut transports[0]).is_some());
    // A queue that does not get shorter does not wake; one that can be written does.
    let mut stuck = stuff(&mut transports[0], 2).pop().unwrap();
    while transports[0].progress() {}
    assert!(!is_readable(&mut transports[0], 20));
    let socket = strangers[0][0].as_mut().unwrap();
    let mut buffer = vec![0; 1 << 20];
    socket.set_nonblocking(true).unwrap();
    let start = Instant::now();
    while stuck.test(&mut transports[0]).is_none() {
        match socket.read(&mut buffer) {
            Ok(count) => assert!(count > 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if is_readable(&mut transports[0], 1) {
            transports[0].progress();
        }
        assert!(start.elapsed() < PATIENCE);
    }
    drop(strangers);
    assert!(is_readable(&mut transports[0], 5000));
    transports[0].progress();
    assert_eq!(transports[0].failure(), Some(Failure::PeerLost(Rank(2))));
}
