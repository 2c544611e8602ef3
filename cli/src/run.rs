//! `brevity run`: starts the ranks of a job on this host.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use brevity::Settings;
use brevity::launch::{self, Launch};
use brevity::transport::bootstrap::Choice;
use clap::Args;

use crate::tell;

/// The hidden subcommand as which a rank begins.
pub const TRAMPOLINE: &str = "rank";

/// The hidden subcommand of the process that ends a job whose launcher was killed.
pub const GUARD: &str = "guard";

/// The status of a rank whose program can't be run, as in shells.
const CANNOT_RUN: u8 = 126;

/// Starts N ranks of a program on this host, and ends with the status of the first that fails
#[derive(Args)]
pub struct RunArguments {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    ranks: u32,

    /// The transport: auto, ucx or tcp [default: BREVITY_TRANSPORT, else auto]
    #[arg(long, value_parser = transport)]
    transport: Option<Choice>,

    /// Encrypt what ranks send to each other over tcp
    #[arg(long)]
    encrypt: bool,

    /// How many seconds ranks may go on after one has failed, or after a signal that is to end the job (INT,
    /// TERM, HUP, QUIT, ABRT), before they are killed [default: 30]
    ///
    /// A second INT (Ctrl-C) kills the ranks at once. TSTP (Ctrl-Z) and CONT stop the job and have it go on.
    /// Other signals that somebody sends, as USR1, are passed on too.
    #[arg(long, value_name = "SECONDS", value_parser = grace)]
    grace: Option<Duration>,

    /// Go on when ranks fail: the job has succeeded if one rank ends with status 0
    ///
    /// For programs that shrink their group. When one rank has ended with status 0 and any was lost, the
    /// others have the grace period to end. What has become of those that were lost is reported at the end.
    #[arg(long)]
    keep_going: bool,

    /// Start lost ranks again, N times in all; implies --keep-going
    ///
    /// A rank is lost when it is killed or ends with a status other than 0. Started again, it finds
    /// BREVITY_INCARNATION in its environment: the number of times that this rank was started again. A rank
    /// that has lived for less than 2 seconds is started after a pause: of 100 ms, doubled each time, up to 2
    /// seconds. Nothing is started once a rank has ended with status 0, or a signal has ended the job. How
    /// often ranks were started again is reported at the end.
    #[arg(long, value_name = "N")]
    restart: Option<u32>,

    /// Put the rank before every line of output
    #[arg(long)]
    tag_output: bool,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    program: Vec<OsString>,
}

/// The program of a rank, run in place of this process
#[derive(Args)]
pub struct TrampolineArguments {
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist.
    #[error("can't run {program:?}: {why}")]
    Program {
        /// The program as given.
        program: OsString,
        /// The reason, with the remedy.
        why: &'static str,
    },

    /// A variable is invalid, or the system refused.
    #[error(transparent)]
    Launch(#[from] brevity::transport::Error),

    /// A variable that the library reads is invalid.
    #[error(transparent)]
    Settings(#[from] brevity::collectives::Error),

    /// The path of this program can't be found.
    #[error("can't find the brevity program itself: {0}")]
    Own(std::io::Error),
}

impl Error {
    /// The exit status: 2 for bad arguments, otherwise 1.
    pub fn status(&self) -> u8 {
        match self {
            Self::Program { .. } | Self::Settings(_) => 2,
            Self::Launch(brevity::transport::Error::Environment { .. }) => 2,
            Self::Launch(_) | Self::Own(_) => 1,
        }
    }
}

/// Runs the job. Returns the exit status of the first rank that fails, otherwise 0.
///
/// # Errors
/// If the program can't be run or the ranks can't be started.
pub fn run(arguments: RunArguments) -> Result<u8, Error> {
    if let Some(program) = arguments.program.first() {
        find(program, env::var_os("PATH").as_deref())?;
    }
    // Checked once here, because every rank would refuse the same; the launch checks the rest.
    Settings::from_env()?;
    let own = env::current_exe().map_err(Error::Own)?;
    // Each rank begins as this program, so that any program it becomes dies with the launcher.
    let begin = [TRAMPOLINE, "--"].map(OsString::from).into_iter().chain(arguments.program);
    let mut job = Launch::new(&own, begin).ranks(arguments.ranks).guard(own, [GUARD]);
    job = job.tag_output(arguments.tag_output).encrypt(arguments.encrypt).keep_going(arguments.keep_going);
    if let Some(transport) = arguments.transport {
        job = job.transport(transport);
    }
    if let Some(grace) = arguments.grace {
        job = job.grace(grace);
    }
    if let Some(times) = arguments.restart {
        job = job.restart(times);
    }
    let job = job.spawn()?;
    let outcome = job.wait()?;
    if let Some(report) = outcome.report() {
        tell(&report);
    }
    Ok(outcome.exit_status())
}

/// Becomes the rank's program; returns only if that fails.
pub fn trampoline(arguments: TrampolineArguments) -> u8 {
    launch::die_with_parent();
    let mut words = arguments.program.into_iter();
    let program = words.next().unwrap_or_default();
    let error = Command::new(&program).args(words).exec();
    tell(&format_args!("can't run {program:?}: {error}"));
    CANNOT_RUN
}

/// Finds the program like the system does, so that one line reports a mistake before any rank is started.
fn find(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let failed = |why| Error::Program { program: program.to_owned(), why };
    let candidates: Vec<PathBuf> = if program.as_encoded_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        path.map(|path| env::split_paths(path).map(|folder| folder.join(program)).collect())
            .unwrap_or_default()
    };
    let files: Vec<PathBuf> = candidates.into_iter().filter(|candidate| candidate.is_file()).collect();
    if files.is_empty() {
        return Err(failed("there is no such file here or in PATH: give a path, as ./program"));
    }
    files
        .into_iter()
        .find(|file| is_executable(file))
        .ok_or_else(|| failed("it is not executable: use chmod +x"))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

/// Reads a number of seconds.
pub fn grace(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or("expected a number of seconds, as 30 or 0.5")
}

fn transport(text: &str) -> Result<Choice, &'static str> {
    Choice::parse(text).ok_or("expected auto, ucx or tcp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_system_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let path = Some(folder.path().as_os_str());
        let refused = find(OsStr::new("program"), path).unwrap_err().to_string();
        assert!(refused.contains("not executable"), "{refused}");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(OsStr::new("program"), path).unwrap(), file);
        assert_eq!(find(file.as_os_str(), None).unwrap(), file);
        assert!(find(OsStr::new("no-such-program"), path).is_err());
        assert!(find(folder.path().as_os_str(), path).is_err());
    }
}
