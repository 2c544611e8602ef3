//! The guard: a process that ends the job if the launcher is killed.
//!
//! The ranks of a killed launcher die with it, but not the processes that they started. The guard sees its
//! end of a pipe close and kills the job's process group. The launcher replaces a guard that is killed. A
//! guard has its own process name, so that killing all processes of the launcher's name does not kill it.

use std::ffi::OsString;
use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::child::end_of;
use crate::pollable::wait_for;
use crate::{Error, Result};

/// The launcher's last byte: the job has ended normally.
const ENDED: u8 = b'.';

/// The process name of a guard.
const NAME: &str = "job-guard";

/// The number of killed guards that a job replaces.
const MOST_KILLED: u32 = 100;

/// The time before another attempt to start a guard.
const RETRY: Duration = Duration::from_secs(1);

/// How long a guard may take to exit.
const PARTING: Duration = Duration::from_secs(2);

/// Runs a guard: the program of [`Launch::guard`](super::Launch::guard) calls this and exits.
///
/// Reads standard input until the launcher reports the end of the job or dies. In the latter case it kills
/// the job's process group.
pub fn guard() {
    // Names the process from any thread. Without the name it is only less protected.
    let _ = std::fs::write("/proc/self/comm", NAME);
    let mut words = Vec::new();
    // A failed input counts as closed.
    let _ = std::io::stdin().lock().read_to_end(&mut words);
    let Some((group, rest)) = words.split_first_chunk() else { return };
    if let (Some(group), []) = (Pid::from_raw(i32::from_le_bytes(*group)), rest) {
        // The group may have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The guard of a job, and its replacements.
pub(super) struct Guard {
    words: (OsString, Vec<OsString>),
    /// The process group to end, once known.
    group: Option<Pid>,
    state: State,
    killed: u32,
}

enum State {
    Running(Running),
    /// Could not be started; the next attempt is due then.
    Due(Instant),
    /// Guards exit by themselves, or too many were killed.
    GivenUp,
}

struct Running {
    process: Child,
    pipe: Option<PipeWriter>,
    /// Becomes readable when the guard has ended.
    end: OwnedFd,
}

impl Guard {
    /// Starts the guard, in a process group of its own.
    pub(super) fn start(words: (OsString, Vec<OsString>)) -> Result<Self> {
        let running = Running::start(&words, None)
            .map_err(|error| Error::system("can't start the job's guard", error))?;
        Ok(Self { words, group: None, state: State::Running(running), killed: 0 })
    }

    /// Tells the guard which process group to end.
    pub(super) fn watch(&mut self, group: Pid) {
        self.group = Some(group);
        if let State::Running(Running { pipe: Some(pipe), .. }) = &mut self.state {
            // If the guard was killed, its replacement learns the group.
            let _ = tell(pipe, group);
        }
    }

    /// Becomes readable when the guard has ended.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if let State::Running(running) = &self.state { Some(running.end.as_fd()) } else { None }
    }

    /// When [`renew`](Self::renew) must be called next, if no guard runs.
    pub(super) fn due(&self) -> Option<Instant> {
        if let State::Due(time) = self.state { Some(time) } else { None }
    }

    /// Replaces a guard that was killed, as soon as one can be started. Gives up on one that exits by itself.
    pub(super) fn renew(&mut self) {
        match &mut self.state {
            State::Running(running) => {
                let Ok(Some(status)) = running.process.try_wait() else { return };
                self.killed += 1;
                if status.signal().is_none() || self.killed > MOST_KILLED {
                    tracing::warn!(
                        "the job's guard has ended: what ranks have started may outlive a launcher that is \
                         killed"
                    );
                    self.state = State::GivenUp;
                    return;
                }
            }
            State::Due(time) if Instant::now() >= *time => {}
            State::Due(_) | State::GivenUp => return,
        }
        self.state = match Running::start(&self.words, self.group) {
            Ok(running) => State::Running(running),
            Err(error) => {
                if let State::Running(_) = self.state {
                    tracing::warn!(%error, "can't start another guard of the job yet");
                }
                State::Due(Instant::now() + RETRY)
            }
        };
    }
}

impl Running {
    /// Starts a guard that knows the process group to end, if there is one.
    fn start((program, arguments): &(OsString, Vec<OsString>), group: Option<Pid>) -> std::io::Result<Self> {
        let (input, mut pipe) = pipe()?;
        group.map_or(Ok(()), |group| tell(&mut pipe, group))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let end = end_of(&mut process)?;
        Ok(Self { process, pipe: Some(pipe), end })
    }
}

fn tell(pipe: &mut PipeWriter, group: Pid) -> std::io::Result<()> {
    pipe.write_all(&group.as_raw_pid().to_le_bytes())
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // Fails if the guard is gone.
            let _ = pipe.write_all(&[ENDED]);
        }
        wait_for(self.end.as_fd(), None, Some(PARTING));
        if !matches!(self.process.try_wait(), Ok(Some(_))) {
            // It may be stopped.
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
