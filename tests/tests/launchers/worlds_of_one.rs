//! Processes that are worlds of one rank: they warn if a launcher has started several, and only then.

use std::process::Command;

use brevity_tests::command::run_within;

use super::programs::{MPIRUN, PATIENCE, RANK, clean};

const TOLD: &str = "this process is a world of one rank";

/// The warnings of a job's ranks that they are alone; all end successfully.
fn told(command: &mut Command) -> Vec<String> {
    let ended = run_within(command, PATIENCE);
    assert!(ended.status.is_some_and(|status| status.success()), "{command:?}: {ended:?}");
    ended.stderr.lines().filter(|line| line.contains(TOLD)).map(str::to_owned).collect()
}

/// A process with these variables, which makes several groups.
fn alone(variables: &[(&str, &str)]) -> Vec<String> {
    told(clean(Command::new(RANK)).arg("groups").envs(variables.iter().copied()))
}

#[test]
fn a_launcher_that_is_not_understood_is_named_with_the_remedy() {
    for (name, value) in [
        ("MV2_COMM_WORLD_SIZE", "4"),
        ("PALS_SIZE", "4"),
        ("PALS_RANKID", "1"),
        ("FLUX_JOB_SIZE", "4"),
        ("JSM_NAMESPACE_SIZE", "4"),
        ("ALPS_APP_PE", "3"),
        ("MPI_LOCALNRANKS", "2"),
        // As prterun starts its second process.
        ("PMIX_RANK", "1"),
    ] {
        let lines = alone(&[(name, value)]);
        assert_eq!(lines.len(), 1, "once, though there are four groups: {lines:?}");
        let words = [&format!("{name}={value}"), "BREVITY_RANK", "BREVITY_WORLD_SIZE", "BREVITY_MASTER"];
        assert!(words.iter().all(|word| lines[0].contains(*word)), "{lines:?}");
    }
}

#[test]
fn no_false_alarms() {
    for variables in [
        &[][..],
        // A batch script of Slurm, and the shell of an interactive step.
        &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "2")],
        &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "4")],
        // After MPI_Init in a program without a launcher, and a job of one rank.
        &[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "254017537"), ("OMPI_APP_CTX_NUM_PROCS", "1")],
        &[("BREVITY_RANK", "0"), ("BREVITY_WORLD_SIZE", "1"), ("FLUX_JOB_SIZE", "1")],
    ] {
        assert_eq!(alone(variables), [""; 0], "{variables:?}");
    }
}

/// `brevity run -n 1 -- mpirun -n 2 rank`: the variables of `brevity run` apply.
#[test]
fn an_mpirun_inside_of_a_world_of_one() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let mut command = mpirun.ranks(2);
    command.env("BREVITY_RANK", "0").env("BREVITY_WORLD_SIZE", "1").args([RANK, "groups"]);
    let lines = told(&mut command);
    assert_eq!(lines.len(), 2, "{lines:?}");
    let words = ["BREVITY_WORLD_SIZE=1 counts", "OMPI_COMM_WORLD_SIZE=2"];
    assert!(lines.iter().all(|line| words.iter().all(|word| line.contains(word))), "{lines:?}");
}

/// `mpirun -n 2 brevity run -n 1 -- rank`: each rank of mpirun makes a world of its own on purpose.
#[test]
fn a_world_of_one_inside_of_an_mpirun() {
    let Some(mpirun) = MPIRUN.found() else { return };
    let script = "BREVITY_RANK=0 BREVITY_WORLD_SIZE=1 \"$0\" groups; exit $?";
    assert_eq!(told(mpirun.ranks(2).args(["sh", "-c", script, RANK])), [""; 0]);
}
