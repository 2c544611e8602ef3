//! `bench/compare p2p --quick` and `collectives --quick` with the peers that are installed here.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use brevity_bench::net::{GOODPUT, Hosts};
use brevity_bench::peers::{Gloo, Perftest, find_mpi};
use brevity_bench::processor;
use serde_json::Value;

/// The limit for one run; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(150);

/// A variable that only the processes of one run have.
const MARK: &str = "BREVITY_BENCH_TEST_MARK";

/// Runs `p2p`, which must succeed and leave no process; returns its figures.
fn figures(arguments: &[&str], mark: &str) -> Value {
    figures_of(&[&["p2p"], arguments].concat(), mark)
}

/// Runs the command, which must succeed and leave no process; returns its figures.
fn figures_of(arguments: &[&str], mark: &str) -> Value {
    figures_with(&[], arguments, mark)
}

/// Likewise, with variables.
fn figures_with(variables: &[(&str, &Path)], arguments: &[&str], mark: &str) -> Value {
    let mark = format!("{mark}-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("figures.json"), folder.path().join("log"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_brevity-bench"));
    command.args(arguments).args(["--quick", "--pairs", "2", "--slice", "1", "--json"]).arg(&file);
    let out = fs::File::create(&log).unwrap();
    command
        .envs(variables.iter().copied())
        .env(MARK, &mark)
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out);
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it did not end in {PATIENCE:?}: {}", fs::read_to_string(&log).unwrap());
        }
        thread::sleep(Duration::from_millis(20));
    };
    let log = fs::read_to_string(&log).unwrap();
    assert!(status.success(), "{status}: {log}");
    assert_nobody_is_left(&mark);
    serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap_or_else(|error| panic!("{error}: {log}"))
}

fn assert_nobody_is_left(mark: &str) {
    let entry = format!("{MARK}={mark}");
    let bears_mark = |process: &Path| {
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes())
    };
    let left =
        || fs::read_dir("/proc").unwrap().flatten().filter(|process| bears_mark(&process.path())).count();
    for _ in 0..100 {
        if left() == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("{} processes are left", left());
}

fn assert_pair(pair: &Value) {
    for name in ["what", "wire", "peer", "ours"] {
        assert!(pair[name].is_string(), "{name} in {pair}");
    }
    for name in ["world_size", "ours_us", "theirs_us", "ratio", "ratio_low", "ratio_high"] {
        assert!(pair[name].as_f64().is_some_and(|figure| figure > 0.0), "{name} in {pair}");
    }
    assert!(pair["bytes"].is_u64(), "{pair}");
    let figure = |name: &str| pair[name].as_f64().unwrap();
    assert!(figure("ratio_low") <= figure("ratio") && figure("ratio") <= figure("ratio_high"), "{pair}");
}

