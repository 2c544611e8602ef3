//! The rows: what is compared with what, and the bar of each.

use brevity::transport::bootstrap::Choice;

use super::bar::Bar;
use super::pairs::{Comparison, Contestant, Effort, OfJob, PerftestOver, Subject, compare};
use crate::Result;
use crate::floor::Patience;
use crate::job::{Job, own_program};
use crate::order::What;
use crate::peers::{Mpi, Perftest, Wire};

/// Sockets also between ranks of one host.
const SOCKETS: (&str, &str) = ("BREVITY_SHARED_MEMORY", "off");

/// Who is here, and how much is measured.
pub struct Stage {
    /// `ucx_perftest`.
    pub perftest: Option<Perftest>,
    /// Implementations of MPI.
    pub mpis: Vec<Mpi>,
    /// How much is measured.
    pub effort: Effort,
    /// Whether a size was asked for.
    pub sizes: Vec<usize>,
}

/// Where the figures of a row go as they come.
pub type Tell<'a> = &'a mut dyn FnMut(Comparison) -> Result<()>;

/// A row of the table of bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// UCX's latency over `ucx_perftest`.
    UcxLatency,
    /// UCX's bandwidth over `ucx_perftest`.
    UcxBandwidth,
    /// The tcp transport's latency over bare sockets.
    TcpLatency,
    /// The tcp transport's bandwidth over bare sockets.
    TcpBandwidth,
    /// Messages in three parts over contiguous ones.
    Parts,
    /// Latency over the better of the MPIs.
    Mpi,
}

impl Row {
    /// All rows, in the order in which they are measured.
    pub const ALL: [Self; 6] =
        [Self::UcxLatency, Self::UcxBandwidth, Self::TcpLatency, Self::TcpBandwidth, Self::Parts, Self::Mpi];

    /// The name for `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UcxLatency => "ucx-latency",
            Self::UcxBandwidth => "ucx-bandwidth",
            Self::TcpLatency => "tcp-latency",
            Self::TcpBandwidth => "tcp-bandwidth",
            Self::Parts => "parts",
            Self::Mpi => "mpi",
        }
    }

    /// Measures the row.
    ///
    /// # Errors
    /// When ours fails.
    pub fn measure(self, stage: &Stage, tell: Tell<'_>) -> Result<()> {
        match self {
            Self::UcxLatency => ucx(stage, What::Latency, tell),
            Self::UcxBandwidth => ucx(stage, What::Bandwidth, tell),
            Self::TcpLatency => tcp(stage, What::Latency, tell),
            Self::TcpBandwidth => tcp(stage, What::Bandwidth, tell),
            Self::Parts => parts(stage, tell),
            Self::Mpi => mpi(stage, tell),
        }
    }
}

/// Sizes of a stream, in bytes.
const STREAMED: std::ops::RangeInclusive<usize> = 64 << 10..=16 << 20;

fn ucx(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    let Some(perftest) = &stage.perftest else { return Ok(()) };
    for wire in [Wire::Shm, Wire::Tcp] {
        let mut ours = OfJob::mean(ours_ucx(wire, 2, true)?);
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(PerftestOver(perftest.clone(), wire))];
        for &bytes in stage.sizes.iter().filter(|bytes| what == What::Latency || STREAMED.contains(bytes)) {
            let bar = match (what, wire, bytes) {
                (What::Bandwidth, ..) => Bar::Ratio(1.0 / 0.95),
                (_, Wire::Shm, ..=4096) => Bar::Extra(40.0),
                (_, Wire::Tcp, ..=4096) => Bar::Ratio(1.05),
                _ => Bar::Ratio(1.08),
            };
            let subject = subject(what, wire, bytes);
            for comparison in compare(&subject, what, &mut ours, &mut theirs, stage.effort)? {
                tell(comparison.judged(bar))?;
            }
        }
    }
    Ok(())
}

fn tcp(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    let mut ours = OfJob::median(ours_tcp(2, true)?);
    let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(OfJob::median(bare_sockets(2, Patience::Poll)?))];
    for &bytes in stage.sizes.iter().filter(|bytes| what == What::Latency || STREAMED.contains(bytes)) {
        let bar = Bar::Ratio(if what == What::Latency { 1.10 } else { 1.0 / 0.95 });
        for comparison in compare(&subject(what, Wire::Tcp, bytes), what, &mut ours, &mut theirs, stage.effort)? {
            tell(comparison.judged(bar))?;
        }
    }
    Ok(())
}

