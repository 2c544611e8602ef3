//! One rank of a job that goes on without the ranks that the test kills or stops: `shrink LOSSES`.
//!
//! It makes calls until it has lost so many, and says after each loss that it goes on (`on-1`, `on-2`). The
//! end is reported as `later` if it can't go on.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use brevity::collectives::Result;
use brevity::{Group, ReduceOp, launch};
use brevity_tests::LOST_STATUS;
use brevity_tests::faults::{Log, PATIENCE};

/// After this many turns, a rank is in the middle of its work.
const TURNS: u32 = 10;

fn main() -> ExitCode {
    launch::die_with_parent();
    let losses = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    let mut group = match Group::from_env() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Log::of(group.rank());
    for loss in 1..=losses {
        let start = Instant::now();
        let Err(_) = work(&group, &log) else { panic!("nothing happens") };
        let left = group.shrink().and_then(|left| count(&left).map(|()| left));
        match left {
            Ok(left) => group = left,
            Err(error) => {
                log.ended("later", &error, start);
                log.finish();
                return ExitCode::from(LOST_STATUS);
            }
        }
        log.went_on(loss, group.world_size(), start);
    }
    // All are there: nobody leaves while another one still makes its first call.
    group.barrier().unwrap_or_else(|error| panic!("{error}"));
    log.finish();
    // Nor while one that was stopped has to hear of it: once all have gone, nobody can tell.
    log.await_go(PATIENCE);
    ExitCode::from(LOST_STATUS)
}

/// Makes calls until one fails, or it has gone on for too long.
fn work(group: &Group, log: &Log) -> Result<()> {
    let (start, mut turn) = (Instant::now(), 0_u32);
    while start.elapsed() < PATIENCE {
        count(group)?;
        turn = turn.saturating_add(1);
        if turn == TURNS {
            log.ready();
        }
    }
    Ok(())
}

/// Counts the ranks.
fn count(group: &Group) -> Result<()> {
    let mut ones = vec![1.0f32; 3000];
    group.all_reduce(&mut ones, ReduceOp::Sum)?;
    assert!(ones.iter().all(|sum| *sum == group.world_size() as f32));
    Ok(())
}
