//! A job whose ranks are started again, one at a time, when they have died.

use std::os::fd::OwnedFd;
use std::process::Command;

use brevity_testing::worlds::reserved_port;
use brevity_testing::{Process, Wire};

use super::Job;

/// The processes of a job, by rank.
pub struct Returning {
    /// The job, also of the processes that have ended.
    pub job: Job,
    start: Start,
    processes: Vec<Process>,
    incarnations: Vec<u32>,
}

/// How ranks are started.
struct Start {
    program: String,
    words: Vec<String>,
    wire: Wire,
    world_size: u32,
    /// Held as long as the ranks meet there.
    port: (OwnedFd, u16),
}

impl Returning {
    /// Starts all ranks of `program` on this host.
    ///
    /// # Panics
    /// If they can't be started.
    #[must_use]
    pub fn start(program: &str, words: &[String], world_size: u32, wire: Wire) -> Self {
        let (program, words, port) = (program.into(), words.to_vec(), reserved_port());
        let start = Start { program, words, wire, world_size, port };
        let job = Job::of_commands((0..world_size).map(|rank| start.command(rank, 0)).collect());
        let (processes, incarnations) = (job.ranks().to_vec(), vec![0; world_size as usize]);
        Self { job, start, processes, incarnations }
    }

    /// The process of a rank.
    #[must_use]
    pub fn process(&self, rank: u32) -> Process {
        self.processes[rank as usize]
    }

    /// How often a rank was started again.
    #[must_use]
    pub fn incarnation(&self, rank: u32) -> u32 {
        self.incarnations[rank as usize]
    }

    /// Waits until the process of a rank has died, and starts it again.
    ///
    /// # Panics
    /// If it does not die, or can't be started.
    pub fn restart(&mut self, rank: u32) {
        let dying = self.process(rank);
        self.job.until(&format!("rank {rank} does not die"), || !dying.is_running());
        self.incarnations[rank as usize] += 1;
        let command = self.start.command(rank, self.incarnation(rank));
        self.job.add(command);
        self.processes[rank as usize] = self.job.ranks().last().copied().unwrap_or(dying);
    }
}

impl Start {
    fn command(&self, rank: u32, incarnation: u32) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.words).envs(self.wire.environment().iter().copied());
        let numbers = [("BREVITY_RANK", rank), ("BREVITY_WORLD_SIZE", self.world_size)];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        let port = self.port.1;
        command.env("BREVITY_MASTER", format!("127.0.0.1:{port}")).env("BREVITY_MASTER_RESERVED", "1");
        command.env("BREVITY_KEY", "correct horse battery staple");
        command.env("BREVITY_JOB", format!("a job at {port}"));
        if incarnation > 0 {
            command.env("BREVITY_INCARNATION", incarnation.to_string());
        }
        command
    }
}
