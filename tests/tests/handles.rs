//! Handles of non-blocking calls that are waited for, tested, dropped or forgotten at random: the calls go on, and their
//! results are right. `BREVITY_STRESS_SECONDS` says how long on each transport (1 unless set), `BREVITY_STRESS_SEED`
//! which plan (printed).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::hash::{BuildHasher, RandomState};
use std::mem::forget;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use brevity::transport::tcp::Tcp;
use brevity::transport::{Rank, Transport, local};
use brevity::{Group, Handle, Reduction, Settings};
use brevity_tests::{on_groups, oracle};

const WORLD_SIZE: u32 = 3;
const LENGTHS: [usize; 4] = [1, 100, 20_000, 300_000];

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn between_threads() {
    stress("local", between_threads_of_one_process(), false);
}

#[test]
fn over_tcp() {
    stress("tcp", over_sockets(), false);
}

#[test]
fn beside_progress_threads() {
    stress("local, with progress threads", between_threads_of_one_process(), true);
    stress("tcp, with progress threads", over_sockets(), true);
}

fn between_threads_of_one_process() -> Vec<Box<dyn Transport>> {
    local::world(WORLD_SIZE).into_iter().map(boxed).collect()
}

fn over_sockets() -> Vec<Box<dyn Transport>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let size = WORLD_SIZE as usize;
    let mut rows: Vec<Vec<Option<TcpStream>>> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for (low, high) in [(0, 1), (0, 2), (1, 2)] {
        rows[high][low] = Some(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        rows[low][high] = Some(listener.accept().unwrap().0);
    }
    (0..).zip(rows).map(|(rank, row)| boxed(Tcp::new(Rank(rank), WORLD_SIZE, row).unwrap())).collect()
}

fn boxed(transport: impl Transport + 'static) -> Box<dyn Transport> {
    Box::new(transport)
}

fn stress(name: &str, world: Vec<Box<dyn Transport>>, progress_thread: bool) {
    let seconds = number("BREVITY_STRESS_SECONDS").unwrap_or(1).min(60);
    let seed = number("BREVITY_STRESS_SEED").unwrap_or_else(|| RandomState::new().hash_one(name)).max(1);
    println!("{name}: BREVITY_STRESS_SEED={seed}");
    let end = Instant::now() + Duration::from_secs(seconds);
    let settings = Settings { progress_thread, ..Settings::default() };
    let groups = world.into_iter().map(|transport| Group::new(transport, settings));
    let calls = on_groups(groups.collect(), move |group| {
        // What is called is the same on all ranks, what becomes of the handles is not.
        let (mut common, mut own) = (Random(seed), Random(seed ^ u64::from(group.rank() + 1) << 40));
        let mut calls = 0;
        let mut forgotten = 0;
        loop {
            let lengths: Vec<usize> = (0..=common.below(4)).map(|_| LENGTHS[common.below(4)]).collect();
            calls += lengths.len();
            let handles: Vec<_> = lengths.iter().map(|length| start(group, *length)).collect();
            for (handle, length) in handles.into_iter().zip(lengths) {
                // A forgotten handle keeps its group: not too many of them.
                forgotten += usize::from(!leave(&mut own, handle, length, forgotten < 20));
            }
            // Everybody learns from rank 0 whether there is another round.
            let mut goes_on = [u8::from(Instant::now() < end)];
            group.broadcast(&mut goes_on, 0).unwrap();
            if goes_on == [0] {
                // The others may still wait for calls that this rank has dropped and must turn for.
                group.barrier().unwrap();
                return calls;
            }
        }
    });
    println!("{name}: {calls:?} calls");
}

type Call = Handle<(Vec<f32>, brevity::collectives::Result<()>)>;

fn start(group: &Group, length: usize) -> Call {
    group.start_all_reduce(oracle::vector(group.rank(), length), Reduction::Sum)
}

/// False if the handle was forgotten.
fn leave(random: &mut Random, handle: Call, length: usize, may_forget: bool) -> bool {
    match random.below(4) {
        0 => drop(handle),
        1 if may_forget => {
            forget(handle);
            return false;
        }
        2 => {
            let _ = handle.test();
            drop(handle);
        }
        _ => {
            let (sum, result) = handle.wait();
            result.unwrap();
            let vectors: Vec<_> = (0..WORLD_SIZE).map(|rank| oracle::vector(rank, length)).collect();
            assert!(sum == oracle::sum(&vectors), "a wrong sum of {length} elements");
        }
    }
    true
}
