//! One rank of a job in which something goes wrong: `fault reduce|quiet|flood|abort [ELEMENTS]`.
//!
//! - `reduce`: all-reduces without end;
//! - `quiet`: all-reduces once, calls nothing until it is told to go on, and then as `reduce`;
//! - `flood`: rank 0 sends to rank 1, which never reads;
//! - `abort`: rank 1 aborts while all ranks have a blocking and a non-blocking call pending.
//!
//! What it has to say goes to the folder of [`faults`](brevity_tests::faults).
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::{Call, Description, Operation, Result};
use brevity::{Group, Reduction, launch};
use brevity_tests::LOST_STATUS;
use brevity_tests::faults::Log;

/// A rank that nobody ends ends by itself.
const PATIENCE: Duration = Duration::from_secs(90);

/// The rank that aborts.
const ABORTER: u32 = 1;

fn main() -> ExitCode {
    launch::die_with_parent();
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let elements = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
    let group = match Group::from_env() {
        Ok(group) => group,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Log::of(group.rank());
    match mode.as_str() {
        "reduce" => reduce(&group, &log, elements),
        "quiet" => quiet(&group, &log, elements),
        "flood" => flood(&group, &log, elements),
        "abort" => abort(&group, &log),
        _ => panic!("no such mode: {mode:?}"),
    }
    ExitCode::from(LOST_STATUS)
}

/// All-reduces until that fails, and then once more.
fn reduce(group: &Group, log: &Log, elements: usize) {
    let mut data = vec![1.0f32; elements];
    let mut is_ready = false;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let start = Instant::now();
        if let Err(error) = group.all_reduce(&mut data, Reduction::Sum) {
            log.ended("call", &error, start);
            break;
        }
        assert!(data.iter().all(|value| *value == group.world_size() as f32), "a wrong sum");
        data.fill(1.0);
        if !is_ready {
            log.ready();
            is_ready = true;
        }
    }
    later(group, log);
}

fn quiet(group: &Group, log: &Log, elements: usize) {
    group.barrier().unwrap_or_else(|error| panic!("{error}"));
    log.ready();
    log.await_go(PATIENCE);
    reduce(group, log, elements);
}

/// Sends messages of `elements` floats, one after the other.
fn flood(group: &Group, log: &Log, elements: usize) {
    group.barrier().unwrap_or_else(|error| panic!("{error}"));
    log.ready();
    if group.rank() != 0 {
        sleep(PATIENCE);
        return;
    }
    let start = Instant::now();
    let sent: Result<()> = group.run(message(), async |call: &Call<'_, '_>| {
        let mut data = vec![1.0f32; elements];
        for round in 0.. {
            data = call.send(1, round, data).await?;
        }
        Ok(())
    });
    if let Err(error) = sent {
        log.ended("call", &error, start);
    }
    later(group, log);
}

fn abort(group: &Group, log: &Log) {
    group.barrier().unwrap_or_else(|error| panic!("{error}"));
    let from = (group.rank() + 1) % group.world_size();
    let start = Instant::now();
    let pending = group.start(message(), vec![0u8; 100], move |call, buffer| {
        Box::pin(async move { call.recv(from, 0, &mut buffer[..]).await.map(drop) })
    });
    log.ready();
    if group.rank() == ABORTER {
        log.await_go(PATIENCE);
        group.abort();
    }
    // The aborter makes its call when the group is closed already; the others are in the middle of it.
    let blocking = group.run(message(), async |call| call.recv(from, 0, vec![0u8; 100]).await.map(drop));
    if let Err(error) = blocking {
        log.ended("call", &error, start);
    }
    if let (_, Err(error)) = pending.wait() {
        log.ended("pending", &error, start);
    }
    later(group, log);
}

/// Calls once more, on a group that is closed, and says how much memory all took.
fn later(group: &Group, log: &Log) {
    let start = Instant::now();
    if let Err(error) = group.barrier() {
        log.ended("later", &error, start);
    }
    log.finish();
}

fn message() -> Description {
    Description::new(Operation::MESSAGE, 0, 0)
}
