//! The conductor's side: the measured processes, each at the end of a line. They sleep between orders.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use brevity::launch::{self, Launch};
use brevity::transport::bootstrap::Choice;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::collective::microseconds_since_epoch;
use crate::order::{Answer, Order};
use crate::processor::{Placement, TwoProcessors};
use crate::{Error, Result};

/// How long processes may take to start and connect.
const START: Duration = Duration::from_secs(60);
/// How long an order may take.
const ANSWER: Duration = Duration::from_secs(150);
/// How long processes may take to end when they are no longer needed.
const END: Duration = Duration::from_secs(3);
/// How long survivors wait before a rank is killed: long enough to sleep.
const BEGUN: Duration = Duration::from_millis(150);
/// How often new connections are checked for.
const LOOK: Duration = Duration::from_millis(5);

/// Processes that are measured together.
pub struct Job {
    name: String,
    /// In rank order.
    lines: Vec<BufReader<UnixStream>>,
    processes: Processes,
    /// The socket and the processes' output.
    folder: TempDir,
}

/// The processes of a job; ended on drop.
enum Processes {
    Ours(Box<launch::Job>),
    Theirs(Vec<Group>),
}

/// A process and the processes it has started.
struct Group(Child);

impl Job {
    /// Starts ranks of Brevity over `transport`, with more arguments (see
    /// [`seat::serve`](crate::seat::serve)) and environment variables for each.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn ours(
        name: &str,
        ranks: u32,
        transport: Choice,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        Self::ours_as("rank", name, ranks, transport, arguments, variables)
    }

    /// The same of ranks that do what the hidden `command` of this program does.
    ///
    /// # Errors
    /// As for [`ours`](Self::ours).
    pub fn ours_as(
        command: &str,
        name: &str,
        ranks: u32,
        transport: Choice,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let program = own_program()?;
        Self::spawned((&program, Some(command)), name, ranks, transport, arguments, variables)
    }

    /// The same of another program that uses Brevity, and takes the conductor's socket first.
    ///
    /// # Errors
    /// As for [`ours`](Self::ours).
    pub fn launched(
        program: &Path,
        name: &str,
        ranks: u32,
        transport: Choice,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        Self::spawned((program, None), name, ranks, transport, arguments, variables)
    }

    fn spawned(
        (program, command): (&Path, Option<&str>),
        name: &str,
        ranks: u32,
        transport: Choice,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        Self::start(name, ranks, |socket, _| {
            let place = command.map(OsString::from).into_iter().chain([socket.as_os_str().to_owned()]);
            let arguments = place.chain(arguments.iter().map(OsString::from));
            let launch = Launch::new(program, arguments).ranks(ranks).transport(transport);
            let launch = variables.iter().fold(launch, |launch, (name, value)| launch.env(*name, *value));
            Ok(Processes::Ours(Box::new(launch.spawn()?)))
        })
    }

    /// Starts other programs. `commands` receives the conductor's socket. Together they are `ranks` ranks.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn theirs(
        name: &str,
        ranks: u32,
        commands: impl FnOnce(&Path) -> Result<Vec<Command>>,
    ) -> Result<Self> {
        Self::start(name, ranks, |socket, log| {
            let failed = || Error::system(format!("can't start {name}"));
            let mut groups = Vec::new();
            for mut command in commands(socket)? {
                let (out, err) = (log.try_clone().map_err(failed())?, log.try_clone().map_err(failed())?);
                command.process_group(0).stdin(Stdio::null()).stdout(out).stderr(err);
                groups.push(Group(command.spawn().map_err(failed())?));
            }
            Ok(Processes::Theirs(groups))
        })
    }

    fn start(name: &str, ranks: u32, spawn: impl FnOnce(&Path, &File) -> Result<Processes>) -> Result<Self> {
        let failed = || Error::system(format!("can't wait for {name}"));
        let folder = tempfile::tempdir().map_err(failed())?;
        let socket = folder.path().join("line");
        let listener = UnixListener::bind(&socket).map_err(failed())?;
        listener.set_nonblocking(true).map_err(failed())?;
        let log = File::create(folder.path().join("log")).map_err(failed())?;
        let processes = spawn(&socket, &log)?;
        let mut job = Self { name: name.to_owned(), lines: Vec::new(), processes, folder };
        job.lines = job.welcome(&listener, ranks)?;
        Ok(job)
    }

    /// Waits until every rank has connected. Returns their lines in rank order.
    fn welcome(&mut self, listener: &UnixListener, ranks: u32) -> Result<Vec<BufReader<UnixStream>>> {
        let failed = || Error::system("can't hear who calls");
        let (start, mut lines) = (Instant::now(), Vec::new());
        while lines.len() < ranks as usize {
            match listener.accept() {
                Ok((line, _)) => {
                    line.set_nonblocking(false).map_err(failed())?;
                    line.set_read_timeout(Some(START)).map_err(failed())?;
                    let mut line = BufReader::new(line);
                    let mut hello = String::new();
                    line.read_line(&mut hello).map_err(failed())?;
                    let rank: Option<u32> =
                        hello.strip_prefix("hello ").and_then(|rank| rank.trim().parse().ok());
                    line.get_ref().set_read_timeout(Some(ANSWER)).map_err(failed())?;
                    lines.push((rank.ok_or(Error::Line { line: hello, expected: "hello RANK" })?, line));
                }
                Err(_) if start.elapsed() > START || self.processes.ended() => {
                    return Err(self.failure(&format!("{} of {ranks} ranks have called", lines.len())));
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
        lines.sort_by_key(|(rank, _)| *rank);
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }

    /// Pins the ranks as `placement` says, until they are placed again. Threads that they have already
    /// started keep their place.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn place(&self, placement: Placement, two: &TwoProcessors) -> Result<()> {
        let placed =
            |(rank, line): (usize, &BufReader<UnixStream>)| two.place(placement, rank, line.get_ref());
        let all = self.lines.iter().enumerate().try_for_each(placed);
        all.map_err(Error::system(format!("can't place the ranks of {}", self.name)))
    }

    /// The name of the job.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends every rank the same order and waits for the answers of all.
    ///
    /// # Errors
    /// If a rank has ended or does not answer in time.
    pub fn tell(&mut self, order: &Order) -> Result<Vec<Answer>> {
        let everybody = 0..self.lines.len();
        self.say(everybody.clone(), order)?;
        self.hear(everybody, order)
    }

    /// Sends every rank except `victim` the same order, kills `victim` when they have begun, and waits for
    /// the answers of the others. Returns the time of the death, in microseconds since the system's epoch,
    /// and the answers.
    ///
    /// # Errors
    /// If a survivor has ended or does not answer in time, and if this is not a job of Brevity.
    pub fn lose(&mut self, victim: usize, order: &Order) -> Result<(f64, Vec<Answer>)> {
        let Processes::Ours(job) = &self.processes else {
            return Err(Error::Arguments("only ranks of ours are killed".into()));
        };
        let process = job.process_ids().get(victim).and_then(|&id| Pid::from_raw(i32::try_from(id).ok()?));
        let process = process.ok_or_else(|| Error::Arguments(format!("there is no rank {victim}")))?;
        let survivors = (0..self.lines.len()).filter(|&rank| rank != victim);
        self.say(survivors.clone(), order)?;
        thread::sleep(BEGUN);
        let time = microseconds_since_epoch();
        kill_process(process, Signal::KILL)
            .map_err(|error| Error::system("can't kill a rank")(error.into()))?;
        Ok((time, self.hear(survivors, order)?))
    }

    fn say(&mut self, ranks: impl Iterator<Item = usize>, order: &Order) -> Result<()> {
        for rank in ranks {
            if writeln!(self.lines[rank].get_mut(), "{order}").is_err() {
                return Err(self.failure(&format!("rank {rank} has ended before {order}")));
            }
        }
        Ok(())
    }

    fn hear(&mut self, ranks: impl Iterator<Item = usize>, order: &Order) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for rank in ranks {
            let mut answer = String::new();
            let read = self.lines[rank].read_line(&mut answer);
            if !read.is_ok_and(|bytes| bytes > 0) {
                return Err(self.failure(&format!("rank {rank} did not answer {order}")));
            }
            answers.push(answer.parse()?);
        }
        Ok(answers)
    }

    /// The error, with the last output of the processes.
    fn failure(&self, what: &str) -> Error {
        let mut log = String::new();
        // A log that can't be read is treated as empty.
        let _ = File::open(self.log()).and_then(|mut file| file.read_to_string(&mut log));
        let last: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let told = last[last.len().saturating_sub(8)..].join(" | ");
        Error::contestant(
            &self.name,
            if told.is_empty() { what.to_owned() } else { format!("{what}: {told}") },
        )
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Job {
    /// Closes the lines, which ends the processes.
    fn drop(&mut self) {
        self.lines.clear();
    }
}

impl Processes {
    /// Whether one of the processes has ended.
    fn ended(&mut self) -> bool {
        match self {
            // A failing rank of Brevity has reported why, and the other ranks fail with it.
            Self::Ours(_) => false,
            Self::Theirs(groups) => {
                groups.iter_mut().any(|group| matches!(group.0.try_wait(), Ok(Some(_)) | Err(_)))
            }
        }
    }
}

impl Drop for Group {
    /// Waits briefly for the process to end by itself, then kills the rest of its group.
    fn drop(&mut self) {
        let start = Instant::now();
        while start.elapsed() < END && matches!(self.0.try_wait(), Ok(None)) {
            thread::sleep(LOOK);
        }
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // The whole group may have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// The file of this program, which its ranks run too.
///
/// # Errors
/// If the system does not tell.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(Error::system("can't find the file of this program"))
}
