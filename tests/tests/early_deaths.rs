//! Ranks that are lost before their job has begun, and are started again: they join it like the others.

use std::time::Duration;

use brevity::launch::{Ending, Launch, Outcome};
use brevity::transport::bootstrap::Choice;

const RANK: &str = env!("CARGO_BIN_EXE_rank");

const WORLD_SIZE: u32 = 4;

/// Runs the program, after the cases of `script` for incarnation and rank; `restarts` are allowed.
fn launch(script: &str, restarts: u32) -> Outcome {
    let script =
        format!("case $BREVITY_INCARNATION$BREVITY_RANK in {script} esac; exec {RANK} tell >/dev/null 2>&1");
    let launch = Launch::new("/bin/sh", ["-c", &script]).ranks(WORLD_SIZE).transport(Choice::Tcp);
    let launch = launch.restart(restarts).grace(Duration::from_secs(5)).env("BREVITY_JOIN_TIMEOUT", "40");
    launch.spawn().unwrap().wait().unwrap()
}

fn all_have_joined(script: &str, restarts: [u32; WORLD_SIZE as usize]) {
    let outcome = launch(script, restarts.iter().sum());
    assert_eq!((outcome.exit_status(), &outcome.restarts[..]), (0, &restarts[..]), "{outcome:?}");
    assert_eq!(outcome.endings, [Ending::Exited(0); WORLD_SIZE as usize]);
}

#[test]
fn a_rank_that_fails_before_it_joins() {
    all_have_joined("2) exit 7;;", [0, 0, 1, 0]);
    all_have_joined("2|12) exit 7;;", [0, 0, 2, 0]);
}

#[test]
fn rank_0_fails_before_it_joins() {
    all_have_joined("0) sleep 0.3; exit 7;;", [1, 0, 0, 0]);
}

/// The others are with rank 0 when it is killed: rank 3 comes later.
#[test]
fn rank_0_is_killed_while_the_others_join() {
    let killed = format!("timeout -s KILL 0.7 {RANK} tell; exit 7");
    all_have_joined(&format!("0) {killed};; 3) sleep 1.5;;"), [1, 0, 0, 0]);
}

/// Nobody is left who has begun.
#[test]
fn all_ranks_fail_before_they_join() {
    all_have_joined("?) exit 7;;", [1; 4]);
}
