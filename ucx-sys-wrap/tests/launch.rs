//! Jobs of processes: how they end, and that no process is left over. The ranks are shell scripts. Where a
//! test needs a separate launcher, that is this test program, with a variable that says what to do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write, stderr};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use brevity_testing::Process;
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::bootstrap::{Choice, Identity};
use ucx_sys_wrap::launch::{Ending, Launch, Outcome, die_with_parent, guard, is_launched};

#[path = "launch/restarts.rs"]
mod restarts;
#[path = "launch/signals.rs"]
mod signals;

/// Only distinguishes slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells this test program its role.
const PART: &str = "LAUNCH_TEST_PART";

/// The name of the variable with the shell that starts the launcher's guard.
const GUARD_SHELL: &str = "LAUNCH_TEST_GUARD_SHELL";

fn shell(ranks: u32, script: &str) -> Launch {
    Launch::new("/bin/sh", ["-c", script]).ranks(ranks)
}

fn outcome(launch: Launch) -> Outcome {
    launch.spawn().unwrap().wait().unwrap()
}

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    (folder, path)
}

/// This program with the role `part`.
fn playing(part: &str) -> Command {
    let (program, words) = playing_words();
    let mut command = Command::new(program);
    command.args(words).env(PART, part);
    command
}

fn playing_words() -> (std::path::PathBuf, [&'static str; 3]) {
    (std::env::current_exe().unwrap(), ["--exact", "part", "--nocapture"])
}

/// Not a test: what this program does as a launcher, a rank or a guard.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let (program, words) = playing_words();
    match &*part {
        "rank" => {
            die_with_parent();
            assert!(is_launched());
            let mut child = Command::new("sleep").arg("100").spawn().unwrap();
            // In one write, because the other rank writes to the same pipe.
            let line = format!("processes {} {}\n", std::process::id(), child.id());
            stderr().write_all(line.as_bytes()).unwrap();
            child.wait().unwrap();
        }
        "guard" => guard(),
        "launcher" => {
            let job = Launch::new(&program, words).ranks(2).env(PART, "rank");
            // The guard is not a rank: a script gives it its role.
            let script = format!("{PART}=guard exec \"$0\" \"$@\"");
            let guard_words = ["-c", &script, program.to_str().unwrap()].into_iter().chain(words);
            let shell = std::env::var(GUARD_SHELL).unwrap_or_else(|_| "/bin/sh".into());
            restarts::wanted(job).guard(shell, guard_words).spawn().unwrap().wait().unwrap();
        }
        "interrupted" => {
            assert_eq!(outcome(shell(1, "exit 0")).first_failure, None);
            assert_eq!(outcome(shell(1, "kill -TERM $PPID; sleep 100")).exit_status(), 128 + 15);
            println!("done");
            thread::sleep(PATIENCE);
        }
        "stubborn" => {
            let (_folder, path) = folder();
            // Told to end only when neither reacts any more.
            let script = format!(
                "trap '' TERM INT HUP; touch {path}/$BREVITY_RANK; \
                 until [ -e {path}/0 ] && [ -e {path}/1 ]; do sleep 0.01; done; kill -TERM $PPID; sleep 100"
            );
            let ended = outcome(shell(2, &script).grace(Duration::from_millis(300)));
            assert_eq!(ended.endings, [Ending::Killed(9); 2]);
            println!("done");
        }
        "tagged" => {
            outcome(shell(2, "echo one; printf two; echo three >&2").tag_output(true));
        }
        "script" => signals::launch_script(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_rank_is_told_its_place() {
    let (_folder, path) = folder();
    let script = format!("env | grep ^BREVITY_ > {path}/$BREVITY_RANK");
    assert_eq!(
        outcome(shell(3, &script).transport(Choice::Tcp).env("BREVITY_JOIN_TIMEOUT", "7")).first_failure,
        None
    );
    let read = |rank: u32| {
        let text = std::fs::read_to_string(format!("{path}/{rank}")).unwrap();
        let variables: Vec<(String, String)> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let find =
            |name: &str| variables.iter().find(|(found, _)| found == name).map(|(_, value)| value.into());
        Identity::from_lookup(find).unwrap()
    };
    let all: Vec<Identity> = (0..3).map(read).collect();
    for (rank, identity) in (0..).zip(&all) {
        assert_eq!((identity.rank, identity.world_size, identity.transport), (Rank(rank), 3, Choice::Tcp));
        assert!(identity.key.is_some() && identity.port_reserved && identity.master.is_loopback());
        assert_eq!(identity.join_timeout, Duration::from_secs(7));
        assert_eq!(
            (&identity.key, &identity.master, &identity.job),
            (&all[0].key, &all[0].master, &all[0].job)
        );
    }
    assert_eq!(outcome(shell(3, &script)).first_failure, None);
    assert_ne!(read(0).key, all[0].key, "every job has its own key");
}

#[test]
fn endings_and_exit_statuses() {
    for (script, ending, status, report) in [
        ("exit 0", Ending::Exited(0), 0, None),
        ("test $BREVITY_RANK != 1 || exit 7", Ending::Exited(7), 7, Some("rank 1 ended with status 7")),
        (
            "test $BREVITY_RANK != 1 || kill -9 $$",
            Ending::Killed(9),
            137,
            Some("rank 1 was killed by signal 9"),
        ),
    ] {
        let outcome = outcome(shell(3, script));
        assert_eq!(outcome.endings, [Ending::Exited(0), ending, Ending::Exited(0)], "{script}");
        assert_eq!((outcome.exit_status(), outcome.report().as_deref()), (status, report), "{script}");
    }
}

#[test]
fn the_rank_that_failed_first_is_named_though_others_fail_because_of_it() {
    for _ in 0..10 {
        let (_folder, path) = folder();
        assert!(Command::new("mkfifo").arg(format!("{path}/alive")).status().unwrap().success());
        // Rank 2 holds the pipe open; the others see it close when rank 2 is killed, which is when all have
        // opened it.
        let script = format!(
            "if test $BREVITY_RANK = 2; then exec 3>{path}/alive; \
             until [ -e {path}/0 ] && [ -e {path}/1 ] && [ -e {path}/3 ]; do sleep 0.01; done; \
             kill -9 $$; fi; \
             exec 3<{path}/alive; touch {path}/$BREVITY_RANK; cat <&3; exit 3"
        );
        let outcome = outcome(shell(4, &script));
        assert_eq!(
            outcome.report().as_deref(),
            Some("rank 2 was killed by signal 9"),
            "{:?}",
            outcome.endings
        );
        assert_eq!(outcome.endings[0], Ending::Exited(3));
    }
}

#[test]
fn ranks_that_go_on_after_a_failure_get_their_grace_and_are_killed() {
    let (_folder, path) = folder();
    let script = format!(
        "test $BREVITY_RANK = 0 && exit 4; trap '' TERM INT HUP; sleep 100 & echo $! > {path}/$BREVITY_RANK; \
         wait; wait"
    );
    let start = Instant::now();
    let outcome = outcome(shell(3, &script).grace(Duration::from_secs(1)));
    assert!(start.elapsed() >= Duration::from_secs(1) && start.elapsed() < PATIENCE);
    assert_eq!(outcome.endings, [Ending::Exited(4), Ending::Killed(9), Ending::Killed(9)]);
    assert_eq!(outcome.first_failure, Some(Rank(0)));
    for rank in 1..3 {
        let sleeper: u32 = std::fs::read_to_string(format!("{path}/{rank}")).unwrap().trim().parse().unwrap();
        assert_ends(sleeper);
    }
}

/// `setsid`, `timeout` and interactive shells leave the process group that they were started in.
#[test]
fn a_rank_in_a_process_group_of_its_own_is_killed_after_the_grace() {
    let (_folder, path) = folder();
    let script = format!(
        "if [ $BREVITY_RANK = 1 ]; then exec setsid sh -c 'echo >{path}/apart; exec sleep 100'; fi; \
         until [ -e {path}/apart ]; do sleep 0.01; done; exit 3"
    );
    let start = Instant::now();
    let outcome = outcome(shell(2, &script).grace(Duration::from_millis(200)));
    assert_eq!(outcome.endings, [Ending::Exited(3), Ending::Killed(9)]);
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn what_ranks_leave_behind_is_ended_with_the_job() {
    let (_folder, path) = folder();
    let start = Instant::now();
    let outcome = outcome(shell(1, &format!("sleep 100 & echo $! > {path}/sleeper")).tag_output(true));
    assert_eq!(outcome.first_failure, None);
    assert!(start.elapsed() < PATIENCE);
    assert_ends(std::fs::read_to_string(format!("{path}/sleeper")).unwrap().trim().parse().unwrap());
}

#[test]
fn a_job_that_is_dropped_is_ended() {
    let job = shell(3, "sleep 100").spawn().unwrap();
    let processes = job.process_ids();
    assert_eq!(processes.len(), 3);
    drop(job);
    processes.into_iter().for_each(assert_ends);
}

#[test]
fn jobs_that_can_not_be() {
    assert!(shell(0, "exit 0").spawn().is_err());
    let error = Launch::new("/no/such/program", [""; 0]).ranks(2).spawn().map(drop).unwrap_err().to_string();
    assert!(error.starts_with("can't start /no/such/program: No such file"), "{error}");
}

#[test]
fn only_rank_0_reads_the_launchers_input() {
    // Tests have no terminal; for any input, ranks above 0 find it empty.
    let outcome = outcome(shell(2, "test $BREVITY_RANK = 0 || test -z \"$(cat)\""));
    assert_eq!(outcome.first_failure, None);
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let (mut launcher, processes) = launcher("/bin/sh");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    processes.into_iter().for_each(assert_ends);
}

#[test]
fn a_guard_that_is_killed_is_followed_by_another() {
    let (mut launcher, processes) = launcher("/bin/sh");
    let mut killed = Vec::new();
    for _ in 0..3 {
        let guard = guard_of(&launcher, &killed);
        signal(guard, "KILL");
        killed.push(guard);
    }
    guard_of(&launcher, &killed);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    processes.into_iter().for_each(assert_ends);
}

#[test]
fn a_guard_that_can_not_be_started_is_started_later() {
    let (_folder, path) = folder();
    let shell = format!("{path}/sh");
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    let (mut launcher, processes) = launcher(&shell);
    let guard = guard_of(&launcher, &[]);
    std::fs::remove_file(&shell).unwrap();
    signal(guard, "KILL");
    // Reaped: the launcher starts another.
    await_that("the guard is left", || !Path::new(&format!("/proc/{guard}")).exists());
    std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
    guard_of(&launcher, &[guard]);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    processes.into_iter().for_each(assert_ends);
}

#[test]
fn a_guard_that_is_stopped_holds_nobody() {
    let (mut launcher, processes) = launcher("/bin/sh");
    let guard = guard_of(&launcher, &[]);
    signal(guard, "STOP");
    await_that("the guard goes on", || Process(guard).is_stopped());
    processes.iter().for_each(|process| signal(*process, "KILL"));
    assert!(wait(&mut launcher).success(), "the launcher did not end");
    assert!(!Path::new(&format!("/proc/{guard}")).exists(), "the guard is left");
}

/// The guard of a launcher, by its name. It starts slightly after the launcher, and is none of those that
/// were `killed`.
fn guard_of(launcher: &Child, killed: &[u32]) -> u32 {
    let is_guard = |process: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        name.trim() == "job-guard" && Process(*process).is_running() && !killed.contains(process)
    };
    let mut found = None;
    await_that("there is no guard", || {
        found = children(launcher.id()).into_iter().find(is_guard);
        found.is_some()
    });
    found.unwrap()
}

fn signal(process: u32, signal: &str) {
    assert!(
        Command::new("kill").args([format!("-{signal}"), process.to_string()]).status().unwrap().success()
    );
}

fn await_that(otherwise: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{otherwise}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A launcher of two ranks with a guard that `shell` starts, and its four other processes: the ranks and
/// their children.
fn launcher(shell: &str) -> (Child, Vec<u32>) {
    let mut launcher = playing("launcher")
        .env(GUARD_SHELL, shell)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(launcher.stderr.take().unwrap()).lines();
    let told: Vec<String> =
        lines.map(Result::unwrap).filter(|line| line.starts_with("processes")).take(2).collect();
    let processes = told.iter().flat_map(|line| line.split(' ').skip(1)).map(|id| id.parse::<u32>().unwrap());
    let processes: Vec<u32> = processes.collect();
    assert_eq!(processes.len(), 4, "{told:?}");
    assert!(processes.iter().all(|&process| Process(process).is_running()));
    (launcher, processes)
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.split_whitespace().nth(1) == Some(&parent.to_string()))
    };
    processes.filter(is_child).collect()
}

#[test]
fn a_signal_reaches_the_ranks_and_afterwards_does_what_it_always_did() {
    let mut program = playing("interrupted").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("done") {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the program ended early");
    }
    assert!(Command::new("kill").args(["-INT", &program.id().to_string()]).status().unwrap().success());
    assert_eq!(wait(&mut program).signal(), Some(2));
}

#[test]
fn ranks_that_do_not_heed_a_signal_are_killed_after_their_grace() {
    let mut program = playing("stubborn").spawn().unwrap();
    assert!(wait(&mut program).success());
}

#[test]
fn lines_are_tagged_with_their_rank() {
    let output = playing("tagged").output().unwrap();
    let lines = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.starts_with('[')).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(output.stdout), ["[0] one", "[0] two", "[1] one", "[1] two"]);
    assert_eq!(lines(output.stderr), ["[0] three", "[1] three"]);
}

/// Waits for a process, killing it if it takes too long.
fn wait(process: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            process.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the process is gone, or only an unreaped entry is left.
fn assert_ends(process: u32) {
    let start = Instant::now();
    while Process(process).is_running() {
        assert!(start.elapsed() < Duration::from_secs(10), "process {process} is left");
        thread::sleep(Duration::from_millis(5));
    }
}
