//! Reductions over the slots of all ranks, in the [fixed order](crate::shm::order).

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{PAYLOAD_AT, Slots, Step, check_chunk, check_inline};
use crate::shm::area::LINE_BYTES;
use crate::shm::blocks::{self, BLOCK_BYTES};
use crate::shm::order::{OrderStep, order, order_depth};

/// A reduction of elements, which are bytes here. Elements of partial results may be longer, *wide*. Slices
/// are whole elements of equal count, and aligned as the memory of the caller or to 64 bytes; empty ones may
/// have any address.
pub trait Fold {
    /// Why a reduction can fail.
    type Error;

    /// Bytes of an element.
    fn size(&self) -> usize;

    /// Bytes of an element of a partial result.
    fn wide(&self) -> usize;

    /// Makes partial results of elements.
    fn start(&self, into: &mut [u8], from: &[u8]);

    /// Adds elements to partial results. Commutes, except for NaN payloads.
    ///
    /// # Errors
    /// When the reduction fails.
    fn take(&self, into: &mut [u8], from: &[u8]) -> Result<(), Self::Error>;

    /// Adds partial results to others. Commutes, except for NaN payloads.
    ///
    /// # Errors
    /// When the reduction fails.
    fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<(), Self::Error>;

    /// Makes results of partial results, which it may change.
    fn end(&self, into: &mut [u8], from: &mut [u8]);

    /// Makes results of partial results of the same length.
    fn end_in_place(&self, values: &mut [u8]);
}

/// The operand of this rank in a reduction, and where its result goes.
#[derive(Debug)]
pub enum Part<'a> {
    /// The result replaces the operand.
    InPlace(&'a mut [u8]),
    /// The result goes to the second slice, of the same length as the first.
    Apart(&'a [u8], &'a mut [u8]),
    /// The result goes to the slot alone.
    Published(&'a [u8]),
}

impl Part<'_> {
    /// Its length.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::InPlace(data) => data.len(),
            Self::Apart(operand, _) | Self::Published(operand) => operand.len(),
        }
    }

    /// A block of it.
    #[inline]
    fn block(&mut self, range: Range<usize>) -> Part<'_> {
        match self {
            Self::InPlace(data) => Part::InPlace(&mut data[range]),
            Self::Apart(operand, result) => Part::Apart(&operand[range.clone()], &mut result[range]),
            Self::Published(operand) => Part::Published(&operand[range]),
        }
    }
}

/// Memory in units that fit every element type.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

/// Lines for the reduction of a block that are on the stack: enough for 128 ranks.
const LINES: usize = 8 * BLOCK_BYTES / LINE_BYTES;

/// Buffers for the reduction of a block, `stride` bytes each.
struct Scratch<'a> {
    bytes: &'a mut [u8],
    stride: usize,
}

impl Scratch<'_> {
    #[inline]
    fn borrowed(&mut self) -> Scratch<'_> {
        Scratch { bytes: self.bytes, stride: self.stride }
    }

    /// One buffer, and the rest.
    #[inline]
    fn split(&mut self) -> (&mut [u8], Scratch<'_>) {
        let (first, bytes) = self.bytes.split_at_mut(self.stride);
        (first, Scratch { bytes, stride: self.stride })
    }
}

