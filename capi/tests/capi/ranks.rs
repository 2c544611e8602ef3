//! Programs of several ranks, started by hand: each with its rank, the world size and rank 0's address.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::stage::{DEADLINE, Running, Stage, source};

/// Runs a program on `world_size` ranks over tcp; all must succeed. Returns what each printed.
fn launch(program: &Path, arguments: &[&str], world_size: u32) -> Vec<String> {
    // The system chooses a port that nobody has; rank 0 takes it over.
    let master = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let deadline = Instant::now() + DEADLINE;
    let ranks: Vec<Running> = (0..world_size)
        .map(|rank| {
            let mut command = Command::new(program);
            command.args(arguments).env("BREVITY_RANK", rank.to_string());
            command.env("BREVITY_WORLD_SIZE", world_size.to_string()).env("BREVITY_MASTER", &master);
            command.env("BREVITY_TRANSPORT", "tcp").env("BREVITY_TIMEOUT", "60");
            Running::start(&mut command)
        })
        .collect();
    let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.wait(deadline)).collect();
    assert!(outcomes.iter().all(|(status, _)| status.success()), "{arguments:?} of {world_size}: {outcomes:#?}");
    outcomes.into_iter().map(|(_, output)| output).collect()
}

fn succeeds(name: &str, worlds: &[u32], arguments: &[&str]) {
    let stage = Stage::new();
    let program = stage.compile(name);
    for &world_size in worlds {
        launch(&program, arguments, world_size);
    }
}

#[test]
fn dense_collectives_agree_with_a_serial_oracle() {
    succeeds("dense.c", &[1, 3, 4], &[]);
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
fn values_that_are_not_finite_are_named_on_all_ranks() {
    succeeds("non_finite.c", &[1, 2, 4], &[]);
}

#[test]
fn ranks_that_disagree_find_out() {
    for what in ["all_reduce", "type", "reduction", "gtopk"] {
        succeeds("mismatch.c", &[2], &[what]);
    }
}

#[test]
fn an_abort_reaches_all_ranks() {
    succeeds("closed.c", &[2, 4], &["abort"]);
}

#[test]
fn a_death_reaches_all_ranks() {
    succeeds("closed.c", &[2, 4], &["lost"]);
}

#[test]
fn the_example_averages() {
    let stage = Stage::new();
    let program = stage.compile_source(&source("examples/c/average.c"));
    for (rank, output) in launch(&program, &[], 4).iter().enumerate() {
        assert!(output.starts_with(&format!("rank {rank} of 4 over ")), "{output}");
        assert!(output.contains("average[0] = 1.5, 10 entries came, 9"), "{output}");
    }
}
