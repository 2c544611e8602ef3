//! Joining by a config: an identifier, an all-gather of the program, several jobs, and what is refused.

use std::process::Command;

use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::launch_with;
use crate::solo::alone;
use crate::stage::{Stage, run};

/// Runs one way of `joining.c`, which starts its ranks itself.
fn joins(way: &str, worlds: &[u32]) {
    let stage = Stage::new();
    let program = stage.compile("joining.c");
    for world_size in worlds {
        run(alone(Command::new(&program).args([way, &world_size.to_string()])));
    }
}

#[test]
fn ranks_meet_by_an_identifier_in_a_pipe() {
    joins("id", &[1, 2, 3, 4]);
}

#[test]
fn ranks_meet_through_an_all_gather_of_the_program() {
    joins("gather", &[1, 2, 4]);
}

#[test]
fn an_all_gather_that_fails_is_named() {
    joins("fails", &[2, 3]);
}

#[test]
fn a_process_is_in_several_jobs() {
    joins("jobs", &[1, 2, 3]);
}

#[test]
fn every_wrong_field_of_a_config_is_refused_by_its_name() {
    joins("wrong", &[1]);
}

#[test]
fn a_config_takes_precedence_over_the_environment() {
    for world_size in [1, 3] {
        let stage = Stage::new();
        let program = stage.compile("joining.c");
        let variables = [
            ("BREVITY_ANY_ORDER", "1"),
            ("BREVITY_ALGORITHM", "all-reduce:direct"),
            ("BREVITY_SEGMENT", "4096"),
        ];
        launch_with(&variables, Choice::Auto, &stage, &program, &["environment", "1"], world_size);
    }
}
