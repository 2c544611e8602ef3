//! The ranks of a job, started by a launcher or by `train` itself.

use crate::Error;
use brevity::collectives::Error as Collective;
use brevity::launch::{self, Launch};
use brevity::transport::Error as Transport;
use brevity::transport::bootstrap::{Choice, Identity, Launcher};
use brevity::{Group, Settings};
use std::env;
use std::time::Duration;

/// The number of threads with which candle multiplies matrices.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Whether ranks of one host share memory.
const SHARED_MEMORY: &str = "BREVITY_SHARED_MEMORY";

/// Whether a launcher has started this process as a rank.
pub fn is_launched() -> bool {
    Launcher::from_env().is_some()
}

/// Joins the job that the launcher describes; blocks until all ranks have joined.
///
/// # Errors
/// [`Error::Exchange`] if ranks do not join in time, or the environment is invalid.
pub fn join() -> Result<Group, Error> {
    launch::die_with_parent();
    Group::from_env().map_err(|error| Error::Exchange(brevity::Error::from(error).into()))
}

/// Starts this program with these arguments as so many processes on this host, which work for so many ranks,
/// and waits for them. Returns the exit status of the first that fails, otherwise 0.
///
/// They use tcp unless `BREVITY_TRANSPORT` is set. They share the processors: each uses a rank's part of them
/// as threads, and a process of several ranks one thread, unless `RAYON_NUM_THREADS` is set. They share no
/// memory unless `BREVITY_SHARED_MEMORY` is set, so that a method sends what it would send between hosts.
///
/// # Errors
/// [`Error::Argument`] for a variable that the ranks would refuse; [`Error::Exchange`] if a rank can't be
/// started.
pub fn start((processes, ranks): (usize, usize), grace: f64) -> Result<u8, Error> {
    let grace = Duration::try_from_secs_f64(grace).unwrap_or(Duration::MAX);
    start_by(|launch| launch.grace(grace), processes, ranks)
}

/// Likewise, for ranks that go on without those that are lost, which are started again so many times in all.
///
/// # Errors
/// As for [`start`].
pub fn start_again(ranks: usize, restarts: u32) -> Result<u8, Error> {
    start_by(|launch| launch.restart(restarts), ranks, ranks)
}

fn start_by(change: impl FnOnce(Launch) -> Launch, processes: usize, ranks: usize) -> Result<u8, Error> {
    // Warns where a launcher that is not understood has started this process.
    Identity::from_env().map_err(of_launch)?;
    // Checked once here, because every rank would refuse the same; the launch checks the rest.
    Settings::from_env().map_err(|error| match error {
        Collective::Transport(error) => of_launch(error),
        other => Error::Exchange(other.into()),
    })?;
    let program = env::current_exe().map_err(|error| Error::Exchange(error.into()))?;
    let mut launch =
        Launch::new(&program, env::args_os().skip(1)).ranks(processes as u32).transport(transport()?);
    launch = change(launch);
    if env::var_os(THREADS).is_none() {
        launch = launch.env(THREADS, threads_per_rank(processes, ranks).to_string());
    }
    if env::var_os(SHARED_MEMORY).is_none() {
        launch = launch.env(SHARED_MEMORY, "off");
    }
    let outcome = launch.spawn().and_then(launch::Job::wait).map_err(of_launch)?;
    let first = outcome.first_failure.map(|rank| outcome.endings[rank.index()]);
    if let (Some(launch::Ending::Killed(_)), Some(report)) = (first, outcome.report()) {
        // A rank that was killed could not tell of it.
        let program = program.file_name().unwrap_or_default().to_string_lossy();
        eprintln!("{program}: {report}");
    }
    Ok(outcome.exit_status())
}

/// Whether another rank reports `error`, so that rank `rank` need not.
pub fn is_told_elsewhere(error: &Error, rank: u32) -> bool {
    if let Error::Exchange(cause) = error {
        return match cause.downcast_ref() {
            Some(brevity::Error::Collective(Collective::Aborted { rank: by })) => by.0 != rank,
            Some(brevity::Error::NonFinite { .. } | brevity::Error::Overflow { .. }) => rank != 0,
            _ => false,
        };
    }
    // Arguments and data files are the same on all ranks.
    error.exit_status() == 2 && rank != 0
}

/// An invalid variable is the caller's mistake, like an invalid argument.
fn of_launch(error: Transport) -> Error {
    match error {
        Transport::Environment { variable, found, expected } => {
            Error::Argument { flag: variable, found, expected: expected.to_owned() }
        }
        other => Error::Exchange(other.into()),
    }
}

fn transport() -> Result<Choice, Error> {
    let Some(name) = env::var_os("BREVITY_TRANSPORT") else { return Ok(Choice::Tcp) };
    name.to_str().and_then(Choice::parse).ok_or_else(|| Error::Argument {
        flag: "BREVITY_TRANSPORT",
        found: name.to_string_lossy().into_owned(),
        expected: "auto, tcp or ucx".to_owned(),
    })
}

/// Ranks that share a process compute in turn, and what one computes is measured on its thread.
fn threads_per_rank(processes: usize, ranks: usize) -> usize {
    if processes < ranks {
        return 1;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / ranks).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use brevity::transport::Rank;

    #[test]
    fn one_rank_tells_of_an_error_that_all_have() {
        let argument = Error::Argument { flag: "--rank", found: "0".into(), expected: "more".into() };
        assert!(!is_told_elsewhere(&argument, 0) && is_told_elsewhere(&argument, 1));
        let non_finite = || brevity::Error::NonFinite { rank: 2, tensor: "w".into() };
        let error = Error::Exchange(non_finite().into());
        assert!(!is_told_elsewhere(&error, 0) && is_told_elsewhere(&error, 2));
        let aborted = brevity::Error::Collective(Collective::Aborted { rank: Rank(2) });
        let error = Error::Exchange(aborted.into());
        assert!(is_told_elsewhere(&error, 0) && !is_told_elsewhere(&error, 2));
        let diverged = Error::Diverged { method: "dense".into(), step: 3, loss: f64::NAN };
        assert!(!is_told_elsewhere(&diverged, 1));
    }

    #[test]
    fn every_rank_has_a_thread() {
        assert_eq!(threads_per_rank(usize::MAX, usize::MAX), 1);
        assert!(threads_per_rank(1, 1) >= 1);
        assert_eq!(threads_per_rank(1, 2), 1);
    }
}