/// Calls `run` with zeroed scratch for blocks of up to `bytes` bytes of a reduction over `ranks` ranks. No
/// more is zeroed than is used.
#[inline]
fn with_scratch<R>(bytes: usize, ranks: u32, is_apart: bool, run: impl FnOnce(Scratch<'_>) -> R) -> R {
    let stride = bytes.next_multiple_of(LINE_BYTES);
    // A peer's operand, the bottom of the stack unless that is the caller's memory, and the rest of it.
    let needed = (order_depth(ranks) + usize::from(is_apart)) * (stride / LINE_BYTES);
    let mut memory = [const { MaybeUninit::<Line>::uninit() }; LINES];
    let mut heap = Vec::new();
    let lines = match memory.get_mut(..needed) {
        Some(lines) => zeroed(lines),
        None => {
            heap.resize(needed, Line([0; LINE_BYTES]));
            &mut heap[..]
        }
    };
    run(Scratch { bytes: bytemuck::cast_slice_mut(lines), stride })
}

#[inline]
fn zeroed(lines: &mut [MaybeUninit<Line>]) -> &mut [Line] {
    for line in &mut *lines {
        line.write(Line([0; LINE_BYTES]));
    }
    // SAFETY: all of them were just written, and the slice that is borrowed is used through the result alone.
    unsafe { &mut *(std::ptr::from_mut(lines) as *mut [Line]) }
}

impl Slots {
    /// Reduces over all ranks what was published by [`publish_inline`](Self::publish_inline), at `offset` of
    /// it; otherwise like [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// As for [`reduce`](Self::reduce).
    ///
    /// # Panics
    /// When the part ends after [`INLINE_BYTES`](super::INLINE_BYTES), or is [`Part::Published`].
    #[inline]
    pub fn reduce_inline<F: Fold>(
        &self,
        (step, offset): (Step, usize),
        mut part: Part<'_>,
        fold: &F,
    ) -> Result<(), F::Error> {
        assert!(!matches!(part, Part::Published(_)), "a result that goes nowhere");
        let (bytes, ranks) = (part.bytes(), self.places() as u32);
        check_inline(offset.saturating_add(bytes));
        let at = step.control() + PAYLOAD_AT + offset;
        if fold.wide() == fold.size() {
            return with_scratch(bytes, ranks, false, |mut scratch| {
                self.reduce_block(at, part, &mut scratch, fold).map(drop)
            });
        }
        let length = (BLOCK_BYTES / fold.wide()).max(1) * fold.size();
        with_scratch(length.min(bytes) / fold.size() * fold.wide(), ranks, true, |mut scratch| {
            for start in (0..bytes).step_by(length) {
                let block = part.block(start..bytes.min(start + length));
                self.reduce_block(at + start, block, &mut scratch, fold)?;
            }
            Ok(())
        })
    }

    /// Reduces over all ranks, in the fixed order of places. The others' operands lie at `offset` in their
    /// slots of the step. Works a block at a time, so that a block is still in the cache when it is combined.
    ///
    /// With `publishing`, the result goes to this rank's slot too, at the same offset.
    ///
    /// # Errors
    /// When the reduction fails; the result is unspecified then.
    ///
    /// # Panics
    /// When the part is longer than the slot, its slices differ in length, elements have no bytes, or the
    /// part is [`Part::Published`] without `publishing`.
    pub fn reduce<F: Fold>(
        &mut self,
        (step, offset): (Step, usize),
        mut part: Part<'_>,
        publishing: bool,
        fold: &F,
    ) -> Result<(), F::Error> {
        let bytes = part.bytes();
        check_chunk(offset, bytes);
        assert!(publishing || !matches!(part, Part::Published(_)), "a result that goes nowhere");
        if publishing {
            self.count(bytes);
        }
        let start = step.chunk() + offset;
        let streams = self.store_policy.is_slow();
        self.is_unfenced |= publishing && streams;
        let length = (BLOCK_BYTES / fold.wide()).max(1) * fold.size();
        let is_apart = fold.wide() != fold.size() || matches!(part, Part::Published(_));
        let ranks = self.places() as u32;
        with_scratch(length.min(bytes) / fold.size() * fold.wide(), ranks, is_apart, |mut scratch| {
            for from in (0..bytes).step_by(length) {
                let to = bytes.min(from + length);
                let (at, next, left) = (start + from, start + to, bytes - to);
                for peer in self.peers.iter().flatten() {
                    blocks::prefetch_to_read(peer, next, left);
                }
                if publishing && !streams {
                    blocks::prefetch_to_write(&self.own, next, left);
                }
                let block = self.reduce_block(at, part.block(from..to), &mut scratch, fold)?;
                if publishing {
                    if streams {
                        self.own.stream_unfenced(at, block)
                    } else {
                        self.own.write_block(at, block)
                    }
                }
            }
            Ok(())
        })
    }

    /// Reduces one block in the fixed order, and returns where the result is.
    #[inline]
    fn reduce_block<'a, F: Fold>(
        &self,
        at: usize,
        part: Part<'a>,
        scratch: &'a mut Scratch<'_>,
        fold: &F,
    ) -> Result<&'a [u8], F::Error> {
        let bytes = part.bytes();
        let is_wide = fold.wide() != fold.size();
        if !is_wide {
            let (own, mut rest) = match part {
                Part::InPlace(data) => (data, scratch.borrowed()),
                Part::Apart(operand, result) => {
                    result.copy_from_slice(operand);
                    (result, scratch.borrowed())
                }
                Part::Published(operand) => {
                    let (own, rest) = scratch.split();
                    let own = &mut own[..bytes];
                    own.copy_from_slice(operand);
                    (own, rest)
                }
            };
            self.stack(at, own, (bytes, bytes), &mut rest, fold)?;
            fold.end_in_place(own);
            return Ok(own);
        }
        let wide = bytes / fold.size() * fold.wide();
        let (bottom, mut rest) = scratch.split();
        let bottom = &mut bottom[..wide];
        match &part {
            Part::InPlace(data) => fold.start(bottom, data),
            Part::Apart(operand, _) | Part::Published(operand) => fold.start(bottom, operand),
        }
        self.stack(at, bottom, (bytes, wide), &mut rest, fold)?;
        let result = match part {
            Part::InPlace(result) | Part::Apart(_, result) => result,
            // No entry of the stack is needed any more.
            Part::Published(_) => &mut rest.bytes[..bytes],
        };
        fold.end(result, bottom);
        Ok(result)
    }

    /// Runs the order on blocks of `bytes` bytes, `wide` as partial results; `bottom` is the stack's first
    /// entry, and has this rank's operand.
    #[inline]
    fn stack<F: Fold>(
        &self,
        at: usize,
        bottom: &mut [u8],
        (bytes, wide): (usize, usize),
        scratch: &mut Scratch<'_>,
        fold: &F,
    ) -> Result<(), F::Error> {
        let stride = scratch.stride;
        let (theirs, entries) = scratch.split();
        let theirs = &mut theirs[..bytes];
        let entries = entries.bytes;
        // Entries above the bottom.
        let mut height = 0;
        order(self.places() as u32, self.own_place as u32).try_for_each(|step| {
            match step {
                OrderStep::Push(place) => {
                    // The first is this rank's own.
                    let Some(peer) = &self.peers[place as usize] else { return Ok(()) };
                    let top = &mut entries[height * stride..][..wide];
                    height += 1;
                    if wide == bytes {
                        peer.read_block(at, top);
                    } else {
                        peer.read_block(at, theirs);
                        fold.start(top, theirs);
                    }
                    Ok(())
                }
                OrderStep::Add(place) => {
                    self.peer(place as usize).read_block(at, theirs);
                    let top = match height {
                        0 => &mut *bottom,
                        _ => &mut entries[(height - 1) * stride..][..wide],
                    };
                    fold.take(top, theirs)
                }
                OrderStep::Merge => {
                    height -= 1;
                    let (below, top) = entries.split_at_mut(height * stride);
                    let below = match height {
                        0 => &mut *bottom,
                        _ => &mut below[(height - 1) * stride..][..wide],
                    };
                    fold.combine(below, &top[..wide])
                }
            }
        })
    }
}