#[test]
fn every_row_is_measured_with_those_who_are_here() {
    let figures = figures(&["--size", "8:8"], "all");
    for name in ["date", "machine", "version", "commit", "command", "congestion_control"] {
        assert!(figures[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    let pairs = figures["pairs"].as_array().unwrap();
    pairs.iter().for_each(assert_pair);
    let has = |what: &str, peer: &str| pairs.iter().any(|pair| pair["what"] == what && pair["peer"] == peer);
    // These need only the system.
    assert!(has("latency", "bare sockets") && has("parts", "one contiguous message"), "{figures}");
    assert!(has("4 pairs", "bare sockets, yielding") && has("slowest pair", "its fastest pair"), "{figures}");
    assert!(has("killed", "allowed"), "{figures}");
    let is_beside = Perftest::find().is_some();
    for what in ["put", "get"] {
        assert_eq!(has(what, "ucx_perftest"), is_beside, "{what} in {figures}");
    }
    assert!(pairs.iter().any(|pair| pair["bar"].is_string() && pair["met"].is_boolean()), "{figures}");
}

#[test]
fn streams_are_measured() {
    let figures = figures(&["--size", "64K:64K", "--only", "tcp-bandwidth,ucx-bandwidth"], "streams");
    let pairs = figures["pairs"].as_array().unwrap();
    pairs.iter().for_each(assert_pair);
    assert!(pairs.iter().any(|pair| pair["what"] == "bandwidth" && pair["ours"] == "tcp"), "{figures}");
}

/// The pairs of a row of `collectives`.
fn collective(row: &str, arguments: &[&str]) -> Vec<Value> {
    pairs_of(row, &collective_figures(row, arguments))
}

fn collective_figures(row: &str, arguments: &[&str]) -> Value {
    figures_of(&[&["collectives", "--only", row], arguments].concat(), row)
}

fn pairs_of(row: &str, figures: &Value) -> Vec<Value> {
    let pairs = figures["pairs"].as_array().unwrap();
    pairs.iter().for_each(assert_pair);
    let (what, wire) = row.split_once('-').unwrap();
    assert!(pairs.iter().all(|pair| pair["what"] == what && pair["wire"] == wire), "{figures}");
    pairs.clone()
}

fn have_peer(pairs: &[Value], peer: &str) -> bool {
    pairs.iter().any(|pair| pair["peer"].as_str().unwrap().starts_with(peer))
}

/// A row over sockets, with every peer that is here.
fn is_measured_with_those_who_are_here(row: &str) {
    let pairs = collective(row, &[]);
    assert_eq!(have_peer(&pairs, Gloo::NAME), Gloo::find().is_some(), "{row}: {pairs:?}");
    for mpi in find_mpi().0 {
        assert!(have_peer(&pairs, mpi.name), "{row}, {}: {pairs:?}", mpi.name);
    }
}

#[test]
fn all_reduces_are_measured() {
    is_measured_with_those_who_are_here("allreduce-tcp");
}

#[test]
fn broadcasts_are_measured() {
    is_measured_with_those_who_are_here("broadcast-tcp");
}

#[test]
fn all_gathers_are_measured() {
    is_measured_with_those_who_are_here("allgather-tcp");
}

#[test]
fn barriers_are_measured() {
    is_measured_with_those_who_are_here("barrier-tcp");
}

#[test]
fn collectives_inside_a_host_are_measured() {
    let pairs = collective("allreduce-shm", &["--size", "4K:4K"]);
    assert!(!have_peer(&pairs, Gloo::NAME) && pairs.len() >= find_mpi().0.len());
}

#[test]
fn peers_that_spin_are_left_out_where_ranks_outnumber_processors() {
    let ranks = processor::allowed().len() + 1;
    if ranks > 16 {
        println!("skipped: {ranks} ranks would be needed here");
        return;
    }
    let line = ["--size", "4K:4K", "--ranks", &ranks.to_string()];
    let figures = collective_figures("allreduce-tcp", &line);
    let pairs = pairs_of("allreduce-tcp", &figures);
    assert!(pairs.iter().all(|pair| pair["world_size"] == ranks && pair["peer"] == Gloo::NAME), "{pairs:?}");
    let left_out = figures["left_out"].as_array().unwrap();
    for mpi in find_mpi().0 {
        let says = |what: &Value| {
            let what = what.as_str().unwrap();
            what.starts_with(mpi.name) && what.contains("it spins")
        };
        assert!(left_out.iter().any(says), "{}: {left_out:?}", mpi.name);
    }
}

#[test]
fn links_have_a_floor() {
    let probe = Hosts::new(1, 1);
    let is_required = std::env::var_os("BREVITY_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
    if let Err(why) = probe {
        assert!(!is_required, "{why}");
        println!("skipped: {why}");
        return;
    }
    for row in ["allreduce-links", "allreduce-pairs"] {
        let pairs = collective(row, &[]);
        assert!(have_peer(&pairs, "goodput floor"), "{pairs:?}");
        assert_eq!(have_peer(&pairs, Gloo::NAME), Gloo::find().is_some(), "{pairs:?}");
        // A MiB leaves each of two hosts, and as much enters it.
        let floor = f64::from(1 << 20) / GOODPUT * 1e6;
        assert!(
            pairs.iter().all(|pair| (pair["floor_us"].as_f64().unwrap() - floor).abs() < 1e-6),
            "{pairs:?}"
        );
    }
}

/// Where `bench/peers/ffi.sh` builds the program in C, against the library beside this test.
fn with_program_in_c(folder: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = std::env::current_exe().unwrap();
    let mut build = Command::new(here.join("peers/ffi.sh"));
    let built = build.arg(tests.parent().unwrap()).env("BREVITY_PEERS", folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn calls_in_c_are_compared_with_calls_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let peers = [("BREVITY_PEERS", folder.path())];
    let refused = Command::new(env!("CARGO_BIN_EXE_brevity-bench")).arg("ffi").envs(peers).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("bench/peers/ffi.sh builds it"), "{said}");

    with_program_in_c(folder.path());
    let figures = figures_with(&peers, &["ffi"], "ffi");
    let pairs = figures["pairs"].as_array().unwrap();
    pairs.iter().for_each(assert_pair);
    assert!(pairs.iter().all(|pair| pair["ours"] == "c" && pair["peer"] == "rust"), "{figures}");
    for (what, wire) in [("latency", "shm"), ("latency", "tcp"), ("allreduce", "shm"), ("allreduce", "tcp")] {
        let of = |pair: &&Value| pair["what"] == what && pair["wire"] == wire;
        assert_eq!(pairs.iter().filter(of).count(), 3, "{what} over {wire}: 8 B, 1 KiB, 128 KiB: {figures}");
    }
}

#[test]
fn bad_arguments_are_told_in_one_line() {
    for arguments in [
        &["p2p", "--only", "dance"][..],
        &["p2p", "--pairs", "0"],
        &["p2p", "--slice", "0"],
        &["collectives", "--only", "dance-tcp"],
        &["collectives", "--pairs", "8"],
        &["collectives", "--ranks", "1"],
        &["collectives", "--slice", "0"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_brevity-bench")).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
    }
}
