//! The running ranks of a job.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalHandle, Signals};
use socket2::Socket;

use super::output::tag_lines;
use crate::{Error, Rank, Result};

/// The longest time between two looks at the ranks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The running ranks of a job. Dropped, it kills and reaps those that are left.
pub struct Job {
    children: Vec<Running>,
    /// Keeps the port for rank 0.
    _reserved: Socket,
    grace: Duration,
    tag_output: bool,
    readers: Vec<JoinHandle<()>>,
}

struct Running {
    rank: Rank,
    child: Child,
    status: Option<ExitStatus>,
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ended by itself with this status.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How each rank ended, in rank order.
    pub endings: Vec<Ending>,
    /// The first rank that failed.
    pub first_failure: Option<Rank>,
}

impl Outcome {
    /// The status that the launcher should end with: the first failing rank's, 128 and the signal where one killed it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let Some(rank) = self.first_failure else { return 0 };
        match self.endings[rank.index()] {
            Ending::Exited(status) => status.clamp(1, 255) as u8,
            Ending::Killed(signal) => 128u8.wrapping_add(signal as u8),
        }
    }

    /// The first failure in one line, as "rank 2 was killed by signal 9"; none if every rank succeeded.
    #[must_use]
    pub fn report(&self) -> Option<String> {
        let rank = self.first_failure?;
        Some(match self.endings[rank.index()] {
            Ending::Exited(status) => format!("rank {rank} ended with status {status}"),
            Ending::Killed(signal) => format!("rank {rank} was killed by signal {signal}"),
        })
    }
}

impl Job {
    pub(super) fn new(reserved: Socket, grace: Duration, tag_output: bool) -> Self {
        Self { children: Vec::new(), _reserved: reserved, grace, tag_output, readers: Vec::new() }
    }

    pub(super) fn add(&mut self, rank: Rank, mut child: Child) {
        if self.tag_output {
            self.readers.extend(child.stdout.take().map(|from| tag_lines(rank, from, std::io::stdout())));
            self.readers.extend(child.stderr.take().map(|from| tag_lines(rank, from, std::io::stderr())));
        }
        self.children.push(Running { rank, child, status: None });
    }

    /// The process of each rank, in rank order.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        self.children.iter().map(|running| running.child.id()).collect()
    }

    /// Waits until all ranks have ended. After the first failure, ranks that go on for longer than the grace period are
    /// killed. `SIGINT`, `SIGTERM` and `SIGHUP` are passed on to the ranks.
    ///
    /// # Errors
    /// [`Error::System`] when the system can't wait or pass on signals; the ranks are killed.
    pub fn wait(mut self) -> Result<Outcome> {
        let (signals, relay) = relay_signals()?;
        let mut first_failure = None;
        let mut killed_at = None;
        while self.children.iter().any(|running| running.status.is_none()) {
            match signals.recv_timeout(LOOK_EVERY) {
                Ok(signal) => self.signal(signal),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for rank in self.reap()? {
                if first_failure.is_none() && !self.children[rank.index()].status.is_some_and(|s| s.success()) {
                    first_failure = Some(rank);
                    killed_at = Some(Instant::now() + self.grace);
                }
            }
            if killed_at.is_some_and(|time| Instant::now() >= time) {
                self.signal(Signal::KILL);
                killed_at = None;
            }
        }
        relay.close();
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let endings = self.children.iter().filter_map(|running| running.status.map(ending)).collect();
        Ok(Outcome { endings, first_failure })
    }

    /// Looks which ranks have ended since the last look.
    fn reap(&mut self) -> Result<Vec<Rank>> {
        let mut ended = Vec::new();
        for running in self.children.iter_mut().filter(|running| running.status.is_none()) {
            let status = running.child.try_wait();
            running.status = status.map_err(|error| Error::system("can't wait for the ranks", error))?;
            ended.extend(running.status.map(|_| running.rank));
        }
        Ok(ended)
    }

    /// The first rank's process, which leads the job's process group.
    pub(super) fn leader(&self) -> Option<Pid> {
        let leader = self.children.first()?;
        i32::try_from(leader.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Sends a signal to the job's process group.
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader() {
            // All of it may have ended just now.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.children.iter().all(|running| running.status.is_some_and(|status| status.success())) {
            return;
        }
        // What ranks have started goes with them.
        self.signal(Signal::KILL);
        for running in self.children.iter_mut().filter(|running| running.status.is_none()) {
            let _ = running.child.wait();
        }
    }
}

fn ending(status: ExitStatus) -> Ending {
    match status.code() {
        Some(code) => Ending::Exited(code),
        None => Ending::Killed(status.signal().unwrap_or(0)),
    }
}

/// Collects the signals that are meant for the whole job, until the handle is closed.
fn relay_signals() -> Result<(Receiver<Signal>, SignalHandle)> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| Error::system("can't listen for signals", error))?;
    let handle = signals.handle();
    let (sender, receiver): (Sender<Signal>, _) = channel();
    spawn(move || {
        for signal in &mut signals {
            let named = match signal {
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            if sender.send(named).is_err() {
                return;
            }
        }
    });
    Ok((receiver, handle))
}
