//! Bruck's algorithms: few rounds for short blocks.
//!
//! | collective | rounds | bytes sent per rank | time |
//! | --- | --- | --- | --- |
//! | all-gather of blocks of b bytes | ceil(log2 P) | b (P - 1) | ceil(log2 P) alpha + b (P - 1) beta |
//! | all-to-all of blocks of b bytes | ceil(log2 P) | b P / 2 a round | ceil(log2 P) (alpha + b P / 2 beta) |
//!
//! Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
//! 1997.

use ucx_sys_wrap::buffer::Chunk;

use crate::buffers::Layout;
use crate::call::Call;
use crate::error::Result;
use crate::pattern::doubling_rounds;

/// Gathers the blocks of all ranks. This rank's is in its place.
///
/// In round `j` a rank has the blocks of `2^j` ranks from itself on, and gets those of as many more. They lie
/// one behind the other in scratch memory, from which they are copied to their places.
pub(in crate::dense) async fn all_gather<'env>(
    call: &Call<'_, 'env>,
    mut all: Chunk<'env, u8>,
    layout: &Layout,
) -> Result<Chunk<'env, u8>> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let turned = |place: usize| (rank + place) % ranks;
    let mut scratch = call
        .scratch_chunk(layout.total())?
        .split_into((0..ranks).map(|place| layout.block(turned(place)).len()));
    // A copy: the own block, into the row of those that are sent on.
    scratch[0].copy_from_slice(&all[layout.block(rank)]);
    for round in 0..doubling_rounds(ranks as u32) {
        let have = 1 << round;
        let count = have.min(ranks - have);
        let (to, from) = ((rank + ranks - have) % ranks, (rank + have) % ranks);
        let take = |blocks: &mut [Chunk<'env, u8>]| Chunk::join_all(blocks.iter_mut().map(Chunk::take));
        let receiving = call.recv(from as u32, round, take(&mut scratch[have..have + count]));
        let sending = call.send(to as u32, round, take(&mut scratch[..count]));
        for (first, chunk) in [(have, receiving.await?), (0, sending.await?)] {
            let lengths = (first..first + count).map(|place| layout.block(turned(place)).len());
            for (place, block) in (first..).zip(chunk.split_into(lengths)) {
                scratch[place] = block;
            }
        }
    }
    for (place, block) in scratch.iter().enumerate().skip(1) {
        // A copy: from the order of arrival to that of ranks.
        all[layout.block(turned(place))].copy_from_slice(block);
    }
    Ok(all)
}

/// Sends every rank its block of `input`, and receives this rank's blocks of theirs. All blocks are of equal
/// length.
///
/// A block for the rank at distance `d` travels in the rounds of the bits that are set in `d`.
pub(in crate::dense) async fn all_to_all(
    call: &Call<'_, '_>,
    input: &[u8],
    output: &mut [u8],
    bytes: usize,
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let mut blocks = call.scratch::<u8>(bytes * ranks)?;
    for distance in 0..ranks {
        let to = (rank + distance) % ranks;
        blocks[distance * bytes..][..bytes].copy_from_slice(&input[to * bytes..][..bytes]);
    }
    for round in 0..doubling_rounds(ranks as u32) {
        let hop = 1 << round;
        let going = || (0..ranks).filter(move |distance| distance & hop != 0);
        let count = going().count();
        let mut packed = call.scratch::<u8>(count * bytes)?;
        for (place, distance) in going().enumerate() {
            packed[place * bytes..][..bytes].copy_from_slice(&blocks[distance * bytes..][..bytes]);
        }
        let receiving =
            call.recv(((rank + ranks - hop) % ranks) as u32, round, call.scratch::<u8>(count * bytes)?);
        let sending = call.send(((rank + hop) % ranks) as u32, round, packed);
        let come = receiving.await?;
        drop(sending.await?);
        for (place, distance) in going().enumerate() {
            blocks[distance * bytes..][..bytes].copy_from_slice(&come[place * bytes..][..bytes]);
        }
    }
    for distance in 0..ranks {
        let from = (rank + ranks - distance) % ranks;
        output[from * bytes..][..bytes].copy_from_slice(&blocks[distance * bytes..][..bytes]);
    }
    Ok(())
}
