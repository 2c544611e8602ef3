//! The choice of algorithms.
//!
//! Every collective has a row for each of its algorithms: whether it fits, and an estimate of its time. All
//! ranks choose alike, because they estimate from equal values in the standard floating-point mode.

use brevity_compress::in_standard_float_mode;

use crate::choose::Cost;
use crate::description::Operation;
use crate::error::{Error, Result};
use crate::pattern::doubling_rounds;

/// An algorithm of a dense collective. docs/algorithms.md describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Distances that double, with empty messages.
    Dissemination,
    /// A tree of radix 2.
    Binomial,
    /// A tree of radix 4.
    Knomial4,
    /// A tree of radix 8.
    Knomial8,
    /// Blocks go around a ring.
    Ring,
    /// Recursive doubling.
    Doubling,
    /// Recursive halving and doubling.
    Halving,
    /// Every rank sends to every other one at once.
    Direct,
    /// Bruck's algorithm.
    Bruck,
    /// Ranks meet in pairs, one after the other.
    Pairwise,
    /// The root sends to or receives from every rank.
    Linear,
    /// Scatter and all-gather.
    Spread,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 12] = [
        Self::Dissemination,
        Self::Binomial,
        Self::Knomial4,
        Self::Knomial8,
        Self::Ring,
        Self::Doubling,
        Self::Halving,
        Self::Direct,
        Self::Bruck,
        Self::Pairwise,
        Self::Linear,
        Self::Spread,
    ];

    /// The name, as in `BREVITY_ALGORITHM`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dissemination => "dissemination",
            Self::Binomial => "binomial",
            Self::Knomial4 => "knomial-4",
            Self::Knomial8 => "knomial-8",
            Self::Ring => "ring",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::Direct => "direct",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::Linear => "linear",
            Self::Spread => "spread",
        }
    }

    /// The algorithm of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What a call has to do, as all ranks know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Bytes of the vector, or of a rank's block.
    pub bytes: usize,
    /// The same of partial results.
    pub wide_bytes: usize,
    /// Whether a sum may have any order.
    pub is_exact: bool,
    /// Whether blocks have lengths of their own, which only some ranks know.
    pub is_uneven: bool,
}

/// What choices depend on besides the call.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// The network.
    pub cost: Cost,
    /// The number of ranks.
    pub world_size: u32,
}

impl Ground {
    pub(crate) fn ranks(&self) -> f64 {
        f64::from(self.world_size)
    }

    /// Rounds that double what a rank has.
    pub(crate) fn rounds(&self) -> f64 {
        f64::from(doubling_rounds(self.world_size))
    }

    /// A message of so many bytes.
    pub(crate) fn message(&self, bytes: f64) -> f64 {
        self.cost.alpha + bytes * self.cost.beta
    }

    /// Messages to all other ranks at once, of so many bytes each.
    pub(crate) fn burst(&self, bytes: f64) -> f64 {
        let others = self.ranks() - 1.0;
        self.cost.alpha * (1.0 + OVERHEAD * (others - 1.0).max(0.0)) + others * bytes * self.cost.beta
    }

    /// Combining so many bytes.
    pub(crate) fn combining(bytes: f64) -> f64 {
        bytes * REDUCE
    }
}

/// What each further of several messages at once costs, over the latency of one.
const OVERHEAD: f64 = 0.125;

/// Seconds to combine a byte with another.
const REDUCE: f64 = 0.1e-9;

/// An algorithm of a collective.
pub struct Row {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether it can do the work, with sums in the fixed order if their order matters.
    pub fits: fn(&Work, &Ground) -> bool,
    /// An estimate of its seconds.
    pub seconds: fn(&Work, &Ground) -> f64,
}

/// How algorithms are chosen in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) ground: Ground,
}

impl Plan {
    /// Checks that an algorithm can do the work.
    ///
    /// # Errors
    /// [`Error::Algorithm`], which names those that can.
    pub(crate) fn check(
        &self,
        operation: Operation,
        rows: &[Row],
        work: &Work,
        algorithm: Algorithm,
    ) -> Result<()> {
        let fitting = || rows.iter().filter(|row| (row.fits)(work, &self.ground));
        if fitting().any(|row| row.algorithm == algorithm) {
            return Ok(());
        }
        let names: Vec<_> = fitting().map(|row| row.algorithm.name()).collect();
        Err(Error::Algorithm { operation, algorithm, fitting: names.join(", ") })
    }

    /// The cheapest algorithm of those that fit.
    ///
    /// # Panics
    /// If none fits: each list has one that always does.
    pub(crate) fn choose(&self, operation: Operation, rows: &[Row], work: &Work) -> Algorithm {
        let fitting = || rows.iter().filter(|row| (row.fits)(work, &self.ground));
        let cheapest = in_standard_float_mode(|| {
            let seconds = |row: &&Row| (row.seconds)(work, &self.ground);
            fitting().min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
        });
        cheapest.unwrap_or_else(|| unreachable!("{operation} has no algorithm")).algorithm
    }
}

pub(crate) const fn always(_: &Work, _: &Ground) -> bool {
    true
}

/// Sums begin at another rank in each block: the order is the fixed one for two ranks only.
pub(crate) fn any_order(work: &Work, ground: &Ground) -> bool {
    work.wide_bytes == work.bytes && (work.is_exact || ground.world_size <= 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_name("rings"), None);
    }
}
