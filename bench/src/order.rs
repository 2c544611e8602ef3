//! The orders to a measured process and its answers, one line each.
//!
//! An order is `WHAT BYTES ITERATIONS WARMUP`; an answer is a line of JSON. Programs in C read and write the
//! same lines (`bench/peers/mpi_p2p.c`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::collective::Collective;
use crate::statistics::{mean, median};
use crate::{Error, Result};

/// The most samples in an answer. Iterations are timed in batches, with two clock reads for each.
pub const MOST_SAMPLES: usize = 100;

/// Messages in transit at once for bandwidth.
pub const WINDOW: usize = 64;

/// The wire of a stream, which determines how much its receiver has posted. Receives do not share memory, and
/// data that falls out of the processor's cache would measure memory instead. If little is posted, a wire
/// idles from the end of one message to the receive of the next, or to the answer to its RTS. `ucx_perftest`
/// receives everything into one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Over {
    /// Memory: 512 KiB, or one message if that is larger.
    #[default]
    Memory,
    /// Sockets of Brevity: 512 KiB, but at least four messages.
    Sockets,
    /// UCX's tcp, which requests a message only when its receive is posted: 4 MiB, or one message if that is
    /// larger.
    UcxTcp,
}

impl Over {
    /// How many messages the receiver of a stream has posted.
    #[must_use]
    pub fn depth(self, bytes: usize) -> usize {
        let (posted, fewest) = match self {
            Self::Memory => (512 << 10, 1),
            Self::Sockets => (512 << 10, 4),
            Self::UcxTcp => (4 << 20, 1),
        };
        (posted / bytes.max(1)).clamp(fewest, WINDOW)
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Half a round trip.
    Latency,
    /// Half a round trip of a message in three parts: 16 bytes, and two halves of the rest.
    Parts,
    /// Messages in one direction, 64 in transit; the time for each.
    Bandwidth,
    /// Messages in both directions at once, 64 in transit each; the time for each pair of them.
    Bibandwidth,
    /// A put into the peer's memory and the acknowledgement of its arrival.
    Put,
    /// A get from the peer's memory.
    Get,
    /// A dense collective on `f32`; its bytes are those of its [module](crate::collective).
    Collective(Collective),
    /// Waits for a rank that never comes, whose number takes the place of the bytes; the time at which the
    /// wait ended, since the system's epoch.
    Hang,
    /// Pushes to the shard of the last rank, for as many milliseconds as there are iterations. The bytes are
    /// those of the shard's elements, here and below.
    Push,
    /// A step of a worker where every rank serves.
    Step,
    /// A step of an exchange of gradients.
    Average,
}

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What is measured.
    pub what: What,
    /// Bytes of a message, or of a rank's vector.
    pub bytes: usize,
    /// Messages, round trips or calls that are timed; at least 1.
    pub iterations: usize,
    /// Iterations before those.
    pub warmup: usize,
    /// Into how many batches the iterations are split at most; not part of the line.
    pub most_samples: usize,
    /// Selects the bytes in the messages; not part of the line.
    pub salt: usize,
    /// The wire of streams; not part of the line.
    pub over: Over,
    /// Whether the sent memory was never written, so that the kernel maps one page of zeroes for all of it;
    /// not part of the line. `ucx_perftest` sends such memory.
    pub unwritten: bool,
}

/// An answer: times of one message or call, each the mean of a batch. A rank without times has no samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Microseconds.
    pub samples_us: Vec<f64>,
    /// Their median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
    /// Their mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    /// What the rank has computed itself in each: the mean, in microseconds, where it is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels_us: Option<f64>,
}

impl What {
    const OTHERS: [Self; 10] = [
        Self::Latency,
        Self::Parts,
        Self::Bandwidth,
        Self::Bibandwidth,
        Self::Put,
        Self::Get,
        Self::Hang,
        Self::Push,
        Self::Step,
        Self::Average,
    ];

    /// Everything that an order may ask for.
    fn all() -> impl Iterator<Item = Self> {
        Self::OTHERS.into_iter().chain(Collective::ALL.map(Self::Collective))
    }

