//! The tcp transport beside bare sockets: the same bytes between the same processes, in turns, in one run.
//!
//! `cargo bench -p ucx-sys-wrap --bench tcp -- [latency|bandwidth|parts|pairs] [--rounds N] [--sizes A,B,..]
//! [--only bare|ours]` starts its own ranks on this host, each pinned to a processor, and prints medians and
//! the median of the ratios, ours over bare. The bare side is what a transport stands on: a polled
//! non-blocking socket without headers, tags or matching.
#![allow(clippy::unwrap_used)] // A measurement that fails must say so and stop.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Rounds, envelope, everybody, median, receive, send, turn};
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::bootstrap::{Choice, Identity, open};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::launch::{Launch, die_with_parent, is_launched};

const SIZES: [usize; 10] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const WINDOW: usize = 64;

/// How long one batch of a measurement lasts, about.
const BATCH: Duration = Duration::from_millis(60);

/// How long the pairs of `pairs` play in one batch.
const PLAY: Duration = Duration::from_millis(250);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let name =
        arguments.first().filter(|name| !name.starts_with("--")).map_or("latency", String::as_str).to_owned();
    if !is_launched() {
        let program = std::env::current_exe().unwrap();
        let ranks = if name == "pairs" { 8 } else { 2 };
        let job = Launch::new(program, arguments).ranks(ranks).transport(Choice::Tcp).spawn().unwrap();
        let outcome = job.wait().unwrap();
        std::process::exit(outcome.exit_status().into());
    }
    die_with_parent();
    let value = |name: &str| arguments.iter().position(|it| it == name).and_then(|at| arguments.get(at + 1));
    let rounds = value("--rounds").map_or(7, |text| text.parse().unwrap());
    let sizes = value("--sizes")
        .map_or(SIZES.to_vec(), |text| text.split(',').map(|it| it.parse().unwrap()).collect());
    let only = match value("--only").map(String::as_str) {
        Some("bare") => Only::Bare,
        Some("ours") => Only::Ours,
        _ => Only::Both,
    };
    let yields = name == "pairs";
    let mut pair = Pair::open(yields, only);
    match name.as_str() {
        "latency" => sizes.iter().for_each(|&bytes| pair.compare(bytes, 1, rounds, latency)),
        "bandwidth" => sizes
            .iter()
            .filter(|&&it| it >= 64 << 10)
            .for_each(|&it| pair.compare(it, WINDOW, rounds, bandwidth)),
        "parts" => pair.compare(16 + (800 << 10), 1, rounds, parts),
        "pairs" => pair.play(rounds),
        other => panic!("{other} is not measured here: latency, bandwidth, parts or pairs"),
    }
}

/// This rank and the one that it plays with: by the transport, and by a socket of their own.
struct Pair {
    port: Arc<Port>,
    bare: TcpStream,
    peer: Rank,
    leads: bool,
    yields: bool,
    only: Only,
}

/// Which side of `latency` runs: one alone is for a profiler.
#[derive(Clone, Copy)]
enum Only {
    Both,
    Bare,
    Ours,
}

impl Only {
    /// Turns of the bare side and of ours.
    fn turns(self, turns: usize) -> (usize, usize) {
        match self {
            Self::Both => (turns, turns),
            Self::Bare => (turns, 0),
            Self::Ours => (0, turns),
        }
    }
}

/// Takes so many turns by the bare socket and by the transport; gives the seconds of each.
type Measure = fn(&mut Pair, usize, &mut Buffers, usize) -> (f64, f64);

struct Buffers {
    out: Vec<u8>,
    back: Vec<u8>,
}

impl Pair {
    fn open(yields: bool, only: Only) -> Self {
        let mut identity = Identity::from_env().unwrap();
        identity.shared_memory = false;
        let rank = identity.rank.0;
        pin(rank);
        let port = Port::new(open(&identity).unwrap().transport);
        let (peer, leads) = (Rank(rank ^ 1), rank.is_multiple_of(2));
        let bare = if leads {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut number = listener.local_addr().unwrap().port().to_le_bytes();
            send(&port, peer, yields, &mut number);
            listener.accept().unwrap().0
        } else {
            let mut number = [0; 2];
            receive(&port, peer, yields, &mut number);
            TcpStream::connect(("127.0.0.1", u16::from_le_bytes(number))).unwrap()
        };
        bare.set_nodelay(true).unwrap();
        bare.set_nonblocking(true).unwrap();
        Self { port, bare, peer, leads, yields, only }
    }

