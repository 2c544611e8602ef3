//! Pairwise exchange: ranks meet in pairs, one after the other.
//!
//! All-to-all of blocks of b bytes: `P - 1` rounds; b (P - 1) bytes sent per rank;
//! `(P - 1) (alpha + b beta)`.
//!
//! All messages are of round 0, so that ranks may choose for themselves whether they exchange in place.

use ucx_sys_wrap::buffer::Chunk;

use super::direct::peers;
use crate::call::Call;
use crate::error::Result;

/// Sends every other rank its block of `input`, and receives its own of theirs.
///
/// In round `k` a rank sends to rank `rank + k` and receives from rank `rank - k`.
pub(in crate::dense) async fn all_to_all<'env>(
    call: &Call<'_, 'env>,
    input: &[&'env [u8]],
    output: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    // A copy: the block of this rank to itself.
    output[rank].copy_from_slice(input[rank]);
    for (to, from) in peers(rank, ranks) {
        let receiving = call.recv(from as u32, 0, output[from].take());
        let sending = call.send(to as u32, 0, input[to]);
        output[from] = receiving.await?;
        sending.await?;
    }
    Ok(())
}

/// Exchanges the blocks of `data` in place: block `i` goes to rank `i`, whose block for this rank takes its
/// place. Blocks for each other are of equal length.
///
/// In round `k` the ranks whose sum is `k` modulo P exchange, so both have their blocks in scratch memory at
/// the same time: one block, on each rank.
pub(in crate::dense) async fn exchange<'env>(
    call: &Call<'_, 'env>,
    data: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    // The first partner is a neighbour on the ring, as in other collectives.
    let partners = (0..ranks).map(|round| (2 * ranks + 1 + round - rank) % ranks);
    for peer in partners.filter(|peer| *peer != rank) {
        let receiving = call.recv(peer as u32, 0, call.scratch::<u8>(data[peer].len())?);
        let sending = call.send(peer as u32, 0, data[peer].take());
        let come = receiving.await?;
        data[peer] = sending.await?;
        // A copy: the block may be overwritten only when it was sent.
        data[peer].copy_from_slice(&come);
    }
    Ok(())
}
