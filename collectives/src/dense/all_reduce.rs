//! All-reduce: every rank gets the elementwise reduction of all ranks' vectors.
//!
//! With `P` ranks and `n` bytes, alpha per message and beta per byte:
//!
//! | algorithm | rounds | bytes sent per rank | time |
//! | --- | --- | --- | --- |
//! | ring | 2 (P - 1) | 2 n (P - 1) / P | 2 (P - 1) alpha + 2 n beta (P - 1) / P |
//! | recursive doubling | ceil(log2 P), and 1 more unless P is a power of two | n a round | rounds (alpha + n beta) |
//!
//! Vectors of more than 512 KiB for each rank are reduced by rings in segments of that length, three at a
//! time: while one is added up, the next is on its way.
//!
//! Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//! Recursive doubling: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
//! in MPICH", 2005.

use brevity_compress::in_standard_float_mode;
use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::choose::{Cost, DenseAllReduce};
use crate::description::{Description, Operation};
use crate::element::{Element, ReduceOp};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::pattern::{Doubling, chunk_range, ring_chunk, ring_predecessor, ring_successor};

/// Long vectors are reduced in segments of so many bytes from each rank, which are still in the processor's
/// cache when they are added up.
const SLICE_BYTES: usize = 512 << 10;

/// What ranks of an all-reduce must agree on.
#[must_use]
pub fn describe<T: Element>(count: usize, reduction: ReduceOp) -> Description {
    Description { reduction: reduction.number(), ..Description::new(Operation::ALL_REDUCE, T::NUMBER, count) }
}

/// Reduces `data` over all ranks, in place. All ranks get the same bits, except for NaN payloads of sums.
/// Uses the cheapest algorithm by `cost`, which must be equal on all ranks.
///
/// # Errors
/// [`Error::Reduction`](crate::Error::Reduction) for an average of integers, before anything is sent. Errors
/// of the transport, and lack of memory to receive into; `data` is lost.
pub async fn all_reduce<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, T>,
    reduction: ReduceOp,
    cost: &Cost,
) -> Result<Chunk<'env, T>> {
    reduction.check::<T>()?;
    call.check_open()?;
    let bytes = data.len() * size_of::<T>();
    if let Some((mut place, terms)) = call.slot_turn(bytes) {
        host::all_reduce(&mut SlotTurn::begin(&mut place, &terms).await?, &mut data, reduction).await?;
        return Ok(data);
    }
    let world_size = call.world_size();
    let segment = SLICE_BYTES / size_of::<T>() * world_size as usize;
    let is_long = data.len() > segment;
    let mut data = match cost.dense_all_reduce(world_size, bytes) {
        // Two ranks send as much either way, and by a ring each adds up one half.
        choice if is_long && (choice == DenseAllReduce::Ring || world_size == 2) => {
            let run = |lane, segment| async move { ring(&lane, segment, reduction).await };
            in_lanes(call, data, segment, run).await?
        }
        DenseAllReduce::Ring => ring(call, data, reduction).await?,
        DenseAllReduce::RecursiveDoubling => recursive_doubling(call, data, reduction).await?,
    };
    if reduction == ReduceOp::Average {
        in_standard_float_mode(|| T::divide(&mut data, call.world_size()));
    }
    Ok(data)
}

/// Ring all-reduce: in `P - 1` rounds every rank reduces one chunk completely; in `P - 1` more rounds the
/// chunks go around.
///
/// [`ReduceOp::Average`] adds without dividing.
///
/// # Errors
/// Errors of the transport; `data` is lost.
pub async fn ring<'env, T: Element>(
    call: &Call<'_, 'env>,
    data: Chunk<'env, T>,
    reduction: ReduceOp,
) -> Result<Chunk<'env, T>> {
    let (rank, world_size) = (call.rank(), call.world_size());
    let (next, previous) = (ring_successor(rank, world_size), ring_predecessor(rank, world_size));
    let lengths: Vec<usize> =
        (0..world_size as usize).map(|i| chunk_range(data.len(), world_size, i).len()).collect();
    let mut chunks = data.split_into(lengths);

    for round in 0..world_size - 1 {
        let (out, into) = (ring_chunk(rank, round, world_size), ring_chunk(rank, round + 1, world_size));
        let sending = call.send(next, round, chunks[out].take());
        let incoming = call.recv(previous, round, call.scratch::<T>(chunks[into].len())?).await?;
        in_standard_float_mode(|| T::combine(reduction, &mut chunks[into], &incoming));
        chunks[out] = sending.await?;
    }
    for step in 0..world_size - 1 {
        let round = world_size - 1 + step;
        let (out, into) = (ring_chunk(rank + 1, step, world_size), ring_chunk(rank, step, world_size));
        let sending = call.send(next, round, chunks[out].take());
        let receiving = call.recv(previous, round, chunks[into].take());
        chunks[into] = receiving.await?;
        chunks[out] = sending.await?;
    }
    Ok(Chunk::join_all(chunks))
}

/// Recursive doubling: in round `j` a rank adds the data of the rank at distance `2^j` ([`Doubling`]), until
/// all ranks have the full sum.
///
/// [`ReduceOp::Average`] adds without dividing.
///
/// # Errors
/// Errors of the transport; `data` is lost.
pub async fn recursive_doubling<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, T>,
    reduction: ReduceOp,
) -> Result<Chunk<'env, T>> {
    let member = match Doubling::new(call.rank(), call.world_size()) {
        Doubling::Guest { keeper } => {
            let data = call.send(keeper, FIRST_ROUND, data).await?;
            return call.recv(keeper, LAST_ROUND, data).await;
        }
        Doubling::Member(member) => member,
    };
    if call.world_size() == 1 {
        return Ok(data);
    }
    let mut incoming = call.scratch::<T>(data.len())?;
    if let Some(guest) = member.guest {
        incoming = call.recv(guest, FIRST_ROUND, incoming).await?;
        in_standard_float_mode(|| T::combine(reduction, &mut data, &incoming));
    }
    for (round, peer) in (0..).zip(member.partners()) {
        let sending = call.send(peer, round, data);
        incoming = call.recv(peer, round, incoming).await?;
        data = sending.await?;
        in_standard_float_mode(|| T::combine(reduction, &mut data, &incoming));
    }
    match member.guest {
        Some(guest) => call.send(guest, LAST_ROUND, data).await,
        None => Ok(data),
    }
}

// Rounds begin at 0 in every collective, so that ranks that make different calls meet in the first message. A
// guest's message is not confused with that of round 0, which comes from another rank.
const FIRST_ROUND: u32 = 0;
const LAST_ROUND: u32 = u32::BITS;
