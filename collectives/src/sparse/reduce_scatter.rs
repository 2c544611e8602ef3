//! Sparse reduce-scatter: to each rank its range of the sum of all ranks' sparse vectors.
//!
//! Rank `q` owns the indices of chunk `q` if the vector is cut in `P` chunks by rounding up. Every rank sends
//! each owner its entries there, directly; the owner sums in the [fixed
//! order](brevity_compress::merge::sum_in_order): `P - 1` messages of about `k / P` entries a rank. It is the
//! first half of the split and all-gather of Renggli et al., "SparCML: high-performance sparse communication
//! for machine learning", SC 2019.

use std::ops::Range;

use brevity_compress::merge::{OrderedScratch, sum_in_order};
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};

use super::message::{Message, Room, invalid};
use super::tensors::Tensors;
use super::wire::{Coder, Wire, finite_or_poison};
use crate::all_pairs::{self, all_pairs};
use crate::call::Call;
use crate::data::Element;
use crate::dense::barrier;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::pattern::chunk_range;
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always};

/// The result of a sparse reduce-scatter.
#[derive(Clone, Debug)]
pub struct Scattered {
    /// The sum at this rank's [indices](owned), undivided, as a vector of the whole length.
    pub sum: SparseVec,
    /// What rounding has taken away from this rank's entries, for its residual. Empty on an
    /// [exact](Wire::is_exact) wire.
    pub kept: SparseVec,
}

/// The indices that a rank gets of a vector of length `dim`.
#[must_use]
pub fn owned(dim: usize, world_size: u32, rank: u32) -> Range<usize> {
    chunk_range(dim, world_size, rank as usize)
}

/// What ranks of a sparse reduce-scatter must agree on.
#[must_use]
pub fn describe(dim: usize, limit: usize, wire: Wire) -> Description {
    wire.describe(Description::sparse(Operation::SPARSE_REDUCE_SCATTER, f32::TYPE.number(), dim, limit))
}

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row {
    algorithm: Algorithm::Direct,
    fits: always,
    estimate: |work, ground| scattering(work, ground).then(ground.message(0.0).times(ground.rounds())),
}];

/// What [`scatter`] takes, if the entries are anywhere.
pub(super) fn scattering(work: &Work, ground: &Ground) -> Estimate {
    let (entries, ranks) = (work.entries as f64, ground.ranks());
    let each = match work.wire {
        Wire::Pairs => work.bytes as f64 / ranks,
        wire => {
            wire.usual_bytes_of_part(work.dim, (entries / ranks).ceil() as usize, ground.world_size) as f64
        }
    };
    // Its own stay as they are.
    let coded = entries * (ranks - 1.0) / ranks;
    let coding = ground.encoding(coded, work.wire) + ground.decoding(coded, work.wire);
    all_pairs::estimate(each, ground).computing(coding + ground.merging(entries))
}

/// Sums the sparse vectors of all ranks; each gets the sum at the indices that it [owns](owned).
///
/// `local` has at most `limit` entries; `limit` and the coder's wire are equal on all ranks. A value of
/// `local` that is not finite poisons the call as its tensor's, and so does a sum: at its end all ranks know
/// of it.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`](crate::Error::Payload) for an invalid vector of a peer.
/// `local` is unchanged.
pub async fn sparse_reduce_scatter(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
) -> Result<Scattered> {
    let tensors = tensors.into();
    call.check_open()?;
    let (dim, world_size) = (local.dim(), call.world_size());
    let local = finite_or_poison(call, local, tensors);
    let scattered = scatter(call, local, limit, |rank| owned(dim, world_size, rank), coder, tensors).await?;
    // Nobody else hears of a sum that is not finite.
    barrier(call).await?;
    Ok(scattered)
}

/// The same of finite values, where later messages tell all ranks of poison, and for any ranges of the ranks:
/// together they are all indices, in rank order.
pub(super) async fn scatter(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    owned: impl Fn(u32) -> Range<usize>,
    coder: &mut Coder,
    tensors: Tensors<'_>,
) -> Result<Scattered> {
    let (rank, world_size, dim, wire) = (call.rank(), call.world_size(), local.dim(), coder.wire());
    let place = owned(rank);
    let room = Room { dim, limit: limit.min(place.len()), wire };
    let mut kept = SparseVec::new(dim);
    let mut going = Vec::with_capacity(world_size as usize);
    for owner in 0..world_size {
        let piece = local.within(owned(owner));
        // Its own entries stay as they are.
        let wire = if owner == rank { Wire::Pairs } else { wire };
        let (message, rounded) = call.computed(coder.message(piece.to_owned(), wire))?;
        kept.append(rounded.view());
        going.push(Some(message));
    }
    let mut pieces: Vec<SparseVec> = (0..world_size).map(|_| SparseVec::new(dim)).collect();
    if let Some(Message::Pairs(own)) = going[rank as usize].take() {
        pieces[rank as usize] = own;
    }
    let send = |to: u32| {
        let message = going[to as usize].take();
        async move {
            match message {
                Some(message) => message.send(call, to, 0).await.map(drop),
                None => Ok(()),
            }
        }
    };
    let receive = |from: u32| Message::Pairs(SparseVec::new(dim)).receive(call, from, 0, room);
    all_pairs(call, send, receive, |from, message| {
        let piece = coder.read(message, room).map_err(|error| invalid(call, from, error))?;
        if piece.view().within(place.clone()).len() < piece.len() {
            return Err(call.refuse(from, format!("a sparse vector with indices outside of {place:?}")));
        }
        pieces[from as usize] = piece;
        Ok(())
    })
    .await?;
    let views: Vec<_> = pieces.iter().map(SparseVec::view).collect();
    let mut sum = SparseVec::new(dim);
    let summed = in_standard_float_mode(|| sum_in_order(&views, &mut sum, &mut OrderedScratch::new()));
    if let Err(error) = summed {
        call.set_poison(tensors.of(&error));
    }
    Ok(Scattered { sum, kept })
}
