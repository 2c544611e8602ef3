//! Ranks that are killed and come back, on every wire between processes: files and memory of those that stay.
//!
//! Continuous integration kills a few; `ci/exhaustive.sh` kills a hundred (`BREVITY_CYCLES=100`). UCX's own
//! shared memory is left out: its queues may be stuck after a death (see `group_kills`).

use std::process::Command;

use brevity_testing::worlds::reserved_port;
use brevity_testing::{Process, Wire, on_every_wire_of_processes};
use brevity_tests::faults::{Job, Kind};

const WORLD_SIZE: u32 = 3;

/// The cycles after which files and memory must stay as they are, in a long run.
const WARM: u32 = 20;

/// What one more cycle may leave behind.
const KIB_A_CYCLE: u64 = 64;

/// What is in use for a moment, as messages that are on their way.
const SLACK_KIB: u64 = 4096;

on_every_wire_of_processes! {
    the_killed_come_back => kill_others;
    rank_0_comes_back_too => kill_all_in_turn;
}

fn cycles() -> u32 {
    std::env::var("BREVITY_CYCLES").map_or(5, |cycles| cycles.parse().unwrap())
}

fn command(rank: u32, incarnation: u32, (wire, port, cycles): (Wire, u16, u32)) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_grow"));
    command.arg(cycles.to_string()).envs(wire.environment().iter().copied());
    let numbers = [("BREVITY_RANK", rank), ("BREVITY_WORLD_SIZE", WORLD_SIZE)];
    command.envs(numbers.map(|(name, number)| (name, number.to_string())));
    command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_MASTER_RESERVED", "1");
    command.env("BREVITY_KEY", "correct horse battery staple").env("BREVITY_JOB", format!("grow {port}"));
    if incarnation > 0 {
        command.env("BREVITY_INCARNATION", incarnation.to_string());
    }
    command
}

/// Kills a rank in each cycle and starts it again; gives the files and the memory of rank 0 after each.
fn kill(wire: Wire, cycles: u32, victim: impl Fn(u32) -> u32) -> Vec<(usize, u64)> {
    let (_reserved, port) = reserved_port();
    let place = (wire, port, cycles);
    let mut job = Job::of_commands((0..WORLD_SIZE).map(|rank| command(rank, 0, place)).collect());
    let mut processes: Vec<Process> = job.ranks().to_vec();
    let mut incarnations = vec![0; WORLD_SIZE as usize];
    let mut left = Vec::new();
    for rank in 0..WORLD_SIZE as usize {
        job.until(&format!("rank {rank} is not ready"), || job.is_ready(rank));
    }
    for cycle in 1..=cycles {
        let rank = victim(cycle);
        processes[rank as usize].signal("KILL");
        incarnations[rank as usize] += 1;
        job.add(command(rank, incarnations[rank as usize], place));
        processes[rank as usize] = *job.ranks().last().unwrap();
        (0..WORLD_SIZE).for_each(|rank| job.await_on(rank, cycle));
        left.push((processes[0].descriptors(), processes[0].resident_kib()));
    }
    for rank in 0..WORLD_SIZE {
        let report = job.report(rank);
        assert!(report.later.is_none(), "{report:?}");
        assert!(
            report.others.iter().all(|(_, on)| (on.kind, on.rank) == (Kind::On, WORLD_SIZE)),
            "{report:?}"
        );
    }
    left
}

fn kill_others(wire: Wire) {
    if wire == Wire::UcxShared {
        return;
    }
    let cycles = cycles();
    let left = kill(wire, cycles, |cycle| 1 + cycle % (WORLD_SIZE - 1));
    println!("{wire:?}: files and KiB of rank 0 after each cycle: {left:?}");
    let files: Vec<usize> = left.iter().map(|(files, _)| *files).collect();
    let most = files.iter().take(3).max().unwrap();
    assert!(files.iter().all(|later| later <= &(most + 2)), "{files:?}");
    if cycles > WARM {
        let kib = |cycle: u32| left[cycle as usize - 1].1;
        let warm = kib(WARM);
        // In the last cycle it may have ended.
        for cycle in WARM + 1..cycles {
            let allowed = u64::from(cycle - WARM) * KIB_A_CYCLE + SLACK_KIB;
            assert!(
                kib(cycle) <= warm + allowed,
                "{wire:?}: {} KiB after cycle {cycle}, {warm} before",
                kib(cycle)
            );
        }
        assert!(kib(cycles - 1) <= warm + u64::from(cycles - 1 - WARM) * KIB_A_CYCLE, "{left:?}");
    }
}

fn kill_all_in_turn(wire: Wire) {
    if wire != Wire::UcxShared {
        kill(wire, 4, |cycle| (cycle - 1) % WORLD_SIZE);
    }
}
