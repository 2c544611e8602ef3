//! The job's name, which every connection carries: ranks of jobs with different names never join.
//!
//! It is `BREVITY_JOB` and the launcher's name for the job. If both are missing and there is no key, it names
//! the process that started the ranks, provided that all are on this host. A job without any name is refused:
//! its ranks could join another job on the same port.

use sha2::{Digest, Sha256};

use super::identity::MAX_JOB_BYTES;
use super::key::hex;
use super::launcher::{Launcher, Nesting};
use super::slurm;
use super::variables::{Variables, not_set};
use crate::{Error, Result};

/// torchrun's variable of the job's name, and its value for "no name".
const RUN_ID: (&str, &str) = ("TORCHELASTIC_RUN_ID", "none");

/// Bytes of a long name's digest, two characters each.
const DIGEST_BYTES: usize = 8;

/// The launcher's name for the job, unique to it.
pub(super) fn launched(launcher: Launcher, variables: Variables<'_>) -> Option<String> {
    let named = |prefix: &str, variable| {
        let value = (variables.lookup)(variable).filter(|value| !value.is_empty())?;
        Some(format!("{prefix} {}", value.to_string_lossy()))
    };
    match launcher {
        Launcher::Own => None,
        Launcher::Torchrun if variables.is(RUN_ID.0, RUN_ID.1) => None,
        Launcher::Torchrun => named("torchrun", RUN_ID.0),
        Launcher::OpenMpi => named("pmix", "PMIX_NAMESPACE"),
        Launcher::Pmi => named("pmi", "PMI_JOBID"),
        Launcher::Slurm => slurm::step(variables).map(|(job, step)| format!("slurm {job}.{step}")),
    }
}

/// The name of a job without a key that neither the user nor the launcher has named.
///
/// # Errors
/// [`Error::Environment`] when nothing identifies the job.
pub(super) fn of_starter(
    launcher: Launcher,
    variables: Variables<'_>,
    nesting: impl FnOnce() -> Nesting,
) -> Result<String> {
    let (rank, world_size) = launcher.variables();
    let local_ranks = local_ranks(launcher, variables);
    let is_whole = local_ranks.is_some() && local_ranks == variables.number(world_size);
    let names: &[&str] = match launcher {
        // One shell may start several jobs by hand.
        Launcher::Own => &[],
        Launcher::Torchrun if !variables.any(&[RUN_ID.0]) => &[],
        // A nested torchrun may repeat the rank of the outer one, but not its port.
        Launcher::Torchrun => &[rank, world_size, "MASTER_ADDR", "MASTER_PORT"],
        _ => &[rank, world_size],
    };
    let starter = if is_whole && !names.is_empty() { nesting().starter(names, variables) } else { None };
    let named = starter.map(|starter| format!("{launcher} {starter}"));
    named.ok_or_else(nameless)
}

/// The error for a job that nothing identifies.
pub(super) fn nameless() -> Error {
    not_set("BREVITY_KEY", NAMELESS)
}

const NAMELESS: &str = "the same key on all ranks (or BREVITY_KEY_FILE), or the job's name in \
    BREVITY_JOB if all are on this \
                        host: without either, ranks of two jobs can meet";

/// The number of ranks on this host, if the launcher says it.
pub(super) fn local_ranks(launcher: Launcher, variables: Variables<'_>) -> Option<u32> {
    let variable = match launcher {
        Launcher::Own => return None,
        Launcher::Torchrun => "LOCAL_WORLD_SIZE",
        Launcher::OpenMpi => "OMPI_COMM_WORLD_LOCAL_SIZE",
        Launcher::Pmi => "MPI_LOCALNRANKS",
        Launcher::Slurm if slurm::on_one_host(variables) => "SLURM_STEP_NUM_TASKS",
        Launcher::Slurm => return None,
    };
    variables.number(variable)
}

/// The name as it is sent: a long one is cut, and ends in its digest.
pub(super) fn shortened(name: String) -> String {
    if name.len() <= MAX_JOB_BYTES {
        return name;
    }
    let digest = hex(&Sha256::digest(&name)[..DIGEST_BYTES]);
    format!("{}~{digest}", super::wire::cut(&name, MAX_JOB_BYTES - 1 - digest.len()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn with<T>(entries: &[(&str, &str)], body: impl FnOnce(Variables<'_>) -> T) -> T {
        let map: HashMap<&str, &str> = entries.iter().copied().collect();
        body(Variables { lookup: &|name| map.get(name).map(Into::into) })
    }

    #[test]
    fn launchers_name_their_jobs() {
        type Entries<'a> = &'a [(&'a str, &'a str)];
        let table: [(Entries<'_>, Launcher, Option<&str>); 8] = [
            (&[("TORCHELASTIC_RUN_ID", "7f3")], Launcher::Torchrun, Some("torchrun 7f3")),
            (&[("TORCHELASTIC_RUN_ID", "none")], Launcher::Torchrun, None),
            (&[("TORCHELASTIC_RUN_ID", "")], Launcher::Torchrun, None),
            (&[("PMIX_NAMESPACE", "254017537")], Launcher::OpenMpi, Some("pmix 254017537")),
            (&[("PMI_JOBID", "12.0")], Launcher::Pmi, Some("pmi 12.0")),
            (&[("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "3")], Launcher::Slurm, Some("slurm 12.3")),
            (&[("SLURM_JOB_ID", "12")], Launcher::Slurm, None),
            (&[("TORCHELASTIC_RUN_ID", "7f3")], Launcher::Own, None),
        ];
        for (entries, launcher, name) in table {
            assert_eq!(
                with(entries, |variables| launched(launcher, variables)).as_deref(),
                name,
                "{entries:?}"
            );
        }
    }

    #[test]
    fn long_names_differ_still() {
        assert_eq!(shortened("night slurm 1.0".into()), "night slurm 1.0");
        let long = |last: &str| shortened("é".repeat(60) + last);
        assert!(long("a").len() <= MAX_JOB_BYTES && long("a").starts_with("éé") && long("a") != long("b"));
    }
}
