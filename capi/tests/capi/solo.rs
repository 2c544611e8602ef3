//! Programs of one rank.

use std::process::Command;

use crate::stage::{Stage, run};

fn succeeds(name: &str) {
    let stage = Stage::new();
    run(&mut Command::new(stage.compile(name)));
}

#[test]
fn every_wrong_argument_is_refused() {
    succeeds("arguments.c");
}

#[test]
fn errors_belong_to_threads() {
    succeeds("threads.c");
}

#[test]
fn cplusplus_links_and_runs() {
    succeeds("header.cpp");
}
