//! Messages between ranks of one host beside a bare flag in the same memory, in turns, in one run.
//!
//! `cargo bench -p ucx-sys-wrap --bench shm -- [latency|pairs] [--rounds N] [--sizes A,B,..]` starts its own
//! ranks on this host. `latency` plays with two ranks, each pinned to a processor, and prints for every size
//! the median of a message one way beside that of the flag; `pairs` plays with four pairs of ranks at the
//! same time, which yield the processor while they wait, and prints the median of the ratios.
#![allow(clippy::unwrap_used)] // A measurement that fails must say so and stop.

mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Rounds, envelope, everybody, median, receive, send, turn};
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::bootstrap::{Choice, Identity, Opened, open};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::launch::{Launch, die_with_parent, is_launched};
use ucx_sys_wrap::shm::{OwnArea, PeerArea};

const SIZES: [usize; 16] = [
    8,
    16,
    64,
    256,
    512,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];

/// How long one batch of a measurement lasts, about.
const BATCH: Duration = Duration::from_millis(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_pairs = arguments.first().is_some_and(|name| name == "pairs");
    if !is_launched() {
        let program = std::env::current_exe().unwrap();
        let job = Launch::new(program, arguments).ranks(if is_pairs { 8 } else { 2 }).transport(Choice::Tcp);
        std::process::exit(job.spawn().unwrap().wait().unwrap().exit_status().into());
    }
    die_with_parent();
    let value = |name: &str| arguments.iter().position(|it| it == name).and_then(|at| arguments.get(at + 1));
    let rounds = value("--rounds").map_or(7, |text| text.parse().unwrap());
    let sizes = value("--sizes")
        .map_or(SIZES.to_vec(), |text| text.split(',').map(|it| it.parse().unwrap()).collect());
    let mut pair = Pair::open(is_pairs);
    if is_pairs {
        return pair.play(rounds);
    }
    for bytes in sizes {
        let (mut out, mut back) = (vec![1; bytes], vec![2; bytes]);
        let each = pair.messages(&mut out, &mut back, 10);
        let turns = pair.agree((BATCH.as_secs_f64() / each / 2.0).clamp(3.0, 1e5) as u64) as usize;
        let times: Vec<_> = (0..=rounds)
            .map(|_| (pair.flags(turns.max(1000)), pair.messages(&mut out, &mut back, turns)))
            .collect();
        if pair.leads {
            let flag = median(times[1..].iter().map(|times| times.0));
            let ours = median(times[1..].iter().map(|times| times.1));
            println!("{bytes:>9} B  {:>9.3} us  flag {:.3} us", ours * 1e6, flag * 1e6);
        }
    }
}

/// This rank and the one that it plays with.
struct Pair {
    port: Arc<Port>,
    peer: Rank,
    leads: bool,
    yields: bool,
    own: OwnArea,
    theirs: PeerArea,
    count: u64,
}

impl Pair {
    fn open(yields: bool) -> Self {
        let identity = Identity::from_env().unwrap();
        let rank = identity.rank.0;
        if !yields {
            let mut set = rustix::thread::CpuSet::new();
            set.set(rank as usize % std::thread::available_parallelism().unwrap().get());
            rustix::thread::sched_setaffinity(None, &set).unwrap();
        }
        let Opened { transport, local_group, .. } = open(&identity).unwrap();
        let local_group = local_group.unwrap();
        let peer = Rank(rank ^ 1);
        let place = local_group.place_of(peer).unwrap();
        let (own, theirs) = (local_group.own_slots(0), local_group.peer_slots(place, 0).unwrap());
        Self {
            port: Port::new(transport),
            peer,
            leads: rank.is_multiple_of(2),
            yields,
            own,
            theirs,
            count: 0,
        }
    }

    /// Both take the number of the rank that leads.
    fn agree(&mut self, number: u64) -> u64 {
        let mut word = number.to_le_bytes();
        match self.leads {
            true => send(&self.port, self.peer, self.yields, &mut word),
            false => receive(&self.port, self.peer, self.yields, &mut word),
        }
        u64::from_le_bytes(word)
    }

    /// Seconds one way by the flag.
    fn flags(&mut self, turns: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..turns {
            self.flag(0);
        }
        start.elapsed().as_secs_f64() / (2 * turns) as f64
    }

    /// One turn: the word there and back. Gives what the other says with it.
    fn flag(&mut self, word: u64) -> u64 {
        self.count += 1;
        let stamp = self.count << 1 | word;
        if self.leads {
            self.own.word(0).store(stamp, Ordering::Release);
        }
        let found = loop {
            let found = self.theirs.load(0);
            if found >> 1 == self.count {
                break found;
            }
            if self.yields {
                std::thread::yield_now();
            }
        };
        if !self.leads {
            self.own.word(0).store(found, Ordering::Release);
        }
        found & 1
    }

    /// Seconds one way by messages.
    fn messages(&mut self, out: &mut [u8], back: &mut [u8], turns: usize) -> f64 {
        let (own, peer, leads) = (self.port.rank(), self.peer, self.leads);
        let (out, mut back) = (&out[..], back);
        let start = Instant::now();
        scope(
            &self.port,
            |comm| turn(comm.port(), self.yields),
            async |comm| {
                for _ in 0..turns {
                    if leads {
                        comm.send(peer, envelope(own), out).await.unwrap();
                    }
                    (back, _) = comm.recv(peer, envelope(peer), back).await.unwrap();
                    if !leads {
                        comm.send(peer, envelope(own), out).await.unwrap();
                    }
                }
            },
        );
        start.elapsed().as_secs_f64() / (2 * turns) as f64
    }

    /// Four pairs play at the same time, by flags and by messages in turns.
    fn play(&mut self, rounds: usize) {
        let (port, yields) = (Arc::clone(&self.port), self.yields);
        let mut measured = Rounds::default();
        for round in 0..=rounds {
            let flags = everybody(&port, yields, || self.play_flags());
            let ours = everybody(&port, yields, || self.play_messages());
            if port.rank() == Rank(0) && round > 0 {
                measured.add("flag", &flags, &ours);
            }
        }
        if port.rank() == Rank(0) {
            measured.finish();
        }
    }

    fn play_flags(&mut self) -> f64 {
        let (start, mut turns) = (Instant::now(), 0u32);
        loop {
            turns += 1;
            if self.flag(u64::from(start.elapsed() > 4 * BATCH)) == 1 {
                return start.elapsed().as_secs_f64() / f64::from(turns) / 2.0;
            }
        }
    }

    fn play_messages(&mut self) -> f64 {
        let (own, peer, leads) = (self.port.rank(), self.peer, self.leads);
        let (start, mut turns) = (Instant::now(), 0u32);
        scope(
            &self.port,
            |comm| turn(comm.port(), self.yields),
            async |comm| {
                let mut ball = vec![0u8; 8];
                while ball[0] == 0 {
                    turns += 1;
                    if leads {
                        ball[0] = u8::from(start.elapsed() > 4 * BATCH);
                        (ball, ()) = comm.send(peer, envelope(own), ball).await.unwrap();
                    }
                    (ball, _) = comm.recv(peer, envelope(peer), ball).await.unwrap();
                    if !leads {
                        (ball, ()) = comm.send(peer, envelope(own), ball).await.unwrap();
                    }
                }
                black_box(ball);
            },
        );
        start.elapsed().as_secs_f64() / f64::from(turns) / 2.0
    }
}
