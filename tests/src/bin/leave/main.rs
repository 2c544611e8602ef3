//! One of two ranks, of which one leaves a scope while the other is stopped: `leave WHO WAY BYTES WHEN`.
//!
//! WHO is `receiver`, `sender` or `visitor`. The other rank posts its half of a message of BYTES bytes and is
//! stopped at WHEN: `before` it posts, after the given number of progress calls, or in the `middle`, when
//! part of the message has arrived. Then WHO leaves by WAY (`drop`, `forget` or `panic`), uses the memory for
//! something else, and lets the other continue. Memory that was given back must not be written any more, and
//! data sent from it must not be received. A visitor puts into the other's memory and gets from it, and
//! leaves in the `middle` of that.
#![forbid(unsafe_code)]

mod landing;
mod visiting;

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity::launch;
use brevity::transport::bootstrap::{Identity, open};
use brevity::transport::buffer::{Comm, Port, scope};
use brevity::transport::{Envelope, Mark, Rank, Result, Signature, Tag};
use brevity_testing::Process;
use landing::Place;

const SENDER: Rank = Rank(0);
const RECEIVER: Rank = Rank(1);
const VISITOR: Rank = SENDER;
const OWNER: Rank = RECEIVER;

/// The contents of the memory before, while, and after it is lent.
const UNTOUCHED: u8 = 0x11;
const SENT: u8 = 0x22;
const REUSED: u8 = 0x33;

/// The limit for leaving: the transport is drained, or otherwise torn down.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the other rank may write or receive what it must not.
const AFTERMATH: Duration = Duration::from_millis(200);

struct Plan {
    way: String,
    bytes: usize,
    when: When,
}

/// When the other rank is stopped.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Before,
    After(u32),
    Middle,
}

fn main() -> ExitCode {
    launch::die_with_parent();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [who, way, bytes, when] = &words[..] else { panic!("usage: leave WHO WAY BYTES WHEN") };
    let number = |word: &str| word.parse().unwrap_or_else(|error| panic!("{word}: {error}"));
    let when = match when.as_str() {
        "before" => When::Before,
        "middle" => When::Middle,
        turns => When::After(number(turns)),
    };
    let plan = Plan { way: way.clone(), bytes: number(bytes) as usize, when };
    let opened =
        Identity::from_env().and_then(|identity| open(&identity)).unwrap_or_else(|error| panic!("{error}"));
    let port = Port::new(opened.transport);
    let own = port.rank();
    match (who.as_str(), own) {
        ("visitor", VISITOR) => visiting::visit(&port, &plan),
        ("visitor", _) => visiting::own(&port, &plan),
        ("sender", SENDER) | ("receiver", RECEIVER) => leave(&port, &plan),
        _ => stop(&port, &plan),
    }
    ExitCode::SUCCESS
}

/// Tells the other rank which process to stop.
fn tell_process(port: &Arc<Port>, to: Rank) {
    let number = std::process::id().to_le_bytes().to_vec();
    run(port, async |comm| comm.send(to, envelope(port.rank(), 1), number).await.map(drop))
        .unwrap_or_else(|error| panic!("{error}"));
}

fn hear_process(port: &Arc<Port>, from: Rank) -> Process {
    let mut number = [0u8; 4];
    run(port, async |comm| comm.recv(from, envelope(from, 1), &mut number[..]).await.map(drop))
        .unwrap_or_else(|error| panic!("{error}"));
    Process(u32::from_le_bytes(number))
}

/// The rank that leaves.
fn leave(port: &Arc<Port>, plan: &Plan) {
    let own = port.rank();
    let other = hear_process(port, Rank(1 - own.0));
    let mut memory = vec![if own == SENDER { SENT } else { UNTOUCHED }; plan.bytes];
    let start = Instant::now();
    let left = catch_unwind(AssertUnwindSafe(|| lend_and_leave(port, plan, other, &mut memory)));
    assert_eq!(left.is_err(), plan.way == "panic");
    assert!(start.elapsed() < PATIENCE, "leaving took {:?}", start.elapsed());
    memory.fill(REUSED);
    other.signal("CONT");
    turn_for(port, AFTERMATH);
    assert!(memory.iter().all(|byte| *byte == REUSED), "memory was written after it was given back");
    // The sender must live as long as the receiver may need to finish.
    turn_for(port, if own == SENDER { 5 * AFTERMATH } else { Duration::ZERO });
}

fn lend_and_leave(port: &Arc<Port>, plan: &Plan, other: Process, memory: &mut [u8]) {
    let landing = Place::of(memory);
    run(port, async |comm| {
        if port.rank() == SENDER {
            let operation = comm.send(RECEIVER, envelope(SENDER, 2), &memory[..]);
            turn_until_stopped(port, other);
            part(operation, &plan.way);
        } else {
            let operation = comm.recv(SENDER, envelope(SENDER, 2), memory);
            if plan.when == When::Middle {
                landing.await_halfway(port);
                stop_other(other);
                assert!(landing.is_halfway(), "it went on without this rank");
            } else {
                turn_until_stopped(port, other);
            }
            part(operation, &plan.way);
        }
    });
}

/// Makes progress until the other rank has stopped itself, and slightly longer.
fn turn_until_stopped(port: &Port, other: Process) {
    let start = Instant::now();
    while !other.is_stopped() {
        port.progress();
        assert!(start.elapsed() < PATIENCE, "the other rank does not stop");
    }
    turn_for(port, Duration::from_millis(20));
}

/// Stops the other rank, without progress here.
fn stop_other(other: Process) {
    other.signal("STOP");
    let start = Instant::now();
    while !other.is_stopped() {
        assert!(start.elapsed() < PATIENCE, "the other rank does not stop");
    }
}

fn part<T>(operation: T, way: &str) {
    match way {
        "drop" => drop(operation),
        "forget" => forget(operation),
        _ => resume_unwind(Box::new("on purpose")),
    }
}

/// The rank that is stopped.
fn stop(port: &Arc<Port>, plan: &Plan) {
    let own = port.rank();
    tell_process(port, Rank(1 - own.0));
    if plan.when == When::Before {
        Process::own().signal("STOP");
    }
    let end = Instant::now() + PATIENCE;
    let memory = vec![if own == SENDER { SENT } else { UNTOUCHED }; plan.bytes];
    let landing = Place::of(&memory);
    let received: Result<Option<Vec<u8>>> = run_until(port, end, async |comm| {
        if own == SENDER {
            let operation = comm.send(RECEIVER, envelope(SENDER, 2), memory);
            stop_after_turns(port, plan);
            operation.await.map(|_| None)
        } else {
            let operation = comm.recv(SENDER, envelope(SENDER, 2), memory);
            if plan.when == When::Middle {
                landing.await_halfway(port);
                Process::own().signal("STOP");
            }
            stop_after_turns(port, plan);
            operation.await.map(|(bytes, _)| Some(bytes))
        }
    });
    if let Ok(Some(bytes)) = received {
        assert!(bytes.iter().all(|byte| *byte == SENT), "what was received is not what was sent");
    }
}

fn stop_after_turns(port: &Port, plan: &Plan) {
    let When::After(turns) = plan.when else { return };
    for _ in 0..turns {
        port.progress();
    }
    Process::own().signal("STOP");
}

/// Runs `body` with progress.
fn run<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(port, |comm| turn(comm.port()), body)
}

/// Runs `body`, whose operations end at `end` or soon after the other rank has nothing more to send.
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