    /// Measures both in turns and prints a line.
    fn compare(&mut self, bytes: usize, window: usize, rounds: usize, measure: Measure) {
        let mut buffers = Buffers { out: vec![1; bytes * window], back: vec![2; bytes * window] };
        let warm = measure(self, bytes, &mut buffers, 2);
        let each = |times: (f64, f64)| times.0.min(times.1) * window as f64;
        let wanted = (BATCH.as_secs_f64() / each(warm) / 2.0).clamp(3.0, 1e5);
        let mut turns = (wanted as u64).to_le_bytes();
        match self.leads {
            true => send(&self.port, self.peer, self.yields, &mut turns),
            false => receive(&self.port, self.peer, self.yields, &mut turns),
        }
        let turns = u64::from_le_bytes(turns) as usize;
        measure(self, bytes, &mut buffers, turns);
        let times: Vec<_> = (0..rounds).map(|_| measure(self, bytes, &mut buffers, turns)).collect();
        if self.leads {
            report(bytes, turns, &times);
        }
    }

    /// Four pairs play at the same time, by bare sockets and by the transport in turns.
    fn play(&mut self, rounds: usize) {
        let (port, yields) = (Arc::clone(&self.port), self.yields);
        let mut measured = Rounds::default();
        for round in 0..=rounds {
            let bare = everybody(&port, yields, || self.play_bare());
            let ours = everybody(&port, yields, || self.play_ours());
            if port.rank() == Rank(0) && round > 0 {
                measured.add("bare", &bare, &ours);
            }
        }
        if port.rank() == Rank(0) {
            measured.finish();
        }
    }

    fn play_bare(&mut self) -> f64 {
        let (start, mut turns, mut ball) = (Instant::now(), 0u32, [0u8; 8]);
        loop {
            if self.leads {
                ball[0] = u8::from(start.elapsed() > PLAY);
                write_all(&mut self.bare, &ball, self.yields);
                read_all(&mut self.bare, &mut ball, self.yields);
            } else {
                read_all(&mut self.bare, &mut ball, self.yields);
                write_all(&mut self.bare, &ball, self.yields);
            }
            turns += 1;
            if ball[0] == 1 {
                return start.elapsed().as_secs_f64() / f64::from(turns) / 2.0;
            }
        }
    }

    fn play_ours(&mut self) -> f64 {
        let (start, mut turns, mut ball) = (Instant::now(), 0u32, [0u8; 8]);
        loop {
            if self.leads {
                ball[0] = u8::from(start.elapsed() > PLAY);
                send(&self.port, self.peer, self.yields, &mut ball);
                receive(&self.port, self.peer, self.yields, &mut ball);
            } else {
                receive(&self.port, self.peer, self.yields, &mut ball);
                send(&self.port, self.peer, self.yields, &mut ball);
            }
            turns += 1;
            if ball[0] == 1 {
                return start.elapsed().as_secs_f64() / f64::from(turns) / 2.0;
            }
        }
    }
}

fn latency(pair: &mut Pair, _: usize, buffers: &mut Buffers, turns: usize) -> (f64, f64) {
    let (start, own, peer) = (Instant::now(), pair.port.rank(), pair.peer);
    let (bare_turns, own_turns) = pair.only.turns(turns);
    for _ in 0..bare_turns {
        if pair.leads {
            write_all(&mut pair.bare, &buffers.out, pair.yields);
            read_all(&mut pair.bare, &mut buffers.back, pair.yields);
        } else {
            read_all(&mut pair.bare, &mut buffers.back, pair.yields);
            write_all(&mut pair.bare, &buffers.out, pair.yields);
        }
    }
    let bare = start.elapsed();
    let (out, mut back) = (&buffers.out[..], &mut buffers.back[..]);
    let start = Instant::now();
    scope(
        &pair.port,
        |comm| turn(comm.port(), pair.yields),
        async |comm| {
            for _ in 0..own_turns {
                if pair.leads {
                    comm.send(peer, envelope(own), out).await.unwrap();
                    (back, _) = comm.recv(peer, envelope(peer), back).await.unwrap();
                } else {
                    (back, _) = comm.recv(peer, envelope(peer), back).await.unwrap();
                    comm.send(peer, envelope(own), out).await.unwrap();
                }
            }
        },
    );
    let ours = start.elapsed();
    let each = 2.0 * turns as f64;
    (bare.as_secs_f64() / each, ours.as_secs_f64() / each)
}

