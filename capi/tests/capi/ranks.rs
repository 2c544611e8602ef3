//! Programs of several ranks, started like `brevity run` starts them.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use brevity::launch::{Ending, Launch};
use brevity_testing::{is_required, ucx_is_here};
use ucx_sys_wrap::bootstrap::Choice;

use crate::stage::{DEADLINE, Stage, source};

/// Sends the output of each rank to a separate file.
const REDIRECTED: &str = r#"exec "$0" "$@" >"$OUTPUT.$BREVITY_RANK" 2>&1"#;

/// The same where ranks are started again, whose processes the test does not know.
const LIMITED: &str = r#"exec timeout -s KILL 120 "$0" "$@" >"$OUTPUT.$BREVITY_RANK" 2>&1"#;

/// Runs a program on `world_size` ranks; all must succeed. Returns what each printed.
fn launch(stage: &Stage, program: &Path, arguments: &[&str], world_size: u32) -> Vec<String> {
    launch_over(Choice::Tcp, stage, program, arguments, world_size)
}

fn launch_over(
    transport: Choice,
    stage: &Stage,
    program: &Path,
    arguments: &[&str],
    world_size: u32,
) -> Vec<String> {
    let shared_memory = if transport == Choice::Ucx { "0" } else { "1" };
    let variables = [("BREVITY_PROGRESS_THREAD", "1"), ("BREVITY_SHARED_MEMORY", shared_memory)];
    launch_with(&variables, transport, stage, program, arguments, world_size)
}

/// Like [`launch`], with these variables.
pub fn launch_with(
    variables: &[(&str, &str)],
    transport: Choice,
    stage: &Stage,
    program: &Path,
    arguments: &[&str],
    world_size: u32,
) -> Vec<String> {
    let way = Way { variables, transport, restarts: 0 };
    let (endings, outputs) = endings_of(way, stage, program, arguments, world_size);
    let succeeded = endings.iter().all(|ending| *ending == Ending::Exited(0));
    assert!(succeeded, "{arguments:?} on {world_size} ranks: {endings:?} {outputs:#?}");
    outputs
}

/// How the ranks of a program are started.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    pub variables: &'a [(&'a str, &'a str)],
    pub transport: Choice,
    /// How often lost ranks are started again.
    pub restarts: u32,
}

