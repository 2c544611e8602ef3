//! Sparse reduce-scatter: to each rank its range of the sum of all ranks' sparse vectors.
//!
//! Rank `q` owns the indices of chunk `q` if the vector is cut in `P` chunks by rounding up. Every rank sends
//! each owner its entries there, directly; the owner sums in the [fixed
//! order](brevity_compress::merge::sum_in_order): `P - 1` messages of about `k / P` entries a rank. Coded
//! entries are decoded piece by piece, straight into the sum. It is the first half of the split and
//! all-gather of Renggli et al., "SparCML: high-performance sparse communication for machine learning", SC
//! 2019.

use std::ops::Range;

use brevity_compress::merge::{OrderedScratch, sum_in_order};
use brevity_compress::{Error as Compress, SparseVec, SparseView, in_standard_float_mode};

use super::message::{Message, Room, invalid};
use super::reader::Reader;
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
    let mut come: Vec<_> = (0..world_size).map(|_| Message::Pairs(SparseVec::new(dim))).collect();
    if let Some(own) = going[rank as usize].take() {
        come[rank as usize] = own;
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
        come[from as usize] = message;
        Ok(())
    })
    .await?;
    let sum = match in_standard_float_mode(|| summed(call, &come, room, place))? {
        Ok(sum) => sum,
        Err(error) => {
            call.set_poison(tensors.of(&error));
            SparseVec::new(dim)
        }
    };
    come.into_iter().for_each(|message| coder.keep(message));
    Ok(Scattered { sum, kept })
}

/// About so many entries of all messages are decoded and summed before the next.
const PIECE: usize = 1 << 14;

/// The sum of the messages of all ranks, in rank order, if it is finite. All their indices are in `place`.
fn summed(
    call: &Call<'_, '_>,
    messages: &[Message],
    room: Room,
    place: Range<usize>,
) -> Result<std::result::Result<SparseVec, Compress>> {
    let refused = |from: u32| move |error| invalid(call, from, error);
    let outside = |from| call.refuse(from, format!("a sparse vector with indices outside of {place:?}"));
    let mut memory: Vec<SparseVec> = messages.iter().map(|_| SparseVec::new(room.dim)).collect();
    let readers = (0..).zip(messages).zip(&mut memory);
    let readers =
        readers.map(|((from, message), memory)| Reader::new(message, room, memory).map_err(refused(from)));
    let mut readers = readers.collect::<Result<Vec<_>>>()?;
    let pieces = readers.iter().map(Reader::remaining).sum::<usize>().div_ceil(PIECE).max(1);
    let (mut sum, mut piece) = (SparseVec::new(room.dim), SparseVec::new(room.dim));
    let (mut scratch, mut failed) = (OrderedScratch::new(), None);
    for number in 1..=pieces {
        let end = place.start + (place.len() as u128 * number as u128 / pieces as u128) as usize;
        let mut views = Vec::with_capacity(readers.len());
        for (from, reader) in (0..).zip(&mut readers) {
            let view = reader.until(end).map_err(refused(from))?;
            if view.indices().first().is_some_and(|&first| (first as usize) < place.start) {
                return Err(outside(from));
            }
            views.push(view);
        }
        // After a sum that is not finite, entries are checked alone.
        if failed.is_none() {
            match sum_in_order(&views, &mut piece, &mut scratch) {
                Ok(()) => sum.append(piece.view()),
                Err(error) => failed = Some(error),
            }
        }
    }
    match (0..).zip(&readers).find(|(_, reader)| reader.remaining() > 0) {
        Some((from, _)) => Err(outside(from)),
        None => Ok(failed.map_or(Ok(sum), Err)),
    }
}
