//! Sparse all-gather.
//!
//! Bruck's algorithm: in round `j` a rank sends all that it has, at most `2^j` vectors, to rank `rank - 2^j`:
//! `ceil(log2 P)` rounds. Every rank receives each vector once: `8 (P - 1) k` bytes as pairs, `P - 1` coded
//! messages otherwise, which are passed on unread. Their lengths travel with them. Bruck et al., "Efficient
//! algorithms for all-to-all communications in multiport message-passing systems", 1997.

mod coded;
mod filling;
mod pairs;

use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};

use super::wire::{Coder, Wire, finite_or_poison};
use crate::call::Call;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::pattern::doubling_rounds;
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always};

/// What ranks of a sparse all-gather must agree on.
#[must_use]
pub fn describe_all_gather(dim: usize, limit: usize, wire: Wire) -> Description {
    wire.describe(Description::sparse(Operation::SPARSE_ALL_GATHER, f32::TYPE.number(), dim, limit))
}

/// The algorithm.
pub(crate) const ROWS: &[Row] =
    &[Row { algorithm: Algorithm::Bruck, fits: always, estimate: gathering_entries }];

/// An all-gather of the entries of each rank.
pub(super) fn gathering_entries(work: &Work, ground: &Ground) -> Estimate {
    let (own, all) = (work.entries as f64, work.entries as f64 * ground.ranks());
    let coding = ground.encoding(own, work.wire) + ground.decoding(all, work.wire);
    gathering(work.bytes as f64, ground).computing(coding)
}

/// An all-gather of messages of so many bytes.
pub(super) fn gathering(bytes: f64, ground: &Ground) -> Estimate {
    let waits = ground.message(0.0).times(ground.rounds().saturating_sub(1));
    waits.then(ground.message(bytes * (ground.ranks() - 1.0)))
}

/// Gathers the sparse vectors of all ranks, in rank order, as the coder's [wire](Coder::wire) carries them:
/// every rank gets the rounded values of its own vector, too.
///
/// `local` has at most `limit` entries; `limit` and wire are equal on all ranks. As pairs, values may be
/// anything. A coded value must be finite; otherwise this rank sends no entries and poisons the call, as
/// tensor 0.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid vector of a peer.
pub async fn sparse_all_gather(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
) -> Result<Vec<SparseVec>> {
    call.check_open()?;
    // No vector has more entries than elements.
    let limit = limit.min(local.dim());
    match coder.wire() {
        Wire::Pairs => {
            let mut gathered = pairs::Gathered::new(call, local, limit)?;
            for turn in turns(call) {
                gathered.exchange(call, turn).await?;
            }
            gathered.in_rank_order(call, local.dim())
        }
        Wire::Coded(values) => {
            let local = finite_or_poison(call, local, 0.into());
            let (message, _) = call.computed(coder.encode(local, values))?;
            let room = coded::Room { dim: local.dim(), limit, values };
            let mut gathered = coded::Gathered::new(call, message, room)?;
            for turn in turns(call) {
                gathered.exchange(call, turn).await?;
            }
            in_standard_float_mode(|| gathered.in_rank_order(call))
        }
    }
}

/// What a rank does in one round of Bruck's algorithm: it sends its first blocks, and appends as many.
#[derive(Clone, Copy)]
struct Turn {
    round: u32,
    to: u32,
    from: u32,
    blocks: usize,
}

/// The rounds of this rank.
fn turns(call: &Call<'_, '_>) -> impl Iterator<Item = Turn> + use<> {
    let (rank, world_size) = (call.rank(), call.world_size());
    (0..doubling_rounds(world_size)).map(move |round| {
        let distance = 1 << round;
        Turn {
            round,
            to: (rank + world_size - distance) % world_size,
            from: (rank + distance) % world_size,
            blocks: distance.min(world_size - distance) as usize,
        }
    })
}
