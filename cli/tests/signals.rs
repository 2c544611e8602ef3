//! How the built command ends by signals, and when its output is closed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity_testing::Process;

/// Only distinguishes slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command, which prints to `output`.
fn spawn(words: &[&str], output: impl Into<Stdio>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brevity"));
    command.args(words).stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The command, and what it prints.
fn start(words: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = spawn(words, Stdio::piped());
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// The next line.
fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// The command's exit status and its standard error.
fn end(mut child: Child) -> (Option<i32>, String) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
        }
        sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

#[test]
fn a_measurement_ends_as_a_run_does() {
    for (signal, number) in [("INT", 2), ("TERM", 15)] {
        let endless = "perf allreduce --transport tcp --size 64K --iterations 100000000";
        let (child, mut output) = start(&endless.split(' ').collect::<Vec<_>>());
        assert!(line(&mut output).contains("2 ranks"));
        Process(child.id()).signal(signal);
        let (status, said) = end(child);
        assert_eq!(status, Some(128 + number), "{said}");
        assert!(said.lines().count() == 1 && said.contains(&format!("killed by signal {number}")), "{said}");
    }
}

#[test]
fn ranks_are_given_the_time_that_was_asked_for() {
    let script = "trap '' TERM; echo ready; sleep 1000";
    let words = ["run", "-n", "1", "--grace", "0.2", "--", "sh", "-c", script];
    let (child, mut output) = start(&words);
    assert_eq!(line(&mut output), "ready\n");
    Process(child.id()).signal("TERM");
    assert_eq!(end(child), (Some(137), "brevity: rank 0 was killed by signal 9\n".into()));
}

#[test]
fn where_nobody_reads_the_command_ends_without_a_word() {
    for words in ["info", "info --json", "perf latency --transport tcp --iterations 10"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = spawn(&words.split(' ').collect::<Vec<_>>(), writer);
        assert_eq!(end(child), (Some(128 + 13), String::new()), "{words}");
    }
}

/// Each command has seconds of work left when its reader goes.
#[test]
fn whose_reader_goes_midway_ends_without_a_word() {
    for (words, lines) in [
        ("perf allreduce --np 3 --transport tcp --iterations 1000", 2),
        ("perf latency --transport tcp --iterations 3000", 2),
        ("perf compress --elements 1M --iterations 20", 1),
    ] {
        let (child, mut output) = start(&words.split(' ').collect::<Vec<_>>());
        (0..lines).for_each(|_| assert!(!line(&mut output).is_empty()));
        drop(output);
        assert_eq!(end(child), (Some(128 + 13), String::new()), "{words}");
    }
}
