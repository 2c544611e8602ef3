//! The name by which ranks know that they belong to one job.
//!
//! Every connection carries it, and ranks of different names never meet. It holds all that is known:
//! `BREVITY_JOB`, and the launcher's own name for the job. Where nobody has named the job and it has no key,
//! the process that started all ranks of this host names it, if a launcher says that there are no others.
//! What is left is refused: ranks of two jobs that use one port would meet each other.

use sha2::{Digest, Sha256};

use super::identity::MAX_JOB_BYTES;
use super::key::hex;
use super::launcher::{Launcher, Nesting};
use super::slurm;
use super::variables::{Variables, not_set};
use crate::{Error, Result};

/// The torchrun variable with the job's name, and its value where it has none.
const RUN_ID: (&str, &str) = ("TORCHELASTIC_RUN_ID", "none");

/// Bytes of a long name's digest, each of which is two characters.
const DIGEST_BYTES: usize = 8;

/// The launcher's name for the job, the same for all its ranks and different for every job.
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
        Launcher::Slurm => slurm::step_name(variables),
    }
}

/// The name of a job without a key that neither the user nor the launcher has named.
///
/// # Errors
/// [`Error::Environment`] when nothing tells the job from others.
pub(super) fn of_starter(
    launcher: Launcher,
    variables: Variables<'_>,
    nesting: impl FnOnce() -> Nesting,
) -> Result<String> {
    let (rank, world_size) = launcher.variables();
    let is_whole =
        local_ranks(launcher, variables).is_some_and(|count| variables.is_number(world_size, count));
    let names: &[&str] = match launcher {
        // Whoever sets ranks by hand may start several jobs from one shell.
        Launcher::Own => &[],
        Launcher::Torchrun if !variables.any(&[RUN_ID.0]) => &[],
        // A torchrun that a rank of another has started may give the same rank again, but not the same port.
        Launcher::Torchrun => &[rank, world_size, "MASTER_ADDR", "MASTER_PORT"],
        _ => &[rank, world_size],
    };
    let starter = if is_whole && !names.is_empty() { nesting().starter(names, variables) } else { None };
    starter.map(|starter| format!("{launcher} {starter}")).ok_or_else(nameless)
}

/// How many ranks the launcher says are on this host.
pub(super) fn local_ranks(launcher: Launcher, variables: Variables<'_>) -> Option<u32> {
    let variable = match launcher {
        Launcher::Own => return None,
        Launcher::Torchrun => "LOCAL_WORLD_SIZE",
        Launcher::OpenMpi => "OMPI_COMM_WORLD_LOCAL_SIZE",
        Launcher::Pmi => "MPI_LOCALNRANKS",
        Launcher::Slurm if slurm::on_one_host(variables) => "SLURM_STEP_NUM_TASKS",
        Launcher::Slurm => return None,
    };
    (variables.lookup)(variable)?.to_str()?.parse().ok()
}

/// The name as it is sent: a long one ends in its digest.
pub(super) fn shortened(name: String) -> String {
    if name.len() <= MAX_JOB_BYTES {
        return name;
    }
    let digest = hex(&Sha256::digest(&name)[..DIGEST_BYTES]);
    format!("{}~{digest}", super::wire::cut(&name, MAX_JOB_BYTES - 1 - digest.len()))
}

fn nameless() -> Error {
    not_set(
        "BREVITY_KEY",
        "the same key on all ranks (or BREVITY_KEY_FILE), or the job's name in BREVITY_JOB if all are on this host: \
         without either, ranks of two jobs can meet",
    )
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
