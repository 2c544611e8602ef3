//! Ranks that are processes: every collective over tcp and UCX, and a rank that is killed.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::launch::{Ending, Launch, Outcome};
use brevity::transport::bootstrap::Choice;
use brevity_testing::{Process, Wire, on_every_wire_of_processes, ucx_is_here};
use brevity_tests::suite::WORLD_SIZES;
use brevity_tests::{LOST_STATUS, TIMEOUT_STATUS};

const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// The limit for the processes of one test; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(100);

fn run_suite(transport: Choice, environment: &[(&str, &str)]) {
    for world_size in WORLD_SIZES {
        let expected = if world_size == 1 { "local" } else { transport.name() };
        let mut launch = Launch::new(RANK, ["suite"]).ranks(world_size).transport(transport);
        launch = launch.env("EXPECTED_TRANSPORT", expected).env("BREVITY_TIMEOUT", "60");
        for (name, value) in environment {
            launch = launch.env(*name, *value);
        }
        let outcome = launch.spawn().unwrap().wait().unwrap();
        assert_eq!(outcome.report(), None, "{transport} with {environment:?}, P = {world_size}");
    }
}

#[test]
fn every_collective_over_tcp() {
    run_suite(Choice::Tcp, &[]);
}

/// Ranks that share the memory of a part of the machine, as those of several hosts do.
#[test]
fn every_dense_collective_by_hosts() {
    for hosts in ["0,0,1,1", "0,0,0,1,1,1", "0,1,1,2", "0,1,0,1"] {
        let ranks = hosts.split(',').count() as u32;
        let launch = Launch::new(RANK, ["levels", hosts]).ranks(ranks).transport(Choice::Tcp);
        let outcome = launch.env("BREVITY_TIMEOUT", "60").spawn().unwrap().wait().unwrap();
        assert_eq!(outcome.report(), None, "{hosts}");
    }
}

on_every_wire_of_processes! {
    every_dense_collective => |wire: Wire| {
        for world_size in [2, 3, 4] {
            let mut launch = Launch::new(RANK, ["dense"]).ranks(world_size);
            let segment = ("BREVITY_SEGMENT", "4096");
            for (name, value) in wire.environment().iter().chain([&segment, &("BREVITY_TIMEOUT", "60")]) {
                launch = launch.env(*name, *value);
            }
            let outcome = launch.spawn().unwrap().wait().unwrap();
            assert_eq!(outcome.report(), None, "{wire:?}, P = {world_size}");
        }
    };
}

/// UCX's shared memory, and its tcp.
#[test]
fn ranks_may_make_several_groups() {
    for transport in [Choice::Tcp, Choice::Auto] {
        let outcome =
            Launch::new(RANK, ["groups"]).ranks(2).transport(transport).spawn().unwrap().wait().unwrap();
        assert_eq!(outcome.report(), None);
    }
}

#[test]
fn every_collective_over_ucx() {
    if ucx_is_here() {
        run_suite(Choice::Ucx, &[]);
        run_suite(Choice::Ucx, &[("UCX_TLS", "tcp,self")]);
    }
}

/// Four ranks that run forever. Sends rank 2 a signal once all are in the middle of their work. Returns how
/// they end, and their processes.
fn strike(launch: Launch, signal: &str) -> (Outcome, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let job = launch.ranks(4).env("READY_FOLDER", folder.path()).spawn().unwrap();
    let processes = job.process_ids();
    let waiter = std::thread::spawn(move || job.wait().unwrap());
    let start = Instant::now();
    while !(0..4).all(|rank| folder.path().join(rank.to_string()).exists()) {
        assert!(!waiter.is_finished(), "the ranks ended by themselves");
        assert!(start.elapsed() < PATIENCE, "the ranks do not begin");
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(100));
    let struck = Instant::now();
    assert!(Command::new("kill").args([signal, &processes[2].to_string()]).status().unwrap().success());
    while !waiter.is_finished() {
        assert!(struck.elapsed() < PATIENCE, "the others hang");
        sleep(Duration::from_millis(5));
    }
    println!("all had ended {:?} after {signal}", struck.elapsed());
    (waiter.join().unwrap(), processes)
}

