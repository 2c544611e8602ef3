//! A job of ranks in which the test causes a fault.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::launch::Launch;
use brevity_testing::{Process, Wire};

use super::FOLDER;
use super::report::{Report, write};

/// The limit for anything that must happen; generous, since it only has to distinguish slow from stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The ranks of a job, the folder for their reports, and what keeps them from outliving the test.
pub struct Job {
    folder: tempfile::TempDir,
    ranks: Vec<Process>,
    ending: Ending,
}

enum Ending {
    /// The launcher ends them, on a thread that lives as long as they do.
    Launched(std::thread::JoinHandle<()>),
    /// They are children of the test.
    Children(Vec<Child>),
}

impl Job {
    /// Starts a job of `world_size` ranks of `program` with `arguments` on this host.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn launch(
        program: &str,
        arguments: &[&str],
        world_size: u32,
        wire: Wire,
        environment: &[(&str, &str)],
    ) -> Self {
        let folder = folder();
        let mut job = Launch::new(program, arguments).ranks(world_size).transport(wire.choice());
        job = job.grace(PATIENCE).env(FOLDER, folder.path());
        for (name, value) in wire.environment().iter().chain(environment) {
            job = job.env(*name, *value);
        }
        let (send_ranks, ranks) = std::sync::mpsc::channel();
        // Ranks die with the thread that starts them; it also reaps them.
        let thread = std::thread::spawn(move || {
            let job = job.spawn().unwrap_or_else(|error| panic!("{error}"));
            let _ = send_ranks.send(job.process_ids());
            let _ = job.wait();
        });
        let ranks = ranks.recv().unwrap_or_else(|error| panic!("the job did not start: {error}"));
        Self { folder, ranks: ranks.into_iter().map(Process).collect(), ending: Ending::Launched(thread) }
    }

    /// Starts one rank for each command, which already has the rank's environment.
    ///
    /// # Panics
    /// If a command can't be started.
    #[must_use]
    pub fn of_commands(commands: Vec<Command>) -> Self {
        let folder = folder();
        let mut job = Self { folder, ranks: Vec::new(), ending: Ending::Children(Vec::new()) };
        commands.into_iter().for_each(|command| job.add(command));
        job
    }

    /// Starts one more rank of a job of commands.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn add(&mut self, mut command: Command) {
        let child = start(&mut command, self.folder.path());
        self.ranks.push(Process(child.id()));
        match &mut self.ending {
            Ending::Children(children) => children.push(child),
            Ending::Launched(_) => unreachable!("a launched job is whole"),
        }
    }

    /// The processes, in rank order.
    #[must_use]
    pub fn ranks(&self) -> &[Process] {
        &self.ranks
    }

    /// Waits until all ranks are ready.
    ///
    /// # Panics
    /// If a rank does not get ready.
    pub fn await_ready(&self) {
        for rank in 0..self.ranks.len() {
            self.until(&format!("rank {rank} is not ready"), || self.is_ready(rank));
        }
    }

    /// Whether `rank` is ready.
    #[must_use]
    pub fn is_ready(&self, rank: usize) -> bool {
        self.path(&format!("ready-{rank}")).exists()
    }

    /// Waits until `rank` goes on after its `loss`-th loss.
    ///
    /// # Panics
    /// If it does not.
    pub fn await_on(&self, rank: u32, loss: u32) {
        let path = self.path(&format!("on-{loss}-{rank}"));
        self.until(&format!("rank {rank} does not go on after loss {loss}"), || path.exists());
    }

    /// Lets waiting ranks continue.
    pub fn go(&self) {
        self.tell("go");
    }

    /// Tells all ranks `what`.
    pub fn tell(&self, what: &str) {
        write(&self.path(what), "");
    }

    /// What `rank` has noted in its file of this name; nothing if there is none.
    #[must_use]
    pub fn notes(&self, name: &str, rank: u32) -> String {
        std::fs::read_to_string(self.path(&format!("{name}-{rank}"))).unwrap_or_default()
    }

    /// Waits for the complete report of `rank`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn report(&self, rank: u32) -> Report {
        let mut report = None;
        self.until(&format!("rank {rank} does not report"), || {
            report = Report::read(self.folder.path(), rank);
            report.is_some()
        });
        report.unwrap_or_default()
    }

    /// Waits until `done`.
    ///
    /// # Panics
    /// With `what` if that does not happen in time.
    pub fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "{what}");
            sleep(Duration::from_millis(2));
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // This signal ends stopped processes too.
        self.ranks.iter().for_each(|rank| rank.signal("KILL"));
        match std::mem::replace(&mut self.ending, Ending::Children(Vec::new())) {
            Ending::Launched(thread) => drop(thread.join()),
            Ending::Children(children) => {
                for mut child in children {
                    let _ = child.wait();
                }
            }
        }
    }
}

fn start(command: &mut Command, folder: &Path) -> Child {
    let child = command.env(FOLDER, folder).stdin(Stdio::null()).spawn();
    child.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| panic!("no folder for reports: {error}"))
}
