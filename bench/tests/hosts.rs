//! `bench/net/hosts.sh`: jobs on several hosts, and that no host is left behind.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use brevity::{Group, ReduceOp};

/// The limit for one wait; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says where a rank of the job of these tests writes.
const FOLDER: &str = "HOSTS_TEST_FOLDER";

fn script(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("net/hosts.sh"));
    command.args(arguments).env("HOSTS", name).stdin(Stdio::null());
    command
}

/// A name for the hosts of one test; `None`, with a word, where hosts can't be made.
fn name() -> Option<String> {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let name = format!("hosts-test-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed));
    let probe = script(&name, &["with", "1", "none", "1", "true"]).output().unwrap();
    if probe.status.success() {
        return Some(name);
    }
    let why = String::from_utf8_lossy(&probe.stderr).into_owned();
    let is_required = env::var_os("BREVITY_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
    assert!(!is_required, "no hosts can be made here: {why}");
    println!("skipped: no hosts can be made here: {why}");
    None
}

fn left(name: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/run/netns").unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name)).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_until(what: &str, is_done: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn end_of(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it did not end in {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A rank of the job below; no test by itself.
#[test]
fn rank_of_the_job() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let group = Group::from_env().unwrap();
    let mut sum = [group.rank() as f32 + 1.0];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let ranks = group.hosts().unwrap().local.world_size();
    let control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let text = format!("{} {} {ranks} {}", sum[0], env::var("BREVITY_HOST_ID").unwrap(), control.trim());
    fs::write(Path::new(&folder).join(group.rank().to_string()), text).unwrap();
}

#[test]
fn a_job_runs_on_two_hosts_of_two_ranks() {
    let Some(name) = name() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = env::current_exe().unwrap();
    let job = ["with", "2", "1gbit", "256kb", program.to_str().unwrap(), "--exact", "rank_of_the_job"];
    let mut command = script(&name, &job);
    let output = command.env(FOLDER, folder.path()).env("RANKS_PER_HOST", "2").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    for rank in 0..4 {
        let text = fs::read_to_string(folder.path().join(rank.to_string())).unwrap();
        assert_eq!(text, format!("10 {name}-{} 2 reno", rank / 2 + 1), "rank {rank}");
    }
    assert_eq!(left(&name), Vec::<PathBuf>::new());
}

#[test]
fn two_jobs_run_at_once_on_hosts_of_their_own() {
    let (Some(first), Some(second)) = (name(), name()) else { return };
    let job = ["with", "2", "none", "1", "sh", "-c", "sleep 0.5; exit $RANK"];
    let running = [&first, &second].map(|name| script(name, &job).spawn().unwrap());
    // The status of the rank that fails.
    assert_eq!(running.map(end_of), [Some(1), Some(1)]);
    assert_eq!((left(&first), left(&second)), (Vec::new(), Vec::new()));
}

#[test]
fn hosts_are_made_used_and_removed_one_by_one() {
    let Some(name) = name() else { return };
    let run = |arguments: &[&str]| script(&name, arguments).output().unwrap().status.code();
    assert_eq!(run(&["run", "2", "true"]), Some(2), "there are no hosts");
    assert_eq!(run(&["up", "2", "100mbit", "32kb"]), Some(0));
    assert_eq!(run(&["up", "2", "100mbit", "32kb"]), Some(2), "the name is in use");
    assert_eq!((run(&["run", "2", "true"]), run(&["run", "2", "false"])), (Some(0), Some(1)));
    assert_eq!(left(&name).len(), 3);
    assert_eq!(run(&["down", "2"]), Some(0));
    assert_eq!(left(&name), Vec::<PathBuf>::new());
}

#[test]
fn nothing_is_left_of_a_run_that_is_ended() {
    let Some(name) = name() else { return };
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().display();
    let rank = format!("trap '' TERM; echo $$ >{begun}/$RANK; while :; do sleep 1; done");
    let child = script(&name, &["with", "2", "none", "1", "sh", "-c", &rank]).spawn().unwrap();
    let process = |rank: u32| {
        let text = fs::read_to_string(folder.path().join(rank.to_string())).unwrap_or_default();
        text.trim().parse::<u32>().ok()
    };
    wait_until("no ranks", || (0..2).all(|rank| process(rank).is_some()));
    let ended = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(ended.success());
    assert_eq!(end_of(child), Some(143));
    assert_eq!(left(&name), Vec::<PathBuf>::new());
    for process in [process(0), process(1)].map(Option::unwrap) {
        wait_until("a rank is left", || !Path::new(&format!("/proc/{process}")).exists());
    }
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let Some(name) = name() else { return };
    let rank = "[ $RANK = 0 ] && sleep 1000; exit 7";
    let mut command = script(&name, &["with", "2", "none", "1", "sh", "-c", rank]);
    assert_eq!(end_of(command.env("GRACE", "1").spawn().unwrap()), Some(7));
    assert_eq!(left(&name), Vec::<PathBuf>::new());
}

#[test]
fn held_hosts_go_with_the_input() {
    let Some(name) = name() else { return };
    let mut command = script(&name, &["hold", "2", "none", "1"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert_eq!((line.as_str(), left(&name).len()), ("ready\n", 3));
    child.stdin.as_mut().unwrap().write_all(b"not yet\n").unwrap();
    assert_eq!(left(&name).len(), 3);
    drop(child.stdin.take());
    assert_eq!(end_of(child), Some(0));
    assert_eq!(left(&name), Vec::<PathBuf>::new());
}

#[test]
fn a_rate_that_is_none_leaves_nothing() {
    let Some(name) = name() else { return };
    let output = script(&name, &["up", "2", "fast", "1"]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("rate"), "{}", said(&output));
    assert_eq!(left(&name), Vec::<PathBuf>::new());
}

#[test]
fn what_makes_no_sense_is_refused_with_the_remedy() {
    for arguments in [&[][..], &["dance"], &["up", "2"], &["with", "2", "1gbit", "1kb"], &["run", "2"]] {
        let output = script("", arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(said(&output).starts_with("usage: hosts.sh up N RATE BURST"), "{arguments:?}");
    }
    for arguments in [["down", "0"], ["down", "many"], ["down", "251"]] {
        let output = script("", &arguments).output().unwrap();
        assert_eq!((output.status.code(), said(&output).lines().count()), (Some(2), 1), "{arguments:?}");
        assert!(said(&output).contains("expected a number from 1 to 250"), "{}", said(&output));
    }
    // Of a user who is not root.
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(script("", &[]).get_program());
    if let Ok(output) = command.args(["down", "1"]).output()
        && said(&output).starts_with("hosts.sh")
    {
        assert_eq!(said(&output), "hosts.sh: only root may make network namespaces: run it with sudo\n");
    }
}
