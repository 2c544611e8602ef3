//! Ranks over loopback sockets, strangers that use the wire format, and operations with the memory they
//! borrow.

use std::any::Any;
use std::time::{Duration, Instant};

use brevity_testing::worlds;
pub use brevity_testing::worlds::Row;
use ucx_sys_wrap::buffer::{Buffer, Pool, PoolBuffer, RecvBuffer, SendBuffer};
use ucx_sys_wrap::tcp::{CREDIT_BYTES, MAX_EAGER_BYTES, Tcp};
use ucx_sys_wrap::{
    Arrival, Envelope, Error, Mark, News, Notice, Posted, Rank, RecvDone, RecvId, RecvParts, Result,
    SendDone, SendId, SendParts, Signature, Tag, Transport,
};

pub const HEADER_BYTES: u64 = 64;
/// Only distinguishes slow from stuck.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// Sockets between all ranks: `mesh[rank][peer]`.
pub fn mesh(world_size: usize) -> Vec<Row> {
    worlds::sockets(world_size as u32)
}

/// Ranks that have joined like processes and encrypt what they send.
pub fn met_encrypted(world_size: usize) -> Vec<Tcp> {
    worlds::joined(world_size as u32, true)
}

pub fn world(world_size: usize) -> Vec<Tcp> {
    worlds::over_sockets(world_size as u32)
}

/// Ranks of one host that share memory; `may_read` lets them read each other's.
pub fn local_peers(world_size: usize, may_read: bool) -> Vec<Tcp> {
    worlds::local_peers(world_size as u32, may_read)
}

/// A world in which only the first `real` ranks are transports; the others are bare sockets.
pub fn world_with_strangers(real: usize, world_size: usize) -> (Vec<Tcp>, Vec<Row>) {
    let mut rows = mesh(world_size);
    let strangers = rows.split_off(real);
    let rows = rows.into_iter().enumerate();
    (
        rows.map(|(rank, row)| Tcp::new(Rank(rank as u32), world_size as u32, row).unwrap()).collect(),
        strangers,
    )
}

pub fn envelope(source: usize, round: u32) -> Envelope {
    let tag = Tag::new(Rank(source as u32), 1, 2, round);
    Envelope { tag, signature: Signature([7; 16]), mark: Mark(u64::from(round)) }
}

pub fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) ^ (i >> 9) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// A header in the wire format, for strangers.
/// Of another call on the same context.
pub fn another_signature() -> Signature {
    let mut signature = Signature([9; 16]);
    signature.0[Signature::EPOCH_AT] = 7;
    signature
}

