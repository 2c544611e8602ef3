//! Signs that a world of one rank was meant to be larger: the variables of launchers that are not supported
//! or do not count. Under these, n processes would silently be n worlds.

use super::launcher::{Launcher, Nesting};
use super::variables::Variables;

/// The launchers' variables of world size and rank, without those that a batch script has too.
const SIGNS: [(&str, &str); 16] = [
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("WORLD_SIZE", "RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    // MVAPICH2's mpirun_rsh.
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    // HPE Cray's PALS.
    ("PALS_SIZE", "PALS_RANKID"),
    ("PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"),
    // aprun of Cray gives no size.
    ("", "ALPS_APP_PE"),
    // prterun of PRRTE and other PMIx servers give no size. A program without launcher is rank 0 after
    // MPI_Init.
    ("", "PMIX_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    // Launchers of MPICH's family whose processes get no PMI_RANK.
    ("MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    // jsrun of IBM, under LSF.
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    ("HOROVOD_SIZE", "HOROVOD_RANK"),
    // Kubernetes: the operators of PyTorch, Paddle and MXNet.
    ("PET_NNODES", "PET_NODE_RANK"),
    ("PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"),
    ("DMLC_NUM_WORKER", "DMLC_WORKER_ID"),
];

/// The signs, as "FLUX_JOB_SIZE=4", that this process of the launcher `counts` is part of a larger world. A
/// launcher outside of the one that counts is no sign: its rank may have started a world of its own.
pub(super) fn of_a_larger_world(
    variables: Variables<'_>,
    counts: Option<Launcher>,
    nesting: impl FnOnce() -> Nesting,
) -> Vec<String> {
    let at_least =
        |name: &'static str, least| Some(name).filter(|name| variables.number(name) >= Some(least));
    let mut found: Vec<&str> =
        SIGNS.iter().filter_map(|&(size, rank)| at_least(size, 2).or(at_least(rank, 1))).collect();
    if let Some(launcher) = counts.filter(|_| !found.is_empty()) {
        let nesting = nesting();
        let inside = nesting.depth(launcher.variables().0, variables);
        found.retain(|name| nesting.depth(name, variables) <= inside);
    }
    found.iter().map(|name| format!("{name}={}", variables.number(name).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn what_speaks_for_a_larger_world() {
        for (environment, expected) in [
            (&[][..], &[][..]),
            (&["FLUX_JOB_SIZE=4", "FLUX_TASK_RANK=3"], &["FLUX_JOB_SIZE=4"]),
            (&["MV2_COMM_WORLD_SIZE=4", "PALS_RANKID=1"], &["MV2_COMM_WORLD_SIZE=4", "PALS_RANKID=1"]),
            (&["PMIX_RANK=1"], &["PMIX_RANK=1"]),
            (&["OMPI_COMM_WORLD_SIZE=2"], &["OMPI_COMM_WORLD_SIZE=2"]),
            // A job of one, a batch script of Slurm, an interactive step, a singleton after MPI_Init,
            // nonsense.
            (&["FLUX_JOB_SIZE=1", "FLUX_TASK_RANK=0"], &[]),
            (&["SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_NPROCS=4", "SLURM_JOB_ID=7"], &[]),
            (&["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"], &[]),
            (&["PMIX_RANK=0", "PMIX_NAMESPACE=7", "OMPI_APP_CTX_NUM_PROCS=1"], &[]),
            (&["FLUX_JOB_SIZE=many"], &[]),
        ] {
            let variables: HashMap<&str, &str> =
                environment.iter().map(|entry| entry.split_once('=').unwrap()).collect();
            let lookup = |name: &str| variables.get(name).map(Into::into);
            let found = of_a_larger_world(Variables { lookup: &lookup }, None, Nesting::unknown);
            assert_eq!(found, expected, "{environment:?}");
        }
    }
}
