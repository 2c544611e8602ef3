//! The ranks of a measurement, started by a launcher or here.

use std::env;

use brevity::collectives::Error as Collective;
use brevity::launch::{self, Ending, Launch};
use brevity::transport::Error as Transport;
use brevity::transport::bootstrap::{Choice, Launcher};
use brevity::{Group, Settings};

use super::arguments::Wanted;
use super::error::{Error, Result};

/// Whether a launcher has started this process as a rank.
pub fn is_launched() -> bool {
    Launcher::from_env().is_some()
}

/// Joins the job that the launcher describes.
///
/// # Errors
/// If ranks do not join in time, or the environment is invalid.
pub fn join() -> Result<Group> {
    launch::die_with_parent();
    Ok(Group::from_env()?)
}

/// This rank's number from the launcher, otherwise 0.
pub fn rank_of_environment() -> u32 {
    Launcher::from_env().and_then(Launcher::rank_from_env).unwrap_or(0)
}

/// Checks that the job fits the arguments; the outcome is the same on all ranks.
///
/// # Errors
/// [`Error::Arguments`].
pub fn check(wanted: &Wanted, group: &Group) -> Result<()> {
    let (ranks, transport) = (group.world_size(), group.transport());
    let fewest = wanted.fewest;
    if wanted.ranks.is_some_and(|wanted| wanted != ranks) || ranks < fewest {
        let wanted = wanted.ranks.unwrap_or(fewest);
        return Err(Error::Arguments(format!(
            "the launcher started {ranks} ranks, expected {wanted}: start as many"
        )));
    }
    match wanted.transport {
        Some(choice) if choice != Choice::Auto && choice.name() != transport => {
            Err(Error::Arguments(format!(
                "--transport {choice}: the launcher's job runs over {transport}, set \
                 BREVITY_TRANSPORT={choice} for all ranks"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether another rank reports the error, so that this one need not.
pub fn is_told_elsewhere(error: &Error, rank: u32) -> bool {
    match error {
        Error::Arguments(_) => rank != 0,
        error if error.is_unread() => true,
        Error::Collective(Collective::Aborted { rank: by }) => by.0 != rank,
        // The choice of a transport is the same on all ranks.
        Error::Collective(Collective::Transport(Transport::Unavailable { .. })) => rank != 0,
        _ => false,
    }
}

/// Starts the ranks on this host, each this same program with the same arguments, and waits for them. Returns
/// the exit status of the first that fails.
///
/// # Errors
/// If a rank can't be started.
pub fn start(wanted: &Wanted) -> Result<u8> {
    let transport = wanted.transport.map_or_else(transport_of_environment, Ok)?;
    // Checked once here, because every rank would refuse the same.
    Settings::from_env()?;
    let program = env::current_exe().map_err(|error| Error::Program(error.to_string()))?;
    let ranks = wanted.ranks_to_start();
    let mut job = Launch::new(program, env::args_os().skip(1)).ranks(ranks).transport(transport);
    if let Some(grace) = wanted.grace {
        job = job.grace(grace);
    }
    let outcome = job.spawn()?.wait()?;
    let first = outcome.first_failure.map(|rank| outcome.endings[rank.index()]);
    if let (Some(Ending::Killed(_)), Some(report)) = (first, outcome.report()) {
        // The killed rank could not report it.
        crate::tell(&report);
    }
    Ok(outcome.exit_status())
}

/// The value of `BREVITY_TRANSPORT`, otherwise auto.
fn transport_of_environment() -> Result<Choice> {
    let Some(name) = env::var_os("BREVITY_TRANSPORT") else { return Ok(Choice::Auto) };
    let choice = name.to_str().and_then(Choice::parse);
    choice
        .ok_or_else(|| Error::Arguments(format!("BREVITY_TRANSPORT is {name:?}, expected auto, tcp or ucx")))
}