/// A rank is killed while all exchange gradients without pause: the others name it.
fn kill_one(transport: Choice, mode: &str) {
    let (outcome, processes) = strike(Launch::new(RANK, [mode]).transport(transport), "-9");
    let Outcome { endings, first_failure, .. } = outcome;
    let lost = Ending::Exited(i32::from(LOST_STATUS));
    assert_eq!(endings, [lost, lost, Ending::Killed(9), lost]);
    assert!(first_failure.is_some());
    for process in processes {
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists(), "process {process} is left");
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others_over_tcp() {
    kill_one(Choice::Tcp, "exchange-for-ever");
    kill_one(Choice::Tcp, "all-reduce-for-ever");
}

#[test]
fn a_killed_rank_is_named_by_all_others_over_ucx() {
    if ucx_is_here() {
        kill_one(Choice::Ucx, "exchange-for-ever");
        kill_one(Choice::Ucx, "all-reduce-for-ever");
    }
}

/// A rank is stopped in the middle of an all-reduce over shared memory: the others' deadline ends it.
fn stop_one(transport: Choice) {
    let launch = Launch::new(RANK, ["all-reduce-for-ever"]).transport(transport).env("BREVITY_TIMEOUT", "2");
    // The stopped rank is killed after this time.
    let launch = launch.grace(Duration::from_secs(5));
    let (Outcome { endings, .. }, _) = strike(launch, "-STOP");
    let timeout = Ending::Exited(i32::from(TIMEOUT_STATUS));
    assert_eq!((endings[0], endings[1], endings[3]), (timeout, timeout, timeout));
}

#[test]
fn a_stopped_rank_is_named_when_the_deadline_passes_over_tcp() {
    stop_one(Choice::Tcp);
}

#[test]
fn a_stopped_rank_is_named_when_the_deadline_passes_over_ucx() {
    if ucx_is_here() {
        stop_one(Choice::Ucx);
    }
}

/// Ranks that wait for rank 2, which is late for what `mode` says, are stopped together with it for longer
/// than their deadline.
fn stop_all(transport: Choice, mode: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mut launch = Launch::new(RANK, [mode]).ranks(4).transport(transport);
    for (name, value) in [("BREVITY_TIMEOUT", "3"), ("BREVITY_JOIN_TIMEOUT", "3")] {
        launch = launch.env(name, value);
    }
    let job = launch.env("READY_FOLDER", folder.path()).spawn().unwrap();
    let ranks: Vec<Process> = job.process_ids().into_iter().map(Process).collect();
    let waiter = std::thread::spawn(move || job.wait().unwrap());
    let start = Instant::now();
    let await_that = |condition: &dyn Fn() -> bool| {
        while !condition() {
            assert!(!waiter.is_finished(), "{mode}: the ranks ended by themselves");
            assert!(start.elapsed() < PATIENCE, "{mode}: nothing comes further");
            sleep(Duration::from_millis(5));
        }
    };
    await_that(&|| (0..4).all(|rank| folder.path().join(rank.to_string()).exists()));
    // They most likely wait by then; if one does not, the test covers less.
    sleep(Duration::from_millis(200));
    ranks.iter().for_each(|rank| rank.signal("STOP"));
    await_that(&|| ranks.iter().all(|rank| rank.is_stopped()));
    sleep(Duration::from_millis(3500));
    ranks.iter().for_each(|rank| rank.signal("CONT"));
    // They look at the clock meanwhile.
    sleep(Duration::from_millis(200));
    std::fs::write(folder.path().join("go"), "").unwrap();
    let outcome = waiter.join().unwrap();
    assert_eq!(outcome.endings, [Ending::Exited(0); 4], "{transport}, {mode}");
}

/// All ways at once, since they take the time for which the ranks are stopped.
fn stop_all_in_every_way(transport: Choice) {
    std::thread::scope(|scope| {
        for mode in ["late-join", "late-call", "late-handle"] {
            scope.spawn(move || stop_all(transport, mode));
        }
    });
}

#[test]
fn time_that_the_whole_job_stands_still_does_not_count_over_tcp() {
    stop_all_in_every_way(Choice::Tcp);
}

#[test]
fn time_that_the_whole_job_stands_still_does_not_count_over_ucx() {
    if ucx_is_here() {
        stop_all_in_every_way(Choice::Ucx);
    }
}

#[test]
fn the_launcher_leaves_nothing_when_it_is_killed() {
    let mut launcher = Command::new(RANK).arg("launch-for-ever").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(launcher.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let ranks: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ranks.len(), 3, "{line}");
    sleep(Duration::from_millis(500));
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let start = Instant::now();
    while ranks.iter().any(|rank| Process(*rank).is_running()) {
        assert!(start.elapsed() < PATIENCE, "a rank outlives its launcher");
        sleep(Duration::from_millis(10));
    }
}
