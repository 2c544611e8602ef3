//! One rank of a job whose ranks the test kills and stops, and the launcher starts again: `back FOLDER`.
//!
//! It goes on without lost ranks, and takes them back. It says which process it is (`process-RANK`), and
//! which processes have made a call together, when all ranks are there (`whole-RANK`), or before
//! (`left-RANK`). If all are there, and the file `end` is, it ends.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::Result;
use brevity::{Group, ReduceOp, launch};

/// How long ranks that are left wait for lost ones at a time.
const WAIT: Duration = Duration::from_secs(30);

/// Only a hang reaches it.
const LONGEST: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    launch::die_with_parent();
    let folder = std::env::args_os().nth(1).unwrap_or_default();
    let rank = std::env::var("BREVITY_RANK").unwrap_or_default();
    match live(Path::new(&folder), &rank) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank {rank}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn live(folder: &Path, rank: &str) -> Result<()> {
    let (start, process) = (Instant::now(), std::process::id());
    tell(folder, &format!("process-{rank}"), &process.to_string());
    let mut group = Group::from_env()?;
    let mut last = Vec::new();
    loop {
        assert!(start.elapsed() < LONGEST, "rank {rank}: nobody ends this job");
        let is_whole = group.world_size() == group.first_world_size();
        match count(&group, process, folder.join("end").exists()) {
            Ok((_, true)) if is_whole => return group.barrier(),
            Ok((processes, _)) => {
                if processes != last {
                    let name = if is_whole { "whole" } else { "left" };
                    tell(folder, &format!("{name}-{rank}"), &processes.join(" "));
                    last = processes;
                }
            }
            Err(_) => {
                group = group.shrink()?;
                continue;
            }
        }
        if !is_whole {
            match group.grow(WAIT) {
                Ok(grown) => group = grown,
                // The next call fails too, if the group is closed.
                Err(error) => eprintln!("rank {rank} has not grown: {error}"),
            }
        }
        sleep(Duration::from_millis(1));
    }
}

/// The processes of all ranks, in the order of the numbers that they had when the job began, and whether the
/// job is to end.
fn count(group: &Group, process: u32, is_end: bool) -> Result<(Vec<String>, bool)> {
    let size = group.first_world_size() as usize;
    let mut numbers = vec![0_u32; size + 1];
    numbers[group.first_ranks()[group.rank() as usize].0 as usize] = process;
    numbers[size] = u32::from(is_end);
    group.all_reduce(&mut numbers, ReduceOp::Sum)?;
    Ok((numbers[..size].iter().map(u32::to_string).collect(), numbers[size] > 0))
}

/// Nobody reads a file that is not written to its end.
fn tell(folder: &Path, name: &str, text: &str) {
    let (unfinished, path) = (folder.join(format!("{name}.new")), folder.join(name));
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(unfinished, path));
    written.unwrap_or_else(|error| panic!("can't write {name}: {error}"));
}
