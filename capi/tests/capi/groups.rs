//! Groups of some of the ranks, over every wire between processes of one host.

use std::path::Path;

use brevity::launch::Ending;
use brevity_testing::ucx_is_here;
use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{Way, endings_of, launch_with, valgrind_is_here};
use crate::stage::{Stage, source};

/// Over sockets, shared memory, and UCX if it is there.
fn wires() -> impl Iterator<Item = (Choice, &'static str)> {
    let wires = [(Choice::Tcp, "1"), (Choice::Tcp, "0"), (Choice::Ucx, "0")];
    wires.into_iter().filter(|(transport, _)| *transport != Choice::Ucx || ucx_is_here())
}

#[test]
fn groups_are_split_by_colour_and_key() {
    let stage = Stage::new();
    let (plain, sanitized) = (stage.compile_plain("groups.c"), stage.compile_as("groups.c", "sanitized"));
    for (transport, shared_memory) in wires() {
        // UCX has leaks of its own.
        let program = if transport == Choice::Ucx { &plain } else { &sanitized };
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, transport, &stage, program, &["splits"], 4);
    }
}

#[test]
fn more_groups_than_there_are_numbers_are_refused() {
    let stage = Stage::new();
    let program = stage.compile("groups.c");
    launch_with(&[], Choice::Tcp, &stage, &program, &["exhausts"], 4);
}

#[test]
fn after_a_death_the_others_go_on_in_a_group_without_it() {
    let stage = Stage::new();
    let (plain, sanitized) = (stage.compile_plain("groups.c"), stage.compile_as("groups.c", "sanitized"));
    for (transport, shared_memory) in wires() {
        let program = if transport == Choice::Ucx { &plain } else { &sanitized };
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        let (endings, outputs) =
            endings_of(Way { variables: &variables, transport, restarts: 0 }, &stage, program, &["dies"], 4);
        let zero = Ending::Exited(0);
        assert_eq!(endings, [zero, zero, zero, Ending::Killed(9)], "over {transport:?}: {outputs:#?}");
    }
}

/// Two of four ranks are killed, rank 0 first; both come back.
#[test]
fn the_example_survives_and_takes_ranks_back() {
    let stage = Stage::new();
    let example = source("examples/c/survive.c");
    for (transport, shared_memory) in wires() {
        // UCX has leaks of its own.
        let is_plain = transport == Choice::Ucx;
        let program =
            if is_plain { stage.compile_with(&example, &[]) } else { stage.compile_source(&example) };
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        let way = Way { variables: &variables, transport, restarts: 2 };
        let (endings, outputs) = endings_of(way, &stage, &program, &["2"], 4);
        assert_eq!(endings, [Ending::Exited(0); 4], "over {transport:?}: {outputs:#?}");
        for (rank, output) in outputs.iter().enumerate() {
            let last = output.lines().last().unwrap_or_default();
            assert!(last.starts_with(&format!("rank {rank} of 4 at step 600: at most 0.0")), "{outputs:#?}");
            assert_eq!(last.ends_with("has come back"), rank < 2, "{outputs:#?}");
        }
    }
}

/// A rank is killed and comes back: nothing is used wrongly or definitely lost in those that go on, nor in
/// the one that has come back.
#[test]
fn going_on_runs_under_valgrind() {
    if !valgrind_is_here() {
        return;
    }
    let stage = Stage::new();
    let program = stage.compile_with(&source("examples/c/survive.c"), &[]);
    let words = [
        "--quiet",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--error-exitcode=99",
        program.to_str().unwrap(),
        "1",
    ];
    let way = Way { variables: &[], transport: Choice::Tcp, restarts: 1 };
    let (endings, outputs) = endings_of(way, &stage, Path::new("valgrind"), &words, 3);
    assert_eq!(endings, [Ending::Exited(0); 3], "{outputs:#?}");
}
