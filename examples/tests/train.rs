//! The program as a user starts it: processes over tcp, on the digits that it carries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output, Stdio};

fn command(words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train"));
    for name in ["BREVITY_RANK", "BREVITY_WORLD_SIZE", "RANK", "WORLD_SIZE", "BREVITY_TRANSPORT"] {
        command.env_remove(name);
    }
    command.env("BREVITY_TIMEOUT", "60").args(words.split_whitespace()).stderr(Stdio::piped());
    command
}

fn train(words: &str) -> Output {
    command(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn four_processes_learn_the_digits_with_every_method() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, plot, trace) = (file("runs.json"), file("runs.svg"), file("trace.json"));
    let output = train(&format!(
        "--epochs 10 --method dense,topk,gtopk,oktopk,lowrank,one-bit,signum,dgc,qsgd,terngrad,random-k \
         --json {json} --plot {plot} --trace {trace}"
    ));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 12, "{}", text(&output.stdout));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let dense = runs[0]["bytes_per_rank_step"].as_f64().unwrap();
    // 64 * 128 + 128 + 128 * 10 + 10 numbers, at the least 2 * 3/4 of them in a ring.
    assert!((1.5..3.0).contains(&(dense / (4.0 * 9610.0))), "{dense} bytes");
    for run in runs {
        assert_eq!((run["ranks"].as_u64(), run["steps"].as_u64()), (Some(4), Some(440)), "{run}");
        assert!(run["test_accuracy"].as_f64().unwrap() > 0.93, "{run}");
        let bytes = run["bytes_per_rank_step"].as_f64().unwrap();
        let least = if run["method"] == "dense" { 1.0 } else { 5.0 };
        assert!(bytes <= dense / least, "{run}");
    }
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg"));
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..4 {
        let steps = events.iter().filter(|event| event["cat"] == "step" && event["pid"] == rank);
        assert_eq!(steps.count(), 11 * 440, "of rank {rank}");
    }
}

#[test]
fn equal_seeds_give_equal_results() {
    let outcome = || {
        // The bytes of a collective are those of its algorithm, which depends on the speed of links.
        let mut command =
            command("-n 3 --epochs 2 --method gtopk,oktopk,random-k,random-block,qsgd --seed 5");
        let output = command.env("BREVITY_MACHINE", "inside:20,2,8").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let figures = |line: &str| line.split_whitespace().take(4).map(str::to_owned).collect::<Vec<_>>();
        text(&output.stdout).lines().skip(1).map(figures).collect::<Vec<_>>()
    };
    assert_eq!(outcome(), outcome());
}

#[test]
fn a_wrong_variable_costs_one_line_and_no_rank() {
    for (name, value) in
        [("BREVITY_TRANSPORT", "pigeon"), ("BREVITY_TIMEOUT", "soon"), ("BREVITY_INTERFACE", "nowhere0")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_train")).env(name, value).output().unwrap();
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.starts_with("train: ") && line.contains(name) && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn mistakes_cost_one_line_and_no_rank() {
    for words in [
        "--density 2",
        "-n 0",
        "--plot a.png",
        "--json /proc/a.json",
        "--method zip",
        "--data /no/such/folder",
        "--batch-size 5000",
    ] {
        let output = train(words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        let line = text(&output.stderr);
        assert!(line.starts_with("train: ") && line.lines().count() == 1, "{words}: {line}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_run_that_fails_ends_with_status_1() {
    let output = train("--ranks 2 --epochs 2 --method dense --learning-rate 1e30");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(!output.stderr.is_empty());
}

#[test]
fn results_go_to_standard_output_where_they_are_asked_for_there() {
    let output = train("-n 2 --epochs 1 --method dense --json -");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["method"], "dense");
}

#[test]
fn nothing_is_told_where_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("runs.json");
    let arguments = format!("-n 2 --epochs 1 --method dense --json {}", json.display());
    let mut child = command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(std::fs::metadata(json).unwrap().len() > 0, "the files are written all the same");
    // The status that shells give a program that SIGPIPE has ended.
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), ""));
}

#[test]
fn a_launcher_that_is_not_understood_is_named() {
    let output = command("-n 2 --epochs 1 --method dense").env("FLUX_JOB_SIZE", "4").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stderr);
    assert!(told.lines().count() == 1 && told.contains("FLUX_JOB_SIZE=4"), "{told}");
}
