//! What a launched rank does for its launcher.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, test_kill_process};

/// Says to a rank that it was launched: by which process, and in which process namespace that number counts.
pub(super) const LAUNCHER: &str = "BREVITY_LAUNCHER";

/// Whether a launcher of this library has started this process, or one of those that started it.
#[must_use]
pub fn is_launched() -> bool {
    launcher().is_some()
}

/// Has this process killed when its launcher ends, however that happens. To be called first thing in the main
/// thread.
///
/// Does nothing where no launcher of this library has started this process itself. Ends the process at once
/// where the launcher has gone already. Lasts over `exec`.
pub fn die_with_parent() {
    let Some(launcher) = launcher() else { return };
    if getppid() == Some(launcher) {
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            tracing::warn!(%error, "this rank may outlive its launcher");
        }
        // From here on the launcher's end is this process's end; it may have come before.
        if getppid() == Some(launcher) {
            return;
        }
    } else if test_kill_process(launcher) != Err(Errno::SRCH) {
        // Started by a rank's script, say: its parent looks after it.
        return;
    }
    std::process::exit(1);
}

/// What [`LAUNCHER`] holds for the ranks that this process starts.
pub(super) fn own_mark() -> String {
    format!("{} {}", getpid().as_raw_pid(), namespace())
}

fn launcher() -> Option<Pid> {
    let mark = std::env::var(LAUNCHER).ok()?;
    let (number, place) = mark.split_once(' ')?;
    // In another namespace the number means another process, or none.
    if place == namespace() { Pid::from_raw(number.parse().ok()?) } else { None }
}

/// The process namespace of this process; empty where the system does not say.
fn namespace() -> String {
    let link = Path::new("/proc/self/ns/pid").read_link();
    link.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
