//! The running ranks of a job.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, kill_process, kill_process_group, pidfd_send_signal,
    waitid,
};
use socket2::Socket;

use super::blame::Blame;
use super::child::end_of;
use super::guard::Guard;
use super::output::Taggers;
use super::schedule::Schedule;
use super::signals::{Meaning, Relay, meaning};
use crate::{Error, Rank, Result};

/// How long output may take to arrive after its writers have ended.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// The flag `PF_EXITING` of a process in its `stat`. Linux sets it before the process closes anything, so
/// ranks that fail because of it fail later.
const ENDING: u64 = 4;

/// The longest sleep if nothing is due.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The running ranks of a job. Dropping it kills and reaps the ranks, and kills what they have started.
pub struct Job {
    /// Reaped only at the end: while the first rank is not reaped, its process group is this job's.
    children: Vec<Running>,
    taggers: Option<Taggers>,
    /// Made before the first rank, so that no signal ends the launcher alone.
    relay: Relay,
    schedule: Schedule,
    /// Whether ranks go on when others fail.
    keeps_going: bool,
    /// Whether a signal has ended the job.
    is_ended: bool,
    /// Reserves the port of rank 0.
    _reserved: Socket,
    /// Last, because it may be dismissed only when the job has ended.
    guard: Option<Guard>,
}

struct Running {
    rank: Rank,
    child: Child,
    /// Becomes readable when the rank has ended.
    process: OwnedFd,
    ending: Option<Ending>,
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How each rank ended, in rank order.
    pub endings: Vec<Ending>,
    /// The first rank that failed. A rank that was killed comes before ranks that exited at the same time,
    /// most likely because of it. None if the job [goes on](super::Launch::keep_going) and a rank succeeded.
    pub first_failure: Option<Rank>,
}

impl Outcome {
    /// The exit status for the launcher: the first failing rank's, or 128 plus the signal that killed it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let Some(rank) = self.first_failure else { return 0 };
        match self.endings[rank.index()] {
            Ending::Exited(status) => status.clamp(1, 255) as u8,
            Ending::Killed(signal) => 128u8.wrapping_add(signal as u8),
        }
    }

    /// The first failure in one line, as "rank 2 was killed by signal 9", or all of a job that has gone on
    /// without those ranks; `None` if every rank succeeded.
    #[must_use]
    pub fn report(&self) -> Option<String> {
        let words = |rank: Rank, ending| match ending {
            Ending::Exited(status) => format!("rank {rank} ended with status {status}"),
            Ending::Killed(signal) => format!("rank {rank} was killed by signal {signal}"),
        };
        if let Some(rank) = self.first_failure {
            return Some(words(rank, self.endings[rank.index()]));
        }
        let lost = (0..).map(Rank).zip(&self.endings).filter(|(_, ending)| **ending != Ending::Exited(0));
        let lost: Vec<String> = lost.map(|(rank, ending)| words(rank, *ending)).collect();
        (!lost.is_empty()).then(|| format!("{}; the others went on", lost.join(", ")))
    }
}

impl Job {
    /// A job without ranks that already catches signals.
    pub(super) fn new(
        reserved: Socket,
        grace: Duration,
        (tag_output, keeps_going): (bool, bool),
        guard: Option<Guard>,
    ) -> Result<Self> {
        let taggers = tag_output.then(Taggers::new);
        let (relay, schedule) = (Relay::new()?, Schedule::new(grace));
        let children = Vec::new();
        let is_ended = false;
        Ok(Self { children, taggers, relay, schedule, keeps_going, is_ended, _reserved: reserved, guard })
    }

