//! Recursive doubling: in round `j` a rank exchanges all it has with the rank at distance `2^j`.
//!
//! All-reduce of n bytes (4 for each 16-bit number): `log2 m` rounds, and 2 more unless P is a power of two;
//! `rounds (alpha + n beta)`. Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH", 2005.
//!
//! `m` is the largest power of two up to `P`. Rank `m + i` is a guest of rank `i`, which adds its vector
//! first and sends it the result. After round `j`, rank `r` has the sum of the aligned block of `2^(j+1)`
//! ranks that it is in, so sums have the fixed order.

use std::ops::DerefMut;

use ucx_sys_wrap::buffer::{Chunk, RecvBuffer, SendBuffer};

use crate::buffers::Memory;
use crate::call::Call;
use crate::data::Reducer;
use crate::error::Result;
use crate::pattern::Doubling;

/// Reduces a vector over all ranks.
pub(in crate::dense) async fn all_reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let ranks = call.world_size();
    if reducer.is_wide() {
        let mut wide = call.scratch::<u8>(memory.output.len() / reducer.size() * reducer.wide())?;
        reducer.in_mode(|| reducer.start(&mut wide, memory.input()));
        let mut wide = all_have(call, reducer, wide).await?;
        let mut output = memory.output;
        reducer.in_mode(|| reducer.end(&mut output, &mut wide, ranks));
        return Ok(output);
    }
    let mut output = all_have(call, reducer, memory.loaded()).await?;
    reducer.in_mode(|| reducer.end_in_place(&mut output, ranks));
    Ok(output)
}

/// Reduces partial results, which all ranks get.
async fn all_have<'env, B>(call: &Call<'_, 'env>, reducer: &Reducer, mut own: B) -> Result<B>
where
    B: SendBuffer + RecvBuffer + DerefMut<Target = [u8]> + 'env,
{
    let member = match Doubling::new(call.rank(), call.world_size()) {
        Doubling::Guest { keeper } => {
            let own = call.send(keeper, 0, own).await?;
            return call.recv(keeper, LAST_ROUND, own).await;
        }
        Doubling::Member(member) => member,
    };
    if call.world_size() == 1 {
        return Ok(own);
    }
    let mut incoming = call.scratch::<u8>(own.len())?;
    if let Some(guest) = member.guest {
        incoming = call.recv(guest, 0, incoming).await?;
        call.computed(reducer.in_mode(|| reducer.combine(&mut own, &incoming)))?;
    }
    for (round, peer) in (0..).zip(member.partners()) {
        let sending = call.send(peer, round, own);
        incoming = call.recv(peer, round, incoming).await?;
        own = sending.await?;
        call.computed(reducer.in_mode(|| reducer.combine(&mut own, &incoming)))?;
    }
    match member.guest {
        Some(guest) => call.send(guest, LAST_ROUND, own).await,
        None => Ok(own),
    }
}

// Rounds begin at 0 in every collective, so that ranks that make different calls meet in the first message. A
// guest's message is not confused with that of round 0, which comes from another rank.
const LAST_ROUND: u32 = u32::BITS;
