//! The choice of algorithms.
//!
//! Every collective has a row for each of its algorithms: whether it fits, and an estimate of its time. All
//! ranks choose alike, because they estimate from equal values in the standard floating-point mode.

mod algorithm;
mod wishes;

use brevity_compress::in_standard_float_mode;

pub use algorithm::Algorithm;
pub use wishes::{UnknownWish, Wishes};

use crate::choose::Cost;
use crate::dense::Collective;
use crate::description::Operation;
use crate::error::{Error, Result};
use crate::pattern::doubling_rounds;

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
    /// Whether sums of floating-point numbers may have any order.
    pub any_order: bool,
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
    pub(crate) wishes: Wishes,
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

/// The algorithms of a collective that can do some work, each with an estimate of its seconds, the cheapest
/// first.
///
/// ```
/// use brevity_collectives::dense::AllReduce;
/// use brevity_collectives::{Algorithm, Cost, Ground, Work, estimates};
///
/// let ground = Ground { cost: Cost::default(), world_size: 8, any_order: false };
/// let work = Work { bytes: 8, wide_bytes: 8, ..Work::default() };
/// assert_eq!(estimates::<AllReduce>(&work, &ground)[0].0, Algorithm::Doubling);
/// ```
#[must_use]
pub fn estimates<C: Collective>(work: &Work, ground: &Ground) -> Vec<(Algorithm, f64)> {
    let fitting = C::ROWS.iter().filter(|row| (row.fits)(work, ground));
    let mut all: Vec<_> =
        in_standard_float_mode(|| fitting.map(|row| (row.algorithm, (row.seconds)(work, ground))).collect());
    all.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    all
}

pub(crate) const fn always(_: &Work, _: &Ground) -> bool {
    true
}

/// For algorithms whose sums begin at another rank in each block: that is the fixed order for two ranks only.
pub(crate) fn any_order(work: &Work, ground: &Ground) -> bool {
    work.wide_bytes == work.bytes && (work.is_exact || ground.any_order || ground.world_size <= 2)
}
