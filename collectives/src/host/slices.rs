//! Reductions of long vectors over slots, in chunks, of which every rank reduces a slice.
//!
//! Each rank publishes a chunk but for its own slice, reduces its slice of all ranks, and publishes that as
//! the second part of the step. Those who get the result read the other slices. Chunks are pipelined: while a
//! rank writes one it reads the results of the one before the last. Slices are `div_ceil(chunk, P)` elements,
//! rounded up to lines of 64 bytes where these hold whole elements.
//!
//! With `P` ranks and `n` bytes, a rank reads n (P - 1) / P to reduce its slices, and as much again to get
//! the result.

use std::ops::Range;

use ucx_sys_wrap::shm::{CHUNK_BYTES, LINE_BYTES, Part, Step};

use super::folding::Folding;
use super::memory::{Memory, move_pieces};
use super::turn::SlotTurn;
use crate::data::Reducer;
use crate::error::Result;

/// A vector is cut into about this many chunks, so that the first and the last, which overlap with nothing,
/// are short. The limits of their length follow; the longest are for vectors that do not fit in any cache.
const USUAL_CHUNKS: usize = 8;
const LEAST_CHUNK_BYTES: usize = 32 << 10;
const USUAL_CHUNK_BYTES: usize = 256 << 10;
const LONG_BYTES: usize = 16 << 20;

/// Reduces the input of all ranks; the result goes to the output of the rank at `root`, or of all ranks.
pub(super) async fn by_slices(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    mut memory: Memory<'_>,
    root: Option<usize>,
) -> Result<()> {
    let header = turn.header();
    let (own, world_size) = (turn.slots().own_place(), turn.world_size());
    let chunks = Chunks::new(memory.input().len(), reducer.size(), world_size as usize);
    let first = turn.take_steps(chunks.count());
    let is_reader = root.is_none_or(|root| root == own);
    for stage in 0..chunks.count() + if is_reader { 2 } else { 1 } {
        let out = (stage < chunks.count()).then(|| first.plus(stage as u64));
        let back = stage.checked_sub(2).filter(|_| is_reader);
        let back = back.map(|chunk| (first.plus(chunk as u64), chunk));
        if let Some(step) = out {
            turn.until_free(step).await?;
        }
        for place in (0..world_size as usize).filter(|place| *place != own) {
            if let Some((step, _)) = back {
                turn.until_second(place, step).await?;
            }
            let out = out.map(|step| chunks.piece(step, stage, place));
            let back = back.map(|(step, chunk)| chunks.piece(step, chunk, place));
            move_pieces(turn, &mut memory, place, out, back);
        }
        if let Some(step) = out {
            turn.slots().publish(step, header);
        }
        if let Some((step, _)) = back {
            turn.slots().acknowledge(step);
        }
        if let Some(chunk) = stage.checked_sub(1).filter(|chunk| *chunk < chunks.count()) {
            let step = first.plus(chunk as u64);
            turn.until_all_published(step).await?;
            let (_, at, range) = chunks.piece(step, chunk, own);
            let fold = Folding { reducer, ranks: world_size };
            // The root reads its own slices nowhere, and nobody else does.
            let is_read = root != Some(own);
            let part = match memory.input {
                Some(input) if !is_reader => Part::Published(&input[range]),
                _ => memory.part(range.clone(), range),
            };
            let slots = turn.slots();
            reducer.in_mode(|| slots.reduce((step, at), part, is_read, &fold))?;
            if is_read {
                turn.slots().publish_second(step);
            }
            if !is_reader {
                turn.slots().acknowledge(step);
            }
        }
    }
    Ok(())
}

/// How a vector is cut into chunks, and these into slices, in bytes.
struct Chunks {
    length: usize,
    chunk: usize,
    /// Bytes of a chunk's place in a slot.
    room: usize,
    ranks: usize,
    /// What slices are multiples of.
    line: usize,
}

impl Chunks {
    /// For `length` bytes of elements of `element` bytes.
    fn new(length: usize, element: usize, ranks: usize) -> Self {
        let room = if length < LONG_BYTES {
            (length / USUAL_CHUNKS).next_power_of_two().clamp(LEAST_CHUNK_BYTES, USUAL_CHUNK_BYTES)
        } else {
            CHUNK_BYTES
        };
        let line = (LINE_BYTES / element).max(1) * element;
        let chunk = (room / line).max(1) * line;
        Self { length, chunk, room: room.max(chunk), ranks, line }
    }

    fn count(&self) -> usize {
        self.length.div_ceil(self.chunk)
    }

    /// The slice of `chunk`, which is in `step`, that the rank at `place` reduces.
    fn piece(&self, step: Step, chunk: usize, place: usize) -> (Step, usize, Range<usize>) {
        let (at, range) = self.slice(chunk, place);
        (step, step.place_for(self.room) + at, range)
    }

    /// Its start in the chunk, and its range in the vector.
    fn slice(&self, chunk: usize, place: usize) -> (usize, Range<usize>) {
        let start = chunk * self.chunk;
        let length = self.chunk.min(self.length - start);
        let slice = length.div_ceil(self.ranks).next_multiple_of(self.line);
        let (from, to) = ((place * slice).min(length), ((place + 1) * slice).min(length));
        (from, start + from..start + to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_the_vector_once_and_in_order() {
        for (ranks, element) in (1..=33).flat_map(|ranks| [1, 2, 4, 8, 12, 100].map(|size| (ranks, size))) {
            for length in [0, 1, 15, 1000, 65_535, 65_536, 65_537, 1_000_001, 5_000_000] {
                let chunks = Chunks::new(length * element, element, ranks);
                let mut end = 0;
                for chunk in 0..chunks.count() {
                    for place in 0..ranks {
                        let (at, range) = chunks.slice(chunk, place);
                        assert_eq!((range.start, at), (end, end - chunk * chunks.chunk));
                        assert!(at + range.len() <= chunks.room, "it goes beyond its place in the slot");
                        assert!(range.len().is_multiple_of(element), "cut elements");
                        assert!(range.is_empty() || at.is_multiple_of(64) || 64 % element != 0);
                        end = range.end;
                    }
                }
                assert_eq!(end, length * element);
            }
        }
    }
}
