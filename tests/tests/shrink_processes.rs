//! Groups that go on without killed and stopped ranks, on every wire between processes.
//!
//! Prints how long after a kill the first call of the new group has ended; `ci/exhaustive.sh` checks the
//! median. UCX's own shared memory is left out: its queues may be stuck after a death (see `group_kills`).

use std::time::Duration;

use brevity_testing::{Wire, on_every_wire_of_processes};
use brevity_tests::faults::{Ended, Job, Kind, Report, now};

const SHRINK: &str = env!("CARGO_BIN_EXE_shrink");

const WORLD_SIZE: u32 = 4;

/// Kills of the exhaustive test on each wire, and the median of their delays, where the ranks have the
/// processors to themselves.
const KILLS: u32 = 31;
const MEDIAN: Duration = Duration::from_millis(50);

on_every_wire_of_processes! {
    those_who_are_left_go_on_after_two_kills => kill_two;
    a_stopped_rank_is_excluded => stop_each;
}

/// The victims leave a majority of those that were there before: one after the other, rank 0 among them.
fn kill_two(wire: Wire) {
    if wire == Wire::UcxShared {
        return;
    }
    let job = Job::launch(SHRINK, &["2"], WORLD_SIZE, wire, &[]);
    job.await_ready();
    let mut killed = Vec::new();
    for (loss, victim) in [(1, 2_u32), (2, 0)] {
        killed.push((victim, now()));
        job.ranks()[victim as usize].signal("KILL");
        let left = (0..WORLD_SIZE).filter(|rank| killed.iter().all(|(victim, _)| victim != rank));
        left.for_each(|rank| job.await_on(rank, loss));
    }
    let mut delays = Vec::new();
    for rank in [1, 3] {
        let report = job.report(rank);
        delays.extend((1..).zip(&killed).map(|(loss, (_, killed))| delay(&report, loss, *killed)));
    }
    job.go();
    delays.sort();
    println!("{wire:?}: the first call of a new group ends {delays:?} after a kill");
    assert!(delays.iter().all(|delay| *delay < Duration::from_secs(10)), "{delays:?}");
}

/// From a kill to the end of the first call of the group that came of it.
fn delay(report: &Report, loss: u32, killed: Duration) -> Duration {
    let name = format!("on-{loss}");
    let on = report.others.iter().find(|(which, _)| *which == name).map(|(_, ended)| *ended);
    let Some(Ended { kind: Kind::On, rank: size, at, .. }) = on else { panic!("{report:?}") };
    assert_eq!(size, WORLD_SIZE - loss, "{report:?}");
    at.saturating_sub(killed)
}

#[test]
#[ignore = "takes minutes, and processors for itself: see ci/exhaustive.sh"]
fn exhaustive_delays() {
    let is_left_out = |wire: &Wire| matches!(wire, Wire::Local | Wire::TcpRings | Wire::UcxShared);
    for wire in Wire::ALL.into_iter().filter(|wire| wire.is_here() && !is_left_out(wire)) {
        let mut delays: Vec<Duration> = (0..KILLS).map(|kill| kill_one(wire, kill % WORLD_SIZE)).collect();
        delays.sort();
        let (median, most) = (delays[delays.len() / 2], delays[delays.len() - 1]);
        println!("{wire:?}: the first call of a new group ends {median:?} after a kill, at most {most:?}");
        assert!(median <= MEDIAN, "{wire:?}: {delays:?}");
    }
}

/// Until the last rank that is left has ended the call.
fn kill_one(wire: Wire, victim: u32) -> Duration {
    let job = Job::launch(SHRINK, &["1"], WORLD_SIZE, wire, &[]);
    job.await_ready();
    let killed = now();
    job.ranks()[victim as usize].signal("KILL");
    let left = (0..WORLD_SIZE).filter(|rank| *rank != victim);
    let delay = left.map(|rank| delay(&job.report(rank), 1, killed)).max();
    job.go();
    delay.unwrap_or_default()
}

/// The one that leads the agreement, and another one.
fn stop_each(wire: Wire) {
    if wire != Wire::UcxShared {
        [0, 2].into_iter().for_each(|stopped| stop_one(wire, stopped));
    }
}

fn stop_one(wire: Wire, stopped: u32) {
    let timeout = [("BREVITY_TIMEOUT", "1")];
    let job = Job::launch(SHRINK, &["1"], WORLD_SIZE, wire, &timeout);
    job.await_ready();
    job.ranks()[stopped as usize].signal("STOP");
    let others = (0..WORLD_SIZE).filter(|rank| *rank != stopped);
    for rank in others {
        job.await_on(rank, 1);
        let report = job.report(rank);
        let [(_, on)] = report.others[..] else { panic!("{report:?}") };
        assert_eq!((on.kind, on.rank), (Kind::On, WORLD_SIZE - 1), "{report:?}");
        assert!(on.after < Duration::from_secs(20), "{report:?}");
    }
    job.ranks()[stopped as usize].signal("CONT");
    let report = job.report(stopped);
    job.go();
    assert!(report.later.is_some_and(|ended| ended.kind == Kind::Excluded), "{report:?}");
}
