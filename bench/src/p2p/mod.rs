//! Messages between two ranks, through [`Comm`].
//!
//! A measurement is one scope; opening and closing it is not in the figures. The clock is read once between
//! two batches of iterations. At the end the bytes are compared, in buffers that started with other bytes: a
//! run without warm-up checks its only batch.

mod one_sided;
mod ping_pong;
mod stream;

use std::time::{Duration, Instant};

use brevity::Group;
use brevity::collectives::engine::Engine;
use brevity::transport::buffer::{Comm, Port, scope_in_turns};
use brevity::transport::{Envelope, Mark, Rank, Signature, Tag};

use crate::memory::PageAligned;
use crate::order::{Order, What};
use crate::{Error, Result};

/// How long one measurement may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The group number of these messages, which no group of collectives uses.
const GROUP: u16 = 1023;
/// Rounds: of the timed messages, and of the words around them.
const MESSAGE: u32 = 0;
const WORD: u32 = 1;

/// What a rank does while it waits.
#[derive(Clone, Copy)]
pub enum Waiting<'a> {
    /// Polls the transport in a loop, as `ucx_perftest` does: measures the transport alone.
    Polls(&'a Engine),
    /// Waits like the engine in every call: it spins briefly, then yields the processor, and keeps a
    /// deadline.
    AsEngine(&'a Engine),
}

/// Measures between this rank and `peer`, which must make the same call. Times are in microseconds; the lower
/// rank has them.
///
/// The time of [`What::Latency`] and [`What::Parts`] is half a round trip; of [`What::Bandwidth`] that of a
/// message, with the word at the end of a batch that all have arrived; of [`What::Bibandwidth`] that of two
/// crossing messages; of [`What::Put`] that of a put and its flush.
///
/// # Errors
/// If the transport fails or the bytes are wrong; [`Error::Arguments`] for a benchmark that is not between
/// two ranks.
pub fn run(waiting: Waiting<'_>, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    let pair =
        Pair { waiting, own: waiting.port().rank(), peer, salt: order.salt, unwritten: order.unwritten };
    let times = match order.what {
        What::Latency => ping_pong::whole(&pair, order),
        What::Parts => ping_pong::parts(&pair, order),
        What::Bandwidth => stream::run(&pair, (pair.is_first(), !pair.is_first()), order),
        What::Bibandwidth => stream::run(&pair, (true, true), order),
        What::Put => one_sided::put(&pair, order),
        What::Get => one_sided::get(&pair, order),
        what => Err(Error::Arguments(format!("{what} is not between two ranks"))),
    }?;
    Ok(if pair.is_first() { times } else { Vec::new() })
}

/// Latency of the messages of a group, each a call, as programs send them.
///
/// # Errors
/// If a call fails or the bytes are wrong.
pub fn messages(group: &Group, peer: Rank, order: &Order) -> Result<Vec<f64>> {
    let waiting = Waiting::AsEngine(group.engine());
    let pair = Pair { waiting, own: Rank(group.rank()), peer, salt: order.salt, unwritten: false };
    ping_pong::calls(group, &pair, &Order { iterations: 1, warmup: 0, ..*order })?;
    let times = ping_pong::calls(group, &pair, order)?;
    Ok(if pair.is_first() { times } else { Vec::new() })
}

impl<'a> Waiting<'a> {
    fn port(&self) -> &'a std::sync::Arc<Port> {
        match self {
            Self::Polls(engine) | Self::AsEngine(engine) => engine.port(),
        }
    }

    fn run<'env, R>(&self, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        match self {
            Self::Polls(engine) => scope_in_turns(engine.port(), engine.spins(), |_, _| (), body),
            Self::AsEngine(engine) => engine.run(TIMEOUT, body),
        }
    }
}

/// This rank and its peer.
struct Pair<'a> {
    waiting: Waiting<'a>,
    own: Rank,
    peer: Rank,
    /// Selects the bytes.
    salt: usize,
    /// Whether zeroes are sent from memory that was never written.
    unwritten: bool,
}

