//! Calls that do not block.

use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{launch_with, under_valgrind};
use crate::stage::{Stage, source};
use brevity_testing::ucx_is_here;

#[test]
fn started_averages_have_the_bits_of_blocking_ones() {
    let stage = Stage::new();
    let program = stage.compile("averages.c");
    for (shared_memory, world_size) in [("1", 1), ("1", 3), ("0", 4)] {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, Choice::Tcp, &stage, &program, &[], world_size);
    }
}

#[test]
fn the_example_of_an_event_loop_averages() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/poll.c"));
    for shared_memory in ["0", "1"] {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        let outputs = launch_with(&variables, Choice::Tcp, &stage, &program, &[], 2);
        for (rank, output) in outputs.iter().enumerate() {
            let expected = format!("rank {rank} of 2: 20 averages, the last is 19.5\n");
            assert!(output.contains(&expected), "{output}");
        }
    }
}

/// With and without shared memory and a thread that moves calls, and over UCX.
#[test]
fn requests_end_as_their_blocking_forms() {
    let stage = Stage::new();
    let program = stage.compile("requests.c");
    let mut wires = vec![(Choice::Tcp, "1", "0", 1), (Choice::Tcp, "1", "0", 3), (Choice::Tcp, "0", "0", 2)];
    if ucx_is_here() {
        wires.extend([(Choice::Ucx, "0", "0", 2), (Choice::Ucx, "1", "1", 2)]);
    }
    for (transport, shared_memory, progress_thread, world_size) in wires {
        let variables =
            [("BREVITY_SHARED_MEMORY", shared_memory), ("BREVITY_PROGRESS_THREAD", progress_thread)];
        launch_with(&variables, transport, &stage, &program, &[], world_size);
    }
}

/// What `ci/sanitize.sh thread` runs too.
#[test]
fn requests_end_over_tcp_with_threads() {
    let stage = Stage::new();
    let program = stage.compile("requests.c");
    let variables = [("BREVITY_SHARED_MEMORY", "0"), ("BREVITY_PROGRESS_THREAD", "1")];
    launch_with(&variables, Choice::Tcp, &stage, &program, &[], 2);
}

/// valgrind sees whether a request is used after it was freed.
#[test]
fn functions_of_requests_run_while_these_are_freed() {
    under_valgrind("callbacks.c", &[], 2);
}

#[test]
fn requests_run_under_valgrind() {
    under_valgrind("requests.c", &[], 2);
    under_valgrind("averages.c", &[], 2);
}
