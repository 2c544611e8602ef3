//! What a launched rank does for its launcher.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::LAUNCHER;

/// Whether a launcher of this library has started this process.
#[must_use]
pub fn is_launched() -> bool {
    launcher().is_some()
}

/// Has this process killed when its launcher ends, however that happens. To be called first thing in the main thread.
///
/// Does nothing where no launcher of this library has started this process. Ends the process at once where the launcher
/// has gone already. Lasts over `exec`.
pub fn die_with_parent() {
    let Some(launcher) = launcher() else { return };
    // Not a child of the launcher itself: started by a rank's script, say. Its parent looks after it.
    let Some(parent) = getppid().filter(|&parent| parent == launcher || parent == Pid::INIT) else { return };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "this rank may outlive its launcher");
    }
    // The launcher may have ended before the line above took effect.
    if parent == Pid::INIT && launcher != Pid::INIT || getppid() != Some(parent) {
        std::process::exit(1);
    }
}

fn launcher() -> Option<Pid> {
    Pid::from_raw(std::env::var(LAUNCHER).ok()?.parse().ok()?)
}
