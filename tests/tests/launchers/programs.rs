//! The launchers under test.

use std::env;
use std::process::Command;
use std::time::Duration;

pub use brevity_testing::slurm::{clean, free_port};

pub const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// The limit for one job; generous, since it only has to distinguish slow from stuck.
pub const PATIENCE: Duration = Duration::from_secs(100);

/// A launcher: the variable that names another program than the usual one, and its arguments before `-n`.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    variable: &'static str,
    usual: &'static str,
    arguments: &'static [&'static str],
}

/// Open MPI's.
pub const MPIRUN: Program = Program {
    variable: "BREVITY_TEST_MPIRUN",
    usual: "mpirun.openmpi",
    arguments: &["--map-by", ":OVERSUBSCRIBE"],
};

/// MPICH's.
pub const MPIEXEC: Program =
    Program { variable: "BREVITY_TEST_MPIEXEC", usual: "mpiexec.mpich", arguments: &["-launcher", "fork"] };

impl Program {
    /// The launcher, if it is installed.
    pub fn found(self) -> Option<Self> {
        let version = Command::new(self.name()).arg("--version").output();
        let found = version.is_ok_and(|output| output.status.success());
        if !found {
            assert!(!required(), "no {} (or name one by {})", self.usual, self.variable);
            println!("skipped: no {}", self.usual);
        }
        found.then_some(self)
    }

    /// The command that starts `world_size` ranks of the program that follows.
    pub fn ranks(self, world_size: u32) -> Command {
        let mut command = clean(Command::new(self.name()));
        command.args(self.arguments).args(["-n", &world_size.to_string()]);
        // Open MPI refuses to run as root without two variables; so does PRRTE, which comes with version 5.
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(name, "1").env(format!("{name}_CONFIRM"), "1");
        }
        command
    }

    fn name(self) -> String {
        env::var(self.variable).unwrap_or_else(|_| self.usual.into())
    }
}

/// Whether a missing launcher is a failure.
pub fn required() -> bool {
    brevity_testing::is_required("BREVITY_REQUIRE_LAUNCHERS")
}
