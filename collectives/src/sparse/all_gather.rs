//! Sparse all-gather, and the top-k all-reduce on it.
//!
//! Bruck's algorithm: in round `j` a rank sends all that it has, at most `2^j` vectors, to rank `rank - 2^j`:
//! `ceil(log2 P)` rounds. Every rank receives each vector once, `8 (P - 1) k` bytes. The number of entries of
//! each vector travels in the same message. Bruck et al., "Efficient algorithms for all-to-all communications
//! in multiport message-passing systems", 1997.

use brevity_compress::merge;
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};
use ucx_sys_wrap::buffer::Chunk;

use super::message::finite_or_poison;
use crate::call::Call;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::pattern::doubling_rounds;

/// What ranks of a sparse all-gather must agree on.
#[must_use]
pub fn describe_all_gather(dim: usize, limit: usize) -> Description {
    Description::sparse(Operation::SPARSE_ALL_GATHER, f32::TYPE.number(), dim, limit)
}

/// What ranks of a top-k all-reduce must agree on.
#[must_use]
pub fn describe_topk(dim: usize, limit: usize) -> Description {
    Description::sparse(Operation::TOPK_ALL_REDUCE, f32::TYPE.number(), dim, limit)
}

/// Gathers the sparse vectors of all ranks, in rank order, whatever their values are.
///
/// `local` has at most `limit` entries, and `limit` is equal on all ranks.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`] for an invalid vector of a peer.
pub async fn sparse_all_gather(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
) -> Result<Vec<SparseVec>> {
    call.check_open()?;
    let (rank, world_size) = (call.rank(), call.world_size());
    // No vector has more entries than elements.
    let limit = limit.min(local.dim());
    let mut gathered = Gathered::new(call, local, limit)?;
    for round in 0..doubling_rounds(world_size) {
        let distance = 1 << round;
        let blocks = distance.min(world_size - distance);
        let (to, from) = ((rank + world_size - distance) % world_size, (rank + distance) % world_size);
        gathered.exchange(call, to, from, round, blocks as usize).await?;
    }
    gathered.in_rank_order(call, local.dim())
}

/// Sums the sparse vectors of all ranks, in rank order; every rank gets the whole sum.
///
/// `local` has at most `limit` entries, and `limit` is equal on all ranks. A value of `local` that is not
/// finite poisons the call, as tensor `tensor`.
///
/// # Errors
/// As for [`sparse_all_gather`]; [`Error::Overflow`] of tensor `tensor`, on all ranks.
pub async fn topk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    tensor: u32,
) -> Result<SparseVec> {
    let local = finite_or_poison(call, local, tensor);
    let gathered = sparse_all_gather(call, local, limit).await?;
    let views: Vec<_> = gathered.iter().map(SparseVec::view).collect();
    let mut sum = SparseVec::new(local.dim());
    let summed = in_standard_float_mode(|| merge::sum_all(&views, &mut sum));
    summed.map_err(|_| Error::Overflow { tensor })?;
    Ok(sum)
}

/// The gathered vectors, concatenated: this rank's first, then those of its successors.
struct Gathered {
    limit: usize,
    counts: Filling<u32>,
    indices: Filling<u32>,
    values: Filling<f32>,
}

impl Gathered {
    fn new(call: &Call<'_, '_>, local: SparseView<'_>, limit: usize) -> Result<Self> {
        let blocks = call.world_size() as usize;
        Ok(Self {
            limit,
            counts: Filling::new(&[local.len() as u32], call.zeros(blocks)?),
            indices: Filling::new(local.indices(), call.zeros(limit.max(local.len()) * blocks)?),
            values: Filling::new(local.values(), call.zeros(limit.max(local.len()) * blocks)?),
        })
    }