impl Pair<'_> {
    fn is_first(&self) -> bool {
        self.own < self.peer
    }

    /// The bytes that this rank sends.
    fn own_bytes(&self, bytes: usize) -> PageAligned {
        if self.unwritten {
            PageAligned::unwritten(bytes)
        } else {
            PageAligned::new(bytes, |index| self.byte(self.own, index))
        }
    }

    /// Initial bytes that every message overwrites with others.
    fn untouched(&self, bytes: usize) -> PageAligned {
        PageAligned::new(bytes, |index| !self.byte(self.peer, index))
    }

    /// The byte that `sender` sends at `index`.
    fn byte(&self, sender: Rank, index: usize) -> u8 {
        if self.unwritten { 0 } else { pattern(sender, self.salt, index) }
    }

    /// Compares the received bytes with what `sender` sends.
    fn check(&self, order: &Order, sender: Rank, found: &[u8]) -> Result<()> {
        let expected = |index| self.byte(sender, index);
        let wrong = (0..found.len()).find(|&index| found[index] != expected(index));
        wrong.map_or(Ok(()), |index| {
            let (found, expected) = (found[index].to_string(), expected(index).to_string());
            Err(Error::Wrong {
                rank: self.own.0,
                what: order.what.name(),
                bytes: order.bytes,
                index,
                found,
                expected,
            })
        })
    }

    fn envelope(source: Rank, round: u32) -> Envelope {
        let tag = Tag::new(source, GROUP, 0, round);
        Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
    }

    /// Sends a word to the peer.
    async fn say(&self, comm: &Comm<'_>) -> Result<()> {
        comm.send(self.peer, Self::envelope(self.own, WORD), ()).await?;
        Ok(())
    }

    /// Waits for the peer's word.
    async fn hear(&self, comm: &Comm<'_>) -> Result<()> {
        comm.recv(self.peer, Self::envelope(self.peer, WORD), ()).await?;
        Ok(())
    }
}

/// A clock that is read once for each batch.
struct Lap {
    last: Instant,
    times: Vec<f64>,
}

impl Lap {
    fn new(order: &Order) -> Self {
        Self { times: Vec::with_capacity(order.batches().count()), last: Instant::now() }
    }

    /// Records the time since the last call, divided by `count`.
    fn end(&mut self, count: usize) {
        let now = Instant::now();
        self.times.push((now - self.last).as_secs_f64() * 1e6 / count as f64);
        self.last = now;
    }
}

fn pattern(sender: Rank, salt: usize, index: usize) -> u8 {
    // Truncation to the low byte is intended.
    (index.wrapping_mul(7)).wrapping_add(sender.index() * 101 + salt * 37 + 31) as u8
}

#[cfg(test)]
mod tests {
    use std::thread;

    use brevity::Settings;
    use brevity::transport::local;

    use super::*;
    use crate::order::MOST_SAMPLES;

    fn on_two_ranks(order: &Order) -> Vec<Result<Vec<f64>>> {
        let rank = |transport| {
            let group = Group::new(Box::new(transport), Settings::default());
            run(Waiting::AsEngine(group.engine()), Rank(group.rank() ^ 1), order)
        };
        thread::scope(|scope| {
            let ranks: Vec<_> =
                local::world(2).into_iter().map(|world| scope.spawn(move || rank(world))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn everything_between_two_ranks_is_measured_and_right() {
        for what in [What::Latency, What::Parts, What::Bandwidth, What::Bibandwidth, What::Put, What::Get] {
            for (bytes, iterations, warmup) in [(16, 1, 0), (1000, 130, 70), (100_000, 5, 1)] {
                for unwritten in [false, true] {
                    let order = Order::new(what, bytes, iterations, warmup);
                    let order = Order { most_samples: MOST_SAMPLES, salt: 3, unwritten, ..order };
                    let times = on_two_ranks(&order).into_iter().collect::<Result<Vec<_>>>().unwrap();
                    assert_eq!(times[0].len(), order.batches().count(), "{order}");
                    assert!(
                        times[0].iter().all(|&time| time > 0.0) && times[1].is_empty(),
                        "{order}: {times:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn wrong_bytes_are_found() {
        let world = local::world(2);
        let group = Group::new(world.into_iter().next().map(Box::new).unwrap(), Settings::default());
        let pair = Pair {
            waiting: Waiting::Polls(group.engine()),
            own: Rank(0),
            peer: Rank(1),
            salt: 0,
            unwritten: false,
        };
        let order = Order::new(What::Latency, 9, 1, 0);
        let mut bytes: Vec<u8> = (0..9).map(|index| pattern(Rank(1), 0, index)).collect();
        pair.check(&order, Rank(1), &bytes).unwrap();
        assert!(pair.untouched(9).iter().zip(&bytes).all(|(untouched, expected)| untouched != expected));
        bytes[5] ^= 1;
        assert!(pair.check(&order, Rank(1), &bytes).unwrap_err().to_string().contains("wrong at 5"));
    }

    #[test]
    fn a_message_too_short_for_its_parts_is_refused() {
        let order = Order::new(What::Parts, 15, 1, 0);
        assert!(on_two_ranks(&order).iter().all(|outcome| matches!(outcome, Err(Error::Arguments(_)))));
    }
}
