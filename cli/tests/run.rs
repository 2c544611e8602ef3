//! `brevity run`, as its users see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use brevity_testing::Process;

const BREVITY: &str = env!("CARGO_BIN_EXE_brevity");

fn brevity(arguments: &[&str]) -> Output {
    Command::new(BREVITY).args(arguments).output().unwrap()
}

fn shell(ranks: &str, script: &str) -> Output {
    brevity(&["run", "-n", ranks, "--", "sh", "-c", script])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_rank_gets_its_place() {
    let output = shell("3", "echo $BREVITY_RANK of $BREVITY_WORLD_SIZE by $BREVITY_TRANSPORT");
    let stdout = text(&output.stdout);
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 of 3 by auto", "1 of 3 by auto", "2 of 3 by auto"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn lines_are_tagged() {
    let output = brevity(&["run", "-n", "2", "--tag-output", "--", "sh", "-c", "echo out; echo err >&2"]);
    let (mut stdout, stderr) =
        (text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>(), text(&output.stderr));
    stdout.sort();
    assert_eq!(stdout, ["[0] out", "[1] out"]);
    assert!(stderr.contains("[0] err") && stderr.contains("[1] err"), "{stderr}");
}

#[test]
fn the_first_failure_decides_the_status() {
    let output = shell("3", "test $BREVITY_RANK = 1 && exit 7; exit 0");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stderr), "brevity: rank 1 ended with status 7\n");
    let output = shell("2", "test $BREVITY_RANK = 1 && kill -9 $$; exit 0");
    assert_eq!(output.status.code(), Some(137));
    assert_eq!(text(&output.stderr), "brevity: rank 1 was killed by signal 9\n");
}

