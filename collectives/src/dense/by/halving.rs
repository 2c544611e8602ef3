//! Recursive halving and doubling.
//!
//! In round `j` of halving a rank exchanges half of what it still reduces with the rank at distance `2^j`,
//! and combines the half that it keeps; then the rounds go back, and ranks exchange results.
//!
//! All-reduce of n bytes: `2 log2 m` rounds, and 2 more of n bytes unless P is a power of two; 2 n (m - 1) /
//! m bytes sent per rank; `2 (log2 m) alpha + 2 n (m - 1) / m beta`. Rabenseifner, "Optimization of
//! collective reduction operations", 2004.
//!
//! Distances grow, so that after round `j` a rank has, of its part, the sum of the aligned block of `2^(j+1)`
//! ranks that it is in: sums have the fixed order. Guests are as in recursive [doubling](super::doubling).

use ucx_sys_wrap::buffer::Chunk;

use crate::buffers::{Memory, line};
use crate::call::Call;
use crate::data::Reducer;
use crate::error::Result;
use crate::pattern::Doubling;

/// Reduces a vector over all ranks. Elements of partial results are not wide.
pub(in crate::dense) async fn all_reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let mut kept = memory.loaded();
    let member = match Doubling::new(call.rank(), call.world_size()) {
        Doubling::Guest { keeper } => {
            let kept = call.send(keeper, 0, kept).await?;
            return call.recv(keeper, LAST_ROUND, kept).await;
        }
        Doubling::Member(member) => member,
    };
    if let Some(guest) = member.guest {
        let incoming = call.recv(guest, 0, call.scratch::<u8>(kept.len())?).await?;
        call.computed(reducer.in_mode(|| reducer.combine(&mut kept, &incoming)))?;
    }
    let rank = call.rank();
    let partners: Vec<u32> = member.partners().collect();
    let mut given = Vec::with_capacity(partners.len());
    for (round, peer) in (0..).zip(&partners) {
        let (low, high) = kept.split_at_half(reducer.size());
        let is_low = rank & 1 << round == 0;
        let (mut keep, give) = if is_low { (low, high) } else { (high, low) };
        let receiving = call.recv(*peer, round, call.scratch::<u8>(keep.len())?);
        let sending = call.send(*peer, round, give);
        let incoming = receiving.await?;
        call.computed(reducer.in_mode(|| reducer.combine(&mut keep, &incoming)))?;
        given.push(sending.await?);
        kept = keep;
    }
    reducer.in_mode(|| reducer.end_in_place(&mut kept, call.world_size()));
    for (round, peer) in (0..partners.len() as u32).zip(&partners).rev() {
        let give = given.pop().unwrap_or_else(|| unreachable!("a part was given in each round"));
        let receiving = call.recv(*peer, BACK + round, give);
        let sending = call.send(*peer, BACK + round, kept);
        let come = receiving.await?;
        let own = sending.await?;
        kept = if rank & 1 << round == 0 { own.join(come) } else { come.join(own) };
    }
    match member.guest {
        Some(guest) => call.send(guest, LAST_ROUND, kept).await,
        None => Ok(kept),
    }
}

/// The first round of the way back.
const BACK: u32 = u32::BITS;
const LAST_ROUND: u32 = 2 * u32::BITS;

trait Halves: Sized {
    /// Two halves of whole elements, of whole cache lines if they are long.
    fn split_at_half(self, size: usize) -> (Self, Self);
}

impl Halves for Chunk<'_, u8> {
    fn split_at_half(self, size: usize) -> (Self, Self) {
        let (length, unit) = (self.len(), line(size));
        let half = (length / 2).next_multiple_of(if length / 2 >= unit { unit } else { size });
        self.split_at(half.min(length))
    }
}
