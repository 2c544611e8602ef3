//! `bench/compare server` with a tiny model.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The limit for one run; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(150);

const TINY: [&str; 11] = [
    "server",
    "--seconds=0.05",
    "--pairs=9",
    "--elements=100K",
    "--density",
    "0.01",
    "--workers",
    "1,3",
    "--repetitions",
    "2",
    "--json",
];

/// Killed and reaped, however the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The figures and the table of a run, which must succeed.
fn run() -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("figures.json"), folder.path().join("log"));
    let out = fs::File::create(&log).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_brevity-bench"));
    command.args(TINY).arg(&file).stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    let mut child = Ended(command.spawn().unwrap());
    let start = Instant::now();
    let said = || fs::read_to_string(&log).unwrap();
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "it did not end in {PATIENCE:?}: {}", said());
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}: {}", said());
    (serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap(), said())
}

fn assert_positive(row: &Value, names: &[&str]) {
    for name in names {
        assert!(row[name].as_f64().is_some_and(|figure| figure > 0.0), "{name} in {row}");
    }
}

#[test]
fn pushes_and_steps_are_measured() {
    let (figures, said) = run();
    for name in ["date", "machine", "version", "commit", "command", "congestion_control"] {
        assert!(figures[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    assert_eq!((figures["elements"].as_u64(), figures["density"].as_f64()), (Some(102_400), Some(0.01)));
    let pushes = figures["pushes"].as_array().unwrap();
    assert_eq!(pushes.iter().map(|row| row["workers"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    for row in pushes {
        assert_positive(row, &["pushes_per_second", "bytes_per_push", "bytes_per_answer"]);
        assert_eq!(row["repetitions"].as_array().unwrap().len(), 2, "{row}");
        // A bar is for a shard of another size.
        assert!(row["met"].is_null(), "{row}");
    }
    // 41 of the 4096 elements of each tensor, each with 4 bytes of value.
    let push = pushes[0]["bytes_per_push"].as_f64().unwrap();
    assert!((25.0 * 41.0 * 5.0..25.0 * 41.0 * 8.0).contains(&push), "{push}");
    let steps = figures["steps"].as_array().unwrap();
    assert_eq!(
        steps.iter().map(|row| row["elements"].as_u64().unwrap()).collect::<Vec<_>>(),
        [102_400, 4096]
    );
    for row in steps {
        let names = ["ours_us", "theirs_us", "ratio", "ratio_low", "ratio_high", "ratio_of_medians"];
        assert_positive(row, &names);
        let turns = row["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 9, "{row}");
        turns.iter().for_each(|turn| assert_positive(turn, &["ours_us", "theirs_us"]));
        assert!(row["bar"].is_string() && row["met"].is_boolean(), "{row}");
    }
    for text in ["pushes/s", "server(ms)", "1.30x: ", "of 2 bars met"] {
        assert!(said.contains(text), "{text} in {said}");
    }
}

#[test]
fn bad_arguments_are_told_in_one_line() {
    for (arguments, expected) in [
        (["--seconds", "0"], "from 0.05 to 60"),
        (["--seconds", "NaN"], "from 0.05 to 60"),
        (["--pairs", "8"], "at least 9"),
        (["--elements", "624"], "from 625"),
        (["--density", "1.5"], "above 0"),
        (["--workers", "1,0"], "from 1 to 64"),
        (["--repetitions", "0"], "at least 1"),
        (["--json", "/no/such/folder/figures"], "folder that exists"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brevity-bench"));
        let output = command.arg("server").args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
        assert!(said.starts_with(&format!("bench: {}", arguments[0])) && said.contains(expected), "{said}");
    }
}
