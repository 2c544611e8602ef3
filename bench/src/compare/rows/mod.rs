//! The rows: what is compared with what, and the bar of each.

mod crowded;
mod ffi;
mod killed;
mod messages;
mod mpi;
mod one_sided;

use std::path::PathBuf;
use std::process::Command;

use brevity::transport::bootstrap::Choice;

use super::pairs::{Comparison, Effort, Subject};
use crate::Result;
use crate::collective::Collective;
use crate::floor::Patience;
use crate::job::{Job, own_program};
use crate::order::What;
use crate::peers::{Mpi, Perftest, Wire};

const ALL_REDUCE: What = What::Collective(Collective::AllReduce);
const BROADCAST: What = What::Collective(Collective::Broadcast);

/// Brevity's own shared memory is off: sockets, or UCX's own shared memory, also between ranks of one host.
pub(super) const NOT_SHARED: (&str, &str) = ("BREVITY_SHARED_MEMORY", "off");

/// Shared memory is on, which is the default.
pub(super) const SHARED: (&str, &str) = ("BREVITY_SHARED_MEMORY", "on");

/// The peers that were found, and how much is measured.
pub struct Stage {
    /// Whether Brevity's transport finds UCX.
    pub ucx: bool,
    /// `ucx_perftest`.
    pub perftest: Option<Perftest>,
    /// Implementations of MPI.
    pub mpis: Vec<Mpi>,
    /// How much is measured.
    pub effort: Effort,
    /// Bytes of the messages and vectors, unless a row has its own sizes.
    pub sizes: Vec<usize>,
    /// The program in C that measures Brevity.
    pub ffi: PathBuf,
}

impl Stage {
    /// Without peers.
    pub(super) fn alone(effort: Effort, sizes: Vec<usize>) -> Self {
        Self { ucx: false, perftest: None, mpis: Vec::new(), effort, sizes, ffi: PathBuf::new() }
    }
}

/// Receives the figures of a row one by one.
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
    /// Bandwidth over the better of the MPIs.
    MpiBandwidth,
    /// Puts and gets compared with those of `ucx_perftest`; only reported.
    PutGet,
    /// Eight ranks in four pairs over bare flags and sockets that yield.
    Crowded,
    /// The sum inside one host over Open MPI's.
    HostAllReduce,
    /// The broadcast inside one host over Open MPI's.
    HostBroadcast,
    /// The time until a death is known.
    Killed,
    /// Latency through the C interface over that in Rust.
    CLatency,
    /// The sum through the C interface over that in Rust.
    CAllReduce,
}

impl Row {
    /// The rows of `bench/compare ffi`.
    pub const FFI: [Self; 2] = [Self::CLatency, Self::CAllReduce];

    /// The rows of `bench/compare p2p`, in the order of measurement.
    pub const P2P: [Self; 12] = [
        Self::UcxLatency,
        Self::UcxBandwidth,
        Self::TcpLatency,
        Self::TcpBandwidth,
        Self::Parts,
        Self::PutGet,
        Self::Crowded,
        Self::Mpi,
        Self::MpiBandwidth,
        Self::HostAllReduce,
        Self::HostBroadcast,
        Self::Killed,
    ];

    /// The name for `--only`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UcxLatency => "ucx-latency",
            Self::UcxBandwidth => "ucx-bandwidth",
            Self::TcpLatency => "tcp-latency",
            Self::TcpBandwidth => "tcp-bandwidth",
            Self::Parts => "parts",
            Self::PutGet => "put-get",
            Self::Mpi => "mpi",
            Self::MpiBandwidth => "mpi-bandwidth",
            Self::Crowded => "crowded",
            Self::HostAllReduce => "host-allreduce",
            Self::HostBroadcast => "host-broadcast",
            Self::Killed => "killed",
            Self::CLatency => "c-latency",
            Self::CAllReduce => "c-allreduce",
        }
    }

    /// Measures the row.
    ///
    /// # Errors
    /// If Brevity's side fails.
    pub fn measure(self, stage: &Stage, tell: Tell<'_>) -> Result<()> {
        match self {
            Self::UcxLatency => messages::ucx(stage, What::Latency, tell),
            Self::UcxBandwidth => messages::ucx(stage, What::Bandwidth, tell),
            Self::TcpLatency => messages::tcp(stage, What::Latency, tell),
            Self::TcpBandwidth => messages::tcp(stage, What::Bandwidth, tell),
            Self::Parts => messages::parts(stage, tell),
            Self::PutGet => one_sided::measure(stage, tell),
            Self::Crowded => crowded::measure(stage, tell),
            Self::Mpi => mpi::latency(stage, tell),
            Self::MpiBandwidth => mpi::bandwidth(stage, tell),
            Self::HostAllReduce => mpi::collective(stage, ALL_REDUCE, tell),
            Self::HostBroadcast => mpi::collective(stage, BROADCAST, tell),
            Self::Killed => killed::measure(stage, tell),
            Self::CLatency => ffi::measure(stage, What::Latency, tell),
            Self::CAllReduce => ffi::measure(stage, ALL_REDUCE, tell),
        }
    }
}

/// How ranks of Brevity are measured.
#[derive(Clone, Copy)]
enum Like {
    /// Calls of a program: the engine waits for them.
    Calls,
    /// The transport alone, polled in a loop.
    Loops,
    /// Like `ucx_perftest`: such a loop that sends memory that was never written.
    Perftest,
}

impl Like {
    /// The arguments of a rank.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Calls => &[],
            Self::Loops => &["--poll"],
            Self::Perftest => &["--poll", "--unwritten"],
        }
    }
}

/// The `ucx` transport with UCX alone, restricted to one wire.
fn ours_ucx(wire: Wire, ranks: u32, like: Like) -> Result<Job> {
    let variables = [("UCX_TLS", wire.ucx_tls()), NOT_SHARED];
    let over = if wire == Wire::Tcp { "--over=ucx-tcp" } else { "--over=memory" };
    Job::ours(
        &format!("ucx {}", wire.name()),
        ranks,
        Choice::Ucx,
        &[like.arguments(), &[over]].concat(),
        &variables,
    )
}

/// The `ucx` transport with its default settings inside one host: messages use the shared memory of the
/// ranks.
fn ours_ucx_here(ranks: u32, like: Like) -> Result<Job> {
    Job::ours("ucx", ranks, Choice::Ucx, like.arguments(), &[SHARED])
}

fn ours_tcp(ranks: u32, like: Like) -> Result<Job> {
    Job::ours("tcp", ranks, Choice::Tcp, &[like.arguments(), &["--over=sockets"]].concat(), &[NOT_SHARED])
}

/// Brevity's own shared memory.
fn ours_host(ranks: u32, like: Like) -> Result<Job> {
    Job::ours("host", ranks, Choice::Tcp, like.arguments(), &[SHARED])
}

fn bare_sockets(ranks: u32, patience: Patience) -> Result<Job> {
    let name = if patience == Patience::Poll { "bare sockets" } else { "bare sockets, yielding" };
    Job::theirs(name, ranks, |socket| {
        let program = own_program()?;
        let commands = (0..ranks).map(|rank| {
            let mut command = Command::new(&program);
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
