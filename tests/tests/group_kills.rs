//! A rank that is killed while three groups are in use at once, on every wire between processes.
//!
//! The victim is a member of two of them: on these, all survivors' calls and the next ones fail and name it.
//! The third group goes on. Prints how long after the kill the calls return. `ci/exhaustive.sh` kills many.
//!
//! UCX's own shared memory is an exception: one queue of a rank receives from all others, and nothing is
//! delivered behind a slot that the victim has reserved and not written. Then the survivors' messages are
//! stuck too, which happens once in some hundred kills. By default, ranks of a host do not use it.

use std::thread::sleep;
use std::time::Duration;

use brevity_testing::{Wire, on_every_wire_of_processes};
use brevity_tests::faults::{Ended, Job, Kind, Report, now};
use brevity_tests::mixed::ThreeGroups;
use rustix::process::{Pid, Signal, kill_process};

const WORLD_SIZE: u32 = 4;

/// The deadline of calls: an error must come long before. With a queue that may be stuck, it is nearer.
const FAR: &str = "50";
const NEAR: &str = "20";

/// The kills on each wire, here and in `ci/exhaustive.sh`.
const FEW: u32 = 3;
const MANY: u32 = 100;

on_every_wire_of_processes! {
    a_killed_rank_closes_its_groups_alone => |wire| kill(wire, FEW);
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_kills() {
    let wires = Wire::ALL.into_iter().filter(|wire| wire.is_here());
    wires.filter(|wire| !matches!(wire, Wire::Local | Wire::TcpRings)).for_each(|wire| kill(wire, MANY));
}

fn kill(wire: Wire, kills: u32) {
    let ended: Vec<_> = (1..=kills).map(|seed| kill_one(wire, seed)).collect();
    let stuck = ended.iter().filter(|delays| delays.is_none()).count();
    let mut delays: Vec<Duration> = ended.into_iter().flatten().flatten().collect();
    delays.sort();
    let (Some(median), Some(most)) = (delays.get(delays.len() / 2), delays.last()) else {
        panic!("{wire:?}: the queues of all {kills} kills are stuck")
    };
    println!(
        "{wire:?}: {kills} kills end calls after a median of {median:?}, at most {most:?}; {stuck} stuck"
    );
}

/// Returns how long after the kill each survivor's calls on the groups of the victim returned; nothing if a
/// queue is stuck.
fn kill_one(wire: Wire, seed: u32) -> Option<Vec<Duration>> {
    let random = seed.wrapping_mul(0x9e37_79b9) >> 8;
    let (victim, are_apart) = (random % WORLD_SIZE, (random / WORLD_SIZE).is_multiple_of(2));
    let groups = ThreeGroups { world_size: WORLD_SIZE, victim, are_apart };
    let words = [&*victim.to_string(), if are_apart { "apart" } else { "together" }];
    let may_be_stuck = wire == Wire::UcxShared;
    let timeout = [("BREVITY_TIMEOUT", if may_be_stuck { NEAR } else { FAR })];
    let job = Job::launch(env!("CARGO_BIN_EXE_member"), &words, WORLD_SIZE, wire, &timeout);
    job.await_ready();
    sleep(Duration::from_micros(u64::from(random / 16 % 30_000)));
    let process = Pid::from_raw(job.ranks()[victim as usize].0 as i32);
    let killed = now();
    assert_eq!(process.map(|process| kill_process(process, Signal::KILL)), Some(Ok(())));

    let survivors = (0..WORLD_SIZE).filter(|rank| *rank != victim);
    let reports: Vec<_> = survivors.map(|rank| (rank, job.report(rank))).collect();
    let is_third = |(name, _): &(String, Ended)| name == "third";
    if may_be_stuck && reports.iter().any(|(_, report)| report.others.iter().any(is_third)) {
        return None;
    }
    Some(reports.iter().flat_map(|(rank, report)| delays(report, &groups, *rank, killed)).collect())
}

fn delays(report: &Report, groups: &ThreeGroups, rank: u32, killed: Duration) -> Vec<Duration> {
    let case = format!("{groups:?}, rank {rank}: {report:?}");
    let is_right = |ended: &Ended| ended.kind == Kind::Lost && ended.rank == groups.victim;
    assert!(report.later.as_ref().is_some_and(is_right), "{case}");
    let mut expected: Vec<String> = Vec::new();
    for which in (0..2).filter(|which| groups.has(*which, rank)) {
        expected.extend([format!("group-{which}"), format!("later-{which}")]);
    }
    let mut found: Vec<&String> = report.others.iter().map(|(name, _)| name).collect();
    found.sort();
    expected.sort();
    assert!(expected.iter().eq(found), "{case}");
    assert!(report.others.iter().all(|(_, ended)| is_right(ended)), "{case}");
    let first = report.others.iter().filter(|(name, _)| name.starts_with("group"));
    first.map(|(_, ended)| ended.at.saturating_sub(killed)).collect()
}
