//! Reduce-scatter over slots: each rank gets its block of the result.
//!
//! Vectors of up to 512 bytes are in the cache line of the flag. Of longer ones a rank publishes all blocks
//! but its own, in pieces, and reduces its own of all ranks: while it writes pieces, the others read those
//! before. With `P` ranks and blocks of `n` bytes, every rank writes and reads n (P - 1).

use ucx_sys_wrap::shm::INLINE_BYTES;

use super::folding::Folding;
use super::memory::{Blocks, Memory, Pieces};
use super::turn::SlotTurn;
use crate::data::Reducer;
use crate::error::Result;

/// Reduces the `input` vectors of all ranks, in the fixed order; `output` gets this rank's block of the
/// result. Without an `input`, `output` is the whole vector, and the result replaces this rank's block.
/// `blocks` are equal on all ranks and of whole elements.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time, or the reduction fails;
/// `output` is unspecified.
///
/// # Panics
/// When a vector is not as long as `blocks` say.
pub async fn reduce_scatter(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    input: Option<&[u8]>,
    output: &mut [u8],
    blocks: Blocks<'_>,
) -> Result<()> {
    reduce_scatter_part(turn, reducer, (input, output), blocks).await?;
    turn.finish();
    Ok(())
}

/// Likewise, as a part of a turn.
pub(crate) async fn reduce_scatter_part(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    (input, output): (Option<&[u8]>, &mut [u8]),
    blocks: Blocks<'_>,
) -> Result<()> {
    let (own, world_size) = (turn.slots().own_place(), turn.world_size());
    let mut memory = Memory { input, output };
    let total = blocks.total(world_size as usize);
    assert_eq!(memory.input().len(), total, "bytes of a vector to reduce");
    let block = blocks.range(own);
    let result = if input.is_some() { 0..block.len() } else { block.clone() };
    assert!(memory.output.len() == if input.is_some() { block.len() } else { total }, "bytes of a result");
    let fold = Folding { reducer, ranks: world_size };
    if total <= INLINE_BYTES {
        let step = turn.take_steps(1);
        let header = turn.header();
        turn.until_free(step).await?;
        turn.slots().publish_inline(step, header, memory.input());
        turn.until_all_published(step).await?;
        let (at, part) = ((step, block.start), memory.part(block, result));
        let slots = turn.slots();
        reducer.in_mode(|| slots.reduce_inline(at, part, &fold))?;
        turn.slots().acknowledge(step);
        return Ok(());
    }
    let pieces = Pieces::new(blocks.longest(), world_size as usize, reducer.size());
    let first = turn.take_steps(pieces.count());
    let header = turn.header();
    for stage in 0..=pieces.count() {
        if stage < pieces.count() {
            let step = first.plus(stage as u64);
            turn.until_free(step).await?;
            for place in (0..world_size as usize).filter(|place| *place != own) {
                let piece = pieces.of(blocks.range(place), stage);
                turn.slots().write(step, pieces.at(step, place), &memory.input()[piece]);
            }
            turn.slots().publish(step, header);
        }
        if let Some(index) = stage.checked_sub(1) {
            let step = first.plus(index as u64);
            turn.until_all_published(step).await?;
            let at = (step, pieces.at(step, own));
            let part = memory.part(pieces.of(block.clone(), index), pieces.of(result.clone(), index));
            let slots = turn.slots();
            reducer.in_mode(|| slots.reduce(at, part, false, &fold))?;
            turn.slots().acknowledge(step);
        }
    }
    Ok(())
}
