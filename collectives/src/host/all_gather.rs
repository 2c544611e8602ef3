//! All-gather over slots: each rank writes its own block and reads those of all others.
//!
//! Blocks of up to 512 bytes are in the cache line of the flag. Longer ones are in pieces: while a rank
//! writes one piece it reads the previous pieces of the others. Every rank writes its n bytes and reads those
//! of all others, n (P - 1) if they are equal.

use ucx_sys_wrap::shm::INLINE_BYTES;

use super::memory::{Blocks, Memory, Pieces, move_pieces};
use super::turn::SlotTurn;
use crate::error::Result;

/// Gathers the `input` of all ranks as `blocks` of `output`, in the order of ranks. Without an `input`, this
/// rank's block is in its place already. `blocks` are equal on all ranks.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
///
/// # Panics
/// When `input` is not as long as this rank's block, or `output` as all.
pub async fn all_gather(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    blocks: Blocks<'_>,
) -> Result<()> {
    all_gather_part(turn, input, output, blocks).await?;
    turn.finish();
    Ok(())
}

/// Likewise, as a part of a turn.
pub(crate) async fn all_gather_part(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    blocks: Blocks<'_>,
) -> Result<()> {
    let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
    assert_eq!(output.len(), blocks.total(places), "bytes of the gathered vector");
    if let Some(input) = input {
        // Copy: this rank's own block, the only copy of gathering in place.
        output[blocks.range(own)].copy_from_slice(input);
    }
    let longest = blocks.longest();
    if longest <= INLINE_BYTES {
        return inline(turn, output, blocks).await;
    }
    let pieces = Pieces::for_readers(longest);
    let first = turn.take_steps(pieces.count());
    let header = turn.header();
    let mut memory = Memory { input: None, output };
    for stage in 0..=pieces.count() {
        let out = (stage < pieces.count()).then(|| first.plus(stage as u64));
        let back = stage.checked_sub(1).map(|index| (first.plus(index as u64), index));
        if let Some(step) = out {
            turn.until_free(step).await?;
        }
        // The first peer's piece is read while this rank's next piece is written.
        let mut unwritten = out.map(|step| (step, pieces.at(step, 0), pieces.of(blocks.range(own), stage)));
        for place in (0..places).filter(|place| *place != own) {
            if let Some((step, _)) = back {
                turn.until_published(place, step).await?;
            }
            let back =
                back.map(|(step, index)| (step, pieces.at(step, 0), pieces.of(blocks.range(place), index)));
            move_pieces(turn, &mut memory, place, unwritten.take(), back);
        }
        if let Some(step) = out {
            turn.slots().publish(step, header);
        }
        if let Some((step, _)) = back {
            turn.slots().acknowledge(step);
        }
    }
    Ok(())
}

/// For blocks that fit in the line of the flag.
async fn inline(turn: &mut SlotTurn<'_>, all: &mut [u8], blocks: Blocks<'_>) -> Result<()> {
    let own = turn.slots().own_place();
    let step = turn.take_steps(1);
    let header = turn.header();
    turn.until_free(step).await?;
    turn.slots().publish_inline(step, header, &all[blocks.range(own)]);
    for place in (0..turn.world_size() as usize).filter(|place| *place != own) {
        turn.until_published(place, step).await?;
        turn.slots().has_come_to(place, step);
        turn.slots().read_inline(place, step, 0, &mut all[blocks.range(place)]);
    }
    turn.slots().acknowledge(step);
    Ok(())
}
