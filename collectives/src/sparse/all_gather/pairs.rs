//! Indices and values as they are, in messages of three parts: counts, indices, values.

use brevity_compress::{SparseVec, SparseView};

use super::Turn;
use super::filling::Filling;
use crate::call::Call;
use crate::error::Result;

/// The gathered vectors, concatenated: this rank's first, then those of its successors.
pub(super) struct Gathered {
    limit: usize,
    counts: Filling<u32>,
    indices: Filling<u32>,
    values: Filling<f32>,
}

impl Gathered {
    pub(super) fn new(call: &Call<'_, '_>, local: SparseView<'_>, limit: usize) -> Result<Self> {
        let blocks = call.world_size() as usize;
        Ok(Self {
            limit,
            counts: Filling::new(&[local.len() as u32], call.zeros(blocks)?),
            indices: Filling::new(local.indices(), call.zeros(limit.max(local.len()) * blocks)?),
            values: Filling::new(local.values(), call.zeros(limit.max(local.len()) * blocks)?),
        })
    }

    /// Sends the first vectors and appends as many.
    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, turn: Turn) -> Result<()> {
        let Turn { round, to, from, blocks } = turn;
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

    pub(super) fn in_rank_order(self, call: &Call<'_, '_>, dim: usize) -> Result<Vec<SparseVec>> {
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