/// How each rank ended, and what it printed.
pub fn endings_of(
    Way { variables, transport, restarts }: Way<'_>,
    stage: &Stage,
    program: &Path,
    arguments: &[&str],
    world_size: u32,
) -> (Vec<Ending>, Vec<String>) {
    let output = stage.path().join("output");
    let script = if restarts > 0 { LIMITED } else { REDIRECTED };
    let mut words: Vec<OsString> = vec!["-c".into(), script.into(), program.into()];
    words.extend(arguments.iter().map(OsString::from));
    let launch = Launch::new("sh", words).ranks(world_size).transport(transport).grace(DEADLINE);
    let launch = launch.env("BREVITY_TIMEOUT", "60");
    let launch = if restarts > 0 { launch.restart(restarts) } else { launch };
    let launch = variables.iter().fold(launch, |launch, (name, value)| launch.env(*name, *value));
    let job = launch.env("OUTPUT", &output).spawn().unwrap();
    let processes = job.process_ids();
    let waiter = std::thread::spawn(move || job.wait().unwrap());
    let start = Instant::now();
    while !waiter.is_finished() {
        if start.elapsed() > DEADLINE && restarts == 0 {
            // When they end, the job ends and is reported as failed.
            Command::new("kill").arg("-9").args(processes.iter().map(u32::to_string)).status().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let endings = waiter.join().unwrap().endings;
    let read = |rank: u32| fs::read_to_string(output.with_extension(rank.to_string())).unwrap();
    (endings, (0..world_size).map(read).collect())
}

fn succeeds(name: &str, worlds: &[u32], arguments: &[&str]) {
    let stage = Stage::new();
    let program = stage.compile(name);
    for &world_size in worlds {
        launch(&stage, &program, arguments, world_size);
    }
}

#[test]
fn dense_collectives_agree_with_a_serial_oracle() {
    succeeds("dense.c", &[1, 2, 3, 4], &[]);
}

#[test]
fn dense_collectives_agree_with_it_by_messages() {
    let stage = Stage::new();
    let program = stage.compile("dense.c");
    launch_with(&[("BREVITY_SHARED_MEMORY", "0")], Choice::Tcp, &stage, &program, &[], 3);
}

/// With and without shared memory.
fn in_both_ways(name: &str) {
    let stage = Stage::new();
    let program = stage.compile(name);
    for (shared_memory, world_size) in [("1", 1), ("1", 2), ("1", 3), ("0", 2), ("0", 3)] {
        let variables = [("BREVITY_SHARED_MEMORY", shared_memory)];
        launch_with(&variables, Choice::Tcp, &stage, &program, &[], world_size);
    }
}

#[test]
fn dense_collectives_refuse_what_makes_no_sense() {
    in_both_ways("dense_refused.c");
}

#[test]
fn compressed_collectives_agree_with_serial_sums() {
    in_both_ways("compressed.c");
    in_both_ways("compressed_sums.c");
    in_both_ways("compressed_low_rank.c");
}

/// On so many ranks of hosts that have as many, the last one maybe fewer.
#[test]
fn hierarchical_sums_agree_with_serial_ones() {
    let stage = Stage::new();
    let program = stage.compile("compressed_hosts.c");
    for (ranks, world_size) in [("1", 1), ("2", 2), ("2", 3), ("2", 5), ("3", 6), ("1", 3)] {
        launch(&stage, &program, &[ranks], world_size);
    }
    let variables = [("BREVITY_SHARED_MEMORY", "0")];
    launch_with(&variables, Choice::Tcp, &stage, &program, &["1"], 4);
}

#[test]
fn compressed_collectives_refuse_what_makes_no_sense() {
    in_both_ways("compressed_refused.c");
}

#[test]
fn compressed_collectives_run_under_valgrind() {
    under_valgrind("compressed.c", &["short"], 2);
    under_valgrind("compressed_refused.c", &[], 2);
    under_valgrind("compressed_sums.c", &["short"], 2);
    under_valgrind("compressed_low_rank.c", &["short"], 2);
    under_valgrind("compressed_hosts.c", &["2", "short"], 3);
}

#[test]
fn reductions_of_the_program_are_used_and_may_fail() {
    in_both_ways("reductions.c");
}

#[test]
fn reductions_of_the_program_run_under_valgrind() {
    under_valgrind("reductions.c", &[], 2);
}

/// Whether programs can be run under valgrind.
pub fn valgrind_is_here() -> bool {
    let is_here = Command::new("valgrind").arg("--version").output().is_ok();
    if !is_here {
        assert!(!is_required("BREVITY_REQUIRE_VALGRIND"), "no valgrind, and BREVITY_REQUIRE_VALGRIND is set");
        eprintln!("skipped: no valgrind");
    }
    is_here
}

/// Fails for each error. What is inlined is not looked up, which takes longer than many a program.
pub const VALGRIND: &[&str] = &["--quiet", "--error-exitcode=99", "--read-inline-info=no"];

/// Users check their programs with valgrind. It has no vDSO and none of the instructions of AVX-512.
pub fn under_valgrind(name: &str, arguments: &[&str], world_size: u32) {
    if !valgrind_is_here() {
        return;
    }
    let stage = Stage::new();
    let program = stage.compile_plain(name);
    let program = [program.to_str().unwrap()];
    launch(&stage, Path::new("valgrind"), &[VALGRIND, &program, arguments].concat(), world_size);
}

#[test]
fn dense_collectives_run_under_valgrind() {
    under_valgrind("dense.c", &["short"], 2);
}

#[test]
fn an_exchange_runs_under_valgrind() {
    under_valgrind("exchange.c", &[], 2);
}

#[test]
fn groups_run_under_valgrind() {
    under_valgrind("groups.c", &["splits"], 4);
}

#[test]
fn want_of_memory_ends_no_process() {
    let stage = Stage::new();
    launch(&stage, &stage.compile_plain("memory.c"), &[], 2);
}

#[test]
fn gtopk_loses_nothing() {
    succeeds("gtopk.c", &[1, 2, 3, 4], &[]);
}

#[test]
fn low_rank_approaches_the_mean() {
    succeeds("low_rank.c", &[1, 4], &[]);
}

#[test]
fn saved_feedbacks_go_on_and_others_are_refused() {
    succeeds("saved.c", &[1, 3], &[]);
}

#[test]
fn an_exchange_averages_each_tensor_as_its_own_call() {
    succeeds("exchange.c", &[1, 3], &[]);
}

#[test]
fn steps_have_the_bits_of_averages() {
    succeeds("steps.c", &[1, 2, 3], &[]);
}

#[test]
fn steps_run_under_valgrind() {
    under_valgrind("steps.c", &[], 2);
}

/// Whether the library under test has singular vectors: it is built with the same features.
pub fn with_svd() -> &'static str {
    if brevity::Policy::atomo(1).check("matrix", &[8, 8]).is_ok() { "svd" } else { "plain" }
}

#[test]
fn every_policy_is_reached_as_a_struct_and_as_text() {
    succeeds("policies.c", &[1, 2, 3], &[with_svd()]);
}

#[test]
fn plans_say_whether_compression_pays() {
    succeeds("plan.c", &[1, 3], &[]);
}

/// On networks where messages cost much, or bytes do, or processors are slow.
#[test]
fn automatic_policies_tell_what_was_chosen() {
    let stage = Stage::new();
    let program = stage.compile("choices.c");
    for (link, work, policy) in
        [("1000,0,1", "", "topk"), ("1,0,1000", "", "oktopk"), ("1,0,0.001", ";reduce:10;copy:10", "dense")]
    {
        let machine = format!("inside:{link};between:{link}{work}");
        let variables = [("BREVITY_MACHINE", &machine[..]), ("BREVITY_SHARED_MEMORY", "0")];
        launch_with(&variables, Choice::Tcp, &stage, &program, &[policy], 4);
    }
    launch(&stage, &program, &[], 2);
    launch(&stage, &program, &["dense"], 1);
}

#[test]
fn residuals_lose_nothing() {
    succeeds("residual.c", &[1, 2, 3], &[]);
}

#[test]
fn compressors_run_under_valgrind() {
    under_valgrind("residual.c", &[], 2);
    under_valgrind("quantiser.c", &[], 1);
    under_valgrind("momentum.c", &[], 1);
}

#[test]
fn gradients_of_all_types_are_averaged() {
    succeeds("typed.c", &[1, 2, 3], &[]);
}

#[test]
fn gradients_of_all_types_run_under_valgrind() {
    under_valgrind("typed.c", &["short"], 2);
}

#[test]
fn a_rank_in_another_float_mode_gets_the_same_bits() {
    succeeds("float_modes.c", &[1, 2, 3], &[]);
}

#[test]
fn values_that_are_not_finite_are_named_on_all_ranks() {
    succeeds("non_finite.c", &[1, 2, 4], &[]);
}

#[test]
fn ranks_that_disagree_find_out() {
    for what in ["all_reduce", "type", "reduction", "gtopk", "feedback"] {
        succeeds("mismatch.c", &[2], &[what]);
    }
}

#[test]
fn an_abort_reaches_all_ranks() {
    succeeds("closed.c", &[2, 4], &["abort"]);
}

/// With and without shared memory and the progress thread.
fn in_all_ways(stage: &Stage, program: &Path, arguments: &[&str]) {
    for (shared_memory, progress_thread) in [("1", "0"), ("0", "0"), ("0", "1")] {
        let variables =
            [("BREVITY_SHARED_MEMORY", shared_memory), ("BREVITY_PROGRESS_THREAD", progress_thread)];
        launch_with(&variables, Choice::Tcp, stage, program, arguments, 2);
    }
}

#[test]
fn a_signal_handler_may_abort_the_call_that_it_interrupts() {
    let stage = Stage::new();
    let program = stage.compile_plain("abort_in_handler.c");
    for repetition in 0..20 {
        in_all_ways(&stage, &program, &[&(1000 + 977 * repetition).to_string()]);
    }
}

#[test]
fn an_abort_outside_of_calls_reaches_all_ranks() {
    let stage = Stage::new();
    let program = stage.compile_plain("abort_and_exit.c");
    for way in ["sleeps", "exits"] {
        in_all_ways(&stage, &program, &[way]);
    }
}

#[test]
fn a_death_reaches_all_ranks() {
    succeeds("closed.c", &[2, 4], &["lost"]);
}

#[test]
fn the_example_averages() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/average.c"));
    for (rank, output) in launch(&stage, &program, &[], 4).iter().enumerate() {
        assert!(output.starts_with(&format!("rank {rank} of 4 over ")), "{output}");
        assert!(output.contains("average[0] = 1.5, 10 entries came, 9"), "{output}");
    }
}

#[test]
fn the_example_of_collectives_has_one_result() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/collectives.c"));
    for (rank, output) in launch(&stage, &program, &[], 4).iter().enumerate() {
        let expected = format!("rank {rank} of 4: parameter -3, 10 records, smallest loss -2 on rank 1\n");
        assert!(output.contains(&expected), "{output}");
    }
}

/// Also while other threads are in calls, and with a progress thread.
#[test]
fn a_process_may_exit_with_a_group() {
    let stage = Stage::new();
    let program = stage.compile_plain("exits.c");
    for transport in [Choice::Tcp, Choice::Ucx] {
        if transport == Choice::Ucx && !ucx_is_here() {
            continue;
        }
        for way in ["call", "free", "handler"] {
            for output in launch_over(transport, &stage, &program, &[way], 2) {
                assert_eq!(output, "", "{way} over {transport:?}");
            }
        }
    }
}
