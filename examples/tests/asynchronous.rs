//! Asynchronous training as a user starts it, on the digits that the program carries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

fn train(words: &str) -> Output {
    command(words).output().unwrap()
}

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    for name in ["BREVITY_RANK", "BREVITY_WORLD_SIZE", "RANK", "WORLD_SIZE", "BREVITY_TRANSPORT"] {
        command.env_remove(name);
    }
    command.env("BREVITY_TIMEOUT", "60").args(words.split_whitespace());
    command
}

/// The process of a rank that a process has started, if it runs.
fn process_of_rank(parent: u32, rank: u32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let own = format!("BREVITY_RANK={rank}");
    let is_meant = |child: &&str| {
        let environment = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == own.as_bytes())
    };
    children.split_whitespace().find(is_meant)?.parse().ok()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// The runs of a command that succeeds.
fn runs(words: &str) -> Vec<Value> {
    let output = train(&format!("{words} --json -"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["runs"].as_array().unwrap().clone()
}

fn number(run: &Value, field: &str) -> f64 {
    run[field].as_f64().unwrap()
}

/// Every method learns, with fewer bytes than the dense one.
fn check_all_methods(words: &str, workers: u64) {
    let runs = runs(&format!("--async asgd,gradient-dropping,dgs,dgc --epochs 12 {words}"));
    let methods: Vec<_> = runs.iter().map(|run| run["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["asgd", "gradient-dropping", "dgs", "dgc"]);
    let dense = number(&runs[0], "bytes_per_rank_step");
    // A gradient and a model of 64 * 128 + 128 + 128 * 10 + 10 numbers.
    assert!((1.0..1.1).contains(&(dense / (2.0 * 4.0 * 9610.0))), "{dense} bytes");
    for run in &runs {
        let steps = 12 * (1438 / (workers * 8));
        assert_eq!((run["ranks"].as_u64(), run["steps"].as_u64()), (Some(workers), Some(steps)), "{run}");
        assert!(number(run, "test_accuracy") > 0.9, "{run}");
        let last = &run["curve"].as_array().unwrap()[9];
        // A rank's own model, which is not that of the servers.
        assert!(last["step"] == steps && number(last, "test_accuracy") > 0.85, "{run}");
        assert!(number(run, "staleness") > 0.0 && number(run, "communication_seconds") > 0.0, "{run}");
        assert!(run["method"] == "asgd" || number(run, "bytes_per_rank_step") < dense / 5.0, "{run}");
    }
}

#[test]
fn processes_learn_by_every_method_with_a_server() {
    check_all_methods("--ranks 4 --servers 1", 3);
}

#[test]
fn processes_that_all_serve_learn_by_every_method() {
    check_all_methods("--ranks 3", 3);
}

#[test]
fn simulated_ranks_learn_by_every_method() {
    check_all_methods("--ranks 5 --servers 2 --simulate 1", 3);
}

#[test]
fn a_slow_link_costs_time_in_proportion_to_bytes() {
    let runs = runs("--async asgd,dgs --epochs 1 --ranks 3 --servers 1 --simulate 0.001");
    let [dense, sparse] = [&runs[0], &runs[1]].map(|run| number(run, "communication_seconds"));
    // Two workers share the server's link: a step of asgd sends 77 kB each way, of 8 us each.
    assert!(dense > 89.0 * 0.3, "{dense} seconds");
    assert!(sparse < dense / 10.0, "{sparse} and {dense} seconds");
}

/// Pushes stay as long as they were. The picture has the run.
#[test]
fn answers_have_a_density_of_their_own() {
    let plot = format!("{}/asynchronous.svg", env!("CARGO_TARGET_TMPDIR"));
    let words = "--async gradient-dropping --epochs 2 --ranks 3 --servers 1 --simulate 1 --density 0.1";
    let bytes = |more: &str| number(&runs(&format!("{words} {more}"))[0], "bytes_per_rank_step");
    let (same, few) = (bytes(""), bytes(&format!("--secondary-density 0.01 --plot {plot}")));
    assert!((0.5..0.65).contains(&(few / same)), "{few} of {same} bytes");
    let picture = fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("gradient-dropping"), "{picture}");
}

#[test]
fn a_straggler_is_slow_and_others_wait_for_it_only_if_staleness_is_bounded() {
    let run = |words: &str| {
        let words = format!("--async dgs --epochs 2 --ranks 4 --servers 1 --simulate 1 {words}");
        runs(&words).remove(0)
    };
    let (even, free, bounded) = (run(""), run("--straggler 0:50"), run("--straggler 0:50 --staleness 1"));
    assert!(number(&free, "seconds") > 5.0 * number(&even, "seconds"), "{even}, {free}");
    // The last point of all ranks: the others have finished long before the straggler.
    let last = |run: &Value| number(&run["curve"][9], "seconds");
    assert!(last(&free) < 0.6 * number(&free, "seconds"), "{free}");
    assert!(last(&bounded) > 0.9 * number(&bounded, "seconds"), "{bounded}");
    // Two others, at most a step ahead.
    assert!(number(&bounded, "staleness") <= 4.0, "{bounded}");
}

#[test]
fn a_straggling_process_takes_longer() {
    let seconds = |words: &str| {
        let run = runs(&format!("--async dgs --epochs 2 --ranks 2 --servers 1 {words}")).remove(0);
        number(&run, "seconds") - number(&run, "communication_seconds")
    };
    assert!(seconds("--straggler 0:30") > 5.0 * seconds(""));
}

/// One that takes much longer is killed when the others have finished: they report.
#[test]
fn a_rank_that_is_killed_leaves_a_run_of_the_others() {
    let words = "--async dgs --epochs 6 --density 0.1 --ranks 4 --servers 1 --straggler 1:1000 --json -";
    let job = command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let runs = |rank| process_of_rank(job.id(), rank).is_some();
    until("ranks do not start", || (0..4).all(runs));
    until("others do not finish", || !runs(0) && !runs(2));
    let victim = process_of_rank(job.id(), 1).unwrap();
    assert!(Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + 9), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &report["runs"][0];
    assert_eq!(run["lost_ranks"], serde_json::json!([1]), "{run}");
    assert!(number(run, "test_accuracy") > 0.5, "{run}");
}

#[test]
fn a_run_that_diverges_is_told_of() {
    for place in ["--servers 1", "--servers 1 --simulate 1", ""] {
        let output = train(&format!("--async asgd --ranks 3 --epochs 3 --learning-rate 1e30 {place}"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{place}: {told}");
        assert!(told.contains("train: the loss of method asgd is"), "{place}: {told}");
    }
}
