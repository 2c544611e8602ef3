//! The choice of algorithms.
//!
//! Every collective has a row for each of its algorithms: whether it fits, and an estimate of its time. All
//! ranks choose alike, because they estimate from equal values in the standard floating-point mode, by
//! additions, multiplications and divisions alone. A digest of these values is part of that of their calls.

mod algorithm;
mod compression;
mod estimate;
mod machine;
mod table;
mod terms;
mod topology;
mod wishes;

use brevity_compress::in_standard_float_mode;

pub use algorithm::Algorithm;
pub use compression::{Planned, Summand, compare, recommend};
pub(crate) use compression::{block_ways, exact_wire, low_rank_ways};
pub(crate) use estimate::Cut;
pub use estimate::Estimate;
pub use machine::{Link, Machine, UnknownMachine};
pub(crate) use table::Plan;
pub(crate) use terms::{SEGMENTS, Terms};
pub(crate) use topology::Places;
pub use topology::Topology;
pub use wishes::{UnknownWish, Wishes};

use crate::compressed::Compressed;
use crate::dense::{Collective, SLICE_BYTES};
use crate::pattern::doubling_rounds;
use crate::sparse::Wire;

/// What a call has to do, as all ranks know it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Bytes of the vector, or of a rank's block.
    pub bytes: usize,
    /// The same of partial results.
    pub wide_bytes: usize,
    /// Whether a sum may have any order; of sparse vectors, whether entries arrive as they are sent.
    pub is_exact: bool,
    /// Whether blocks have lengths of their own, which only some ranks know.
    pub is_uneven: bool,
    /// Of a sparse vector: whether a long message of sums can be cut into segments.
    pub in_segments: bool,
    /// Of a sparse vector: the largest number of entries, which take `bytes` on average, and its length.
    /// Of low-rank factors: their rank, and the elements of the matrices.
    pub entries: usize,
    /// See `entries`.
    pub dim: usize,
    /// Bytes of a second vector, which follows: of the right factors, where `bytes` are those of the left.
    pub second_bytes: usize,
    /// Of a sparse vector: how its entries are written.
    pub wire: Wire,
}

impl Work {
    /// To move blocks of so many bytes, which nobody sums.
    pub(crate) fn moving(bytes: usize) -> Self {
        Self { bytes, wide_bytes: bytes, is_exact: true, ..Self::default() }
    }

    /// How many times as long partial results are.
    pub(crate) fn widening(&self) -> f64 {
        if self.bytes == 0 { 1.0 } else { self.wide_bytes as f64 / self.bytes as f64 }
    }
}

/// What choices depend on besides the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ground {
    /// The network and its hosts.
    pub machine: Machine,
    /// How ranks are spread over hosts.
    pub topology: Topology,
    /// Whether all ranks share memory.
    pub has_slots: bool,
    /// The number of ranks.
    pub world_size: u32,
    /// Whether sums of floating-point numbers may have any order.
    pub any_order: bool,
    /// Long vectors are cut into segments whose messages have at most so many bytes.
    pub slice_bytes: usize,
}

impl Ground {
    /// Of ranks that are all on hosts of their own and share no memory, with other settings as they are by
    /// default.
    #[must_use]
    pub const fn new(machine: Machine, world_size: u32) -> Self {
        // There is no group of nobody.
        let world_size = if world_size == 0 { 1 } else { world_size };
        let topology = Topology::apart(world_size);
        let (has_slots, any_order) = (false, false);
        Self { machine, topology, has_slots, world_size, any_order, slice_bytes: SLICE_BYTES }
    }

    pub(crate) fn ranks(&self) -> f64 {
        f64::from(self.world_size)
    }

    /// Rounds that double what a rank has.
    pub(crate) fn rounds(&self) -> u32 {
        doubling_rounds(self.world_size)
    }

    /// Messages between ranks that are placed anyhow. Where the ranks of a host share a link, all send at
    /// the same time.
    pub(crate) fn link(&self) -> Link {
        let Machine { inside, between, has_own_ports, .. } = self.machine;
        match self.topology.hosts {
            0 | 1 => inside,
            _ if has_own_ports => between,
            _ => Link { beta: between.beta * f64::from(self.topology.most), ..between },
        }
    }

