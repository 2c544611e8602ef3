//! A process that ends a job whose launcher was killed.
//!
//! A killed launcher can't end anything. Its ranks die with it by themselves, but not what they have started:
//! so a guard holds the other end of a pipe, sees it close, and kills the job's process group.
//!
//! The launcher and its guard look after each other: a guard that is killed is followed by another. It has a
//! name of its own, so that who kills all processes of the launcher's name does not kill it with them.

use std::ffi::OsString;
use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::{Error, Result};

/// The launcher's last byte: the job has ended in order.
const ENDED: u8 = b'.';

/// What a guard is called among processes.
const NAME: &str = "job-guard";

/// So many guards of a job may be killed and followed by another.
const MOST_KILLED: u32 = 100;

/// When to try again to start a guard that could not be started.
const RETRY: Duration = Duration::from_secs(1);

/// How long a guard may take to end when it is told that the job has.
const PARTING: Duration = Duration::from_secs(2);

/// What a guard does: the program that [`Launch::guard`](super::Launch::guard) names calls this and ends.
///
/// Reads from standard input until the launcher says that the job has ended, or has gone without a word: then
/// kills the job's process group.
pub fn guard() {
    // The name of the process, whichever thread this is. Without it, the guard is only easier to hit.
    let _ = std::fs::write("/proc/self/comm", NAME);
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
    /// The program, and its arguments.
    words: (OsString, Vec<OsString>),
    /// What it is to end, once it is known.
    group: Option<Pid>,
    state: State,
    killed: u32,
}

enum State {
    Running(Running),
    /// None could be started; another try is due then.
    Due(Instant),
    /// Guards do not stay alive.
    GivenUp,
}

struct Running {
    process: Child,
    pipe: Option<PipeWriter>,
    /// Becomes readable when the guard has ended.
    end: OwnedFd,
}

impl Guard {
    /// Starts the guard, out of reach of what ends the launcher or the job.
    pub(super) fn start(words: (OsString, Vec<OsString>)) -> Result<Self> {
        let running = Running::start(&words, None)
            .map_err(|error| Error::system("can't start the job's guard", error))?;
        Ok(Self { words, group: None, state: State::Running(running), killed: 0 })
    }

    /// Says which process group to end.
    pub(super) fn watch(&mut self, group: Pid) {
        self.group = Some(group);
        if let State::Running(Running { pipe: Some(pipe), .. }) = &mut self.state {
            // A guard that was killed meanwhile is followed by one that knows it.
            let _ = tell(pipe, group);
        }
    }

    /// Becomes readable when the guard has ended.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if let State::Running(running) = &self.state { Some(running.end.as_fd()) } else { None }
    }

    /// When [`renew`](Self::renew) has something to do whatever happens.
    pub(super) fn due(&self) -> Option<Instant> {
        if let State::Due(time) = self.state { Some(time) } else { None }
    }

    /// Puts another guard in the place of one that was killed, as soon as one can be started. One that has
    /// ended by itself can't do its work here.
    pub(super) fn renew(&mut self) {
        match &mut self.state {
            State::Running(running) => {
                let Ok(Some(status)) = running.process.try_wait() else { return };
                self.killed += 1;
                if status.signal().is_none() || self.killed > MOST_KILLED {
                    tracing::warn!(
                        "the job's guard has ended: what ranks have started may outlive a launcher that is killed"
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
    /// Starts a guard that knows from its beginning which process group to end, if there is one.
    fn start((program, arguments): &(OsString, Vec<OsString>), group: Option<Pid>) -> std::io::Result<Self> {
        let (input, mut pipe) = pipe()?;
        group.map_or(Ok(()), |group| tell(&mut pipe, group))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        match pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
            Ok(end) => Ok(Self { process, pipe: Some(pipe), end }),
            Err(error) => {
                // It has ended already if this fails.
                let _ = process.kill();
                let _ = process.wait();
                Err(error.into())
            }
        }
    }
}

fn tell(pipe: &mut PipeWriter, group: Pid) -> std::io::Result<()> {
    pipe.write_all(&group.as_raw_pid().to_le_bytes())
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A guard that is gone has nothing left to hear.
            let _ = pipe.write_all(&[ENDED]);
        }
        let patience = Timespec { tv_sec: PARTING.as_secs() as i64, tv_nsec: 0 };
        if !matches!(poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&patience)), Ok(1..)) {
            // It may have been stopped. There is nothing left that it could end.
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
