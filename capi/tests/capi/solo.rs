//! Programs of one rank.

use std::process::Command;

use crate::ranks::with_svd;
use crate::stage::{Stage, run};

fn succeeds(name: &str) {
    let stage = Stage::new();
    run(alone(&mut Command::new(stage.compile(name))));
}

/// Removes the variables of a surrounding job.
pub fn alone(command: &mut Command) -> &mut Command {
    for name in ["BREVITY_RANK", "BREVITY_WORLD_SIZE", "BREVITY_MASTER", "RANK", "WORLD_SIZE", "MASTER_ADDR"]
    {
        command.env_remove(name);
    }
    command
}

#[test]
fn every_wrong_argument_is_refused() {
    succeeds("arguments.c");
}

#[test]
fn wrong_policies_and_schedules_are_refused() {
    let stage = Stage::new();
    let mut command = Command::new(stage.compile("policies_refused.c"));
    run(alone(command.arg(with_svd())));
}

#[test]
fn quantisers_write_and_read_every_format() {
    succeeds("quantiser.c");
}

#[test]
fn momentum_before_selection_is_what_its_formulas_say() {
    succeeds("momentum.c");
}

#[test]
fn errors_belong_to_threads() {
    succeeds("threads.c");
}

#[test]
fn cplusplus_links_and_runs() {
    succeeds("header.cpp");
}

#[test]
fn without_a_job_a_program_runs_alone() {
    succeeds("gtopk.c");
}

#[test]
fn warnings_are_printed_on_request() {
    let stage = Stage::new();
    let program = stage.compile_plain("logs.c");
    for (asks, level, is_printed) in
        [(false, None, false), (true, None, true), (false, Some("warn"), true), (true, Some("off"), false)]
    {
        let mut command = Command::new(&program);
        command.args(asks.then_some("ask")).env_remove("BREVITY_LOG").env("BREVITY_TIMEOOT", "5");
        let output = run(alone(command.envs(level.map(|level| ("BREVITY_LOG", level)))));
        assert_eq!(output.contains("brevity: warning: "), is_printed, "{asks} {level:?}: {output}");
        assert_eq!(output.contains("BREVITY_TIMEOOT"), is_printed, "{asks} {level:?}: {output}");
    }
}

#[test]
fn an_environment_that_makes_no_sense_is_refused() {
    let stage = Stage::new();
    let mut command = Command::new(stage.compile("join_fails.c"));
    run(alone(&mut command).env("BREVITY_RANK", "three").env("BREVITY_WORLD_SIZE", "2"));
}