/// A window of messages one way, then an acknowledgement; seconds a message.
fn bandwidth(pair: &mut Pair, bytes: usize, buffers: &mut Buffers, turns: usize) -> (f64, f64) {
    let (own, peer) = (pair.port.rank(), pair.peer);
    let start = Instant::now();
    for _ in 0..turns {
        if pair.leads {
            (0..WINDOW).for_each(|_| write_all(&mut pair.bare, &buffers.out[..bytes], pair.yields));
            read_all(&mut pair.bare, &mut [0], pair.yields);
        } else {
            buffers
                .back
                .chunks_exact_mut(bytes)
                .for_each(|place| read_all(&mut pair.bare, place, pair.yields));
            write_all(&mut pair.bare, &[0], pair.yields);
        }
    }
    let bare = start.elapsed();
    let out = &buffers.out[..bytes];
    let mut places: Vec<_> = buffers.back.chunks_exact_mut(bytes).collect();
    let start = Instant::now();
    scope(
        &pair.port,
        |comm| turn(comm.port(), pair.yields),
        async |comm| {
            for _ in 0..turns {
                if pair.leads {
                    let sends: Vec<_> = (0..WINDOW).map(|_| comm.send(peer, envelope(own), out)).collect();
                    for send in sends {
                        send.await.unwrap();
                    }
                    comm.recv(peer, envelope(peer), vec![0u8]).await.unwrap();
                } else {
                    let receives: Vec<_> =
                        places.drain(..).map(|it| comm.recv(peer, envelope(peer), it)).collect();
                    for receive in receives {
                        places.push(receive.await.unwrap().0);
                    }
                    comm.send(peer, envelope(own), vec![0u8]).await.unwrap();
                }
            }
        },
    );
    let ours = start.elapsed();
    let each = (turns * WINDOW) as f64;
    (bare.as_secs_f64() / each, ours.as_secs_f64() / each)
}

/// The same bytes in one place ("bare") and in a header and two payloads ("ours"), both by the transport.
fn parts(pair: &mut Pair, _: usize, buffers: &mut Buffers, turns: usize) -> (f64, f64) {
    let (own, peer) = (pair.port.rank(), pair.peer);
    let (out, mut back) = (&buffers.out[..], &mut buffers.back[..]);
    let start = Instant::now();
    scope(
        &pair.port,
        |comm| turn(comm.port(), pair.yields),
        async |comm| {
            for turn in 0..2 * turns {
                if turn.is_multiple_of(2) == pair.leads {
                    comm.send(peer, envelope(own), out).await.unwrap();
                } else {
                    (back, _) = comm.recv(peer, envelope(peer), back).await.unwrap();
                }
            }
        },
    );
    let whole = start.elapsed();
    let (out, back) = (split(&buffers.out[..]), split_mut(&mut buffers.back[..]));
    let start = Instant::now();
    scope(
        &pair.port,
        |comm| turn(comm.port(), pair.yields),
        async |comm| {
            let mut back = back;
            for turn in 0..2 * turns {
                if turn.is_multiple_of(2) == pair.leads {
                    comm.send(peer, envelope(own), out).await.unwrap();
                } else {
                    (back, _) = comm.recv(peer, envelope(peer), back).await.unwrap();
                }
            }
        },
    );
    let split = start.elapsed();
    let each = 2.0 * turns as f64;
    (whole.as_secs_f64() / each, split.as_secs_f64() / each)
}

type Three<T> = (T, (T, T));

fn split(bytes: &[u8]) -> Three<&[u8]> {
    let (head, rest) = bytes.split_at(16);
    (head, rest.split_at(rest.len() / 2))
}

fn split_mut(bytes: &mut [u8]) -> Three<&mut [u8]> {
    let (head, rest) = bytes.split_at_mut(16);
    (head, rest.split_at_mut(rest.len() / 2))
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8], yields: bool) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => pause(yields),
            Err(error) => panic!("{error}"),
        }
    }
}

fn read_all(socket: &mut TcpStream, mut bytes: &mut [u8], yields: bool) {
    while !bytes.is_empty() {
        match socket.read(bytes) {
            Ok(0) => panic!("the other rank has gone"),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => pause(yields),
            Err(error) => panic!("{error}"),
        }
    }
}

fn pause(yields: bool) {
    if yields {
        std::thread::yield_now();
    }
}

/// Keeps this process on one processor, even ranks' apart from odd ranks'.
fn pin(rank: u32) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None).unwrap();
    let all: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut set = CpuSet::new();
    set.set(all[rank as usize % all.len()]);
    sched_setaffinity(None, &set).unwrap();
}

fn report(bytes: usize, turns: usize, times: &[(f64, f64)]) {
    let bare = median(times.iter().map(|pair| pair.0));
    let ours = median(times.iter().map(|pair| pair.1));
    let mut ratios: Vec<_> = times.iter().map(|(bare, ours)| ours / bare).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let (least, middle, most) = (ratios[0], median(ratios.iter().copied()), ratios[ratios.len() - 1]);
    println!(
        "{bytes:>9} B  bare {:>10.2} us  ours {:>10.2} us  ratio {middle:.3} ({least:.3} to {most:.3})  {} x \
         {turns}",
        bare * 1e6,
        ours * 1e6,
        times.len()
    );
}
