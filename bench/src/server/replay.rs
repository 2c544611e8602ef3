//! A worker that sends pushes which were made beforehand, so that the shard is measured and not the selection
//! of the worker.
//!
//! The messages are those of `docs/server.md`: a sparse vector, and a trailer.

use std::collections::BTreeSet;
use std::mem::take;
use std::time::{Duration, Instant};

use brevity::collectives::Peers;
use brevity::compress::SparseVec;
use brevity::compress::codec::{Choice, Encoder, Plain, decode};
use brevity::compress::generator::Generator;
use brevity::server::messages::{Kind, REPLIES, REQUESTS, TRAILER_BYTES, Trailer};

use super::model::{Model, RATE};
use crate::{Error, Result};

/// The different pushes of a worker. Push `n` is number `n` modulo this.
pub const PUSHES: usize = 16;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A worker of one shard.
pub struct Replay<'a> {
    model: Model,
    peers: &'a Peers,
    server: u32,
    /// Without the trailer. Empty while it is sent.
    messages: Vec<Vec<u8>>,
    /// The place of answers.
    answer: Vec<u8>,
    /// The number of the last push.
    step: u64,
}

/// What was sent and received in some time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Pushes that were answered.
    pub pushes: u64,
    /// The time from the first push to the last answer.
    pub lasting: Duration,
    /// The bytes of the pushes.
    pub push_bytes: u64,
    /// The bytes of the answers.
    pub answer_bytes: u64,
}

impl<'a> Replay<'a> {
    /// Makes the pushes of worker `rank` to the shard of rank `server`.
    ///
    /// # Errors
    /// If a push can't be encoded.
    pub fn new(model: Model, peers: &'a Peers, server: u32) -> Result<Self> {
        let mut generator = Generator::for_stream(1, u64::from(peers.rank()));
        let mut encoder = Encoder::new();
        let messages = (0..PUSHES).map(|_| message(&mut encoder, &entries(model, &mut generator)));
        let messages: Vec<Vec<u8>> = messages.collect::<Result<_>>()?;
        // Two numbers of 4 bytes for each entry at most, and the head.
        let entries: usize = model.ranges().map(|range| model.density.entries(range.len())).sum();
        Ok(Self { model, peers, server, messages, answer: vec![0; 8 * entries + 2048], step: 0 })
    }

    /// Pushes once, and checks that the answer is what the push has changed, if this worker alone has pushed
    /// so far.
    ///
    /// # Errors
    /// [`Error::Wrong`]; those of [`push`](Self::push).
    pub fn check(&mut self) -> Result<()> {
        let mut expected = SparseVec::new(0);
        let dim = self.model.elements;
        let broken = |error| Error::contestant("an answer", format!("{error}"));
        decode(&self.messages[0], dim, dim, &mut expected).map_err(broken)?;
        expected.scale(-RATE);
        let bytes = self.push()?.1;
        let mut found = SparseVec::new(0);
        decode(payload(&self.answer[..bytes]), dim, dim, &mut found).map_err(broken)?;
        if found == expected {
            return Ok(());
        }
        let index =
            found.iter().zip(expected.iter()).take_while(|(found, expected)| found == expected).count();
        let entry =
            |entries: &SparseVec| entries.iter().nth(index).map_or("nothing".into(), |e| format!("{e:?}"));
        Err(Error::Wrong {
            rank: self.peers.rank(),
            what: "the answer to a push",
            bytes,
            index,
            found: entry(&found),
            expected: entry(&expected),
        })
    }

    /// Pushes for so long.
    ///
    /// # Errors
    /// If an answer does not come, or is none.
    pub fn run(&mut self, lasting: Duration) -> Result<Sent> {
        let (begin, mut sent) = (Instant::now(), Sent::default());
        while sent.lasting < lasting {
            let (push, answer) = self.push()?;
            sent.pushes += 1;
            sent.push_bytes += push as u64;
            sent.answer_bytes += answer as u64;
            sent.lasting = begin.elapsed();
        }
        Ok(sent)
    }

    /// The number of the last push.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sends the next push, and waits for its answer. Returns the bytes of both.
    fn push(&mut self) -> Result<(usize, usize)> {
        let place = self.step as usize % PUSHES;
        self.step += 1;
        let mut message = take(&mut self.messages[place]);
        Trailer { rate: RATE, ..Trailer::new(Kind::Push, 0, self.step) }.end(&mut message);
        let pushed = message.len();
        // The receive first: the answer then goes to its place.
        let reply = self.peers.start_recv(take(&mut self.answer), self.server, REPLIES, TIMEOUT);
        let sending = self.peers.start_send(message, self.server, REQUESTS);
        let (answer, received) = reply.wait();
        let answered = received?.bytes;
        let (mut message, sent) = sending.wait();
        sent?;
        message.truncate(pushed - TRAILER_BYTES);
        (self.answer, self.messages[place]) = (answer, message);
        self.expect_answer(answered)?;
        Ok((pushed, answered))
    }

    fn expect_answer(&self, bytes: usize) -> Result<()> {
        let answer = &self.answer[..bytes];
        let is_answer = |trailer: Trailer| trailer.kind == Kind::Answer && trailer.step == self.step;
        if Trailer::split(answer).is_ok_and(|(_, trailer)| is_answer(trailer)) {
            return Ok(());
        }
        let text = String::from_utf8_lossy(payload(answer)).chars().take(200).collect::<String>();
        Err(Error::contestant("the shard", format!("no answer to push {}: {text}", self.step)))
    }
}

/// The entries of a push: in each tensor as many as a worker selects, at random places.
fn entries(model: Model, generator: &mut Generator) -> SparseVec {
    let mut push = SparseVec::new(model.elements);
    for range in model.ranges() {
        let (count, mut places) = (model.density.entries(range.len()), BTreeSet::new());
        while places.len() < count {
            places.insert(range.start + generator.below(range.len() as u64) as usize);
        }
        places.into_iter().for_each(|place| push.push(place as u32, generator.normal()));
    }
    push
}

/// A push without its trailer.
fn message(encoder: &mut Encoder, entries: &SparseVec) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    let encoded = encoder.encode(entries.view(), Choice::default(), &mut Plain, &mut message);
    encoded.map_err(|error| Error::contestant("a push", error.to_string()))?;
    message.reserve_exact(TRAILER_BYTES);
    Ok(message)
}

/// A message without its trailer.
fn payload(message: &[u8]) -> &[u8] {
    &message[..message.len().saturating_sub(TRAILER_BYTES)]
}
