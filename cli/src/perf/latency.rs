//! Half a round trip of a message between ranks 0 and 1.
//!
//! All iterations of a row are one call, so that the engine's cost of a call is not in the figures. The figures of one
//! call a round trip are taken as well.

use std::time::Instant;

use brevity::Group;
use brevity::collectives::{Call, Description, Element, Operation};

use super::arguments::{Benchmark, Case};
use super::error::Result;
use super::measure::{Difference, Measured, microseconds};

/// Round of a message that is timed.
const MESSAGE: u32 = 0;
/// Round of the word that rank 1 is ready, which is sent where results are checked.
const READY: u32 = 1;

/// Most calls that are made of one round trip each.
const MOST_CALLS: usize = 1000;

/// Times round trips for one row; only rank 0 has times. Ranks above 1 only make the calls.
pub fn measure(group: &Group, case: Case, verify: bool) -> Result<Measured> {
    let mut player = Player::new(group.rank(), case.bytes);
    player.play(group, 1, true)?;
    player.play(group, case.warmup, verify)?;
    let sent_before = group.statistics().bytes_sent;
    let times = player.play(group, case.iterations, verify)?;
    let bytes_sent = (group.statistics().bytes_sent - sent_before) as f64 / case.iterations as f64;
    let mut call_times = Vec::new();
    for _ in 0..case.iterations.min(MOST_CALLS) {
        call_times.extend(player.play(group, 1, verify)?);
    }
    Ok(Measured { times, call_times, bytes_sent, kept: None })
}

/// One end of the ping-pong.
struct Player {
    rank: u32,
    bytes: usize,
    out: Vec<u8>,
    incoming: Vec<u8>,
    expected: Vec<u8>,
    round_trips: usize,
}

/// Why a round trip ended a call.
enum Ended {
    Collective(brevity::collectives::Error),
    Wrong(Difference),
}

impl Player {
    fn new(rank: u32, bytes: usize) -> Self {
        let buffer = || vec![0; bytes];
        Self { rank, bytes, out: buffer(), incoming: buffer(), expected: buffer(), round_trips: 0 }
    }

    /// Makes one call of `count` round trips; half of each one's time, on rank 0.
    fn play(&mut self, group: &Group, count: usize, verify: bool) -> Result<Vec<f64>> {
        let description = Description::new(Operation::MESSAGE, u8::NUMBER, self.bytes);
        let (rank, bytes) = (self.rank, self.bytes);
        let played = group.run(description, async |call| {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                times.extend(self.round_trip(call, verify).await?);
            }
            Ok(times)
        });
        played.map_err(|ended| match ended {
            Ended::Collective(error) => error.into(),
            Ended::Wrong(difference) => difference.of(rank, Benchmark::Latency, bytes),
        })
    }

    async fn round_trip(&mut self, call: &Call<'_, '_>, verify: bool) -> Result<Option<f64>, Ended> {
        if self.rank > 1 {
            return Ok(None);
        }
        let peer = 1 - self.rank;
        if verify {
            self.fill();
            if self.rank == 0 {
                call.recv(peer, READY, ()).await?;
            } else {
                call.send(peer, READY, ()).await?;
            }
        }
        let (out, incoming) = (std::mem::take(&mut self.out), std::mem::take(&mut self.incoming));
        let mut time = None;
        if self.rank == 0 {
            let start = Instant::now();
            self.out = call.send(peer, MESSAGE, out).await?;
            self.incoming = call.recv(peer, MESSAGE, incoming).await?;
            time = Some(microseconds(start) / 2.0);
        } else {
            self.incoming = call.recv(peer, MESSAGE, incoming).await?;
            self.out = call.send(peer, MESSAGE, out).await?;
        }
        if verify {
            Difference::find(&self.incoming, &self.expected).map_err(Ended::Wrong)?;
        }
        Ok(time)
    }

    /// New bytes to send and to expect, other ones for each round trip and each direction.
    fn fill(&mut self) {
        self.round_trips += 1;
        let (own, peer, trip) = (self.rank as usize, 1 - self.rank as usize, self.round_trips);
        let byte = |sender: usize, index: usize| (index * 7 + trip * 31 + sender * 101 + 1) as u8;
        self.out.iter_mut().enumerate().for_each(|(index, place)| *place = byte(own, index));
        self.expected.iter_mut().enumerate().for_each(|(index, place)| *place = byte(peer, index));
        self.incoming.fill(0);
    }
}

impl From<brevity::collectives::Error> for Ended {
    fn from(error: brevity::collectives::Error) -> Self {
        Self::Collective(error)
    }
}
