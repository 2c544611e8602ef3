//! What a launched rank does for its launcher.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, test_kill_process};

use super::files;

/// Says to a rank that it was launched: by which process, in which process namespace that number counts, and
/// how many files it may have open if the launcher has raised its own limit.
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
    let Some((launcher, files)) = launcher() else { return };
    if getppid() == Some(launcher) {
        files.into_iter().for_each(files::limit);
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

/// What [`LAUNCHER`] holds for the ranks that this process starts; `files` is their limit of open files, if
/// it is not this process's.
pub(super) fn own_mark(files: Option<u64>) -> String {
    let files = files.map_or_else(String::new, |files| format!(" {files}"));
    format!("{} {}{files}", getpid().as_raw_pid(), namespace())
}

fn launcher() -> Option<(Pid, Option<u64>)> {
    let mark = std::env::var(LAUNCHER).ok()?;
    let (number, rest) = mark.split_once(' ')?;
    let (place, files) = rest.split_once(' ').unwrap_or((rest, ""));
    // In another namespace the number means another process, or none.
    let launcher = Pid::from_raw(number.parse().ok()?).filter(|_| place == namespace())?;
    Some((launcher, files.parse().ok()))
}

/// The process namespace of this process; empty where the system does not say.
fn namespace() -> String {
    let link = Path::new("/proc/self/ns/pid").read_link();
    link.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
