//! Which rank this process is, and how it learns where to meet the others: a rule for each launcher.

use super::identity::Introduction;
use super::job;
use super::launcher::{Launcher, Nesting};
use super::master::{MASTER, Master};
use super::reserve::Ports;
use super::slurm;
use super::variables::{RANK, Variables, non_empty, not_set};
use crate::{Rank, Result};

/// A place in a job.
pub(super) struct Place {
    pub(super) launcher: Option<Launcher>,
    pub(super) rank: Rank,
    pub(super) world_size: u32,
    pub(super) introduction: Introduction,
    pub(super) master: Master,
    /// Further ports of the master, where the launcher does not say which are free.
    pub(super) other_ports: Vec<u16>,
    /// Whether it is sure that all ranks are on this host.
    pub(super) one_host: bool,
    /// The launcher's name for the job.
    pub(super) job: Option<String>,
}

const NEXT_PORT: &str =
    "torchrun's port, from 1 to 65534 (one of the next 16 is used), or BREVITY_MASTER=host:port";

const DESCRIPTOR: &str = "the number of the launcher's descriptor, or BREVITY_MASTER=host:port for all ranks";
const NO_INTRODUCTION: &str = "host:port where rank 0 waits for the others, because the launcher does not speak PMI-1 or PMIx with this process";

impl Place {
    /// By the launcher that counts.
    pub(super) fn read(variables: Variables<'_>, nesting: impl FnOnce() -> Nesting) -> Result<Self> {
        match Launcher::detect(variables, nesting) {
            Some(launcher) => Self::of(launcher, variables),
            // Half of what torchrun sets: a mistake to tell of.
            None if variables.any(&["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]) => {
                Self::of(Launcher::Torchrun, variables)
            }
            None if variables.any(&["BREVITY_MASTER"]) => Err(not_set("BREVITY_RANK", RANK)),
            None => Ok(Self::alone()),
        }
    }

    fn alone() -> Self {
        Self {
            launcher: None,
            rank: Rank(0),
            world_size: 1,
            introduction: Introduction::Environment,
            master: no_master(),
            other_ports: Vec::new(),
            one_host: true,
            job: None,
        }
    }

    fn of(launcher: Launcher, variables: Variables<'_>) -> Result<Self> {
        let (rank_name, world_size_name) = launcher.variables();
        let (rank, world_size) = variables.rank_of(rank_name, world_size_name)?;
        let job = job::launched(launcher, variables);
        let place = Self { launcher: Some(launcher), rank, world_size, job, ..Self::alone() };
        if let Some(master) = variables.read("BREVITY_MASTER", MASTER, Master::parse)? {
            return Ok(Self { master, one_host: false, ..place });
        }
        if world_size == 1 {
            return Ok(place);
        }
        match launcher {
            Launcher::Own => Err(not_set("BREVITY_MASTER", MASTER)),
            Launcher::Torchrun => place.torchrun(variables),
            Launcher::OpenMpi => {
                let one_host = variables.equal("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE");
                Ok(Self { introduction: Introduction::Pmix, one_host, ..place })
            }
            Launcher::Pmi => place.pmi(variables),
            Launcher::Slurm => place.slurm(variables),
        }
    }

    /// `MASTER_ADDR` and the ports after torchrun's own; loopback where torchrun has started all ranks on
    /// this host. Any of the ports may be another program's, as the store of another torchrun.
    fn torchrun(self, variables: Variables<'_>) -> Result<Self> {
        let named = variables.required(
            "MASTER_ADDR",
            "the host of rank 0, or BREVITY_MASTER=host:port",
            non_empty,
        )?;
        let next = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0)?.checked_add(1);
        let port = variables.required("MASTER_PORT", NEXT_PORT, next)?;
        let one_host = variables.equal("LOCAL_WORLD_SIZE", "WORLD_SIZE");
        let host = if one_host { "127.0.0.1".into() } else { named };
        let ports = Ports { first: port, last: u16::MAX };
        Self { one_host, ..self }.meeting(host, &ports.derived(0))
    }

    fn pmi(self, variables: Variables<'_>) -> Result<Self> {
        let number = |text: &str| text.parse().ok().filter(|&number: &i32| number >= 0);
        let Some(descriptor) = variables.read("PMI_FD", DESCRIPTOR, number)? else {
            return Err(not_set("BREVITY_MASTER", NO_INTRODUCTION));
        };
        let one_host = variables.equal("MPI_LOCALNRANKS", "PMI_SIZE")
            || variables.equal("SLURM_STEP_NUM_TASKS", "PMI_SIZE") && slurm::on_one_host(variables);
        Ok(Self { introduction: Introduction::Pmi { descriptor }, one_host, ..self })
    }

    /// PMIx where Slurm was asked for it; else the step's own variables say where.
    fn slurm(self, variables: Variables<'_>) -> Result<Self> {
        let one_host = slurm::on_one_host(variables);
        if variables.all(&["PMIX_RANK", "PMIX_NAMESPACE"]) {
            return Ok(Self { introduction: Introduction::Pmix, one_host, ..self });
        }
        let (host, ports) = slurm::host_and_ports(variables)?;
        Self { one_host, ..self }.meeting(host, &ports)
    }

    /// Rank 0 waits on the first of these ports that is free.
    fn meeting(self, host: String, ports: &[u16]) -> Result<Self> {
        let Some((&port, others)) = ports.split_first() else {
            return Err(not_set("BREVITY_MASTER", MASTER));
        };
        Ok(Self { master: Master { host, port }, other_ports: others.to_vec(), ..self })
    }
}

fn no_master() -> Master {
    Master { host: "127.0.0.1".into(), port: 0 }
}
