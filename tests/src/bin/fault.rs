//! One rank of a job in which something goes wrong: `fault MODE [ELEMENTS]`.
//!
//! - `reduce`: all-reduces without end;
//! - `hosts`: likewise by hosts, of two ranks each;
//! - `barrier`: barriers without end;
//! - `quiet`: all-reduces once, makes no call until it is told to go on, and then continues like `reduce`;
//! - `mail`: waits for messages of any rank, two threads at a time, of which one has started its receive;
//! - `flood`: rank 0 sends to rank 1, which never reads;
//! - `abort`: rank 1 aborts while all ranks have a blocking and a non-blocking call pending;
//! - `exchange`: starts all-reduces and gradient exchanges without end, and never polls the engine: a
//!   progress thread does.
//!
//! Reports go to the folder of [`faults`](brevity_tests::faults).
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::{Algorithm, Call, Chunk, Description, Operation, Result, dense};
use brevity::{GradientExchange, Group, Join, Policy, ReduceOp, launch};
use brevity_tests::LOST_STATUS;
use brevity_tests::faults::Log;

/// A rank that is not ended from outside ends by itself after this time.
const PATIENCE: Duration = Duration::from_secs(90);

/// The rank that aborts.
const ABORTER: u32 = 1;

fn main() -> ExitCode {
    launch::die_with_parent();
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let elements = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
    let group = match Join::from_env().and_then(|join| placed(join, &mode).join()) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Log::of(group.rank());
    match mode.as_str() {
        "reduce" => reduce(&group, &log, elements),
        "hosts" => reduce(&group.with_algorithm(Some(Algorithm::Hosts)), &log, elements),
        "barrier" => until_failure(&group, &log, || group.barrier()),
        "quiet" => quiet(&group, &log, elements),
        "mail" => mail(&group, &log),
        "flood" => flood(&group, &log, elements),
        "abort" => abort(&group, &log),
        "exchange" => exchange(&group, &log, elements),
        _ => panic!("no such mode: {mode:?}"),
    }
    ExitCode::from(LOST_STATUS)
}

/// Joins as a rank of a host of two, if the mode is for several hosts.
fn placed(join: Join, mode: &str) -> Join {
    let rank = std::env::var("BREVITY_RANK").ok().and_then(|rank| rank.parse::<u32>().ok());
    match rank {
        Some(rank) if mode == "hosts" => join.host_id(&format!("host-{}", rank / 2)),
        _ => join,
    }
}

/// All-reduces until a call fails, and then once more.
fn reduce(group: &Group, log: &Log, elements: usize) {
    let mut data = vec![1.0f32; elements];
    until_failure(group, log, || {
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|value| *value == group.world_size() as f32), "a wrong sum");
        data.fill(1.0);
        Ok(())
    });
}

/// Makes calls until one fails, and then another.
fn until_failure(group: &Group, log: &Log, mut call: impl FnMut() -> Result<()>) {
    let mut is_ready = false;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let start = Instant::now();
        if let Err(error) = call() {
            log.ended("call", &error, start);
            break;
        }
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

/// Nobody sends anything.
fn mail(group: &Group, log: &Log) {
    group.barrier().unwrap_or_else(|error| panic!("{error}"));
    log.ready();
    let start = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            if let Err(error) = group.start_recv_vec(Vec::<u8>::new(), 10, None, 1).wait().1 {
                log.ended("pending", &error, start);
            }
        });
        if let Err(error) = group.recv(&mut [0u8], None, None) {
            log.ended("call", &error, start);
        }
    });
    later(group, log);
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
    // The group is already closed when the aborter makes its call; the others are in the middle of it.
    let blocking = group.run(message(), async |call| call.recv(from, 0, vec![0u8; 100]).await.map(drop));
    if let Err(error) = blocking {
        log.ended("call", &error, start);
    }
    if let (_, Err(error)) = pending.wait() {
        log.ended("pending", &error, start);
    }
    later(group, log);
}

/// Starts an average and an all-reduce at a time, and waits for the end of the second without polling the
/// engine.
fn exchange(group: &Group, log: &Log, elements: usize) {
    let build = GradientExchange::builder(group)
        .tensor("dense", [elements], Policy::dense())
        .tensor("sparse", [elements], Policy::gtopk(0.1))
        .build();
    let mut exchange = build.unwrap_or_else(|error| panic!("{error}"));
    let mut gradients = vec![vec![1.0f32; elements]; 2];
    let mut is_ready = false;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let start = Instant::now();
        let averaging = exchange.start(gradients);
        let (sender, ended) = channel();
        let description = Description::new(Operation::ALL_REDUCE, 0, elements);
        let reducing = group.start(description, vec![1.0f32; elements], move |call, data| {
            Box::pin(async move {
                let reduced = dense::all_reduce(call, Chunk::from(&mut data[..]), ReduceOp::Sum).await;
                let _ = sender.send(reduced.map(drop));
            })
        });
        let reduced = ended.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{error}"));
        if let Err(error) = reduced {
            log.ended("call", &error, start);
            let ((same, averaged), result) = averaging.wait();
            // The average may have ended before the rank did; the next one can't.
            let result = result.and_then(|()| same.start(averaged).wait().1);
            if let Err(brevity::Error::Collective(error)) = result {
                log.ended("pending", &error, start);
            }
            break;
        }
        drop(reducing);
        let ((same, averaged), result) = averaging.wait();
        if let Err(error) = result {
            let brevity::Error::Collective(error) = error else { panic!("{error}") };
            log.ended("call", &error, start);
            log.ended("pending", &error, start);
            break;
        }
        (exchange, gradients) = (same, averaged);
        gradients.iter_mut().for_each(|gradient| gradient.fill(1.0));
        if !is_ready {
            log.ready();
            is_ready = true;
        }
    }
    later(group, log);
}

/// Makes another call, on a closed group, and reports the peak memory.
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
