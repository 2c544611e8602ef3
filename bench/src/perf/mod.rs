//! The measurements of `brevity perf`: one row of its table on one rank.

mod dense;
mod gtopk;
mod messages;
mod oracle;
mod workload;

use std::fmt;
use std::str::FromStr;

use brevity::Group;
use brevity::compress::Density;

pub use dense::{Dense, Number};
pub use gtopk::GtopkAllReduce;
pub use workload::{Difference, Measured, Workload, measure as measure_workload};

use crate::{Error, Result};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// Half a round trip between the ranks of each pair.
    Latency,
    /// Windows of 64 messages from one rank of a pair to the other.
    Bandwidth,
    /// Windows of 64 messages in both directions at once.
    Bibandwidth,
    /// A put into the other rank's memory and the acknowledgement of its arrival.
    Put,
    /// A get from the other rank's memory.
    Get,
    /// The sum of all ranks' vectors.
    AllReduce,
    /// Rank 0's vector to all.
    Broadcast,
    /// All ranks' vectors to all.
    AllGather,
    /// The largest entries of the sum of all ranks' sparse vectors.
    GtopkAllReduce,
}

/// The type of a vector's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floating point.
    #[default]
    F32,
    /// 64-bit floating point.
    F64,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Bytes of the message, or of a rank's dense vector.
    pub bytes: usize,
    /// The share of entries that is kept, if some are dropped.
    pub density: Option<Density>,
    /// Timed iterations: round trips, windows or calls.
    pub iterations: usize,
    /// Iterations before those.
    pub warmup: usize,
}

impl Benchmark {
    /// All benchmarks, in the order of the help.
    pub const ALL: [Self; 9] = [
        Self::Latency,
        Self::Bandwidth,
        Self::Bibandwidth,
        Self::Put,
        Self::Get,
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::GtopkAllReduce,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Bibandwidth => "bibandwidth",
            Self::Put => "put",
            Self::Get => "get",
            Self::AllReduce => "allreduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "allgather",
            Self::GtopkAllReduce => "gtopk-allreduce",
        }
    }

    /// Whether messages between the two ranks of a pair are measured: ranks 0 and 1, 2 and 3, and so on.
    #[must_use]
    pub fn is_paired(self) -> bool {
        matches!(self, Self::Latency | Self::Bandwidth | Self::Bibandwidth | Self::Put | Self::Get)
    }

    /// The smallest number of ranks.
    #[must_use]
    pub fn fewest_ranks(self) -> u32 {
        if self.is_paired() { 2 } else { 1 }
    }

    /// How many messages of the row's size one time covers.
    #[must_use]
    pub fn messages_at_a_time(self) -> f64 {
        if self == Self::Bibandwidth { 2.0 } else { 1.0 }
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Benchmark {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|benchmark| benchmark.name() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Arguments(format!("there is no benchmark {name:?}: name one of {names}"))
        })
    }
}

impl Dtype {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F64 => size_of::<f64>(),
        }
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f64" => Ok(Self::F64),
            "f16" | "bf16" => Err(Error::Arguments(format!(
                "--dtype {name}: collectives do not add it yet, measure f32 or f64"
            ))),
            _ => Err(Error::Arguments(format!("--dtype {name}: name one of f32, f64"))),
        }
    }
}

/// Measures one row on this rank. Every rank of the group makes the same call.
///
/// # Errors
/// If a rank is lost, or a result is wrong.
pub fn measure(
    group: &Group,
    benchmark: Benchmark,
    dtype: Dtype,
    case: Case,
    verify: bool,
) -> Result<Measured> {
    if benchmark.is_paired() {
        return messages::measure(group, benchmark, case, verify);
    }
    let mut workload: Box<dyn Workload> = match (benchmark, case.density, dtype) {
        (Benchmark::GtopkAllReduce, Some(density), _) => {
            Box::new(GtopkAllReduce::new(group, case.bytes / size_of::<f32>(), density)?)
        }
        (_, _, Dtype::F32) => dense::<f32>(group, benchmark, case),
        (_, _, Dtype::F64) => dense::<f64>(group, benchmark, case),
    };
    workload::measure(group, &mut *workload, benchmark, case, verify)
}

fn dense<T: Number>(group: &Group, benchmark: Benchmark, case: Case) -> Box<dyn Workload> {
    let count = case.bytes / size_of::<T>();
    Box::new(match benchmark {
        Benchmark::Broadcast => Dense::<T>::broadcast(group, count),
        Benchmark::AllGather => Dense::<T>::all_gather(group, count),
        _ => Dense::<T>::all_reduce(group, count),
    })
}
