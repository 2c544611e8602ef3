//! The programs that embed groups in runtimes, as users start them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

const PROGRAMS: [&str; 4] = [
    env!("CARGO_BIN_EXE_embed_tokio"),
    env!("CARGO_BIN_EXE_embed_tokio_current_thread"),
    env!("CARGO_BIN_EXE_embed_smol"),
    env!("CARGO_BIN_EXE_embed_plain"),
];

/// Far below the second by which rank 1 comes late.
const USED_MS: u64 = 400;

#[test]
fn programs_in_every_runtime_get_their_sums() {
    for program in PROGRAMS {
        for ranks in ["1", "2", "3"] {
            let output = Command::new(program).args([ranks, "1"]).output().unwrap();
            let (out, errors) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{program} {ranks}: {out}{errors}");
            assert_eq!(out.matches("us a call").count(), 2, "{program} {ranks}: {out}");
            let times: Vec<u64> = out
                .lines()
                .filter_map(|line| {
                    line.strip_prefix("processor time so far: ")?.strip_suffix(" ms")?.parse().ok()
                })
                .collect();
            assert!(times.len() == 2 && times[1] - times[0] < USED_MS, "{program} {ranks}: {out}");
        }
    }
}

#[test]
fn an_argument_that_is_no_number_is_refused() {
    for program in PROGRAMS {
        for (words, name) in [(["many", "1"], "RANKS"), (["2", "soon"], "SECONDS")] {
            let output = Command::new(program).args(words).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && errors.lines().count() == 1, "{errors}");
            assert!(errors.starts_with(name) && errors.contains("expected a number"), "{errors}");
        }
    }
}
