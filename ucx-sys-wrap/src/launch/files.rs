//! The limit of open files of a launcher.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::bootstrap::descriptors;
use crate::{Error, Result};

/// Descriptors besides the ranks': of the guard, the signals, and a process that is being started.
const BESIDE_RANKS: usize = 24;

/// Raises the limit of open files to what a job of `ranks` needs. Returns the previous limit, which the ranks
/// must get, if it was raised.
///
/// # Errors
/// [`Error::System`] with the remedy, if the system does not allow that many.
pub(super) fn make_room(ranks: u32, tag_output: bool) -> Result<Option<u64>> {
    // The process of a rank, and its two outputs.
    let of_rank = if tag_output { 3 } else { 1 };
    let needed = (ranks as usize).saturating_mul(of_rank).saturating_add(BESIDE_RANKS);
    let action = format!("can't start {ranks} ranks");
    let before = getrlimit(Resource::Nofile);
    let enough = descriptors::check(&action, needed);
    if enough.is_ok() || before.current == before.maximum {
        return enough.map(|()| None);
    }
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|error| Error::system(&*action, error))?;
    let enough = descriptors::check(&action, needed);
    if enough.is_err() {
        // Undo the change.
        let _ = setrlimit(Resource::Nofile, before);
    }
    enough.map(|()| before.current)
}

/// Sets this process's limit of open files to that of its launcher.
pub(super) fn limit(files: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }) {
        tracing::warn!(%error, "can't set the limit of open files to {files}");
    }
}
