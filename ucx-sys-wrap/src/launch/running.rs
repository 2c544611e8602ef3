//! The process of a rank.

use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process_group, pidfd_send_signal, waitid,
};

use super::Ending;
use crate::{Error, Rank, Result};

/// The flag `PF_EXITING` of a process in its `stat`. Linux sets it before the process closes anything, so
/// ranks that fail because of it fail later.
const ENDING: u64 = 4;

pub(super) struct Running {
    pub(super) rank: Rank,
    pub(super) child: Child,
    /// Becomes readable when the rank has ended.
    pub(super) process: OwnedFd,
    pub(super) ending: Option<Ending>,
}

impl Running {
    /// Checks whether it has failed. Does not reap it.
    pub(super) fn look(&mut self) -> Result<Option<Ending>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.number()), options)
            .map_err(|error| Error::system("can't wait for a rank", error))?;
        self.ending = status.map(|status| match status.exit_status() {
            Some(code) => Ending::Exited(code),
            None => Ending::Killed(status.terminating_signal().unwrap_or(0)),
        });
        Ok(self.ending.filter(|ending| *ending != Ending::Exited(0)))
    }

    /// Whether it is stopped or has ended.
    pub(super) fn stands_still(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.ending.is_some() || matches!(waitid(WaitId::Pid(self.number()), options), Ok(Some(_)))
    }

    /// Whether it is ending but has not ended.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_none() && is_ending(&format!("/proc/{}/task", self.child.id()))
    }

    /// Sends a signal to it if it has left the process group of `leader`, as `setsid` and `timeout` do.
    pub(super) fn signal_outside(&self, leader: Pid, signal: Signal) {
        if self.ending.is_some() {
            return;
        }
        // The process is not reaped, so its number is its own.
        let process = self.number();
        let _ = match getpgid(Some(process)) {
            Ok(group) if group == leader => Ok(()),
            Ok(group) if group == process => kill_process_group(process, signal),
            _ => pidfd_send_signal(&self.process, signal),
        };
    }

    fn number(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

/// Whether an unreaped process is ending or has ended, that is, all its threads in the folder `tasks` are.
/// The first thread alone may end while others go on.
fn is_ending(tasks: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(tasks) else { return false };
    threads.flatten().all(|thread| {
        // The thread has just ended.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        // After the name, which may contain anything: state, parent, group, session, two terminal fields,
        // flags.
        let flags =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & ENDING != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ending_when_all_its_threads_are() {
        let folder = tempfile::tempdir().unwrap();
        let tasks = folder.path().to_str().unwrap();
        let is_ending_with = |flags: &[u64]| {
            for (thread, flags) in flags.iter().enumerate() {
                let thread = folder.path().join(thread.to_string());
                std::fs::create_dir_all(&thread).unwrap();
                let stat = format!("{thread:?} (a) Z 1 (b) c) Z 1 2 3 4 -1 {flags} 6 7");
                std::fs::write(thread.join("stat"), stat).unwrap();
            }
            is_ending(tasks)
        };
        let (alive, ending) = (0x40_0040, 0x40_0044);
        assert!(!is_ending_with(&[alive]));
        assert!(is_ending_with(&[ending]));
        assert!(!is_ending_with(&[ending, alive]), "its first thread alone has ended");
        assert!(is_ending_with(&[ending, ending]));
        assert!(!is_ending("/proc/self/task"), "this process");
        assert!(!is_ending("/proc/none/task"));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
        assert!(is_ending(&format!("/proc/{}/task", child.id())), "a process that nobody has reaped");
        child.wait().unwrap();
    }
}
