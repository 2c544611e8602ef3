//! The arguments of asynchronous training.

use crate::Error;
use crate::arguments::{in_range, whole};
use brevity::server::{Method, Rule, Servers};
use clap::{Args, ValueEnum};
use std::fmt;
use std::str::FromStr;

/// The divisor's smallest value in AdaGrad.
const EPSILON: f32 = 1e-8;

/// The largest factor of a straggler.
const SLOWEST: f64 = 1e6;

/// The slowest link that is simulated, in Gbit/s.
const SLOWEST_LINK: f64 = 1e-6;

/// How gradients travel to the servers and changes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AsyncMethod {
    /// Whole gradients, and the whole model back.
    Asgd,
    /// The largest entries of gradients and residuals (Aji and Heafield 2017).
    GradientDropping,
    /// Dual-way sparsification with its momentum (Yan et al. 2020).
    Dgs,
    /// Momentum correction with masking (Lin et al. 2018).
    Dgc,
}

impl fmt::Display for AsyncMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Asgd => "asgd",
            Self::GradientDropping => "gradient-dropping",
            Self::Dgs => "dgs",
            Self::Dgc => "dgc",
        })
    }
}

/// What servers do with a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuleName {
    /// Subtract it, times the rate.
    Sgd,
    /// Divide it by the root of the sum of its squares before (Duchi et al. 2011); the rate stays as it is.
    Adagrad,
}

/// A rank that computes more slowly than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Its number.
    pub rank: usize,
    /// How many times as long its gradients take.
    pub factor: f64,
}

impl FromStr for Straggler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(rank, factor)| Some(Self { rank: rank.parse().ok()?, factor: factor.parse().ok()? }));
        let straggler = parsed.filter(|found| (1.0..=SLOWEST).contains(&found.factor));
        straggler.ok_or_else(|| format!("expected RANK:FACTOR, a factor of 1 to {SLOWEST}, as 0:4"))
    }
}

/// The arguments of asynchronous training.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Asynchronous training")]
pub struct AsyncArguments {
    /// Trains without waiting for the slowest rank, against a parameter server, by these methods in turn,
    /// separated by commas. Then --density is that of what ranks send, --momentum is that of dgs and dgc
    /// [default: 0.7], and --learning-rate is 0.1 by default; with adagrad it is 0.005 and stays as it is.
    #[arg(
        id = "async",
        long = "async",
        value_name = "METHOD,..",
        value_delimiter = ',',
        conflicts_with_all = ["method", "rank"]
    )]
    pub methods: Vec<AsyncMethod>,
    /// How many ranks serve and do not train, the last ones; with 0 every rank trains and serves its share.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "async",
        value_parser = whole,
        allow_negative_numbers = true,
    )]
    pub servers: usize,
    /// What servers do with gradients [default: adagrad for gradient-dropping, else sgd].
    #[arg(long, requires = "async")]
    pub rule: Option<RuleName>,
    /// Bounds how many steps a rank may be ahead of the slowest one.
    #[arg(
        long,
        value_name = "STEPS",
        requires = "async",
        value_parser = whole,
        allow_negative_numbers = true,
    )]
    pub staleness: Option<usize>,
    /// The share of entries in what servers answer [default: that of --density].
    #[arg(long, value_name = "D", requires = "async", allow_negative_numbers = true)]
    pub secondary_density: Option<f64>,
    /// A rank whose gradients take so many times as long, as 0:4; may be given several times.
    #[arg(long, value_name = "RANK:FACTOR", requires = "async", allow_hyphen_values = true)]
    pub straggler: Vec<Straggler>,
    /// Runs all ranks in one process, on a simulated network of so many Gbit/s, whose clock counts the time
    /// that they compute: the times are those of as many hosts.
    #[arg(long, value_name = "GBIT", requires = "async", allow_negative_numbers = true)]
    pub simulate: Option<f64>,
}

impl AsyncArguments {
    /// Whether asynchronous training was asked for.
    pub fn is_given(&self) -> bool {
        !self.methods.is_empty()
    }

    /// The ranks that train.
    pub fn workers(&self, ranks: usize) -> usize {
        ranks.saturating_sub(self.servers)
    }

    /// Which ranks serve.
    pub fn roles(&self) -> Servers {
        match self.servers {
            0 => Servers::EveryRank,
            count => Servers::Dedicated(count as u32),
        }
    }

    /// What servers do with the gradients of a method.
    pub fn rule_of(&self, method: AsyncMethod) -> Rule {
        let default = match method {
            AsyncMethod::GradientDropping => RuleName::Adagrad,
            _ => RuleName::Sgd,
        };
        match self.rule.unwrap_or(default) {
            RuleName::Sgd => Rule::Sgd,
            RuleName::Adagrad => Rule::AdaGrad { epsilon: EPSILON },
        }
    }

    /// How many times as long a rank's gradients take.
    pub fn factor(&self, rank: usize) -> f64 {
        self.straggler.iter().filter(|straggler| straggler.rank == rank).map(|found| found.factor).product()
    }

    /// What has to hold for any number of ranks.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let share = |density: f64| density > 0.0 && density <= 1.0;
        if let Some(density) = self.secondary_density {
            in_range("--secondary-density", density, share(density), "above 0 and at most 1")?;
            let has_use = self.methods.iter().any(|method| *method != AsyncMethod::Asgd);
            let expected = "none for asgd: its servers answer with the whole model";
            in_range("--secondary-density", density, has_use, expected)?;
        }
        if let Some(speed) = self.simulate {
            let is_speed = speed >= SLOWEST_LINK && speed.is_finite();
            let expected = format!("a speed in Gbit/s, at least {SLOWEST_LINK}");
            in_range("--simulate", speed, is_speed, &expected)?;
        }
        let is_dgs = self.methods.contains(&AsyncMethod::Dgs);
        let is_refused = is_dgs && self.rule == Some(RuleName::Adagrad);
        in_range("--rule", "adagrad", !is_refused, "sgd for dgs, whose momentum contains the rate")
    }

    /// What has to hold for this number of ranks.
    pub(crate) fn check_ranks(&self, ranks: usize) -> Result<(), Error> {
        let workers = self.workers(ranks);
        in_range("--servers", self.servers, workers > 0, &format!("fewer than the {ranks} ranks"))?;
        for straggler in &self.straggler {
            let expected = format!("a rank that trains, below {workers}");
            in_range("--straggler", straggler.rank, straggler.rank < workers, &expected)?;
            let factor = self.factor(straggler.rank);
            let expected = format!("a factor of at most {SLOWEST} for each rank");
            in_range("--straggler", factor, factor <= SLOWEST, &expected)?;
        }
        Ok(())
    }
}

/// The method of the library.
pub(super) fn method(name: AsyncMethod, density: f64, momentum: f64) -> Method {
    match name {
        AsyncMethod::Asgd => Method::asgd(),
        AsyncMethod::GradientDropping => Method::gradient_dropping(density),
        AsyncMethod::Dgs => Method::dgs(density, momentum as f32),
        AsyncMethod::Dgc => Method::dgc(density, momentum as f32),
    }
}