    pub(super) fn add(&mut self, rank: Rank, mut child: Child) -> Result<()> {
        if let Some(taggers) = &self.taggers {
            if let Some(from) = child.stdout.take() {
                taggers.tag(rank, from, std::io::stdout());
            }
            if let Some(from) = child.stderr.take() {
                taggers.tag(rank, from, std::io::stderr());
            }
        }
        // If this fails, the rank is not in the list yet, and has been killed.
        let process =
            end_of(&mut child).map_err(|error| Error::system(format!("can't watch rank {rank}"), error))?;
        self.children.push(Running { rank, child, process, ending: None });
        if let (Some(guard), [leader]) = (&mut self.guard, self.children.as_slice()) {
            guard.watch(Pid::from_child(&leader.child));
        }
        Ok(())
    }

    /// The process number of each rank, in rank order.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        self.children.iter().map(|running| running.child.id()).collect()
    }

    /// Waits until all ranks have ended, and then kills what is left of the job's process group.
    ///
    /// Passes signals of this process on to the ranks, including those before this call. After the first
    /// failed rank, or a signal that ends the job (`SIGINT`, `SIGTERM`, `SIGHUP`, `SIGQUIT`, `SIGABRT`),
    /// ranks that do not end within the grace period are killed; another `SIGINT` at least a second later
    /// kills them at once. `SIGTSTP` stops the ranks and then this process until `SIGCONT`; this time does
    /// not count.
    ///
    /// # Errors
    /// [`Error::System`] when the system can't wait; the ranks are killed.
    pub fn wait(mut self) -> Result<Outcome> {
        let mut blame: Option<Blame> = None;
        while self.children.iter().any(|running| running.ending.is_none()) {
            self.sleep();
            self.guard.iter_mut().for_each(Guard::renew);
            for number in self.relay.take() {
                self.obey(number);
            }
            let failed = self.look()?;
            let now = Instant::now();
            if !failed.is_empty() && blame.is_none() {
                if !self.keeps_going {
                    self.schedule.end(now);
                }
                blame = Blame::among(&failed, self.ending());
            }
            if self.keeps_going && self.has_success() {
                // The others had as long; one that hangs is not waited for.
                self.schedule.end(now);
            }
            if let Some(blame) = &mut blame {
                failed.iter().for_each(|&(rank, ending)| blame.hear(rank, ending));
            }
            if self.schedule.is_kill_due(now) {
                // Ranks killed by this are not to blame.
                blame.iter_mut().for_each(Blame::settle);
                self.signal(Signal::KILL);
            }
            if self.schedule.is_stop_due(now, || self.children.iter().all(Running::stands_still)) {
                self.stop();
            }
        }
        let endings: Vec<Ending> = self.children.iter().filter_map(|running| running.ending).collect();
        let has_gone_on = self.keeps_going && !self.is_ended && endings.contains(&Ending::Exited(0));
        let first_failure = blame.map(|blame| blame.rank()).filter(|_| !has_gone_on);
        self.end();
        if let Some(taggers) = self.taggers.take() {
            taggers.finish(OUTPUT_PATIENCE);
        }
        Ok(Outcome { endings, first_failure })
    }

    /// The first rank's process, the leader of the job's process group.
    pub(super) fn leader(&self) -> Option<Pid> {
        self.children.first().map(|leader| Pid::from_child(&leader.child))
    }

    /// Sleeps until a rank or the guard has ended, a signal has arrived, or something is due.
    fn sleep(&mut self) {
        let start = Instant::now();
        let guard_due = self.guard.as_ref().and_then(Guard::due);
        let guard_patience = guard_due.map(|time| time.saturating_duration_since(start));
        let patience = self.schedule.patience(start).into_iter().chain(guard_patience).min();
        let longest = patience.unwrap_or(LONGEST_SLEEP);
        let running = self.children.iter().filter(|running| running.ending.is_none());
        let guard = self.guard.as_ref().and_then(Guard::descriptor);
        let descriptors =
            running.map(|running| running.process.as_fd()).chain([self.relay.descriptor()]).chain(guard);
        let mut events: Vec<PollFd<'_>> =
            descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        // An interrupted sleep only ends early.
        let _ = poll(&mut events, Some(&timeout));
        drop(events);
        self.schedule.slept(longest, start.elapsed());
    }

    fn obey(&mut self, number: i32) {
        let now = Instant::now();
        self.is_ended |= matches!(meaning(number), Meaning::End);
        let continued = match meaning(number) {
            Meaning::Stop => {
                self.schedule.stop(now);
                false
            }
            Meaning::GoOn => {
                self.schedule.go_on(now);
                false
            }
            Meaning::End if number == Signal::INT.as_raw() => self.schedule.interrupt(now),
            Meaning::End => self.schedule.end(now),
            Meaning::Message => false,
        };
        self.pass_on(number);
        if continued {
            self.signal(Signal::CONT);
        }
    }

    /// Stops the remaining ranks and this process, so that a shell notices. The first process of a container
    /// can't be stopped this way and waits for the signal that ends the stop.
    fn stop(&mut self) {
        self.signal(Signal::STOP);
        // The signal that ends the stop may just have arrived.
        for number in self.relay.take() {
            self.obey(number);
        }
        if self.schedule.is_stopped() {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }

    /// Checks which ranks have failed since the last check.
    fn look(&mut self) -> Result<Vec<(Rank, Ending)>> {
        let mut failed = Vec::new();
        for running in self.children.iter_mut().filter(|running| running.ending.is_none()) {
            running.ending = ending(Pid::from_child(&running.child))?;
            let failure = running.ending.filter(|&ending| ending != Ending::Exited(0));
            failed.extend(failure.map(|ending| (running.rank, ending)));
        }
        Ok(failed)
    }

    fn has_success(&self) -> bool {
        self.children.iter().any(|running| running.ending == Some(Ending::Exited(0)))
    }

    /// The ranks that are ending but have not ended.
    fn ending(&self) -> Vec<Rank> {
        let running = self.children.iter().filter(|running| running.ending.is_none());
        let is_ending = |running: &&Running| is_ending(&format!("/proc/{}/task", running.child.id()));
        running.filter(is_ending).map(|running| running.rank).collect()
    }

    /// Sends the signal of this number to the job's process group.
    fn pass_on(&self, number: i32) {
        match (Signal::from_named_raw(number), self.leader()) {
            (Some(signal), _) => self.signal(signal),
            (None, Some(leader)) => {
                // A real-time signal, for which rustix has no name. A shell can send it.
                let words = ["-c".into(), format!("kill -{number} -{}", leader.as_raw_pid())];
                if let Err(error) = Command::new("/bin/sh").args(words).status() {
                    tracing::warn!(number, %error, "can't pass on a real-time signal");
                }
            }
            (None, None) => {}
        }
    }

    /// Sends a signal to the job's process group, and to ranks that have left it, as `setsid` and `timeout`
    /// do.
    fn signal(&self, signal: Signal) {
        let Some(leader) = self.leader() else { return };
        // Fails if all of the group has ended.
        let _ = kill_process_group(leader, signal);
        for running in self.children.iter().filter(|running| running.ending.is_none()) {
            // The process is not reaped, so its number is its own.
            let process = Pid::from_child(&running.child);
            let _ = match getpgid(Some(process)) {
                Ok(group) if group == leader => Ok(()),
                Ok(group) if group == process => kill_process_group(process, signal),
                _ => pidfd_send_signal(&running.process, signal),
            };
        }
    }

    /// Kills the job's process group and reaps the ranks.
    fn end(&mut self) {
        self.signal(Signal::KILL);
        for mut running in self.children.drain(..) {
            let _ = running.child.wait();
        }
        self.guard = None;
    }
}

impl Running {
    /// Whether it is stopped or has ended.
    fn stands_still(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.ending.is_some()
            || matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), options), Ok(Some(_)))
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

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a child has ended, if it has. Does not reap it.
fn ending(process: Pid) -> Result<Option<Ending>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(process), options)
        .map_err(|error| Error::system("can't wait for a rank", error))?;
    Ok(status.map(|status| match status.exit_status() {
        Some(code) => Ending::Exited(code),
        None => Ending::Killed(status.terminating_signal().unwrap_or(0)),
    }))
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
