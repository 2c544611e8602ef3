//! Messages between two ranks, through [`Comm`].
//!
//! A measurement is one scope: opening and closing it is not in the figures. The clock is read twice for each batch of
//! iterations. The first message is checked before anything is timed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brevity::collectives::engine::{Engine, join};
use brevity::transport::buffer::{Comm, RecvBuffer, SendBuffer, scope};
use brevity::transport::{Envelope, Mark, Rank, Signature, Tag};

use crate::order::{Order, WINDOW};
use crate::{Error, Result};

/// Bytes of the first of three parts, a header's.
const HEADER: usize = 16;

/// How long one measurement may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The group number of these messages, which no group of collectives has.
const GROUP: u16 = 1023;
/// Rounds: of the messages that are timed, and of the word at the end of a stream.
const MESSAGE: u32 = 0;
const END: u32 = 1;

/// The most that the receiver of a stream has posted, in bytes: no two receives share memory, and more than this falls
/// out of the processor's cache, so that memory would be measured.
const POSTED_BYTES: usize = 1 << 20;

/// What a rank does while it waits.
#[derive(Clone, Copy)]
pub enum Waiting<'a> {
    /// Moves the transport again and again, as the loops of `ucx_perftest` do: the transport alone is measured.
    Polls(&'a Engine),
    /// What the engine does for every call: it spins a little, then yields the processor, and keeps a deadline.
    AsEngine(&'a Engine),
}

impl Waiting<'_> {
    fn engine(&self) -> &Engine {
        match self {
            Self::Polls(engine) | Self::AsEngine(engine) => engine,
        }
    }

    fn run<'env, R>(&self, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        match self {
            Self::Polls(engine) => scope(engine.port(), |comm| _ = comm.port().progress(), body),
            Self::AsEngine(engine) => engine.run(TIMEOUT, body),
        }
    }
}

/// Half a round trip between this rank and `peer`, in microseconds; the lower rank has the times.
///
/// # Errors
/// When the transport fails or the bytes are wrong.
pub fn latency(waiting: Waiting<'_>, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    let pair = Pair::new(waiting, peer);
    let (out, mut incoming) = (pair.own_bytes(order.bytes), vec![0; order.bytes]);
    let times = waiting.run(async |comm| pair.timed_ping_pong(comm, &out[..], &mut incoming[..], order).await)?;
    pair.check(&incoming)?;
    Ok(times)
}

/// As [`latency`] for a message in three parts: 16 bytes and two halves of the rest, gathered and scattered.
///
/// # Errors
/// As [`latency`]; [`Error::Arguments`] for a message shorter than the first part.
pub fn parts(waiting: Waiting<'_>, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    let too_short = || Error::Arguments(format!("{} bytes can't begin with a header of {HEADER}", order.bytes));
    let half = order.bytes.checked_sub(HEADER).ok_or_else(too_short)? / 2;
    let pair = Pair::new(waiting, peer);
    let whole = pair.own_bytes(order.bytes);
    // The parts lie apart, as indices and values do.
    let (header, first, second) =
        (whole[..HEADER].to_vec(), whole[HEADER..HEADER + half].to_vec(), whole[HEADER + half..].to_vec());
    let mut places = (vec![0u8; header.len()], vec![0u8; first.len()], vec![0u8; second.len()]);
    let times = waiting.run(async |comm| {
        let out = (&header[..], (&first[..], &second[..]));
        let incoming = (&mut places.0[..], (&mut places.1[..], &mut places.2[..]));
        pair.timed_ping_pong(comm, out, incoming, order).await
    })?;
    pair.check(&[places.0, places.1, places.2].concat())?;
    Ok(times)
}

/// The time of a message in a stream to the higher rank, in microseconds; the lower rank has the time.
///
/// # Errors
/// As [`latency`].
pub fn bandwidth(waiting: Waiting<'_>, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    let pair = Pair::new(waiting, peer);
    timed_stream(waiting, &pair, (pair.is_first(), !pair.is_first()), order)
}

/// The time of two messages that cross, in streams both ways, in microseconds; the lower rank has the time.
///
/// # Errors
/// As [`latency`].
pub fn bibandwidth(waiting: Waiting<'_>, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    timed_stream(waiting, &Pair::new(waiting, peer), (true, true), order)
}

/// This rank and its peer.
struct Pair {
    own: Rank,
    peer: Rank,
}

impl Pair {
    fn new(waiting: Waiting<'_>, peer: Rank) -> Self {
        Self { own: waiting.engine().port().rank(), peer }
    }

    fn is_first(&self) -> bool {
        self.own < self.peer
    }