#[test]
fn a_job_that_keeps_going_succeeds_if_one_rank_does() {
    let run = |script: &str| {
        let output = brevity(&["run", "-n", "3", "--keep-going", "--grace", "0", "--", "sh", "-c", script]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    // Without a grace period the first success ends the job: rank 2 succeeds long after the others fail.
    let (status, stdout, stderr) = run("case $BREVITY_RANK in 0) kill -9 $$;; 1) sleep 0.5; exit 7;; \
                                        *) sleep 3; echo $BREVITY_RANK;; esac");
    assert_eq!((status, &*stdout), (Some(0), "2\n"), "{stderr}");
    assert_eq!(
        stderr,
        "brevity: rank 0 was killed by signal 9, rank 1 ended with status 7; the others went on\n"
    );
    let (status, _, stderr) = run("test $BREVITY_RANK = 1 || sleep 3; exit 7");
    assert_eq!((status, &*stderr), (Some(7), "brevity: rank 1 ended with status 7\n"));
}

/// The first process of a rank does not have the variable, also if the launcher has it.
#[test]
fn lost_ranks_are_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = |times: &str, script: &str| {
        let words = ["run", "-n", "3", "--restart", times, "--tag-output", "--", "sh", "-c", script];
        let mut command = Command::new(BREVITY);
        command.args(words).env("FOLDER", folder.path()).env("BREVITY_INCARNATION", "4");
        let output = command.output().unwrap();
        let stdout = text(&output.stdout);
        let mut lines: Vec<String> = stdout.lines().map(str::to_owned).collect();
        lines.sort();
        (output.status.code(), lines, text(&output.stderr))
    };
    let (status, lines, stderr) = run(
        "9",
        "echo ${BREVITY_INCARNATION-first}; case $BREVITY_RANK$BREVITY_INCARNATION in \
         1) kill -9 $$;; 11) exit 7;; 12) touch $FOLDER/back;; \
         *) until [ -e $FOLDER/back ]; do sleep 0.01; done;; esac",
    );
    assert_eq!(lines, ["[0] first", "[1] 1", "[1] 2", "[1] first", "[2] first"], "{stderr}");
    assert_eq!((status, &*stderr), (Some(0), "brevity: rank 1 ended with status 0 after 2 restarts\n"));
    let (status, lines, stderr) = run("2", "echo; exit 7");
    assert_eq!((status, lines.len()), (Some(7), 5), "{lines:?}");
    assert!(stderr.ends_with(" ended with status 7; lost ranks were started again 2 times\n"), "{stderr}");
}

#[test]
fn ranks_that_go_on_after_a_failure_are_ended_with_what_they_started() {
    let start = Instant::now();
    let script = "test $BREVITY_RANK = 0 && exit 1; sleep 1000 & echo $!; wait";
    let output = brevity(&["run", "-n", "2", "--grace", "0.5", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(60));
    let sleeper = text(&output.stdout).trim().to_owned();
    assert!(!sleeper.is_empty());
    await_end(&[Process(sleeper.parse().unwrap())]);
}

#[test]
fn a_signal_reaches_all_ranks() {
    let script = "trap 'echo got it; exit 0' TERM; echo ready; sleep 1000 & wait";
    let mut job = Command::new(BREVITY)
        .args(["run", "-n", "2", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(job.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!([next(), next()], ["ready", "ready"]);
    assert!(Command::new("kill").arg(job.id().to_string()).status().unwrap().success());
    assert_eq!([next(), next()], ["got it", "got it"]);
    assert_eq!(job.wait().unwrap().code(), Some(0));
}

#[test]
fn a_killed_launcher_leaves_neither_ranks_nor_what_they_started() {
    let mut job = Command::new(BREVITY)
        .args(["run", "-n", "2", "--", "sh", "-c", "sleep 100 & echo $$ $!; wait"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(job.stdout.take().unwrap()));
    let told = [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()].join(" ");
    let processes: Vec<_> = told.split(' ').map(|process| Process(process.parse().unwrap())).collect();
    assert!(processes.len() == 4 && processes.iter().all(|process| process.is_running()), "{told}");
    job.kill().unwrap();
    job.wait().unwrap();
    await_end(&processes);
}

#[test]
fn a_transport_may_come_from_the_environment() {
    let transports = |option: &[&str]| {
        let arguments =
            [&["run", "-n", "1"], option, &["--", "sh", "-c", "echo $BREVITY_TRANSPORT"]].concat();
        text(&Command::new(BREVITY).args(arguments).env("BREVITY_TRANSPORT", "tcp").output().unwrap().stdout)
    };
    assert_eq!(transports(&[]), "tcp\n");
    assert_eq!(transports(&["--transport", "ucx"]), "ucx\n");
}

#[test]
fn ranks_are_told_to_encrypt() {
    let output = brevity(&["run", "-n", "1", "--encrypt", "--", "sh", "-c", "echo $BREVITY_ENCRYPT"]);
    assert_eq!(text(&output.stdout), "1\n");
    assert_eq!(text(&shell("1", "echo ${BREVITY_ENCRYPT-unset}").stdout), "unset\n");
    let ranks =
        ["run", "-n", "2", "--encrypt", "--", BREVITY, "perf", "latency", "--size", "8:8", "--verify"];
    let output = Command::new(BREVITY).args(ranks).env("BREVITY_SHARED_MEMORY", "off").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn bad_arguments_are_one_line_and_status_2() {
    for (arguments, expected) in [
        (&["run", "-n", "0", "--", "true"][..], "0 is not in 1..="),
        (&["run", "-n", "2"], "PROGRAM"),
        (&["run", "--", "true"], "--ranks <N>"),
        (&["run", "-n", "2", "--transport", "pigeon", "--", "true"], "expected auto, ucx or tcp"),
        (&["run", "-n", "2", "--encrypt", "--transport", "ucx", "--", "true"], "UCX can't encrypt"),
        (&["run", "-n", "2", "--grace", "soon", "--", "true"], "a number of seconds"),
        (&["run", "-n", "2", "--grace", "nan", "--", "true"], "a number of seconds"),
        (&["run", "-n", "2", "--restart", "often", "--", "true"], "'often' for '--restart <N>'"),
        (&["run", "-n", "2", "--", "/no/such/program"], "no such file"),
        (&["run", "-n", "2", "--", "/etc/passwd"], "not executable"),
    ] {
        let output = brevity(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_bad_variable_is_told_once_before_any_rank_is_started() {
    for (name, value) in [
        ("BREVITY_TRANSPORT", "pigeon"),
        ("BREVITY_TIMEOUT", "soon"),
        ("BREVITY_JOIN_TIMEOUT", "-1"),
        ("BREVITY_INTERFACE", "nowhere0"),
        ("BREVITY_PROGRESS_THREAD", "maybe"),
        ("BREVITY_ENCRYPT", "please"),
    ] {
        for arguments in
            [&["run", "-n", "3", "--", "echo", "started"][..], &["perf", "allreduce", "--ranks", "3"]]
        {
            let output = Command::new(BREVITY).args(arguments).env(name, value).output().unwrap();
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}, {name}={value}: {stderr}");
            assert!(
                stderr.contains(name) && stderr.contains(value) && stderr.lines().count() == 1,
                "{stderr}"
            );
            assert!(output.stdout.is_empty(), "a rank was started");
        }
    }
}

/// `brevity run` in a shell that first limits open files, and the limits that ranks print.
fn with_files(limit: &str, ranks: &str) -> Output {
    let script = format!("ulimit {limit} && exec \"$0\" run -n {ranks} -- sh -c 'ulimit -n'");
    Command::new("sh").args(["-c", &script, BREVITY]).output().unwrap()
}

#[test]
fn more_ranks_than_open_files_are_refused_before_any_is_started() {
    for ranks in ["60", "99999"] {
        let output = with_files("-n 64", ranks);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), &*stdout), (Some(1), ""), "{stderr}");
        let expected = format!("brevity: can't start {ranks} ranks: ");
        assert!(stderr.starts_with(&expected) && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains("64 are allowed (raise the limit with ulimit -n)"), "{stderr}");
    }
}

/// Ranks have the limit that the launcher had.
#[test]
fn a_launcher_takes_as_many_open_files_as_it_may() {
    let output = with_files("-Sn 32", "20");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "32\n".repeat(20));
}

#[test]
fn an_unknown_variable_is_told_once_by_the_launcher() {
    let ranks = ["run", "-n", "2", "--", BREVITY, "perf", "latency", "--size", "8:8", "--verify"];
    for (name, told, arguments) in [
        ("BREVITY_TRASNPORT", "BREVITY_TRASNPORT (did you mean BREVITY_TRANSPORT?)", &ranks[..]),
        ("BREVITY_COLOUR", "BREVITY_COLOUR (no known name is like it)", &["run", "-n", "2", "--", "true"]),
    ] {
        let output = Command::new(BREVITY).args(arguments).env(name, "tcp").output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert_eq!(stderr, format!("brevity: warning: unknown variables are ignored: {told}\n"));
    }
}

/// Waits for killed processes, which take a moment to end.
fn await_end(processes: &[Process]) {
    let start = Instant::now();
    while processes.iter().any(|process| process.is_running()) {
        assert!(start.elapsed() < Duration::from_secs(10), "of {processes:?} some are left");
        std::thread::sleep(Duration::from_millis(5));
    }
}
