//! A process that ends a job whose launcher was killed.
//!
//! A killed launcher can't end anything. Its ranks die with it by themselves, but not what they have started: so a guard
//! holds the other end of a pipe, sees it close, and kills the job's process group.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Error, Result};

/// The launcher's last byte: the job has ended in order.
const ENDED: u8 = b'.';

/// What a guard does: the program that [`Launch::guard`](super::Launch::guard) names calls this and ends.
///
/// Reads from standard input until the launcher says that the job has ended, or has gone without a word: then kills the
/// job's process group.
pub fn guard() {
    let mut words = Vec::new();
    // An input that fails is one that has closed.
    let _ = std::io::stdin().lock().read_to_end(&mut words);
    let Some((group, rest)) = words.split_first_chunk() else { return };
    if let (Some(group), []) = (Pid::from_raw(i32::from_le_bytes(*group)), rest) {
        // The group may have ended just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The launcher's end of the pipe to its guard.
pub(super) struct Guard {
    process: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard, out of reach of what ends the launcher or the job.
    pub(super) fn start((program, arguments): &(OsString, Vec<OsString>)) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| Error::system("can't start the job's guard", error))?;
        let pipe = process.stdin.take();
        Ok(Self { process, pipe })
    }

    /// Says which process group to end.
    pub(super) fn watch(&mut self, group: Pid) -> Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let told = pipe.write_all(&group.as_raw_pid().to_le_bytes());
        told.map_err(|error| Error::system("can't talk to the job's guard", error))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A guard that is gone has nothing left to hear.
            let _ = pipe.write_all(&[ENDED]);
        }
        let _ = self.process.wait();
    }
}
