//! The running ranks of a job.

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};
use socket2::Socket;

use super::blame::Blame;
use super::child::end_of;
use super::guard::Guard;
use super::outcome::{Ending, Outcome};
use super::output::Taggers;
use super::restarts::Restarts;
use super::running::Running;
use super::schedule::Schedule;
use super::signals::{Meaning, Relay, meaning};
use super::starter::Starter;
use crate::{Error, Rank, Result};

/// How long output may take to arrive after its writers have ended.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// The longest sleep if nothing is due.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The running ranks of a job. Dropping it kills and reaps the ranks, and kills what they have started.
pub struct Job {
    starter: Starter,
    /// The last process of each rank, in rank order; until it is replaced, it is not reaped.
    children: Vec<Running>,
    /// The first process of the job once it was replaced. Reaped only at the end: until then, the process
    /// group of its number is this job's.
    first: Option<Child>,
    taggers: Option<Taggers>,
    /// Made before the first rank, so that no signal ends the launcher alone.
    relay: Relay,
    schedule: Schedule,
    restarts: Restarts,
    /// Whether ranks go on when others fail.
    keeps_going: bool,
    /// Whether a signal has ended the job.
    is_ended: bool,
    /// Reserves the port of rank 0.
    _reserved: Socket,
    /// Last, because it may be dismissed only when the job has ended.
    guard: Option<Guard>,
}

impl Job {
    /// A job without ranks that already catches signals.
    pub(super) fn new(starter: Starter, reserved: Socket, guard: Option<Guard>) -> Result<Self> {
        let launch = &starter.launch;
        Ok(Self {
            children: Vec::new(),
            first: None,
            taggers: launch.tag_output.then(Taggers::new),
            relay: Relay::new()?,
            schedule: Schedule::new(launch.grace),
            restarts: Restarts::new(launch.restarts.unwrap_or(0)),
            keeps_going: launch.keeps_going || launch.restarts.is_some(),
            is_ended: false,
            _reserved: reserved,
            guard,
            starter,
        })
    }

    /// Starts the next rank.
    pub(super) fn add(&mut self, rank: Rank) -> Result<()> {
        let running = self.start(rank, 0)?;
        self.children.push(running);
        self.restarts.add(Instant::now());
        if let (Some(guard), [leader]) = (&mut self.guard, self.children.as_slice()) {
            guard.watch(Pid::from_child(&leader.child));
        }
        Ok(())
    }

