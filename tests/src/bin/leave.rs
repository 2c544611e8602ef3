//! One of two ranks, of which one leaves a scope while the other is stopped: `leave WHO WAY BYTES TURNS`.
//!
//! WHO is `receiver` or `sender`. The other rank posts its half of a message of BYTES bytes, makes progress TURNS times
//! (`before`: it posts nothing yet) and stops itself. Then WHO leaves, by WAY (`drop`, `forget` or `panic`), uses the
//! memory for something else, and lets the other go on. Memory that was given back must not be written any more, and
//! what is sent from it must not be received.
#![forbid(unsafe_code)]

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity::launch;
use brevity::transport::bootstrap::{Identity, open};
use brevity::transport::buffer::{Comm, Port, scope};
use brevity::transport::{Envelope, Mark, Rank, Result, Signature, Tag};
use brevity_tests::faults::Process;

const SENDER: Rank = Rank(0);
const RECEIVER: Rank = Rank(1);

/// What the memory holds before, while, and after it is lent.
const UNTOUCHED: u8 = 0x11;
const SENT: u8 = 0x22;
const REUSED: u8 = 0x33;

/// Leaving takes at most so long: the transport is drained, or else torn down.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the other rank may write what it must not, or receive what it must not.
const AFTERMATH: Duration = Duration::from_millis(200);

struct Plan {
    leaver: Rank,
    way: String,
    bytes: usize,
    /// `None`: the other one stops before it posts.
    turns: Option<u32>,
}

fn main() -> ExitCode {
    launch::die_with_parent();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [who, way, bytes, turns] = &words[..] else { panic!("usage: leave WHO WAY BYTES TURNS") };
    let plan = Plan {
        leaver: if who == "sender" { SENDER } else { RECEIVER },
        way: way.clone(),
        bytes: bytes.parse().unwrap_or_else(|error| panic!("{bytes}: {error}")),
        turns: turns.parse().ok(),
    };
    let opened = Identity::from_env().and_then(|identity| open(&identity)).unwrap_or_else(|error| panic!("{error}"));
    let port = Port::new(opened.transport);
    if port.rank() == plan.leaver {
        leave(&port, &plan)
    } else {
        stop(&port, &plan)
    }
    ExitCode::SUCCESS
}

/// The rank that leaves.
fn leave(port: &Arc<Port>, plan: &Plan) {
    let own = port.rank();
    let other = Rank(1 - own.0);
    let mut number = [0u8; 4];
    run(port, async |comm| comm.recv(other, envelope(other, 1), &mut number[..]).await.map(drop))
        .unwrap_or_else(|error| panic!("{error}"));
    let other = Process(u32::from_le_bytes(number));
    let mut memory = vec![if own == SENDER { SENT } else { UNTOUCHED }; plan.bytes];
    let start = Instant::now();
    let left = catch_unwind(AssertUnwindSafe(|| lend_and_leave(port, plan, other, &mut memory)));
    assert_eq!(left.is_err(), plan.way == "panic");
    assert!(start.elapsed() < PATIENCE, "leaving took {:?}", start.elapsed());
    memory.fill(REUSED);
    other.signal("CONT");
    turn_for(port, AFTERMATH);
    assert!(memory.iter().all(|byte| *byte == REUSED), "memory was written after it was given back");
    // The sender must be there for as long as the receiver may want to finish.
    turn_for(port, if own == SENDER { 5 * AFTERMATH } else { Duration::ZERO });
}

fn lend_and_leave(port: &Arc<Port>, plan: &Plan, other: Process, memory: &mut [u8]) {
    run(port, async |comm| {
        let until_stopped = || {
            let start = Instant::now();
            while !other.is_stopped() {
                comm.port().progress();
                assert!(start.elapsed() < PATIENCE, "the other rank does not stop");
            }
            turn_for(comm.port(), Duration::from_millis(20));
        };
        if port.rank() == SENDER {
            let operation = comm.send(RECEIVER, envelope(SENDER, 2), &memory[..]);
            until_stopped();
            part(operation, &plan.way);
        } else {
            let operation = comm.recv(SENDER, envelope(SENDER, 2), memory);
            until_stopped();
            part(operation, &plan.way);
        }
    });
}

fn part<T>(operation: T, way: &str) {
    match way {
        "drop" => drop(operation),
        "forget" => forget(operation),
        _ => resume_unwind(Box::new("on purpose")),
    }
}

/// The rank that stops.
fn stop(port: &Arc<Port>, plan: &Plan) {
    let own = port.rank();
    run(port, async |comm| {
        comm.send(plan.leaver, envelope(own, 1), std::process::id().to_le_bytes().to_vec()).await.map(drop)
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let stopping = |comm: &Comm<'_>| {
        for _ in 0..plan.turns.unwrap_or(0) {
            comm.port().progress();
        }
        Process::own().signal("STOP");
    };
    if plan.turns.is_none() {
        Process::own().signal("STOP");
    }
    let end = Instant::now() + PATIENCE;
    let memory = vec![if own == SENDER { SENT } else { UNTOUCHED }; plan.bytes];
    let received: Result<Option<Vec<u8>>> = run_until(port, end, async |comm| {
        if own == SENDER {
            let operation = comm.send(RECEIVER, envelope(SENDER, 2), memory);
            plan.turns.iter().for_each(|_| stopping(comm));
            operation.await.map(|_| None)
        } else {
            let operation = comm.recv(SENDER, envelope(SENDER, 2), memory);
            plan.turns.iter().for_each(|_| stopping(comm));
            operation.await.map(|(bytes, _)| Some(bytes))
        }
    });
    if let Ok(Some(bytes)) = received {
        assert!(bytes.iter().all(|byte| *byte == SENT), "what was received is not what was sent");
    }
}

/// Runs `body` with progress.
fn run<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(port, |comm| turn(comm.port()), body)
}

/// Runs `body`, whose operations end when `end` has come or soon after the other rank has nothing more to say.
fn run_until<'env, R>(port: &Arc<Port>, end: Instant, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(
        port,
        |comm| {
            turn(comm.port());
            if Instant::now() > end {
                comm.expire();
            }
        },
        body,
    )
}

fn turn_for(port: &Port, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        turn(port);
    }
}

fn turn(port: &Port) {
    if !port.progress() {
        std::thread::yield_now();
    }
}

fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 1, 1, round), signature: Signature::default(), mark: Mark::NONE }
}
