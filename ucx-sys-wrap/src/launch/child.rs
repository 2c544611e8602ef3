//! The part of a launched rank.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal, test_kill_process,
};

use super::files;

/// The variable that marks launched ranks: the launcher's process number, the process namespace of that
/// number, and the ranks' limit of open files if the launcher has raised its own.
pub(super) const LAUNCHER: &str = "BREVITY_LAUNCHER";

/// Whether a launcher of this library started this process or one of its ancestors.
#[must_use]
pub fn is_launched() -> bool {
    launcher().is_some()
}

/// Makes the system kill this process when its launcher ends for any reason. Call it first, in the main
/// thread.
///
/// Does nothing unless this process is a direct child of a launcher of this library. Exits at once if the
/// launcher has already ended. Stays in effect over `exec`.
pub fn die_with_parent() {
    let Some((launcher, files)) = launcher() else { return };
    if getppid() == Some(launcher) {
        files.into_iter().for_each(files::limit);
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            tracing::warn!(%error, "this rank may outlive its launcher");
        }
        // The launcher may have ended before the request.
        if getppid() == Some(launcher) {
            return;
        }
    } else if test_kill_process(launcher) != Err(Errno::SRCH) {
        // Started by a rank, which looks after it.
        return;
    }
    std::process::exit(1);
}

/// A descriptor that becomes readable when `child` has ended. Kills the child if there is none.
pub(super) fn end_of(child: &mut Child) -> Result<OwnedFd, Errno> {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).inspect_err(|_| {
        // These fail if it has already ended.
        let _ = child.kill();
        let _ = child.wait();
    })
}

/// The value of [`LAUNCHER`] for ranks of this process; `files` is their limit of open files if it differs.
pub(super) fn own_mark(files: Option<u64>) -> String {
    let files = files.map_or_else(String::new, |files| format!(" {files}"));
    format!("{} {}{files}", getpid().as_raw_pid(), namespace())
}

fn launcher() -> Option<(Pid, Option<u64>)> {
    let mark = std::env::var(LAUNCHER).ok()?;
    let (number, rest) = mark.split_once(' ')?;
    let (place, files) = rest.split_once(' ').unwrap_or((rest, ""));
    // In another namespace the number means another process.
    let launcher = Pid::from_raw(number.parse().ok()?).filter(|_| place == namespace())?;
    Some((launcher, files.parse().ok()))
}

/// The process namespace of this process; empty if unknown.
fn namespace() -> String {
    let link = Path::new("/proc/self/ns/pid").read_link();
    link.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
