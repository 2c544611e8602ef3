//! Checks the limit of open files before a job needs many: later, a missing descriptor would look like a rank
//! that can't be reached.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{Error, Result};

/// Checks that this process may have `more` open files. `action` begins the error, as "can't connect to 15
/// ranks".
///
/// # Errors
/// [`Error::System`] with the files open, needed and allowed, and the remedy.
pub(crate) fn check(action: &str, more: usize) -> Result<()> {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let open = match fs::read_dir("/proc/self/fd") {
        // The folder itself is open only while it is read.
        Ok(folder) => folder.count().saturating_sub(1) as u64,
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => limit,
        Err(_) => return Ok(()),
    };
    if open + more as u64 <= limit {
        return Ok(());
    }
    let counts = format!("{open} files are open here, {more} more are needed, and {limit} are allowed");
    Err(Error::system(format!("{action}: {counts} (raise the limit with ulimit -n)"), Errno::MFILE))
}