    /// The name in an order.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Parts => "parts",
            Self::Bandwidth => "bandwidth",
            Self::Bibandwidth => "bibandwidth",
            Self::Put => "put",
            Self::Get => "get",
            Self::Collective(collective) => collective.name(),
            Self::Hang => "hang",
            Self::Push => "push",
            Self::Step => "step",
            Self::Average => "average",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Order {
    /// An order as in the line. A stream is one sample, so that it does not pause.
    #[must_use]
    pub fn new(what: What, bytes: usize, iterations: usize, warmup: usize) -> Self {
        let streams = matches!(what, What::Bandwidth | What::Bibandwidth);
        let most_samples = if streams { 1 } else { MOST_SAMPLES };
        Self { what, bytes, iterations, warmup, most_samples, salt: 0, over: Over::Memory, unwritten: false }
    }

    /// The same order with as many iterations as fill `microseconds` if one takes `each`, within `bounds`.
    #[must_use]
    pub fn lasting(self, microseconds: f64, each: f64, (fewest, most): (usize, usize)) -> Self {
        // The cast saturates at the range of the integer.
        let iterations = ((microseconds / each.max(1e-3)) as usize).clamp(fewest, most);
        Self { iterations, warmup: iterations / 10 + 1, ..self }
    }

    /// How many iterations each sample has.
    pub fn batches(&self) -> impl Iterator<Item = usize> {
        let (iterations, samples) = (self.iterations, self.iterations.min(self.most_samples));
        (0..samples).map(move |sample| iterations / samples + usize::from(sample < iterations % samples))
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.what, self.bytes, self.iterations, self.warmup)
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let refuse = || Error::Line { line: line.to_owned(), expected: "WHAT BYTES ITERATIONS WARMUP" };
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, numbers @ ..] = &words[..] else { return Err(refuse()) };
        let what = What::all().find(|known| known.name() == *what).ok_or_else(refuse)?;
        let numbers: Vec<usize> =
            numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(|_| refuse())?;
        match numbers[..] {
            [bytes, iterations, warmup] if iterations > 0 => Ok(Self::new(what, bytes, iterations, warmup)),
            _ => Err(refuse()),
        }
    }
}

impl Answer {
    /// An answer with these times.
    #[must_use]
    pub fn new(samples_us: Vec<f64>) -> Self {
        let any = !samples_us.is_empty();
        let (median_us, mean_us) = (any.then(|| median(&samples_us)), any.then(|| mean(&samples_us)));
        Self { samples_us, median_us, mean_us, kernels_us: None }
    }
}

impl FromStr for Answer {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let refuse = |_| Error::Line { line: line.to_owned(), expected: "an answer in JSON" };
        serde_json::from_str(line).map_err(refuse)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_c_programs_answer_is_read() {
        let answer: Answer =
            r#"{"samples_us":[1.5000,2.0000,4.0000],"median_us":2.0000,"mean_us":2.5000}"#.parse().unwrap();
        assert_eq!(answer, Answer::new(vec![1.5, 2.0, 4.0]));
        let reported = Answer { kernels_us: Some(0.5), ..answer };
        let line = serde_json::to_string(&reported).unwrap();
        assert_eq!(line.parse::<Answer>().unwrap(), reported);
        assert_eq!(r#"{"samples_us":[]}"#.parse::<Answer>().unwrap(), Answer::default());
        for line in ["", "{}", "[1]", "nonsense"] {
            assert!(line.parse::<Answer>().is_err(), "{line}");
        }
    }

    #[test]
    fn orders_that_make_no_sense_are_refused() {
        for line in [
            "",
            "latency",
            "latency 8 1",
            "latency 8 0 1",
            "latency -8 1 1",
            "dance 8 1 1",
            "latency 8 1 1 1",
        ] {
            assert!(line.parse::<Order>().is_err(), "{line}");
        }
    }

    #[test]
    fn iterations_fill_the_time() {
        let order = Order::new(What::Latency, 8, 1, 0);
        assert_eq!(order.lasting(1000.0, 2.0, (4, 1000)).iterations, 500);
        assert_eq!(order.lasting(1000.0, 2000.0, (4, 1000)).iterations, 4);
        assert_eq!(order.lasting(1000.0, 0.0, (4, 1000)).iterations, 1000);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            what in prop::sample::select(What::all().collect::<Vec<_>>()),
            bytes: usize,
            iterations in 1usize..,
            warmup: usize,
        ) {
            let order = Order::new(what, bytes, iterations, warmup);
            prop_assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }

        #[test]
        fn batches_hold_all_iterations(iterations in 1usize..100_000) {
            let order = Order::new(What::Latency, 8, iterations, 0);
            let batches: Vec<_> = order.batches().collect();
            prop_assert_eq!(batches.iter().sum::<usize>(), iterations);
            prop_assert!(batches.len() <= MOST_SAMPLES && batches.iter().all(|&batch| batch > 0));
            prop_assert!(batches.iter().max().unwrap() - batches.iter().min().unwrap() <= 1);
        }
    }
}
