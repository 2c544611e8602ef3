//! One rank of a job that takes back the ranks that the test kills and starts again: `grow CYCLES`.
//!
//! It makes calls until a rank is lost, goes on without it, waits for it to come back, and says so
//! (`on-1`, `on-2`), so often. One that has come back learns from the others how often that was.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use brevity::collectives::Result;
use brevity::{Group, ReduceOp, launch};
use brevity_tests::faults::{Log, PATIENCE};

fn main() -> ExitCode {
    launch::die_with_parent();
    let cycles = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or_default();
    match live(cycles) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn live(cycles: u32) -> Result<()> {
    let mut group = Group::from_env()?;
    let log = Log::of(group.rank());
    let whole = group.world_size();
    let mut done = latest(&group, 0)?;
    if group.returned().contains(&group.rank()) {
        log.went_on(done, group.world_size(), Instant::now());
    }
    while done < cycles {
        work(&group, &log)?;
        let start = Instant::now();
        group = group.shrink()?;
        count(&group)?;
        group = group.grow(PATIENCE)?;
        assert_eq!(group.world_size(), whole, "all are back");
        done = latest(&group, done + 1)?;
        log.went_on(done, group.world_size(), start);
    }
    group.barrier()?;
    log.finish();
    Ok(())
}

/// How often ranks have come back, by those who know.
fn latest(group: &Group, own: u32) -> Result<u32> {
    let mut latest = [own];
    group.all_reduce(&mut latest, ReduceOp::Max)?;
    Ok(latest[0])
}

/// Makes calls until one fails.
///
/// # Panics
/// If none does.
fn work(group: &Group, log: &Log) -> Result<()> {
    let start = Instant::now();
    log.ready();
    while start.elapsed() < PATIENCE {
        if count(group).is_err() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing happens")
}

/// Counts the ranks.
fn count(group: &Group) -> Result<()> {
    let mut ones = vec![1.0f32; 3000];
    group.all_reduce(&mut ones, ReduceOp::Sum)?;
    assert!(ones.iter().all(|sum| *sum == group.world_size() as f32));
    Ok(())
}
