//! How many open files a launcher needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::bootstrap::descriptors;
use crate::{Error, Result};

/// What is open beside the ranks' descriptors: the guard's, the signals', and those of a process that is
/// being started.
const BESIDE_RANKS: usize = 24;

/// Lets this process have the open files that a job of so many ranks needs. Returns the limit that this
/// process has had, and its ranks are to have, if it was too low.
///
/// # Errors
/// [`Error::System`] with the remedy, when the system does not allow as many.
pub(super) fn make_room(ranks: u32, tag_output: bool) -> Result<Option<u64>> {
    // The rank's process, and its two outputs.
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
        // As it was; that was allowed a moment ago.
        let _ = setrlimit(Resource::Nofile, before);
    }
    enough.map(|()| before.current)
}

/// Sets this process's limit of open files back to what its launcher has had.
pub(super) fn limit(files: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }) {
        tracing::warn!(%error, "can't set the limit of open files to {files}");
    }
}
