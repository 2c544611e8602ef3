//! The measurements of `brevity perf`: one row of its table on one rank.

mod blocks;
mod dense;
mod exchange;
mod exchange_simulated;
mod hierarchical;
mod low_rank;
mod making;
mod messages;
mod overlap;
mod parts;
mod quantised;
mod scaling;
mod simulated;
mod sparse;
mod varying;
mod workload;

use std::fmt;
use std::str::FromStr;

use brevity::Group;
use brevity::collectives::sparse::Wire;
use brevity::compress::Density;
use brevity::compress::quantise::Values;

pub use blocks::InBlocks;
pub use dense::Dense;
pub(crate) use exchange::check_alike;
pub use exchange::{Exchanged, Stepped, measure_exchange};
pub use exchange_simulated::{Simulated, simulate_dense, simulate_exchange};
pub use hierarchical::{InHosts, hierarchical_passages};
pub use low_rank::{Factored, InFactors};
pub(crate) use overlap::multiply_for;
pub use overlap::{Overlapped, measure_overlap};
pub use parts::{InParts, SentPart};
pub use quantised::{FewBits, InFewBits};
pub use scaling::Summing;
pub use simulated::{Simulation, passages, simulate};
pub use sparse::{Sparse, SparseCollective};
pub use varying::{InLengths, Varying};
pub use workload::{Difference, Going, Measured, Workload, measure as measure_workload};

use crate::collective::{self, Collective};
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
    /// A dense collective.
    Dense(Collective),
    /// A dense collective of blocks whose lengths differ.
    Varying(Varying),
    /// A collective on dense vectors of which a part travels.
    Part(SentPart),
    /// A collective on sparse vectors, on this wire.
    Sparse(SparseCollective, Wire),
    /// A collective on vectors in few bits.
    FewBits(FewBits),
    /// The mean of matrices, by factors of this rank.
    LowRank(usize),
}

/// The type of a vector's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floating point.
    #[default]
    F32,
    /// 64-bit floating point.
    F64,
    /// 16-bit floating point of IEEE 754.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

/// Calls a function of the type of elements.
macro_rules! of_dtype {
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            $crate::perf::Dtype::F32 => $function::<f32> $arguments,
            $crate::perf::Dtype::F64 => $function::<f64> $arguments,
            $crate::perf::Dtype::F16 => $function::<half::f16> $arguments,
            $crate::perf::Dtype::Bf16 => $function::<half::bf16> $arguments,
        }
    };
}
pub(crate) use of_dtype;

/// The rank of low-rank factors, unless it is said.
pub const RANK: usize = 4;

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
    pub fn all() -> impl Iterator<Item = Self> {
        let paired = [Self::Latency, Self::Bandwidth, Self::Bibandwidth, Self::Put, Self::Get];
        let dense = collective::measured().map(Self::Dense);
        let varying = Varying::ALL.map(Self::Varying);
        let parts = SentPart::ALL.map(Self::Part);
        let sparse = SparseCollective::ALL.map(|collective| Self::Sparse(collective, Wire::Pairs));
        let few_bits = [FewBits::Quantised(Values::Bf16), FewBits::Vote].map(Self::FewBits);
        let low_rank = [Self::LowRank(RANK)];
        let dense = dense.chain(varying);
        paired.into_iter().chain(dense).chain(parts).chain(sparse).chain(low_rank).chain(few_bits)
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Bibandwidth => "bibandwidth",
            Self::Put => "put",
            Self::Get => "get",
            Self::Dense(collective) => collective.name(),
            Self::Varying(which) => which.name(),
            Self::Part(which) => which.name(),
            Self::Sparse(collective, _) => collective.name(),
            Self::FewBits(which) => which.name(),
            Self::LowRank(_) => low_rank::NAME,
        }
    }

    /// The names of some benchmarks, in a line.
    pub fn names_of(is_named: impl Fn(&Self) -> bool) -> String {
        Self::all().filter(is_named).map(Self::name).collect::<Vec<_>>().join(", ")
    }

    /// Whether messages between the two ranks of a pair are measured: ranks 0 and 1, 2 and 3, and so on.
    #[must_use]
    pub fn is_paired(self) -> bool {
        matches!(self, Self::Latency | Self::Bandwidth | Self::Bibandwidth | Self::Put | Self::Get)
    }

    /// Whether only some entries of a vector are sent.
    #[must_use]
    pub fn is_sparse(self) -> bool {
        matches!(self, Self::Part(_) | Self::Sparse(..))
    }

    /// The rank of its factors, if it has any.
    #[must_use]
    pub fn rank(self) -> Option<usize> {
        match self {
            Self::LowRank(rank) => Some(rank),
            _ => None,
        }
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
        // Dense collectives also by the names that the plan and errors have, as reduce-scatter.
        let is_dense = |benchmark: &Self| matches!(benchmark, Self::Dense(_) | Self::Varying(_));
        let plain = name.replace('-', "");
        let known = Self::all()
            .find(|benchmark| benchmark.name() == name || is_dense(benchmark) && benchmark.name() == plain);
        known.ok_or_else(|| {
            let names = Self::names_of(|_| true);
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
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::F64 => size_of::<f64>(),
            Self::F16 | Self::Bf16 => size_of::<u16>(),
        }
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f64" => Ok(Self::F64),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            _ => Err(Error::Arguments(format!("--dtype {name}: name one of f32, f64, f16, bf16"))),
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
    let mut workload = making::maker(group.world_size(), benchmark, dtype, case)?(group)?;
    workload::measure(group, &mut *workload, benchmark.name(), case, verify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_collectives_also_have_the_names_of_the_plan() {
        let named = |name: &str| name.parse::<Benchmark>().ok();
        for (name, own) in
            [("reduce-scatter", "reducescatter"), ("all-to-all", "alltoall"), ("all-gather-v", "allgatherv")]
        {
            assert!(named(name).is_some() && named(name) == named(own), "{name}");
        }
        assert_eq!(named("put-"), None);
    }
}