    /// Starts a process of a rank, after `incarnation` others.
    fn start(&self, rank: Rank, incarnation: u32) -> Result<Running> {
        let mut child = self.starter.start(rank, incarnation, self.leader())?;
        if let Some(taggers) = &self.taggers {
            if let Some(from) = child.stdout.take() {
                taggers.tag(rank, from, std::io::stdout());
            }
            if let Some(from) = child.stderr.take() {
                taggers.tag(rank, from, std::io::stderr());
            }
        }
        // If this fails, the rank has been killed.
        let process =
            end_of(&mut child).map_err(|error| Error::system(format!("can't watch rank {rank}"), error))?;
        Ok(Running { rank, child, process, ending: None })
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
    /// not count. Lost ranks are [started again](super::Launch::restart) by the calling thread.
    ///
    /// # Errors
    /// [`Error::System`] when the system can't wait; the ranks are killed.
    pub fn wait(mut self) -> Result<Outcome> {
        let mut blame: Option<Blame> = None;
        while self.restarts.due().is_some() || self.children.iter().any(|rank| rank.ending.is_none()) {
            self.sleep();
            self.guard.iter_mut().for_each(Guard::renew);
            for number in self.relay.take() {
                self.obey(number);
            }
            self.check(&mut blame)?;
            let now = Instant::now();
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
        let restarts = self.restarts.counts();
        self.end();
        if let Some(taggers) = self.taggers.take() {
            taggers.finish(OUTPUT_PATIENCE);
        }
        Ok(Outcome { endings, restarts, first_failure })
    }

    /// The first process, the leader of the job's process group.
    fn leader(&self) -> Option<Pid> {
        let first = self.children.first().map(|running| &running.child);
        self.first.as_ref().or(first).map(Pid::from_child)
    }

    /// Sleeps until a rank or the guard has ended, a signal has arrived, or something is due.
    fn sleep(&mut self) {
        let start = Instant::now();
        let guard_due = self.guard.as_ref().and_then(Guard::due);
        let restart_due = self.restarts.due().filter(|_| self.schedule.goes_on());
        let due = guard_due.into_iter().chain(restart_due).map(|time| time.saturating_duration_since(start));
        let longest = due.chain(self.schedule.patience(start)).min().unwrap_or(LONGEST_SLEEP);
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

    /// Checks which ranks have ended since the last check. Starts lost ones again, or ends the job.
    fn check(&mut self, blame: &mut Option<Blame>) -> Result<()> {
        let lost = self.look()?;
        let now = Instant::now();
        let given_up = self.give_up();
        let failed = self.start_again(lost, now);
        if blame.is_none() {
            // Those that are given up were lost before.
            *blame = Blame::among(&given_up, Vec::new()).or_else(|| Blame::among(&failed, self.ending()));
            if blame.is_some() && !self.keeps_going {
                self.schedule.end(now);
            }
        }
        if let Some(blame) = blame {
            failed.iter().for_each(|&(rank, ending)| blame.hear(rank, ending));
        }
        let has_lost = blame.is_some() || self.restarts.has_started();
        if self.keeps_going && has_lost && self.has_success() {
            // One that has not noticed the loss, and hangs, is not waited for.
            self.schedule.end(now);
        }
        Ok(())
    }

    /// The ranks that have failed since the last look.
    fn look(&mut self) -> Result<Vec<(Rank, Ending)>> {
        let mut failed = Vec::new();
        for running in self.children.iter_mut().filter(|running| running.ending.is_none()) {
            failed.extend(running.look()?.map(|ending| (running.rank, ending)));
        }
        Ok(failed)
    }

    /// Once the job ends, no rank is started again. Returns the ranks that are not, although it was planned.
    fn give_up(&mut self) -> Vec<(Rank, Ending)> {
        if !self.is_ended && !self.has_success() {
            return Vec::new();
        }
        let ending = |rank: Rank| self.children[rank.index()].ending.map(|ending| (rank, ending));
        self.restarts.give_up().into_iter().filter_map(ending).collect()
    }

    /// Plans to start `lost` ranks again, and starts those that are due. Returns the ranks that stay lost.
    fn start_again(&mut self, lost: Vec<(Rank, Ending)>, now: Instant) -> Vec<(Rank, Ending)> {
        let mut failed = lost;
        failed.retain(|(rank, _)| !self.restarts.plan(*rank, now));
        if !self.schedule.goes_on() {
            return failed;
        }
        for (rank, incarnation) in self.restarts.take_due(now) {
            match self.start(rank, incarnation) {
                Ok(running) => self.replace(running),
                Err(error) => {
                    tracing::warn!(%error, "rank {rank} can't be started again");
                    if !self.restarts.plan(rank, now) {
                        failed.extend(self.children[rank.index()].ending.map(|ending| (rank, ending)));
                    }
                }
            }
        }
        failed
    }

    /// Puts a process of a rank in place of the one that has ended.
    fn replace(&mut self, running: Running) {
        let rank = running.rank;
        let mut old = std::mem::replace(&mut self.children[rank.index()], running).child;
        if rank == Rank(0) && self.first.is_none() {
            self.first = Some(old);
        } else {
            // It has ended, so this does not wait.
            let _ = old.wait();
        }
        self.restarts.started(rank);
        tracing::info!("rank {rank} was started again");
    }

    fn has_success(&self) -> bool {
        self.children.iter().any(|running| running.ending == Some(Ending::Exited(0)))
    }

    /// The ranks that are ending but have not ended.
    fn ending(&self) -> Vec<Rank> {
        self.children.iter().filter(|running| running.is_ending()).map(|running| running.rank).collect()
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
        self.children.iter().for_each(|running| running.signal_outside(leader, signal));
    }

    /// Kills the job's process group and reaps the ranks.
    fn end(&mut self) {
        self.signal(Signal::KILL);
        for mut child in self.children.drain(..).map(|running| running.child).chain(self.first.take()) {
            let _ = child.wait();
        }
        self.guard = None;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}
