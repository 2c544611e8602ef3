//! How a benchmark is measured: between ranks, beside computing, or on the simulated network.

use std::str::FromStr;

use brevity::transport::bootstrap::Choice;
use brevity_bench::perf::{Benchmark, Simulation};

use super::arguments::{PerfArguments, refuse};
use super::error::Result;

/// Gigabit Ethernet.
const DEFAULT_ALPHA: f64 = 20e-6;
const DEFAULT_BETA: f64 = 8e-9;

/// How a benchmark is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// One call after the other.
    Timed,
    /// Calls that do not block, while the ranks compute.
    Overlapped {
        /// Tests of the call meanwhile.
        tests: u32,
    },
    /// On the simulated network.
    Simulated(Simulation),
}

/// What `--transport` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A transport between ranks.
    Ranks(Choice),
    /// The simulated network.
    Simulated,
}

impl FromStr for Over {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "sim" {
            return Ok(Self::Simulated);
        }
        Choice::parse(name).map(Self::Ranks).ok_or_else(|| "name one of auto, ucx, tcp, sim".into())
    }
}

impl Way {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// [`Error::Arguments`](super::Error::Arguments) for options that do not go together.
    pub fn of(arguments: &PerfArguments, benchmark: Benchmark) -> Result<Self> {
        let is_simulated = arguments.transport == Some(Over::Simulated);
        let is_dense = matches!(benchmark, Benchmark::Dense(_));
        let has_links = arguments.alpha.is_some() || arguments.beta.is_some();
        refuse(!is_simulated && has_links, || "--alpha and --beta go with --transport sim".into())?;
        refuse(!arguments.overlap && arguments.tests.is_some(), || "--tests goes with --overlap".into())?;
        refuse(is_simulated && benchmark.is_paired(), || {
            format!("--transport sim simulates collectives: not {benchmark}")
        })?;
        refuse(arguments.overlap && !is_dense, || {
            format!("--overlap measures dense collectives: not {benchmark}")
        })?;
        if is_simulated {
            return Ok(Self::Simulated(simulation(arguments)?));
        }
        if !arguments.overlap {
            return Ok(Self::Timed);
        }
        refuse(arguments.plot.is_some(), || "--plot draws times: it does not go with --overlap".into())?;
        Ok(Self::Overlapped { tests: arguments.tests.unwrap_or(0) })
    }
}

fn simulation(arguments: &PerfArguments) -> Result<Simulation> {
    for (option, is_given) in [
        ("--overlap", arguments.overlap),
        ("--iterations", arguments.iterations.is_some()),
        ("--warmup", arguments.warmup.is_some()),
        ("--grace", arguments.grace.is_some()),
    ] {
        refuse(is_given, || {
            format!("{option} does not go with --transport sim, on which each call takes the same time")
        })?;
    }
    network(arguments)
}

/// The network that the arguments describe.
///
/// # Errors
/// [`Error::Arguments`](super::Error::Arguments) for what is no time.
pub fn network(arguments: &PerfArguments) -> Result<Simulation> {
    let seconds = |option: &str, given: Option<f64>, default: f64| -> Result<f64> {
        let seconds = given.unwrap_or(default);
        refuse(!(0.0..=1e3).contains(&seconds), || {
            format!("--{option} {seconds}: expected from 0 to 1000 seconds")
        })?;
        Ok(seconds)
    };
    Ok(Simulation {
        world_size: arguments.ranks_to_start(),
        alpha: seconds("alpha", arguments.alpha, DEFAULT_ALPHA)?,
        beta: seconds("beta", arguments.beta, DEFAULT_BETA)?,
    })
}
