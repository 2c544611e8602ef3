//! Operations that are awaited, dropped, forgotten or abandoned by a panic at random, on every transport
//! between threads.
//!
//! `BREVITY_STRESS_SECONDS` sets the time on each transport (default 1), `BREVITY_STRESS_SEED` the plan
//! (printed).
#![allow(clippy::unwrap_used)] // Nothing here but tests.

#[allow(dead_code, reason = "the battery belongs to others")]
mod common;
#[path = "stress/plan.rs"]
mod plan;
#[path = "stress/puts.rs"]
mod puts;

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use brevity_testing::{Wire, on_every_wire};
use common::{World, block, turn};
use plan::{Message, Random, Way};
use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::{Arrival, Envelope, Mark, Rank, Signature, Tag};

/// The contents of memory that was given back.
const REUSED: u8 = 0x77;

/// The mark of the last message under a tag.
const LAST: Mark = Mark(u64::MAX);

/// For how many turns a receive is awaited whose message may never come.
const PATIENT_TURNS: u32 = 300;

on_every_wire! {
    messages => |wire: Wire| stress(&format!("{wire:?}"), wire.world(2));
    puts_and_gets => |wire: Wire| puts::stress(&format!("{wire:?}"), wire.world(2));
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

/// The time and the plan.
fn seconds_and_seed(name: &str) -> (u64, u64) {
    let seconds = number("BREVITY_STRESS_SECONDS").unwrap_or(1);
    let seed = number("BREVITY_STRESS_SEED").unwrap_or_else(|| Random::fresh().next());
    println!("{name}: BREVITY_STRESS_SEED={seed}");
    std::panic::set_hook(Box::new(|panic| {
        // Intended panics do not get here.
        eprintln!("{panic}");
    }));
    (seconds, seed)
}

/// Rounds of random messages in both directions, for the requested time.
fn stress(name: &str, world: World) {
    let (seconds, seed) = seconds_and_seed(name);
    let end = Instant::now() + Duration::from_secs(seconds);
    let title = format!("{name}, seed {seed}");
    common::run_for(&title.clone(), Duration::from_secs(seconds + 60), world, move |port| {
        let mut random = Random::new(seed);
        let mut messages = 0;
        for round in 0.. {
            let groups = random.groups();
            messages += groups.iter().map(Vec::len).sum::<usize>();
            let sender = Rank(round % 2);
            if port.rank() == sender {
                send_round(&port, round, &groups)
            } else {
                receive_round(&port, round, &groups)
            }
            if !goes_on(&port, round, Instant::now() < end) {
                println!("{title}: rank {}: {messages} messages in {round} rounds", port.rank());
                return;
            }
        }
    });
}

fn peer(port: &Port) -> Rank {
    Rank(1 - port.rank().0)
}

fn envelope(source: Rank, round: u32, kind: u32, mark: Mark) -> Envelope {
    Envelope { tag: Tag::new(source, 0, round, kind), signature: Signature::default(), mark }
}

/// Sends all messages, leaving each in its own way. When the peer has done the same, sends one more that is
/// awaited.
fn send_round(port: &Arc<Port>, round: u32, groups: &[Vec<Message>]) {
    let (own, to) = (port.rank(), peer(port));
    let mut memory: Vec<Vec<Vec<u8>>> =
        groups.iter().map(|group| group.iter().map(Message::bytes).collect()).collect();
    let mut mark = 0;
    for (group, memory) in groups.iter().zip(&mut memory) {
        leave(|| {
            block(port, async |comm| {
                let post = |bytes| {
                    mark += 1;
                    comm.send(to, envelope(own, round, 0, Mark(mark - 1)), bytes)
                };
                let operations: Vec<_> = memory.iter().map(|bytes| &bytes[..]).map(post).collect();
                for (operation, message) in operations.into_iter().zip(group) {
                    let turns = if message.sent == Way::Await { u32::MAX } else { message.send_turns };
                    part(port, operation, message.sent, turns, |sent| assert!(sent.is_ok()));
                }
            });
        });
        // Bytes sent from here from now on must not be received.
        memory.iter_mut().for_each(|bytes| bytes.fill(REUSED));
    }
    block(port, async |comm| {
        comm.recv(to, envelope(to, round, 1, Mark::NONE), ()).await.unwrap();
        comm.send(to, envelope(own, round, 0, LAST), vec![0u8; 8]).await.unwrap();
    });
    assert!(
        memory.iter().flatten().flatten().all(|byte| *byte == REUSED),
        "memory that was sent from was written"
    );
}

/// Posts receives, leaving each in its own way; then receives all that is left.
fn receive_round(port: &Arc<Port>, round: u32, groups: &[Vec<Message>]) {
    let (own, from) = (port.rank(), peer(port));
    let all: Vec<&Message> = groups.iter().flatten().collect();
    let check = |bytes: &[u8], arrived: &Arrival| {
        let message = all[arrived.mark.0 as usize];
        assert!(
            message.is(&bytes[..arrived.lengths[0]]),
            "what was received is not what was sent: {message:?}"
        );
    };
    let most = all.iter().map(|message| message.length).max().unwrap_or(0).max(8);
    let tag = envelope(from, round, 0, Mark::NONE);
    let mut places: Vec<Vec<Vec<u8>>> = groups.iter().map(|group| vec![vec![0; most]; group.len()]).collect();
    for (group, places) in groups.iter().zip(&mut places) {
        leave(|| {
            block(port, async |comm| {
                let operations: Vec<_> =
                    places.iter_mut().map(|place| comm.recv(from, tag, &mut place[..])).collect();
                for (operation, message) in operations.into_iter().zip(group) {
                    let turns =
                        if message.received == Way::Await { PATIENT_TURNS } else { message.recv_turns };
                    part(port, operation, message.received, turns, |received| {
                        let (bytes, arrived) = received.unwrap();
                        check(bytes, &arrived);
                    });
                }
            });
        });
        // Any other byte here later on was written after the memory was given back.
        places.iter_mut().for_each(|place| place.fill(REUSED));
    }
    block(port, async |comm| {
        comm.send(from, envelope(own, round, 1, Mark::NONE), ()).await.unwrap();
        loop {
            let (bytes, arrived) = comm.recv(from, tag, vec![0u8; most]).await.unwrap();
            if arrived.mark == LAST {
                break;
            }
            check(&bytes, &arrived);
        }
    });
    assert!(
        places.iter().flatten().flatten().all(|byte| *byte == REUSED),
        "a place was written after its return"
    );
}

/// Runs `body`, which may panic only on purpose.
fn leave(body: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body))
        && !panic.is::<OnPurpose>()
    {
        resume_unwind(panic);
    }
}

struct OnPurpose;

/// Polls an operation for some turns, then leaves it.
fn part<F: Future + Unpin>(port: &Port, mut operation: F, way: Way, turns: u32, end: impl FnOnce(F::Output)) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..turns {
        turn(port);
        if let std::task::Poll::Ready(output) = Pin::new(&mut operation).poll(&mut context) {
            return end(output);
        }
    }
    match way {
        Way::Drop | Way::Await => drop(operation),
        Way::Forget => forget(operation),
        Way::Panic => resume_unwind(Box::new(OnPurpose)),
    }
}

/// Rank 0 says whether there is another round.
fn goes_on(port: &Arc<Port>, round: u32, has_time: bool) -> bool {
    let (own, other) = (port.rank(), peer(port));
    block(port, async |comm| {
        if own == Rank(0) {
            comm.send(other, envelope(own, round, 2, Mark(has_time.into())), ()).await.unwrap();
            return has_time;
        }
        let ((), arrived) = comm.recv(other, envelope(other, round, 2, Mark::NONE), ()).await.unwrap();
        arrived.mark != Mark::NONE
    })
}
