//! Collectives over several hosts, inside one of them, where the blocks of a rank are a *row*: one for each
//! host.
//!
//! Of the vectors of all ranks, the ranks at equal places of the hosts have a row. A step has a piece of one
//! block of each row; the pieces of the blocks follow each other without a break. With `L` ranks on the host
//! and rows of `n` bytes, every rank writes n and reads n (L - 1) to gather; it writes and reads n (L - 1) to
//! reduce.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;
use ucx_sys_wrap::shm::Part;

use super::folding::Folding;
use super::memory::Pieces;
use super::turn::SlotTurn;
use crate::data::Reducer;
use crate::error::Result;

/// The rows of the ranks of this host, by place: the ranks of the group whose blocks they have.
pub(crate) type Rows<'a> = &'a [Arc<[u32]>];

/// Gathers the rows of all ranks of this host. `blocks` are those of all ranks of the group, and have equal
/// lengths on all ranks of this host; those of this rank's row are there. A part of a turn.
pub(crate) async fn all_gather_rows(
    turn: &mut SlotTurn<'_>,
    blocks: &mut [Chunk<'_, u8>],
    rows: Rows<'_>,
) -> Result<()> {
    let own = turn.slots().own_place();
    let others = || (0..rows.len()).filter(|place| *place != own);
    let longest = blocks.iter().map(|block| block.len()).max().unwrap_or(0);
    // Marks travel with empty blocks too.
    let pieces = Pieces::for_readers(longest.max(1));
    let count = rows[own].len() * pieces.count();
    let first = turn.take_steps(count);
    let header = turn.header();
    let block = |place: usize, index: usize| rows[place][index / pieces.count()] as usize;
    for stage in 0..=count {
        if stage < count {
            let step = first.plus(stage as u64);
            turn.until_free(step).await?;
            let data = &blocks[block(own, stage)];
            let piece = pieces.of(0..data.len(), stage % pieces.count());
            turn.slots().write(step, pieces.at(step, 0), &data[piece]);
            turn.slots().publish(step, header);
        }
        if let Some(index) = stage.checked_sub(1) {
            let step = first.plus(index as u64);
            for place in others() {
                turn.until_published(place, step).await?;
                let data = &mut blocks[block(place, index)];
                let piece = pieces.of(0..data.len(), index % pieces.count());
                turn.slots().read(place, step, pieces.at(step, 0), &mut data[piece]);
            }
            turn.slots().acknowledge(step);
        }
    }
    Ok(())
}

/// What a rank brings to a reduction of rows.
pub(crate) struct Operands<'a, 'env> {
    /// The blocks of all ranks of the group; those of this rank's row are not read if they are in place.
    pub(crate) blocks: &'a [&'a [u8]],
    /// The length of the longest of them.
    pub(crate) longest: usize,
    /// Whether the results hold the operands of this rank's row.
    pub(crate) is_in_place: bool,
    /// What this rank gets: the blocks of its row.
    pub(crate) results: &'a mut [Chunk<'env, u8>],
}

/// Reduces the vectors of all ranks of this host, in the fixed order; each gets its row of the result. Blocks
/// have equal lengths on all ranks of this host. A part of a turn.
pub(crate) async fn reduce_rows(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    operands: Operands<'_, '_>,
    rows: Rows<'_>,
) -> Result<()> {
    let Operands { blocks, longest, is_in_place, results } = operands;
    let (own, places) = (turn.slots().own_place(), rows.len());
    let pieces = Pieces::new(longest.max(1), places, reducer.size());
    let count = results.len() * pieces.count();
    let first = turn.take_steps(count);
    let header = turn.header();
    let fold = Folding { reducer, ranks: places as u32 };
    for stage in 0..=count {
        if stage < count {
            let step = first.plus(stage as u64);
            turn.until_free(step).await?;
            for place in (0..places).filter(|place| *place != own) {
                let data = blocks[rows[place][stage / pieces.count()] as usize];
                let piece = pieces.of(0..data.len(), stage % pieces.count());
                turn.slots().write(step, pieces.at(step, place), &data[piece]);
            }
            turn.slots().publish(step, header);
        }
        if let Some(index) = stage.checked_sub(1) {
            let step = first.plus(index as u64);
            turn.until_all_published(step).await?;
            let host = index / pieces.count();
            let result = &mut results[host];
            let piece = pieces.of(0..result.len(), index % pieces.count());
            let part = if is_in_place {
                Part::InPlace(&mut result[piece])
            } else {
                let operand = blocks[rows[own][host] as usize];
                Part::Apart(&operand[piece.clone()], &mut result[piece])
            };
            let at = (step, pieces.at(step, own));
            let slots = turn.slots();
            reducer.in_mode(|| slots.reduce(at, part, false, &fold))?;
            turn.slots().acknowledge(step);
        }
    }
    Ok(())
}
