//! Direct exchange: every rank sends every other rank its block, all at once.
//!
//! | collective | messages sent per rank | bytes sent per rank | time |
//! | --- | --- | --- | --- |
//! | reduce-scatter of blocks of b bytes | P - 1 | b (P - 1) | alpha + b (P - 1) beta |
//! | all-gather, all-to-all of blocks of b bytes | P - 1 | b (P - 1) | alpha + b (P - 1) beta |
//!
//! In step `k` a rank sends to rank `rank + k` and receives from rank `rank - k`, so no two senders meet at
//! one rank while ranks keep step. The operands of a sum come as they were, so 16-bit numbers travel as such.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer};

use crate::call::{Call, Receiving};
use crate::data::Reducer;
use crate::error::Result;

/// The other ranks in the order of sending, and of receiving.
pub(in crate::dense) fn peers(rank: usize, ranks: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    (1..ranks).map(move |step| ((rank + step) % ranks, (rank + ranks - step) % ranks))
}

/// Reduces this rank's block of all ranks' vectors into `output[own]`. The blocks are those of `input`, or
/// those of `output`, which then has one for each rank. `round` is the first round of the call that is free.
pub(in crate::dense) async fn reduce_scatter<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    input: Option<&[&'env [u8]]>,
    (output, own): (&mut [Chunk<'env, u8>], usize),
    round: u32,
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    if let Some(input) = input {
        return reduce_scatter_apart(call, reducer, input, &mut output[own], round).await;
    }
    let operands = receive_operands(call, output[own].len(), round)?;
    let sends: Vec<_> =
        peers(rank, ranks).map(|(to, _)| (to, call.send(to as u32, round, output[to].take()))).collect();
    reduce(call, reducer, operands, None, &mut output[own]).await?;
    for (to, send) in sends {
        output[to] = send.await?;
    }
    Ok(())
}

/// Likewise, of blocks that stay as they are.
pub(in crate::dense) async fn reduce_scatter_apart<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    input: &[&'env [u8]],
    output: &mut [u8],
    round: u32,
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let operands = receive_operands(call, output.len(), round)?;
    let sends: Vec<_> = peers(rank, ranks).map(|(to, _)| call.send(to as u32, round, input[to])).collect();
    reduce(call, reducer, operands, Some(input[rank]), output).await?;
    for send in sends {
        send.await?;
    }
    Ok(())
}

type Operand<'a, 'env> = (usize, Receiving<'a, 'env, PoolBuffer<u8>>);

/// Posts receives of the operands of all other ranks.
fn receive_operands<'a, 'env>(
    call: &'a Call<'_, 'env>,
    bytes: usize,
    round: u32,
) -> Result<Vec<Operand<'a, 'env>>> {
    peers(call.rank() as usize, call.world_size() as usize)
        .map(|(_, from)| Ok((from, call.recv(from as u32, round, call.scratch::<u8>(bytes)?))))
        .collect()
}

/// Awaits the operands and reduces them with the own one, which is in `output` if it is `None`.
async fn reduce(
    call: &Call<'_, '_>,
    reducer: &Reducer,
    operands: Vec<Operand<'_, '_>>,
    own: Option<&[u8]>,
    output: &mut [u8],
) -> Result<()> {
    let mut come: Vec<Option<PoolBuffer<u8>>> = (0..=operands.len()).map(|_| None).collect();
    for (from, receive) in operands {
        come[from] = Some(receive.await?);
    }
    let mut operands: Vec<Option<&[u8]>> = come.iter().map(Option::as_deref).collect();
    operands[call.rank() as usize] = own;
    call.computed(reducer.in_mode(|| reducer.reduce_in_order(&operands, call.rank(), output)))
}

/// Gathers the blocks of all ranks; this rank's is in its place.
pub(in crate::dense) async fn all_gather<'env>(
    call: &Call<'_, 'env>,
    blocks: &mut [Chunk<'env, u8>],
    round: u32,
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let own = Arc::new(blocks[rank].take());
    let mut receives = Vec::with_capacity(ranks);
    for (_, from) in peers(rank, ranks) {
        receives.push((from, call.recv(from as u32, round, blocks[from].take())));
    }
    let mut sends = Vec::with_capacity(ranks);
    for (to, _) in peers(rank, ranks) {
        sends.push(call.send(to as u32, round, Arc::clone(&own)));
    }
    for (from, receive) in receives {
        blocks[from] = receive.await?;
    }
    for send in sends {
        drop(send.await?);
    }
    blocks[rank] =
        Arc::into_inner(own).unwrap_or_else(|| unreachable!("every send has given its count back"));
    Ok(())
}

/// Sends every other rank its block of `input`, and receives its own of theirs.
pub(in crate::dense) async fn all_to_all<'env>(
    call: &Call<'_, 'env>,
    input: &[&'env [u8]],
    output: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let mut receives = Vec::with_capacity(ranks);
    for (_, from) in peers(rank, ranks) {
        receives.push((from, call.recv(from as u32, 0, output[from].take())));
    }
    let sends: Vec<_> = peers(rank, ranks).map(|(to, _)| call.send(to as u32, 0, input[to])).collect();
    // A copy: the block of this rank to itself.
    output[rank].copy_from_slice(input[rank]);
    for (from, receive) in receives {
        output[from] = receive.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Exchanges the blocks of `data` in place: block `i` goes to rank `i`, whose block for this rank takes its
/// place. Blocks for each other are of equal length. What comes is in scratch memory until all is sent.
pub(in crate::dense) async fn exchange<'env>(
    call: &Call<'_, 'env>,
    data: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    let mut receives = Vec::with_capacity(ranks);
    for (_, from) in peers(rank, ranks) {
        receives.push((from, call.recv(from as u32, 0, call.scratch::<u8>(data[from].len())?)));
    }
    let sends: Vec<_> =
        peers(rank, ranks).map(|(to, _)| (to, call.send(to as u32, 0, data[to].take()))).collect();
    let mut come = Vec::with_capacity(ranks);
    for (from, receive) in receives {
        come.push((from, receive.await?));
    }
    for (to, send) in sends {
        data[to] = send.await?;
    }
    for (from, block) in come {
        // A copy: the block may be overwritten only when it was sent.
        data[from].copy_from_slice(&block);
    }
    Ok(())
}
