//! All-reduce over slots.
//!
//! With `P` ranks and `n` bytes:
//!
//! | bytes | what each rank does | bytes read from others per rank |
//! | --- | --- | --- |
//! | up to 512 | publishes its vector in the line of its flag, reduces all vectors | n (P - 1) |
//! | up to 64 KiB / (P - 1) | publishes its vector, reduces all vectors | n (P - 1) |
//! | more, in chunks | publishes the chunk but for its own slice, reduces its slice of all ranks, publishes that, reads the other slices | 2 n (P - 1) / P |
//!
//! Chunks are pipelined: while a rank writes one it reads the results of the one before the last. Slices are
//! `div_ceil(chunk, P)` elements, rounded up to lines of 64 bytes.

use std::ops::{ControlFlow, Range};

use brevity_compress::in_standard_float_mode;
use ucx_sys_wrap::shm::{CHUNK_BYTES, INLINE_BYTES, Step};

use super::all_gather::apart;
use super::turn::SlotTurn;
use crate::element::{Element, ReduceOp};
use crate::error::Result;

/// Up to this many bytes in total, every rank reduces the whole vector.
const ALL_BY_ALL_BYTES: usize = 64 << 10;

/// Up to this many bytes, a separate path clears no more memory than it needs.
const SHORT_BYTES: usize = 64;

/// A vector is cut into about this many chunks, so that the first and the last, which overlap with nothing,
/// are short. The limits of their length follow; the longest are for vectors that do not fit in any cache.
const USUAL_CHUNKS: usize = 8;
const LEAST_CHUNK_BYTES: usize = 32 << 10;
const USUAL_CHUNK_BYTES: usize = 256 << 10;
const LONG_BYTES: usize = 16 << 20;

/// The rest of an all-reduce that was not finished at once.
#[derive(Clone, Copy)]
pub(crate) enum Rest {
    /// Everything.
    All,
    /// The reduction; this rank has published its vector in this step.
    Published(Step),
}

/// Reduces `data` over all ranks, in place. All ranks get the same bits, except for NaN payloads of sums. The
/// caller has checked that the elements can be reduced this way ([`ReduceOp::check`]).
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `data` is unspecified.
pub async fn all_reduce<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
) -> Result<()> {
    match at_once(turn, data, reduction) {
        ControlFlow::Break(result) => result,
        ControlFlow::Continue(rest) => all_reduce_rest(turn, data, reduction, rest).await,
    }
}

/// Tries an [`all_reduce`] in which every rank reduces the whole vector, without the overhead of waiting.
/// Returns what is left if the others do not come soon.
#[inline]
pub(crate) fn at_once<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
) -> ControlFlow<Result<()>, Rest> {
    let bytes = size_of_val(data);
    if bytes <= SHORT_BYTES {
        in_a_step_at_once(turn, data, reduction, publish_line, reduce_lines::<T, SHORT_BYTES>)
    } else if bytes <= INLINE_BYTES {
        in_a_step_at_once(turn, data, reduction, publish_line, reduce_lines::<T, INLINE_BYTES>)
    } else if is_for_all(turn, bytes) {
        in_a_step_at_once(turn, data, reduction, publish_slot, reduce_slots)
    } else {
        ControlFlow::Continue(Rest::All)
    }
}

/// The rest that [`at_once`] has left of an [`all_reduce`].
pub(crate) async fn all_reduce_rest<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
    rest: Rest,
) -> Result<()> {
    let bytes = size_of_val(data);
    if bytes <= INLINE_BYTES {
        in_a_step(turn, data, reduction, rest, publish_line, reduce_lines::<T, INLINE_BYTES>).await?;
    } else if is_for_all(turn, bytes) {
        in_a_step(turn, data, reduction, rest, publish_slot, reduce_slots).await?;
    } else {
        by_slices(turn, data, reduction).await?;
    }
    turn.finish();
    Ok(())
}

/// Whether every rank reduces the whole vector.
#[inline]
fn is_for_all(turn: &SlotTurn<'_>, bytes: usize) -> bool {
    bytes * (turn.world_size() as usize - 1) <= ALL_BY_ALL_BYTES
}

