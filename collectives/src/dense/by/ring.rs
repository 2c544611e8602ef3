//! Rings: every rank sends to the next one and receives from the one before.
//!
//! | collective | rounds | bytes sent per rank | time |
//! | --- | --- | --- | --- |
//! | reduce-scatter of blocks of b bytes | P - 1 | b (P - 1) | (P - 1) (alpha + b beta) |
//! | all-gather of blocks of b bytes | P - 1 | b (P - 1) | (P - 1) (alpha + b beta) |
//!
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. A sum
//! begins at another rank in each block: for more than two ranks its order is not the fixed one.

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer};

use crate::call::{Call, Sending};
use crate::data::Reducer;
use crate::error::Result;
use crate::pattern::{ring_chunk, ring_predecessor, ring_successor};

/// Reduces this rank's block of all ranks' vectors into `output[own]`. The blocks are those of `input`, or
/// those of `output`, which then has one for each rank. Elements of partial results are not wide.
pub(in crate::dense) async fn reduce_scatter<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    input: Option<&[&'env [u8]]>,
    (output, own): (&mut [Chunk<'env, u8>], usize),
) -> Result<()> {
    let (rank, ranks) = (call.rank(), call.world_size());
    let (next, previous) = (ring_successor(rank, ranks), ring_predecessor(rank, ranks));
    let first = ring_chunk(rank, 1, ranks);
    let (mut lent, mut given) = (None, None);
    match input {
        Some(blocks) => lent = Some(call.send(next, 0, blocks[first])),
        None => given = Some(call.send(next, 0, output[first].take())),
    }
    // A long message is on its way until the next rank receives it, which it does in its next round: a rank
    // that waited for that before it receives would wait for itself.
    let mut passed_on = None;
    for round in 0..ranks - 1 {
        let block = ring_chunk(rank, round + 2, ranks);
        let length = input.map_or_else(|| output[block].len(), |blocks| blocks[block].len());
        let mut incoming = call.recv(previous, round, call.scratch::<u8>(length)?).await?;
        if let Some(send) = passed_on.take() {
            let send: Sending<'_, 'env, PoolBuffer<u8>> = send;
            drop(send.await?);
        }
        if round == ranks - 2 {
            let result = reducer.in_mode(|| match input {
                Some(blocks) => reducer.combine_from(&mut output[own], blocks[block], &incoming),
                None => reducer.combine(&mut output[own], &incoming),
            });
            call.computed(result)?;
            reducer.in_mode(|| reducer.end_in_place(&mut output[own], ranks));
            break;
        }
        let theirs = input.map_or_else(|| &output[block][..], |blocks| blocks[block]);
        call.computed(reducer.in_mode(|| reducer.combine(&mut incoming, theirs)))?;
        passed_on = Some(call.send(next, round + 1, incoming));
    }
    if let Some(send) = given {
        output[first] = send.await?;
    }
    if let Some(send) = lent {
        send.await?;
    }
    Ok(())
}

/// Gathers the blocks of all ranks; this rank's is in its place. Rounds begin at `first_round`.
pub(in crate::dense) async fn all_gather<'env>(
    call: &Call<'_, 'env>,
    blocks: &mut [Chunk<'env, u8>],
    first_round: u32,
) -> Result<()> {
    let (rank, ranks) = (call.rank(), call.world_size());
    let (next, previous) = (ring_successor(rank, ranks), ring_predecessor(rank, ranks));
    for step in 0..ranks - 1 {
        let round = first_round + step;
        let (out, into) = (ring_chunk(rank, step, ranks), ring_chunk(rank, step + 1, ranks));
        let receiving = call.recv(previous, round, blocks[into].take());
        let sending = call.send(next, round, blocks[out].take());
        blocks[into] = receiving.await?;
        blocks[out] = sending.await?;
    }
    Ok(())
}