    /// The ground of messages between `ranks` ranks of one host.
    pub(crate) fn inside(&self, ranks: u32) -> Self {
        Self { topology: Topology::one_host(ranks), world_size: ranks, has_slots: false, ..*self }
    }

    /// The ground of one rank of each host, so many of which use the hosts' links at the same time.
    pub(crate) fn across(&self, at_once: u32) -> Self {
        let hosts = self.topology.hosts;
        let mut machine = self.machine;
        if !machine.has_own_ports {
            machine.between.beta *= f64::from(at_once);
        }
        Self { machine, topology: Topology::apart(hosts), world_size: hosts, has_slots: false, ..*self }
    }
}

/// An algorithm of a collective.
pub struct Row {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether it can do the work, with sums in the fixed order if their order matters.
    pub fits: fn(&Work, &Ground) -> bool,
    /// What it takes.
    pub estimate: fn(&Work, &Ground) -> Estimate,
}

/// The row of [`Algorithm::Slots`], where the busiest rank reads or writes so many bytes of others.
pub(crate) const fn over_slots(estimate: fn(&Work, &Ground) -> Estimate) -> Row {
    Row { algorithm: Algorithm::Slots, fits: |_, ground| ground.has_slots, estimate }
}

/// The algorithms of a collective that can do some work, each with an estimate, the fastest first.
///
/// ```
/// use brevity_collectives::dense::AllReduce;
/// use brevity_collectives::{Algorithm, Ground, Machine, Work, estimates};
///
/// let ground = Ground::new(Machine::default(), 8);
/// let work = Work { bytes: 8, wide_bytes: 8, ..Work::default() };
/// let (algorithm, estimate) = estimates::<AllReduce>(&work, &ground)[0];
/// assert_eq!((algorithm, estimate.rounds), (Algorithm::Doubling, 3));
/// ```
#[must_use]
pub fn estimates<C: Collective>(work: &Work, ground: &Ground) -> Vec<(Algorithm, Estimate)> {
    estimates_of(C::ROWS, work, ground)
}

/// Likewise, of a collective on what compression leaves of vectors, whose work is its
/// [own](Compressed::work).
#[must_use]
pub fn compressed_estimates<C: Compressed>(work: &Work, ground: &Ground) -> Vec<(Algorithm, Estimate)> {
    estimates_of(C::ROWS, work, ground)
}

fn estimates_of(rows: &[Row], work: &Work, ground: &Ground) -> Vec<(Algorithm, Estimate)> {
    let fitting = rows.iter().filter(|row| (row.fits)(work, ground));
    let mut all: Vec<_> =
        in_standard_float_mode(|| fitting.map(|row| (row.algorithm, (row.estimate)(work, ground))).collect());
    all.sort_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
    all
}

/// The fastest of the rows that fit, and its estimate. The first row of each list always fits.
///
/// # Panics
/// If there is no row.
pub(crate) fn fastest(rows: &[Row], work: &Work, ground: &Ground) -> (Algorithm, Estimate) {
    let fitting = rows.iter().filter(|row| (row.fits)(work, ground));
    let estimates = fitting.map(|row| (row.algorithm, (row.estimate)(work, ground)));
    let fastest = estimates.min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
    fastest.unwrap_or_else(|| unreachable!("one of {} rows fits everything", rows.len()))
}

pub(crate) const fn always(_: &Work, _: &Ground) -> bool {
    true
}

/// For algorithms whose sums begin at another rank in each block: that is the fixed order for two ranks only.
pub(crate) fn any_order(work: &Work, ground: &Ground) -> bool {
    work.wide_bytes == work.bytes && (work.is_exact || ground.any_order || ground.world_size <= 2)
}

/// For sums inside the hosts first, and then over the hosts.
pub(crate) fn by_hosts(work: &Work, ground: &Ground) -> bool {
    let has_order = ground.topology.is_aligned || work.is_exact || ground.any_order;
    ground.topology.has_levels() && has_order
}
