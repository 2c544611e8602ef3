//! Several hosts on this machine, by `bench/net/hosts.sh`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::peers::nearest;
use crate::{Error, Result};

/// The script, in the current folder or the nearest parent that has it.
const SCRIPT: &str = "bench/net/hosts.sh";

/// The speed of the links and the burst of their shapers, as `tc` writes them: for long vectors. Shorter
/// messages than a burst cross for free after a pause.
pub const RATE: &str = "1gbit";
/// See [`RATE`].
pub const BURST: &str = "256kb";

/// Bytes of payload that cross such a link in a second, as measured on streams over it: headers take the
/// rest.
pub const GOODPUT: f64 = 955e6 / 8.0;

/// The port of the first job.
const FIRST_PORT: u16 = 5200;

/// Hosts with shaped links between them; gone when this is dropped, or when this process ends.
pub struct Hosts {
    script: PathBuf,
    name: String,
    count: u32,
    ranks_per_host: u32,
    /// It removes the hosts when its input ends.
    holder: Child,
    jobs: AtomicU32,
}

impl Hosts {
    /// Makes `count` hosts, for jobs with `ranks_per_host` ranks on each.
    ///
    /// # Errors
    /// [`Error::Contestant`] with what the script says, if hosts can't be made here.
    pub fn new(count: u32, ranks_per_host: u32) -> Result<Self> {
        Self::shaped(count, ranks_per_host, (RATE, BURST))
    }

    /// The same on links of this rate and burst, as `tc` writes them.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn shaped(count: u32, ranks_per_host: u32, (rate, burst): (&str, &str)) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let script = nearest(Path::new(SCRIPT))
            .ok_or_else(|| Error::contestant(SCRIPT, "not found here: start in Brevity's sources"))?;
        let name = format!("brevity-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new(&script);
        command.args(["hold", &count.to_string(), rate, burst]).env("HOSTS", &name);
        let holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut holder = holder.map_err(Error::system(format!("can't start {SCRIPT}")))?;
        let mut said = String::new();
        let out = holder.stdout.take();
        let read = out.map(|out| BufReader::new(out).read_line(&mut said));
        if !matches!(read, Some(Ok(1..))) {
            let mut why = String::new();
            // What can't be read is not said.
            let _ = holder.stderr.take().map(|mut stderr| stderr.read_to_string(&mut why));
            let _ = holder.wait();
            return Err(Error::contestant(SCRIPT, why.trim()));
        }
        Ok(Self { script, name, count, ranks_per_host, holder, jobs: AtomicU32::new(0) })
    }

    /// The number of hosts.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Ranks of a job.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.count * self.ranks_per_host
    }

    /// A command that runs `program` as a job: one process for each rank. The job has ports of its own.
    #[must_use]
    pub fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.script);
        // Two ports for each job; they are of no other namespace.
        let port = FIRST_PORT + 2 * (self.jobs.fetch_add(1, Ordering::Relaxed) % 10_000) as u16;
        command.args(["run", &self.count.to_string()]).arg(program);
        command.env("HOSTS", &self.name).env("RANKS_PER_HOST", self.ranks_per_host.to_string());
        command.env("PORT", port.to_string()).env("GRACE", "1");
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Its end removes them.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
