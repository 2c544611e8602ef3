//! The parameter server.

use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{launch_with, under_valgrind};
use crate::stage::{Stage, outcome, source};
use brevity_testing::ucx_is_here;

#[test]
fn workers_lose_nothing() {
    let stage = Stage::new();
    let program = stage.compile("server.c");
    let mut wires = vec![(Choice::Tcp, "1", 1), (Choice::Tcp, "1", 3), (Choice::Tcp, "0", 3)];
    if ucx_is_here() {
        wires.push((Choice::Ucx, "0", 3));
    }
    for (transport, shared_memory, world_size) in wires {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, transport, &stage, &program, &[], world_size);
    }
}

#[test]
fn every_setting_does_as_its_model() {
    let stage = Stage::new();
    let program = stage.compile("server_methods.c");
    for (shared_memory, world_size) in [("1", 1), ("0", 3)] {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, Choice::Tcp, &stage, &program, &[], world_size);
    }
}

#[test]
fn calls_that_do_not_block_can_be_given_up() {
    let stage = Stage::new();
    let program = stage.compile("server_started.c");
    let mut wires = vec![(Choice::Tcp, "1", "0", "server"), (Choice::Tcp, "0", "1", "group")];
    if ucx_is_here() {
        wires.push((Choice::Ucx, "0", "0", "server"));
    }
    for (transport, shared_memory, progress_thread, frees) in wires {
        let variables =
            [("BREVITY_SHARED_MEMORY", shared_memory), ("BREVITY_PROGRESS_THREAD", progress_thread)];
        launch_with(&variables, transport, &stage, &program, &[frees], 3);
    }
}

#[test]
fn a_worker_that_begins_late_holds_up_nobody() {
    let stage = Stage::new();
    let program = stage.compile("server_late.c");
    for shared_memory in ["1", "0"] {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, Choice::Tcp, &stage, &program, &[], 4);
    }
}

#[test]
fn servers_run_under_valgrind() {
    under_valgrind("server.c", &[], 2);
}

#[test]
fn calls_that_do_not_block_run_under_valgrind() {
    under_valgrind("server_started.c", &["group"], 3);
}

#[test]
fn the_example_finds_its_model() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/server.c"));
    for (arguments, world_size, workers) in [(&[][..], 1, 1), (&[], 3, 3), (&["1"], 3, 2)] {
        let outputs = launch_with(&[], Choice::Tcp, &stage, &program, arguments, world_size);
        let mut gains = Vec::new();
        for (rank, output) in outputs.iter().enumerate().take(workers) {
            let losses = output.strip_prefix(&format!("rank {rank}: loss "));
            let losses = losses.and_then(|text| text.split_once(" after ")?.0.split_once(" before, "));
            let [before, after] =
                losses.map(|(before, after)| [before, after]).unwrap_or_else(|| panic!("{output}"));
            let [before, after] = [before, after].map(|loss| loss.parse::<f64>().unwrap());
            // A worker that is far ahead of the others ends with its own pushes.
            assert!(before > 10.0 && after < before / 20.0, "{output}");
            gains.push(before / after);
        }
        // The last one to end has those of all.
        assert!(gains.iter().any(|gain| *gain > 100.0), "{outputs:?}");
        for output in &outputs[workers..] {
            assert_eq!(output, "rank 2: served 800 pushes\n");
        }
    }
}

#[test]
fn the_example_says_what_is_wrong() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/server.c"));
    for argument in ["-1", "abc", "1x", "", "1001"] {
        let (status, output) = outcome(std::process::Command::new(&program).arg(argument));
        assert!(status.code() == Some(2) && output.contains("expected a number"), "{argument}: {output}");
    }
    // Alone it can't be a server of others.
    let (status, output) = outcome(std::process::Command::new(&program).arg("1"));
    assert!(status.code() == Some(1) && output.contains("servers"), "{output}");
}
