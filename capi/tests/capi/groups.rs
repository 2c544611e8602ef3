//! Groups of some of the ranks, over every wire between processes of one host.

use std::path::Path;

use brevity::launch::Ending;
use brevity_testing::ucx_is_here;
use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::{VALGRIND, Way, endings_of, launch_with, valgrind_is_here};
use crate::stage::{Stage, source};

/// A transport and its variables.
type Wire = (Choice, &'static [(&'static str, &'static str)]);

/// Over sockets, shared memory, and UCX if it is there, which has leaks of its own.
fn wires() -> impl Iterator<Item = Wire> {
    let wires: [Wire; 3] = [
        (Choice::Tcp, &[("BREVITY_SHARED_MEMORY", "1")]),
        (Choice::Tcp, &[("BREVITY_SHARED_MEMORY", "0")]),
        (Choice::Ucx, &[("BREVITY_SHARED_MEMORY", "0"), ("ASAN_OPTIONS", "detect_leaks=0")]),
    ];
    wires.into_iter().filter(|(transport, _)| *transport != Choice::Ucx || ucx_is_here())
}

#[test]
fn groups_are_split_by_colour_and_key() {
    let stage = Stage::new();
    let program = stage.compile("groups.c");
    for (transport, variables) in wires() {
        launch_with(variables, transport, &stage, &program, &["splits"], 4);
    }
}

#[test]
fn more_groups_than_there_are_numbers_are_refused() {
    let stage = Stage::new();
    let program = stage.compile("groups.c");
    launch_with(&[], Choice::Tcp, &stage, &program, &["exhausts"], 4);
}

/// Ends as it must, over each wire, and in sanitizers.
fn ends(name: &str, way: &str, expected: [Ending; 4]) {
    let stage = Stage::new();
    let program = stage.compile(name);
    for (transport, variables) in wires() {
        let how = Way { variables, transport, restarts: 0 };
        let (endings, outputs) = endings_of(how, &stage, &program, &[way], 4);
        assert_eq!(endings, expected, "{way} over {transport:?}: {outputs:#?}");
    }
}

const ZERO: Ending = Ending::Exited(0);
const KILLED: Ending = Ending::Killed(9);

#[test]
fn after_a_death_the_others_go_on_in_a_group_without_it() {
    ends("groups.c", "dies", [ZERO, ZERO, ZERO, KILLED]);
}

#[test]
fn one_of_four_ranks_goes_on_only_if_that_is_asked_for() {
    ends("left.c", "few", [KILLED, KILLED, KILLED, ZERO]);
}

#[test]
fn a_stopped_rank_is_told_that_the_others_go_on_without_it() {
    ends("left.c", "stopped", [ZERO; 4]);
}

/// Two of four ranks are killed, rank 0 first; both come back.
#[test]
fn the_example_survives_and_takes_ranks_back() {
    let stage = Stage::new();
    let example = source("examples/c/survive.c");
    let program = stage.compile_source(&example);
    for (transport, variables) in wires() {
        let way = Way { variables, transport, restarts: 2 };
        let (endings, outputs) = endings_of(way, &stage, &program, &["2"], 4);
        assert_eq!(endings, [Ending::Exited(0); 4], "over {transport:?}: {outputs:#?}");
        for (rank, output) in outputs.iter().enumerate() {
            let last = output.lines().last().unwrap_or_default();
            assert!(last.starts_with(&format!("rank {rank} of 4 at step 600: at most 0.0")), "{outputs:#?}");
            assert_eq!(last.ends_with("has come back"), rank < 2, "{outputs:#?}");
        }
    }
}

/// Nothing is used wrongly, or definitely lost.
fn under_valgrind(source: &str, arguments: &[&str], restarts: u32, expected: &[Ending]) {
    let stage = Stage::new();
    let program = stage.compile_with(&crate::stage::source(source), &[]);
    let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite", program.to_str().unwrap()];
    let way = Way { variables: &[], transport: Choice::Tcp, restarts };
    let words = [VALGRIND, &leaks, arguments].concat();
    let (endings, outputs) = endings_of(way, &stage, Path::new("valgrind"), &words, expected.len() as u32);
    assert_eq!(endings, expected, "{source} {arguments:?}: {outputs:#?}");
}

/// Those that go on, and one that has come back.
#[test]
fn going_on_runs_under_valgrind() {
    if !valgrind_is_here() {
        return;
    }
    under_valgrind("examples/c/survive.c", &["1"], 1, &[ZERO; 3]);
}

#[test]
fn deaths_run_under_valgrind() {
    if !valgrind_is_here() {
        return;
    }
    under_valgrind("tests/c/groups.c", &["dies"], 0, &[ZERO, ZERO, ZERO, KILLED]);
    under_valgrind("tests/c/left.c", &["few"], 0, &[KILLED, KILLED, KILLED, ZERO]);
}