pub fn header(kind: u8, rank: u32, tag: Tag, signature: Signature, lengths: &[u64]) -> Vec<u8> {
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

pub fn message(source: usize, round: u32, payload: &[u8]) -> Vec<u8> {
    let Envelope { tag, signature, .. } = envelope(source, round);
    let mut bytes = header(1, 0, tag, signature, &[payload.len() as u64]);
    bytes.extend(payload);
    bytes
}

pub fn control(kind: u8, source: usize, number: u32) -> Vec<u8> {
    header(kind, number, Tag::new(Rank(source as u32), 0, 0, 0), Signature::default(), &[])
}

/// A notice that context 0 is closed because this rank is lost.
pub fn notice(source: usize, rank: u32) -> Vec<u8> {
    let mut frame = control(3, source, 0);
    frame[32..40].copy_from_slice(&(1 << 32 | u64::from(rank)).to_le_bytes());
    frame
}

/// The peers that a transport has lost since the last call, and what it was told.
pub fn news(transport: &mut Tcp) -> (Vec<u32>, Vec<Notice>) {
    let (mut lost, mut told) = (Vec::new(), Vec::new());
    while let Some(news) = transport.next_news() {
        match news {
            News::Lost(rank, _) => lost.push(rank.0),
            News::Told(_, notice) => told.push(notice),
            News::Ended(_, error) => panic!("{error}"),
        }
    }
    (lost, told)
}

pub fn offer(source: usize, round: u32, number: u32, length: usize) -> Vec<u8> {
    let Envelope { tag, signature, .. } = envelope(source, round);
    header(6, number, tag, signature, &[length as u64])
}

pub fn grant(source: usize, number: u32) -> Vec<u8> {
    control(7, source, number)
}

pub fn data(source: usize, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = control(9, source, number);
    header[32..40].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    [header, payload.to_vec()].concat()
}

/// More than the kernel takes for a peer that does not read, in eager messages.
pub fn stuff(transport: &mut Tcp, to: usize) -> Vec<Sending> {
    stuff_with(transport, to, MAX_EAGER_BYTES)
}

/// The same in messages with `bytes` of payload: up to 64 KiB they are sent eagerly even while another
/// message waits for its CTS.
pub fn stuff_with(transport: &mut Tcp, to: usize, bytes: usize) -> Vec<Sending> {
    let from = transport.rank().index();
    let count = CREDIT_BYTES as usize / (bytes + 128);
    (0..count).map(|i| Sending::post(transport, to, envelope(from, 900), &[&pattern(i, bytes)])).collect()
}

/// A send and the memory that it has borrowed.
pub struct Sending {
    _memory: Box<dyn Any>,
    pub posted: Posted<SendId, SendDone>,
}

impl Sending {
    pub fn post(transport: &mut Tcp, to: usize, envelope: Envelope, parts: &[&[u8]]) -> Self {
        let raw: Vec<_> = parts.iter().map(|part| part.to_vec().into_raw()).collect();
        let mut leases = SendParts::new();
        // SAFETY: `raw` is kept until the leases are returned.
        raw.iter().for_each(|part| unsafe { <Vec<u8> as SendBuffer>::lend(part, &mut leases) });
        Self { posted: transport.post_send(Rank(to as u32), envelope, leases), _memory: Box::new(raw) }
    }

    /// The same from buffers of a pool: of 2 MiB and more, they begin on a huge page.
    pub fn post_pooled(transport: &mut Tcp, to: usize, envelope: Envelope, parts: &[&[u8]]) -> Self {
        let pooled = |part: &&[u8]| {
            let mut buffer = Pool::new().take::<u8>(part.len()).unwrap();
            buffer.copy_from_slice(part);
            buffer.into_raw()
        };
        let raw: Vec<_> = parts.iter().map(pooled).collect();
        let mut leases = SendParts::new();
        // SAFETY: `raw` is kept until the leases are returned.
        raw.iter().for_each(|part| unsafe { <PoolBuffer<u8> as SendBuffer>::lend(part, &mut leases) });
        Self { posted: transport.post_send(Rank(to as u32), envelope, leases), _memory: Box::new(raw) }
    }

    pub fn test(&mut self, transport: &mut Tcp) -> Option<Result<()>> {
        if let Posted::Pending(id) = self.posted {
            self.posted = Posted::Done(transport.test_send(id)?);
        }
        match &self.posted {
            Posted::Done(done) => Some(done.result.clone()),
            Posted::Pending(_) => None,
        }
    }

    pub fn cancel(&mut self, transport: &mut Tcp) -> Result<()> {
        if let Posted::Pending(id) = self.posted {
            transport.cancel_send(id);
        }
        self.test(transport).expect("a canceled send ends at once")
    }
}

impl Drop for Sending {
    /// Memory that a transport still uses is never freed.
    fn drop(&mut self) {
        if matches!(self.posted, Posted::Pending(_)) {
            std::mem::forget(std::mem::replace(&mut self._memory, Box::new(())));
        }
    }
}

/// A receive and the memory that it has borrowed.
pub struct Receiving {
    _memory: Box<dyn Any>,
    pub posted: Posted<RecvId, RecvDone>,
}

impl Receiving {
    pub fn post(transport: &mut Tcp, from: usize, envelope: Envelope, capacities: &[usize]) -> Self {
        let mut raw: Vec<_> = capacities.iter().map(|capacity| vec![0xAA; *capacity].into_raw()).collect();
        let mut leases = RecvParts::new();
        // SAFETY: `raw` is kept until the leases are returned.
        raw.iter_mut().for_each(|part| unsafe { <Vec<u8> as RecvBuffer>::lend(part, &mut leases) });
        Self { posted: transport.post_recv(Rank(from as u32), envelope, leases), _memory: Box::new(raw) }
    }

    /// The same into buffers of a pool.
    pub fn post_pooled(transport: &mut Tcp, from: usize, envelope: Envelope, capacities: &[usize]) -> Self {
        let pooled = |capacity: &usize| Pool::new().take::<u8>(*capacity).unwrap().into_raw();
        let mut raw: Vec<_> = capacities.iter().map(pooled).collect();
        let mut leases = RecvParts::new();
        // SAFETY: `raw` is kept until the leases are returned.
        raw.iter_mut().for_each(|part| unsafe { <PoolBuffer<u8> as RecvBuffer>::lend(part, &mut leases) });
        Self { posted: transport.post_recv(Rank(from as u32), envelope, leases), _memory: Box::new(raw) }
    }

    pub fn test(&mut self, transport: &mut Tcp) -> Option<Result<Arrival>> {
        if let Posted::Pending(id) = self.posted {
            self.posted = Posted::Done(transport.test_recv(id)?);
        }
        match &self.posted {
            Posted::Done(done) => Some(done.result.clone()),
            Posted::Pending(_) => None,
        }
    }

    pub fn cancel(&mut self, transport: &mut Tcp) -> Result<Arrival> {
        if let Posted::Pending(id) = self.posted {
            transport.cancel_recv(id);
        }
        self.test(transport).expect("a canceled receive ends at once")
    }

    /// The bytes that arrived, part by part.
    pub fn bytes(&mut self) -> Vec<Vec<u8>> {
        let Posted::Done(done) = &mut self.posted else { panic!("the receive goes on") };
        let lengths = done.result.clone().unwrap().lengths;
        done.parts.iter_mut().zip(lengths).map(|(part, length)| part.bytes_mut()[..length].to_vec()).collect()
    }
}

impl Drop for Receiving {
    /// The same as for [`Sending`].
    fn drop(&mut self) {
        if matches!(self.posted, Posted::Pending(_)) {
            std::mem::forget(std::mem::replace(&mut self._memory, Box::new(())));
        }
    }
}

/// Polls all transports until `done` returns true.
pub fn turn_until(transports: &mut [Tcp], mut done: impl FnMut(&mut [Tcp]) -> bool) {
    let start = Instant::now();
    while !done(transports) {
        for transport in transports.iter_mut() {
            transport.progress();
        }
        assert!(start.elapsed() < PATIENCE, "nothing happened for {PATIENCE:?}");
    }
}

pub fn turn(transports: &mut [Tcp], times: usize) {
    for _ in 0..times {
        transports.iter_mut().for_each(|transport| {
            transport.progress();
        });
    }
}

pub fn receive(transports: &mut [Tcp], at: usize, receiving: &mut Receiving) -> Result<Arrival> {
    turn_until(transports, |transports| receiving.test(&mut transports[at]).is_some());
    receiving.test(&mut transports[at]).unwrap()
}

pub fn assert_lost(result: Result<impl std::fmt::Debug>, expected: u32) {
    match result {
        Err(Error::PeerLost { rank }) => assert_eq!(rank, Rank(expected)),
        other => panic!("{other:?}, expected that rank {expected} is lost"),
    }
}

pub fn pairs(world_size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..world_size).flat_map(move |a| (0..world_size).filter(move |b| *b != a).map(move |b| (a, b)))
}