    fn own_bytes(&self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| pattern(self.own, index)).collect()
    }

    /// Compares what has come from the peer with what it sends.
    fn check(&self, found: &[u8]) -> Result<()> {
        let wrong = (0..found.len()).find(|&index| found[index] != pattern(self.peer, index));
        let Some(index) = wrong else { return Ok(()) };
        let (found, expected, bytes) = (found[index], pattern(self.peer, index), found.len());
        Err(Error::Wrong { rank: self.own.0, bytes, index, found, expected })
    }

    fn envelope(source: Rank, round: u32) -> Envelope {
        let tag = Tag::new(source, GROUP, 0, round);
        Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
    }

    async fn timed_ping_pong<'env, S: SendBuffer + 'env, R: RecvBuffer + 'env>(
        &self,
        comm: &Comm<'env>,
        out: S,
        incoming: R,
        order: &Order,
    ) -> Result<Vec<f64>> {
        let (mut out, mut incoming) = self.ping_pong(comm, out, incoming, 1 + order.warmup).await?;
        let mut times = Vec::with_capacity(order.batches().count());
        for count in order.batches() {
            let start = Instant::now();
            (out, incoming) = self.ping_pong(comm, out, incoming, count).await?;
            times.push(microseconds(start) / count as f64 / 2.0);
        }
        Ok(if self.is_first() { times } else { Vec::new() })
    }

    /// Round trips; the buffers come back.
    async fn ping_pong<'env, S: SendBuffer + 'env, R: RecvBuffer + 'env>(
        &self,
        comm: &Comm<'env>,
        mut out: S,
        mut incoming: R,
        count: usize,
    ) -> Result<(S, R)> {
        let (sent, received) = (Self::envelope(self.own, MESSAGE), Self::envelope(self.peer, MESSAGE));
        for _ in 0..count {
            if self.is_first() {
                (out, ()) = comm.send(self.peer, sent, out).await?;
                (incoming, _) = comm.recv(self.peer, received, incoming).await?;
            } else {
                (incoming, _) = comm.recv(self.peer, received, incoming).await?;
                (out, ()) = comm.send(self.peer, sent, out).await?;
            }
        }
        Ok((out, incoming))
    }

    /// Sends `count` messages with at most [`WINDOW`] on their way, all from the same memory.
    async fn stream_out<'env>(&self, comm: &Comm<'env>, bytes: Option<&'env [u8]>, count: usize) -> Result<()> {
        let Some(bytes) = bytes else { return Ok(()) };
        let envelope = Self::envelope(self.own, MESSAGE);
        let mut window = VecDeque::with_capacity(WINDOW);
        for _ in 0..count {
            if window.len() == WINDOW
                && let Some(oldest) = window.pop_front()
            {
                let _: (_, ()) = oldest.await?;
            }
            window.push_back(comm.send(self.peer, envelope, bytes));
        }
        for send in window {
            send.await?;
        }
        Ok(())
    }

    /// Receives `count` messages with as many posted as there are places, which come back.
    async fn stream_in<'env>(
        &self,
        comm: &Comm<'env>,
        places: VecDeque<&'env mut [u8]>,
        count: usize,
    ) -> Result<VecDeque<&'env mut [u8]>> {
        let envelope = Self::envelope(self.peer, MESSAGE);
        let (mut posted, mut free) = (VecDeque::with_capacity(places.len()), places);
        if free.is_empty() {
            return Ok(free);
        }
        for _ in 0..count {
            let place = match free.pop_front() {
                Some(place) => Some(place),
                None => match posted.pop_front() {
                    Some(oldest) => Some(received(oldest).await?),
                    None => None,
                },
            };
            posted.extend(place.map(|place| comm.recv(self.peer, envelope, place)));
        }
        for oldest in posted {
            free.push_back(received(oldest).await?);
        }
        Ok(free)
    }

    /// A word from the higher rank that everything has arrived.
    async fn end(&self, comm: &Comm<'_>) -> Result<()> {
        if self.is_first() {
            comm.recv(self.peer, Self::envelope(self.peer, END), ()).await?;
        } else {
            comm.send(self.peer, Self::envelope(self.own, END), ()).await?;
        }
        Ok(())
    }
}

async fn received<'env>(leaf: brevity::transport::buffer::Recv<'_, 'env, &'env mut [u8]>) -> Result<&'env mut [u8]> {
    Ok(leaf.await?.0)
}

fn timed_stream(waiting: Waiting<'_>, pair: &Pair, (sends, receives): (bool, bool), order: &Order) -> Result<Vec<f64>> {
    let out = sends.then(|| pair.own_bytes(order.bytes));
    let depth = if receives { (POSTED_BYTES / order.bytes.max(1)).clamp(2, WINDOW) } else { 0 };
    let mut memory = vec![vec![0; order.bytes]; depth];
    let time = waiting.run(async |comm| {
        let mut places: VecDeque<&mut [u8]> = memory.iter_mut().map(|place| &mut place[..]).collect();
        let mut time = 0.0;
        // The first run fills every place, to be checked below; the last one is timed.
        for count in [depth.max(WINDOW), order.warmup, order.iterations] {
            let start = Instant::now();
            let (sent, received) =
                join(pair.stream_out(comm, out.as_deref(), count), pair.stream_in(comm, places, count)).await;
            sent?;
            places = received?;
            pair.end(comm).await?;
            time = microseconds(start) / count as f64;
        }
        Ok::<_, Error>(time)
    })?;
    memory.iter().try_for_each(|place| pair.check(place))?;
    Ok(if pair.is_first() { vec![time] } else { Vec::new() })
}

fn pattern(sender: Rank, index: usize) -> u8 {
    // The low byte is meant.
    (index.wrapping_mul(7)).wrapping_add(sender.index() * 101 + 31) as u8
}

fn microseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
