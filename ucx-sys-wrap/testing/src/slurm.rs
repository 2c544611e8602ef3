//! A Slurm cluster of one node on this host, in a separate folder: munged, slurmctld and slurmd.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{is_required, run_within};

/// The variable that makes a missing launcher a failure.
const REQUIRED: &str = "BREVITY_REQUIRE_LAUNCHERS";

/// How long the daemons may take to get ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The running daemons. On drop, they are ended and their folder is removed.
pub struct Cluster {
    daemons: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts a cluster, if Slurm is installed and this is root, which its daemons need.
    ///
    /// # Panics
    /// If the daemons do not start; without Slurm where `BREVITY_REQUIRE_LAUNCHERS=1` says that it must be
    /// here.
    #[must_use]
    pub fn start() -> Option<Self> {
        for program in ["munged", "slurmctld", "slurmd", "srun", "sbatch"] {
            // Without a cluster, some of them fail; it only matters that they are installed.
            if Command::new(program).arg("-V").output().is_err() {
                assert!(!is_required(REQUIRED), "no {program}");
                println!("skipped: no {program}");
                return None;
            }
        }
        if fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap() != 0 {
            assert!(!is_required(REQUIRED), "Slurm's daemons need root");
            println!("skipped: Slurm's daemons need root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        // Tasks look up their folders as the user that they run as.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut cluster = Self { daemons: Vec::new(), folder };
        cluster.start_munge();
        cluster.start_slurm();
        Some(cluster)
    }

    /// A program of Slurm, as `srun`, in this cluster.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = clean(Command::new(program));
        command.env("SLURM_CONF", self.path("slurm.conf"));
        command
    }

    /// A file in the cluster's folder.
    ///
    /// # Panics
    /// If the folder's name is no UTF-8.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn start_munge(&mut self) {
        let key = self.path("munge.key");
        let random: Vec<u8> = fs::read("/proc/sys/kernel/random/uuid").unwrap().repeat(4);
        fs::write(&key, random).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        let socket = self.path("munge.socket");
        let mut command = Command::new("munged");
        command.args(["--foreground", "--force", "--num-threads=1"]).arg(format!("--key-file={key}"));
        for (option, file) in
            [("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")]
        {
            command.arg(format!("--{option}={}", self.path(&format!("munge.{file}"))));
        }
        self.daemon(&command);
        self.until("munged", || Path::new(&socket).exists());
    }

    fn start_slurm(&mut self) {
        let host = run_within(Command::new("hostname").arg("-s"), PATIENCE).stdout.trim().to_owned();
        for name in ["state", "spool"] {
            fs::create_dir(self.path(name)).unwrap();
        }
        fs::write(self.path("slurm.conf"), self.configuration(&host)).unwrap();
        for (program, arguments) in [("slurmctld", &["-D", "-i"][..]), ("slurmd", &["-D", "-N", &host])] {
            let mut command = self.command(program);
            command.args(arguments);
            self.daemon(&command);
        }
        self.until("slurmctld and slurmd", || {
            let mut command = self.command("sinfo");
            run_within(command.args(["-h", "-o", "%T"]), PATIENCE).stdout.trim() == "idle"
        });
    }

    fn configuration(&self, host: &str) -> String {
        let path = |name| self.path(name);
        [
            "ClusterName=brevity".to_owned(),
            format!("SlurmctldHost={host}(127.0.0.1)"),
            format!("SlurmctldPort={}\nSlurmdPort={}", free_port(), free_port()),
            format!("AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={}", path("munge.socket")),
            format!("SlurmUser=root\nStateSaveLocation={}\nSlurmdSpoolDir={}", path("state"), path("spool")),
            format!("SlurmctldPidFile={}\nSlurmdPidFile={}", path("slurmctld.pid"), path("slurmd.pid")),
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres".into(),
            "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none".into(),
            "SchedulerType=sched/builtin\nMpiDefault=none\nReturnToService=2".into(),
            "SlurmdParameters=config_overrides".into(),
            format!("NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN"),
            "PartitionName=all Nodes=ALL Default=YES State=UP\n".into(),
        ]
        .join("\n")
    }

    /// Starts a daemon that dies with this thread, whatever happens to the test.
    fn daemon(&mut self, command: &Command) {
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => bound.env(name, value),
                None => bound.env_remove(name),
            };
        }
        let log = fs::File::create(self.path(&format!("{}.log", self.daemons.len()))).unwrap();
        bound.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(bound.spawn().unwrap());
    }

    fn until(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while !ready() {
            assert!(start.elapsed() < PATIENCE, "{what} did not start: {}", self.logs());
            sleep(Duration::from_millis(50));
        }
    }

    /// The logs of the daemons.
    fn logs(&self) -> String {
        (0..self.daemons.len())
            .filter_map(|daemon| fs::read_to_string(self.path(&format!("{daemon}.log"))).ok())
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = Command::new("kill").arg(daemon.id().to_string()).status();
            let start = Instant::now();
            while daemon.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < PATIENCE {
                sleep(Duration::from_millis(10));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// The command without the variables of a launcher of this test.
#[must_use]
pub fn clean(mut command: Command) -> Command {
    for (name, _) in env::vars_os() {
        let known = ["BREVITY_", "OMPI_", "PMI", "PRTE_", "SLURM_", "MPI_"];
        if name.to_str().is_some_and(|name| known.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(&name);
        }
    }
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command
}

/// A port that was free a moment ago.
///
/// # Panics
/// When the system has no port.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