/// Every rank publishes its vector in one step and reduces all of them, if all come soon.
#[inline]
fn in_a_step_at_once<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
    publish: impl FnOnce(&mut SlotTurn<'_>, Step, &[T]),
    reduce: impl FnOnce(&mut SlotTurn<'_>, Step, &mut [T], ReduceOp),
) -> ControlFlow<Result<()>, Rest> {
    let step = turn.slots().next_step();
    if turn.slots().in_the_way(step).is_some() {
        return ControlFlow::Continue(Rest::All);
    }
    let step = turn.take_steps(1);
    publish(turn, step, data);
    for place in 0..turn.slots().places() {
        if place != turn.slots().own_place() {
            match turn.is_soon_published(place, step, size_of_val(data)) {
                Ok(true) => turn.slots().has_come_to(place, step),
                Ok(false) => return ControlFlow::Continue(Rest::Published(step)),
                Err(error) => return ControlFlow::Break(Err(error)),
            }
        }
    }
    reduce(turn, step, data, reduction);
    turn.finish();
    ControlFlow::Break(Ok(()))
}

/// The same, without a time limit.
async fn in_a_step<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    reduction: ReduceOp,
    rest: Rest,
    publish: impl FnOnce(&mut SlotTurn<'_>, Step, &[T]),
    reduce: impl FnOnce(&mut SlotTurn<'_>, Step, &mut [T], ReduceOp),
) -> Result<()> {
    let step = match rest {
        Rest::Published(step) => step,
        Rest::All => {
            let step = turn.take_steps(1);
            turn.until_free(step).await?;
            publish(turn, step, data);
            step
        }
    };
    for place in 0..turn.slots().places() {
        if place != turn.slots().own_place() {
            turn.until_published(place, step).await?;
            turn.slots().has_come_to(place, step);
        }
    }
    reduce(turn, step, data, reduction);
    Ok(())
}

/// Publishes a vector in the line of this rank's flag.
#[inline]
fn publish_line<T: Element>(turn: &mut SlotTurn<'_>, step: Step, data: &[T]) {
    let header = turn.header();
    turn.slots().publish_inline(step, header, bytemuck::cast_slice(data));
}

/// Reduces the lines of all ranks, which have been published.
#[inline]
fn reduce_lines<T: Element, const N: usize>(
    turn: &mut SlotTurn<'_>,
    step: Step,
    data: &mut [T],
    reduction: ReduceOp,
) {
    let world_size = turn.world_size();
    let slots = turn.slots();
    in_standard_float_mode(|| {
        slots.reduce_inline::<T, N>(step, data, |into, from| T::combine(reduction, into, from));
        slots.acknowledge(step);
        divide(data, reduction, world_size);
    });
}

/// Publishes a vector in this rank's slot.
#[inline]
fn publish_slot<T: Element>(turn: &mut SlotTurn<'_>, step: Step, data: &[T]) {
    let header = turn.header();
    turn.slots().write(step, step.place_for(size_of_val(data)), bytemuck::cast_slice(data));
    turn.slots().publish(step, header);
}

/// Reduces the slots of all ranks, which have been published.
#[inline]
fn reduce_slots<T: Element>(turn: &mut SlotTurn<'_>, step: Step, data: &mut [T], reduction: ReduceOp) {
    let world_size = turn.world_size();
    let combine = |into: &mut [T], from: &[T]| T::combine(reduction, into, from);
    let place = step.place_for(size_of_val(data));
    let finish = |block: &mut [T]| divide(block, reduction, world_size);
    in_standard_float_mode(|| turn.slots().reduce((step, place), data, false, combine, finish));
    turn.slots().acknowledge(step);
}

/// Reduces in chunks, of which every rank reduces a slice.
async fn by_slices<T: Element>(turn: &mut SlotTurn<'_>, data: &mut [T], reduction: ReduceOp) -> Result<()> {
    let header = turn.header();
    let chunks = Chunks::new::<T>(data.len(), turn.world_size() as usize);
    let first = turn.take_steps(chunks.count());
    let (own, world_size) = (turn.slots().own_place(), turn.world_size());
    let combine = |into: &mut [T], from: &[T]| T::combine(reduction, into, from);
    let peers = || (0..world_size as usize).filter(|place| *place != own);
    for stage in 0..chunks.count() + 2 {
        let out = (stage < chunks.count()).then(|| first.plus(stage as u64));
        let back = stage.checked_sub(2).map(|chunk| (first.plus(chunk as u64), chunk));
        if let Some(step) = out {
            turn.until_free(step).await?;
        }
        for place in peers() {
            if let Some((step, _)) = back {
                turn.until_second(place, step).await?;
            }
            move_slices(turn, data, &chunks, place, out.map(|step| (step, stage)), back);
        }
        if let Some(step) = out {
            turn.slots().publish(step, header);
        }
        if let Some((step, _)) = back {
            turn.slots().acknowledge(step);
        }
        if let Some(chunk) = stage.checked_sub(1).filter(|chunk| *chunk < chunks.count()) {
            let step = first.plus(chunk as u64);
            until_all_published(turn, step).await?;
            let (at, range) = chunks.slice(chunk, own);
            let finish = |block: &mut [T]| divide(block, reduction, world_size);
            let at = chunks.place(step) + at * size_of::<T>();
            let slice = &mut data[range];
            in_standard_float_mode(|| turn.slots().reduce((step, at), slice, true, combine, finish));
            turn.slots().publish_second(step);
        }
    }
    Ok(())
}

/// Writes the slice of one chunk that the rank at `place` reduces, and reads its result of another.
fn move_slices<T: Element>(
    turn: &mut SlotTurn<'_>,
    data: &mut [T],
    chunks: &Chunks,
    place: usize,
    out: Option<(Step, usize)>,
    back: Option<(Step, usize)>,
) {
    let out = out.map(|(step, chunk)| (step, chunks.slice(chunk, place)));
    let back = back.map(|(step, chunk)| (step, chunks.slice(chunk, place)));
    let bytes = |step: Step, elements: usize| chunks.place(step) + elements * size_of::<T>();
    match (out, back) {
        (Some((to, (at, out))), Some((from, (start, back)))) => {
            let (out, back) = apart(data, out, back);
            let out = (to, bytes(to, at), bytemuck::cast_slice(out));
            turn.slots().exchange(out, (place, from, bytes(from, start)), bytemuck::cast_slice_mut(back));
        }
        (Some((step, (at, range))), None) => {
            turn.slots().write(step, bytes(step, at), bytemuck::cast_slice(&data[range]));
        }
        (None, Some((step, (at, range)))) => {
            turn.slots().read(place, step, bytes(step, at), bytemuck::cast_slice_mut(&mut data[range]));
        }
        (None, None) => {}
    }
}

async fn until_all_published(turn: &mut SlotTurn<'_>, step: Step) -> Result<()> {
    for place in 0..turn.world_size() as usize {
        if place != turn.slots().own_place() {
            turn.until_published(place, step).await?;
        }
    }
    Ok(())
}

fn divide<T: Element>(block: &mut [T], reduction: ReduceOp, world_size: u32) {
    if reduction == ReduceOp::Average {
        T::divide(block, world_size);
    }
}

/// How a vector is cut into chunks, and these into slices; in elements unless stated otherwise.
struct Chunks {
    length: usize,
    chunk: usize,
    chunk_bytes: usize,
    ranks: usize,
    line: usize,
}

impl Chunks {
    fn new<T>(length: usize, ranks: usize) -> Self {
        let bytes = length * size_of::<T>();
        let chunk_bytes = if bytes < LONG_BYTES {
            (bytes / USUAL_CHUNKS).next_power_of_two().clamp(LEAST_CHUNK_BYTES, USUAL_CHUNK_BYTES)
        } else {
            CHUNK_BYTES
        };
        Self { length, chunk: chunk_bytes / size_of::<T>(), chunk_bytes, ranks, line: 64 / size_of::<T>() }
    }

    fn count(&self) -> usize {
        self.length.div_ceil(self.chunk)
    }

    /// The start of the chunk of `step` in its slot, in bytes.
    fn place(&self, step: Step) -> usize {
        step.place_for(self.chunk_bytes)
    }

    /// The slice of `chunk` that the rank at `place` reduces: its start in the chunk, and its range in the
    /// vector.
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
        for ranks in 1..=33 {
            for length in [0, 1, 15, 1000, 65_535, 65_536, 65_537, 1_000_001, 5_000_000] {
                let chunks = Chunks::new::<f32>(length, ranks);
                let mut end = 0;
                for chunk in 0..chunks.count() {
                    for place in 0..ranks {
                        let (at, range) = chunks.slice(chunk, place);
                        assert_eq!((range.start, at), (end, end - chunk * chunks.chunk));
                        assert!(
                            (at + range.len()) * 4 <= chunks.chunk_bytes,
                            "it goes beyond its place in the slot"
                        );
                        assert!(range.is_empty() || (at * 4).is_multiple_of(64));
                        end = range.end;
                    }
                }
                assert_eq!(end, length);
            }
        }
    }
}
