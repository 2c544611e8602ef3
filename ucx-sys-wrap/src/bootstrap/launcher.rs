//! The launchers that can start a process as a rank.

use std::fmt;
use std::fs;

use super::variables::Variables;
use crate::process::ProcessName;

/// A launcher, known by its variables in the environment.
///
/// In order of priority, where nesting can't be seen; [`Own`](Self::Own) always counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `brevity run`, or anything that sets `BREVITY_RANK` and `BREVITY_WORLD_SIZE`.
    Own,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives, or `srun --mpi=pmi2`: a launcher with PMI-1.
    Pmi,
    /// `torchrun`, or anything that sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
}

impl Launcher {
    const ALL: [Self; 5] = [Self::Own, Self::OpenMpi, Self::Pmi, Self::Torchrun, Self::Slurm];

    /// The launcher whose rank this process is; `None` for a process without one.
    ///
    /// `BREVITY_RANK` and `BREVITY_WORLD_SIZE` always count. Of nested launchers, the innermost counts: the
    /// one whose variables the fewest of this process's ancestors were started with.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        let variables = Variables { lookup: &|name| std::env::var_os(name) };
        Self::detect(variables, Nesting::of_this_process)
    }

    /// All launchers whose variables are set.
    #[must_use]
    pub fn all_from_env() -> Vec<Self> {
        Self::present(Variables { lookup: &|name| std::env::var_os(name) })
    }

    /// This process's rank by this launcher, if the variable is a number.
    #[must_use]
    pub fn rank_from_env(self) -> Option<u32> {
        std::env::var(self.variables().0).ok()?.parse().ok()
    }

    /// The program's name, and the variables of rank and world size.
    const fn row(self) -> [&'static str; 3] {
        match self {
            Self::Own => ["brevity", "BREVITY_RANK", "BREVITY_WORLD_SIZE"],
            Self::OpenMpi => ["mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            Self::Pmi => ["mpiexec", "PMI_RANK", "PMI_SIZE"],
            Self::Torchrun => ["torchrun", "RANK", "WORLD_SIZE"],
            // Not SLURM_NTASKS, which a batch script has too.
            Self::Slurm => ["srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"],
        }
    }

    /// The program's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row()[0]
    }

    /// The variables of rank and world size.
    #[must_use]
    pub const fn variables(self) -> (&'static str, &'static str) {
        let [_, rank, world_size] = self.row();
        (rank, world_size)
    }

    pub(super) fn detect(variables: Variables<'_>, nesting: impl FnOnce() -> Nesting) -> Option<Self> {
        let present = Self::present(variables);
        match present.as_slice() {
            [] => None,
            [only] => Some(*only),
            [Self::Own, ..] => Some(Self::Own),
            several => {
                let nesting = nesting();
                several
                    .iter()
                    .min_by_key(|launcher| nesting.depth(launcher.variables().0, variables))
                    .copied()
            }
        }
    }

    fn present(variables: Variables<'_>) -> Vec<Self> {
        let present = |launcher: &Self| {
            let (rank, world_size) = launcher.variables();
            match launcher {
                Self::Own => variables.any(&[rank, world_size]),
                // The shell of an interactive step is the only task of its step, and may launch anything.
                Self::Slurm => {
                    variables.all(&[rank, world_size])
                        && (variables.lookup)(world_size).is_some_and(|size| size != "1")
                }
                _ => variables.all(&[rank, world_size]),
            }
        };
        Self::ALL.into_iter().filter(present).collect()
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// This process's ancestors, the parent first: their numbers, and the environments they were started with.
pub(super) struct Nesting(Vec<(i32, Vec<u8>)>);

impl Nesting {
    /// The most ancestors that are read.
    const MOST: usize = 64;

    /// No ancestors: the order of priority decides.
    pub(super) fn unknown() -> Self {
        Self(Vec::new())
    }

    /// The ancestors that this process may read: those of the same user.
    pub(super) fn of_this_process() -> Self {
        let mut process = rustix::process::getppid().map(|parent| parent.as_raw_pid());
        let mut environments = Vec::new();
        while let Some(id) = process.filter(|_| environments.len() < Self::MOST) {
            let Ok(environment) = fs::read(format!("/proc/{id}/environ")) else { break };
            environments.push((id, environment));
            process = parent_of(id);
        }
        Self(environments)
    }

    /// How many ancestors in a row were started with this variable at this process's value.
    pub(super) fn depth(&self, name: &str, variables: Variables<'_>) -> usize {
        let Some(value) = (variables.lookup)(name) else { return usize::MAX };
        let entry = [name.as_bytes(), b"=", value.as_encoded_bytes()].concat();
        let has_it = |(_, environment): &&(i32, Vec<u8>)| {
            environment.split(|&byte| byte == 0).any(|found| found == entry)
        };
        self.0.iter().take_while(has_it).count()
    }

    /// The process that has set these variables: the first ancestor that was started without them. `None`
    /// where it can't be read.
    pub(super) fn starter(&self, names: &[&str], variables: Variables<'_>) -> Option<ProcessName> {
        let (id, _) = self.0.get(names.iter().map(|name| self.depth(name, variables)).min()?)?;
        ProcessName::of(u32::try_from(*id).ok()?)
    }
}

fn parent_of(process: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|&parent| parent > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const OPEN_MPI: [&str; 2] = ["OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"];
    const TORCHRUN: [&str; 2] = ["RANK=3", "WORLD_SIZE=4"];
    const SLURM: [&str; 2] = ["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"];
    const PMI: [&str; 2] = ["PMI_RANK=0", "PMI_SIZE=2"];
    const OWN: [&str; 2] = ["BREVITY_RANK=0", "BREVITY_WORLD_SIZE=2"];

    /// Who counts for a process with the first environment whose ancestors have the others.
    fn detect(environments: &[&[&str]]) -> Option<Launcher> {
        let own: HashMap<&str, &str> =
            environments[0].iter().map(|entry| entry.split_once('=').unwrap()).collect();
        let nesting = || {
            Nesting(environments[1..].iter().map(|entries| (0, entries.join("\0").into_bytes())).collect())
        };
        Launcher::detect(Variables { lookup: &|name| own.get(name).map(Into::into) }, nesting)
    }

    #[test]
    fn one_launcher() {
        assert_eq!(detect(&[&[]]), None);
        assert_eq!(detect(&[&OWN]), Some(Launcher::Own));
        assert_eq!(detect(&[&OWN[1..]]), Some(Launcher::Own), "half of it is a mistake to tell of");
        assert_eq!(detect(&[&OPEN_MPI]), Some(Launcher::OpenMpi));
        assert_eq!(detect(&[&PMI]), Some(Launcher::Pmi));
        assert_eq!(detect(&[&TORCHRUN]), Some(Launcher::Torchrun));
        assert_eq!(detect(&[&SLURM]), Some(Launcher::Slurm));
        // What MPI_Init leaves behind in a process that nobody has launched, and what a batch script has.
        assert_eq!(detect(&[&["PMIX_RANK=0", "PMIX_NAMESPACE=7", "OMPI_APP_CTX_NUM_PROCS=1"]]), None);
        assert_eq!(detect(&[&["SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=7"]]), None);
        assert_eq!(
            detect(&[&["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1"]]),
            None,
            "the shell of an interactive step"
        );
    }

    #[test]
    fn the_inner_one_of_several() {
        let both = [OPEN_MPI, TORCHRUN].concat();
        // An mpirun in the shell of a rank of torchrun, and a torchrun that mpirun has started.
        assert_eq!(detect(&[&both, &TORCHRUN, &TORCHRUN, &[]]), Some(Launcher::OpenMpi));
        assert_eq!(detect(&[&both, &OPEN_MPI, &[]]), Some(Launcher::Torchrun));
        assert_eq!(detect(&[&both, &both, &OPEN_MPI]), Some(Launcher::Torchrun), "with a shell in between");
        let three = [&both[..], &SLURM].concat();
        assert_eq!(
            detect(&[&three, &[&SLURM[..], &TORCHRUN].concat(), &SLURM, &[]]),
            Some(Launcher::OpenMpi)
        );
        // The same variable at another value is somebody else's.
        assert_eq!(
            detect(&[&both, &[&TORCHRUN[..], &["OMPI_COMM_WORLD_RANK=0"]].concat()]),
            Some(Launcher::OpenMpi)
        );
    }

    #[test]
    fn without_ancestors_the_order_decides() {
        assert_eq!(detect(&[&[OPEN_MPI, PMI, TORCHRUN, SLURM].concat()]), Some(Launcher::OpenMpi));
        assert_eq!(detect(&[&[PMI, TORCHRUN, SLURM].concat()]), Some(Launcher::Pmi));
        assert_eq!(detect(&[&[TORCHRUN, SLURM].concat()]), Some(Launcher::Torchrun));
        // What was said on purpose counts, however far away.
        let own = [OWN, OPEN_MPI].concat();
        assert_eq!(detect(&[&own, &OWN, &OWN]), Some(Launcher::Own));
    }

    #[test]
    fn the_starter_is_the_first_ancestor_without_the_variables() {
        let own = std::process::id() as i32;
        let starter = |environments: &[(i32, &str)], names: &[&str]| {
            let nesting =
                environments.iter().map(|(id, entries)| (*id, entries.replace(' ', "\0").into_bytes()));
            let lookup = |name: &str| match name {
                "RANK" => Some("0".into()),
                "MASTER_PORT" => Some("29501".into()),
                _ => None,
            };
            Nesting(nesting.collect()).starter(names, Variables { lookup: &lookup })
        };
        let here = ProcessName::own();
        assert_eq!(starter(&[(own, "PATH=/bin")], &["RANK"]), here);
        assert_eq!(
            starter(&[(0, "RANK=0 PATH=/bin"), (own, "PATH=/bin")], &["RANK"]),
            here,
            "a shell between"
        );
        // The starter is itself rank 0 of another job.
        let nested = [(own, "RANK=0 MASTER_PORT=29500"), (0, "")];
        assert_eq!(starter(&nested, &["RANK", "MASTER_PORT", "UNSET"]), here);
        assert_eq!(starter(&[(own, "RANK=0")], &["RANK"]), None, "out of sight");
        assert_eq!(starter(&[(own, "")], &["UNSET"]), None, "no rank of that launcher");
    }

    #[test]
    fn ancestors_are_found() {
        let nesting = Nesting::of_this_process();
        assert!(!nesting.0.is_empty(), "the parent is of the same user");
        assert_eq!(nesting.depth("BREVITY_NO_SUCH_VARIABLE", Variables { lookup: &|_| Some("1".into()) }), 0);
    }
}