/// 16 bytes and two payloads of 400 KiB.
const PARTS_BYTES: usize = 16 + 2 * (400 << 10);

fn parts(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    let job = |which| match which {
        0 => ours_ucx(Wire::Shm, 2, true),
        1 => ours_tcp(2, true),
        _ => ours_ucx(Wire::Tcp, 2, true),
    };
    for (which, wire, bar) in [(0, Wire::Shm, 1.10), (1, Wire::Tcp, 1.15), (2, Wire::Tcp, 1.4)] {
        if which != 1 && stage.perftest.is_none() {
            continue;
        }
        let mut ours = OfJob { instead: Some(What::Parts), ..OfJob::median(job(which)?) };
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(Contiguous(OfJob::median(job(which)?)))];
        let subject = subject(What::Parts, wire, PARTS_BYTES);
        for comparison in compare(&subject, What::Latency, &mut ours, &mut theirs, stage.effort)? {
            tell(comparison.judged(Bar::Ratio(bar)))?;
        }
    }
    Ok(())
}

/// The same transport with one contiguous message.
struct Contiguous(OfJob);

impl Contestant for Contiguous {
    fn name(&self) -> &'static str {
        "one contiguous message"
    }

    fn measure(&mut self, order: &crate::order::Order) -> Result<f64> {
        self.0.measure(order)
    }
}

fn mpi(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    for wire in [Wire::Shm, Wire::Tcp] {
        let mut theirs = start_mpis(stage, wire, |_| true);
        let ours: Vec<Job> = match wire {
            Wire::Shm if stage.perftest.is_some() => vec![ours_ucx(wire, 2, false)?],
            Wire::Shm => vec![],
            Wire::Tcp => vec![ours_tcp(2, false)?],
        };
        for job in ours {
            let mut ours = OfJob::median(job);
            for &bytes in &stage.sizes {
                let found =
                    compare(&subject(What::Latency, wire, bytes), What::Latency, &mut ours, &mut theirs, stage.effort)?;
                let best = found.iter().map(|comparison| comparison.theirs_us).fold(f64::INFINITY, f64::min);
                for comparison in found {
                    let is_best = comparison.theirs_us <= best;
                    tell(if is_best { comparison.judged(Bar::NotSlower) } else { comparison })?;
                }
            }
        }
    }
    Ok(())
}

/// The MPIs that start over `wire`, in each of their settings; the others are told on standard error.
fn start_mpis(stage: &Stage, wire: Wire, wanted: impl Fn(&Mpi) -> bool) -> Vec<Box<dyn Contestant>> {
    let mut started: Vec<Box<dyn Contestant>> = Vec::new();
    for mpi in stage.mpis.iter().filter(|mpi| wanted(mpi)) {
        for setting in mpi.settings(wire) {
            match mpi.start(&setting, 2) {
                Ok(job) => started.push(Box::new(OfJob::median(job))),
                Err(error) => eprintln!("left out: {error}"),
            }
        }
    }
    started
}

fn ours_ucx(wire: Wire, ranks: u32, poll: bool) -> Result<Job> {
    Job::ours(&format!("ucx {}", wire.name()), ranks, Choice::Ucx, poll, &[("UCX_TLS", wire.ucx_tls())])
}

fn ours_tcp(ranks: u32, poll: bool) -> Result<Job> {
    Job::ours("tcp", ranks, Choice::Tcp, poll, &[SOCKETS])
}

fn bare_sockets(ranks: u32, patience: Patience) -> Result<Job> {
    let name = if patience == Patience::Poll { "bare sockets" } else { "bare sockets, yielding" };
    Job::theirs(name, ranks, |socket| {
        let program = own_program()?;
        let commands = (0..ranks).map(|rank| {
            let mut command = std::process::Command::new(&program);
            command.arg("floor").arg(socket).args([rank, ranks].map(|number| number.to_string()));
            if patience == Patience::Yield {
                command.arg("--yield");
            }
            command
        });
        Ok(commands.collect())
    })
}

fn subject(what: What, wire: Wire, bytes: usize) -> Subject {
    Subject { what: what.to_string(), wire: wire.name(), world_size: 2, bytes }
}
