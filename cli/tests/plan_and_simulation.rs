//! The built command where it starts no other process: plans, and simulated ranks.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs a command that must succeed; its standard output.
fn succeed(line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brevity"));
    for name in ["BREVITY_RANK", "BREVITY_MASTER", "RANK", "MASTER_ADDR"] {
        command.env_remove(name);
    }
    let output = command.args(line.split_whitespace()).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn what_is_compressed_is_simulated_among_many_ranks() {
    for name in ["gtopk-allreduce", "split-allreduce", "oktopk-allreduce", "lowrank-allreduce"] {
        let line = format!("perf {name} --transport sim --np 64 --elements 10K --json -");
        let figures = json(&succeed(&line));
        assert_eq!((&figures["name"], &figures["transport"]), (&name.into(), &"sim".into()));
        for name in ["bytes", "avg_us", "min_us", "max_us", "p50_us", "p99_us", "bandwidth_MBps"] {
            assert!(
                figures["rows"][0][name].as_f64().is_some_and(|figure| figure > 0.0),
                "{name}: {figures}"
            );
        }
        assert_eq!(figures["rows"][0]["rank"].as_u64(), (name == "lowrank-allreduce").then_some(4));
        assert_eq!(json(&succeed(&line)), figures);
    }
}

#[test]
fn kernels_stand_beside_simulated_messages() {
    let line = "perf exchange --transport sim --np 4 --model matrix:100x80 --policy *=low-rank:2 --dtype f64";
    let table = succeed(&format!("{line} --iterations 2"));
    assert!(table.starts_with("# brevity exchange of matrix:100x80: 4 ranks, sim: "), "{table}");
    assert!(table.contains("Kernels(us)") && table.contains("all-reduce of bf16"), "{table}");
    let figures = json(&succeed(&format!("{line} --iterations 2 --json -")));
    assert_eq!((&figures["transport"], &figures["dtype"]), (&"sim".into(), &"f64".into()));
    let rows = figures["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[2]["bytes"].as_u64()), (3, Some(64_000)));
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        let sum = figure("kernels_us") + figure("communicate_us");
        assert!((figure("avg_us") / sum - 1.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn plans_are_printed_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let line = "plan --world-size 16 --elements 25000000 --density 0.001 --alpha 436e-6 --bandwidth 1e9";
    let plan = json(&succeed(&format!("{line} --json -")));
    assert!(plan["choice"].is_string(), "{plan}");
    for row in plan["rows"].as_array().unwrap() {
        assert!(row["algorithm"].is_string(), "{row}");
        assert!(["rounds", "bytes_per_rank", "seconds"].iter().all(|name| row[*name].is_number()), "{row}");
    }
    assert_eq!(succeed(&format!("{line} --json {}", file.display())), succeed(line));
    assert_eq!(json(&fs::read_to_string(&file).unwrap()), plan);
    // Dense collectives by their name.
    let line = format!("plan --json {} all-reduce --size 8:16", file.display());
    assert!(succeed(&line).contains("# all-reduce"));
    let plan = json(&fs::read_to_string(&file).unwrap());
    let row = &plan["rows"][1];
    assert_eq!((&row["collective"], row["bytes"].as_u64()), (&"all-reduce".into(), Some(16)));
    assert_eq!(row["choice"], row["algorithms"][0]["algorithm"]);
    assert!(row["algorithms"][0]["seconds"].as_f64().unwrap() > 0.0, "{row}");
}