    /// Sends the first `blocks` vectors to `to` and appends as many from `from`.
    async fn exchange(
        &mut self,
        call: &Call<'_, '_>,
        to: u32,
        from: u32,
        round: u32,
        blocks: usize,
    ) -> Result<()> {
        let entries = self.counts.filled[..blocks].iter().map(|&count| count as usize).sum();
        let (counts, indices, values) =
            (self.counts.lend(blocks), self.indices.lend(entries), self.values.lend(entries));
        let room = blocks * self.limit;
        let place = (self.counts.room(blocks), (self.indices.room(room), self.values.room(room)));
        let sending = call.send(to, round, (counts, (indices, values)));
        let ((counts, (indices, values)), lengths) = call.recv_up_to(from, round, place).await?;
        let arrived = check(&counts, &lengths, self.limit).map_err(|what| call.refuse(from, what))?;
        let (sent_counts, (sent_indices, sent_values)) = sending.await?;
        self.counts.restore(sent_counts, counts, blocks);
        self.indices.restore(sent_indices, indices, arrived);
        self.values.restore(sent_values, values, arrived);
        Ok(())
    }

    fn in_rank_order(self, call: &Call<'_, '_>, dim: usize) -> Result<Vec<SparseVec>> {
        let rank = call.rank();
        let world_size = self.counts.filled.len();
        let mut vectors = Vec::with_capacity(world_size);
        let mut start = 0;
        for (offset, &count) in self.counts.filled.iter().enumerate() {
            let owner = (rank as usize + offset) % world_size;
            let range = start..start + count as usize;
            start = range.end;
            let (indices, values) =
                (self.indices.filled[range.clone()].to_vec(), self.values.filled[range].to_vec());
            vectors.push(
                SparseVec::from_parts(dim, indices, values)
                    .map_err(|error| call.refuse(owner as u32, format!("a sparse vector with {error}")))?,
            );
        }
        vectors.rotate_right(rank as usize);
        Ok(vectors)
    }
}

/// The number of received entries. The counts must respect the limit and match the bytes of the parts.
fn check(counts: &[u32], lengths: &[usize], limit: usize) -> std::result::Result<usize, String> {
    let entries: usize = counts.iter().map(|&count| count as usize).sum();
    let bytes = entries.saturating_mul(size_of::<u32>());
    if lengths == [size_of_val(counts), bytes, bytes] && counts.iter().all(|&count| count as usize <= limit) {
        return Ok(entries);
    }
    Err(format!(
        "{} sparse vectors of {entries} entries in {lengths:?} bytes, at most {limit} each",
        counts.len()
    ))
}

/// A vector that is filled from the front, and whose parts can be lent to operations.
struct Filling<T: 'static> {
    filled: Chunk<'static, T>,
    rest: Chunk<'static, T>,
}

impl<T: Element> Filling<T> {
    fn new(first: &[T], mut all: Vec<T>) -> Self {
        all[..first.len()].copy_from_slice(first);
        let (filled, rest) = Chunk::from(all).split_at(first.len());
        Self { filled, rest }
    }

    /// Lends the first `count` filled elements until [`restore`](Self::restore).
    fn lend(&mut self, count: usize) -> Chunk<'static, T> {
        let (lent, kept) = self.filled.take().split_at(count);
        self.filled = kept;
        lent
    }

    /// Lends room for `count` more until [`restore`](Self::restore).
    fn room(&mut self, count: usize) -> Chunk<'static, T> {
        let (room, kept) = self.rest.take().split_at(count);
        self.rest = kept;
        room
    }

    /// Takes the lent parts back, with `count` more elements filled.
    fn restore(&mut self, lent: Chunk<'static, T>, room: Chunk<'static, T>, count: usize) {
        let (arrived, unused) = room.split_at(count);
        self.filled = lent.join(self.filled.take()).join(arrived);
        self.rest = unused.join(self.rest.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_must_agree_with_the_bytes() {
        assert_eq!(check(&[2, 1], &[8, 12, 12], 2).unwrap(), 3);
        assert!(check(&[2, 1], &[8, 12, 8], 2).is_err());
        assert!(check(&[3, 0], &[8, 12, 12], 2).is_err());
        assert!(check(&[u32::MAX, u32::MAX], &[8, 12, 12], 2).is_err());
        assert!(check(&[2, 1], &[4, 12, 12], 2).is_err());
    }
}
