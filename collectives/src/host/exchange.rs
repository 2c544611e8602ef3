//! Exchanges of blocks over slots: what gather, scatter and all-to-all have in common.
//!
//! A rank writes a block for some ranks, and reads a block of some. Blocks are in the cache line of the flag
//! if all that a rank writes has up to 512 bytes, else in pieces: in a step a rank writes a piece of each of
//! its blocks, and reads pieces that others wrote in the step before. So a piece may lie in memory that is
//! overwritten by the same piece of the block that the other sends.
//!
//! Where a rank does not know the lengths of all blocks, there is one step before, in which each rank
//! publishes a table: the length of the longest block that it knows of, and of its block for each rank. From
//! the first follows the number of steps, from the others whether each block has the length that its reader
//! expects.

use std::ops::Range;

use ucx_sys_wrap::shm::INLINE_BYTES;

use super::memory::{Memory, Pieces, move_pieces};
use super::turn::SlotTurn;
use crate::error::Result;

/// No block is longer: the address space has less.
const MOST_BYTES: u64 = 1 << 48;

/// An exchange: the ranges of the input to write for each rank, and of the output to read from each. Ranges
/// of this rank itself are not copied.
pub(super) struct Exchange<W, R> {
    pub(super) writes: W,
    pub(super) reads: R,
    /// The blocks that a rank writes: 1, for the same reader, or one for each rank.
    pub(super) rooms: usize,
    /// The length of all blocks; `None` if they differ.
    pub(super) length: Option<usize>,
}

impl<W, R> Exchange<W, R>
where
    W: Fn(usize) -> Option<Range<usize>>,
    R: Fn(usize) -> Option<Range<usize>>,
{
    /// Moves the blocks. Those of differing lengths have one step more.
    pub(super) async fn run(self, turn: &mut SlotTurn<'_>, memory: Memory<'_>) -> Result<()> {
        self.run_part(turn, memory).await?;
        turn.finish();
        Ok(())
    }

    /// Likewise, as a part of a turn.
    pub(super) async fn run_part(self, turn: &mut SlotTurn<'_>, mut memory: Memory<'_>) -> Result<()> {
        let longest = match self.length {
            Some(length) if self.rooms * length <= INLINE_BYTES => {
                return self.inline(turn, &mut memory, length).await;
            }
            Some(length) => length,
            None => self.agree(turn).await?,
        };
        let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
        let peers = || (0..places).filter(|place| *place != own);
        let is_writer = peers().any(|place| (self.writes)(place).is_some());
        let is_reader = peers().any(|place| (self.reads)(place).is_some());
        let pieces = Pieces::new(longest, self.rooms, 1);
        let header = turn.header();
        let first = turn.take_steps(pieces.count());
        for stage in 0..pieces.count() + usize::from(is_reader) {
            let out = (stage < pieces.count() && is_writer).then(|| first.plus(stage as u64));
            let back = stage.checked_sub(1).filter(|_| is_reader);
            let back = back.map(|index| (first.plus(index as u64), index));
            if let Some(step) = out {
                turn.until_free(step).await?;
            }
            for place in peers() {
                let out = out.and_then(|step| {
                    let range = pieces.of((self.writes)(place)?, stage);
                    Some((step, pieces.at(step, self.room(place)), range))
                });
                let back = back.and_then(|(step, index)| {
                    let range = pieces.of((self.reads)(place)?, index);
                    Some((step, pieces.at(step, self.room(own)), range))
                });
                if let Some((step, ..)) = &back {
                    turn.until_published(place, *step).await?;
                }
                move_pieces(turn, &mut memory, place, out, back);
            }
            if let Some(step) = out {
                turn.slots().publish(step, header);
            }
            if let Some((step, _)) = back {
                turn.slots().acknowledge(step);
            } else if !is_reader {
                turn.slots().acknowledge(first.plus(stage as u64));
            }
        }
        Ok(())
    }

    /// The room of the block for the rank at `place`, in the slot of its writer.
    fn room(&self, place: usize) -> usize {
        if self.rooms == 1 { 0 } else { place }
    }

    /// For blocks that fit in the line of the flag.
    async fn inline(&self, turn: &mut SlotTurn<'_>, memory: &mut Memory<'_>, length: usize) -> Result<()> {
        let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
        let peers = || (0..places).filter(|place| *place != own);
        let step = turn.take_steps(1);
        let header = turn.header();
        if peers().any(|place| (self.writes)(place).is_some()) {
            turn.until_free(step).await?;
            turn.slots().publish_inline(step, header, &memory.input()[..self.rooms * length]);
        }
        for place in peers() {
            if let Some(range) = (self.reads)(place) {
                turn.until_published(place, step).await?;
                let at = self.room(own) * length;
                turn.slots().read_inline(place, step, at, &mut memory.output[range]);
            }
        }
        turn.slots().acknowledge(step);
        Ok(())
    }

    /// Publishes the lengths that this rank knows, and checks those of the others. Returns the length of the
    /// longest block of all.
    async fn agree(&self, turn: &mut SlotTurn<'_>) -> Result<usize> {
        let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
        let length = |range: Option<Range<usize>>| range.map_or(0, |range| range.len()) as u64;
        let mut table: Vec<u64> = (0..places).map(|place| length((self.writes)(place))).collect();
        let read = (0..places).map(|place| length((self.reads)(place))).max();
        let mut longest = table.iter().copied().max().max(read).unwrap_or(0);
        table.insert(0, longest);
        let step = turn.take_steps(1);
        let header = turn.header();
        turn.until_free(step).await?;
        let at = step.place_for(size_of_val(&table[..]));
        turn.slots().write(step, at, bytemuck::cast_slice(&table));
        turn.slots().publish(step, header);
        for place in (0..places).filter(|place| *place != own) {
            turn.until_published(place, step).await?;
            let mut word = |index: usize| {
                let mut word = 0u64;
                turn.slots().read(place, step, at + 8 * index, bytemuck::bytes_of_mut(&mut word));
                word
            };
            let (most, found) = (word(0), word(1 + own));
            let expected = length((self.reads)(place));
            if found != expected {
                return Err(turn.refuse(place, format!("a block of {found} bytes, expected {expected}")));
            }
            if most > MOST_BYTES {
                return Err(turn.refuse(place, format!("a block of {most} bytes, expected less")));
            }
            longest = longest.max(most);
        }
        turn.slots().acknowledge(step);
        Ok(longest as usize)
    }
}
