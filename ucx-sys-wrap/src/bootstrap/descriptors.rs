//! How many files this process may have open: a job of many ranks needs more at times than a system allows
//! unless asked.
//!
//! Asked before: a connection that finds no descriptor looks like a rank that can't be reached.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{Error, Result};

/// Refuses what needs `more` open files than this process may have. `action` is what can't be done then, as
/// "can't connect to 15 ranks".
///
/// # Errors
/// [`Error::System`] with what is open, needed and allowed, and the remedy.
pub(crate) fn check(action: &str, more: usize) -> Result<()> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let open = match fs::read_dir("/proc/self/fd") {
        // What reads the folder is not open any more afterwards.
        Ok(folder) => folder.count().saturating_sub(1) as u64,
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => limit,
        // Where nobody says what is open, it is found out when there is no more.
        Err(_) => return Ok(()),
    };
    if open + more as u64 <= limit {
        return Ok(());
    }
    let counts = format!("{open} files are open here, {more} more are needed, and {limit} are allowed");
    Err(Error::system(format!("{action}: {counts} (raise the limit with ulimit -n)"), Errno::MFILE))
}
