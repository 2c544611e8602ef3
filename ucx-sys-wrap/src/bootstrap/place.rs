//! Each launcher's rule for this process's rank and for where the ranks meet.

use super::identity::{Identity, Introduction};
use super::job;
use super::launcher::{Launcher, Nesting};
use super::master::{MASTER, Master};
use super::reserve::Ports;
use super::slurm;
use super::variables::{RANK, Variables, non_empty, not_set};
use crate::{Rank, Result};

const NEXT_PORT: &str =
    "torchrun's port, from 1 to 65534 (one of the next 16 is used), or BREVITY_MASTER=host:port";

const DESCRIPTOR: &str = "the number of the launcher's descriptor, or BREVITY_MASTER=host:port for all ranks";
const NO_INTRODUCTION: &str = "host:port where rank 0 waits for the others, because the launcher does \
    not speak PMI-1 or PMIx with this process";

/// The identity by the launcher that counts; its job is the launcher's name for it, or empty.
pub(super) fn read(variables: Variables<'_>, nesting: impl FnOnce() -> Nesting) -> Result<Identity> {
    match Launcher::detect(variables, nesting) {
        Some(launcher) => launched(launcher, variables),
        // An incomplete set of torchrun's variables is an error.
        None if variables.any(&["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]) => {
            launched(Launcher::Torchrun, variables)
        }
        None if variables.any(&["BREVITY_MASTER"]) => Err(not_set("BREVITY_RANK", RANK)),
        None => Ok(Identity { one_host: true, ..Identity::new(Rank(0), 1, no_master()) }),
    }
}

fn launched(launcher: Launcher, variables: Variables<'_>) -> Result<Identity> {
    let (rank_name, world_size_name) = launcher.variables();
    let (rank, world_size) = variables.rank_of(rank_name, world_size_name)?;
    let job = job::launched(launcher, variables).unwrap_or_default();
    let identity = Identity::new(rank, world_size, no_master());
    let place = Identity { launcher: Some(launcher), job, one_host: world_size == 1, ..identity };
    if let Some(master) = variables.read("BREVITY_MASTER", MASTER, Master::parse)? {
        return Ok(Identity { master, one_host: false, ..place });
    }
    if world_size == 1 {
        return Ok(place);
    }
    match launcher {
        Launcher::Own => Err(not_set("BREVITY_MASTER", MASTER)),
        Launcher::Torchrun => torchrun(place, variables),
        Launcher::OpenMpi => {
            let one_host = variables.equal("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE");
            Ok(Identity { introduction: Introduction::Pmix, one_host, ..place })
        }
        Launcher::Pmi => pmi(place, variables),
        Launcher::Slurm => slurm(place, variables),
    }
}

/// `MASTER_ADDR`, or loopback where all ranks are on this host, and the ports after torchrun's own, any of
/// which another program may use.
fn torchrun(place: Identity, variables: Variables<'_>) -> Result<Identity> {
    let host = "the host of rank 0, or BREVITY_MASTER=host:port";
    let named = variables.required("MASTER_ADDR", host, non_empty)?;
    let next = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0)?.checked_add(1);
    let port = variables.required("MASTER_PORT", NEXT_PORT, next)?;
    let one_host = variables.equal("LOCAL_WORLD_SIZE", "WORLD_SIZE");
    let host = if one_host { "127.0.0.1".into() } else { named };
    let ports = Ports { first: port, last: u16::MAX };
    meeting(Identity { one_host, ..place }, host, &ports.derived(0))
}

fn pmi(place: Identity, variables: Variables<'_>) -> Result<Identity> {
    let number = |text: &str| text.parse().ok().filter(|&number: &i32| number >= 0);
    let Some(descriptor) = variables.read("PMI_FD", DESCRIPTOR, number)? else {
        return Err(not_set("BREVITY_MASTER", NO_INTRODUCTION));
    };
    let one_host = variables.equal("MPI_LOCALNRANKS", "PMI_SIZE")
        || variables.equal("SLURM_STEP_NUM_TASKS", "PMI_SIZE") && slurm::on_one_host(variables);
    Ok(Identity { introduction: Introduction::Pmi { descriptor }, one_host, ..place })
}

/// PMIx where Slurm was asked for it, else by the step's own variables.
fn slurm(place: Identity, variables: Variables<'_>) -> Result<Identity> {
    let one_host = slurm::on_one_host(variables);
    if variables.all(&["PMIX_RANK", "PMIX_NAMESPACE"]) {
        return Ok(Identity { introduction: Introduction::Pmix, one_host, ..place });
    }
    let (host, ports) = slurm::host_and_ports(variables)?;
    meeting(Identity { one_host, ..place }, host, &ports)
}

/// Rank 0 listens on the first of these ports that is free.
fn meeting(place: Identity, host: String, ports: &[u16]) -> Result<Identity> {
    let Some((&port, others)) = ports.split_first() else {
        return Err(not_set("BREVITY_MASTER", MASTER));
    };
    Ok(Identity { master: Master { host, port }, other_ports: others.to_vec(), ..place })
}
fn no_master() -> Master {
    Master { host: "127.0.0.1".into(), port: 0 }
}
