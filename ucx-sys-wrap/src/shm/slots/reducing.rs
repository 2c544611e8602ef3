//! Reductions over the slots of all ranks, in the [fixed order](crate::shm::order).

use std::ops::Range;

use super::{PAYLOAD_AT, Slots, Step, check_chunk, check_inline};
use crate::shm::area::{LINE_BYTES, PeerArea};
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

/// What reductions over slots need besides them: the order, and memory for blocks of partial results.
pub(super) struct Reductions {
    order: Box<[OrderStep]>,
    /// Blocks that a reduction needs: a peer's operand, and the stack with its bottom.
    blocks: usize,
    lines: Vec<Line>,
}

impl Reductions {
    /// For reductions over `places` ranks at the rank at `own`.
    pub(super) fn new(places: usize, own: usize) -> Self {
        let blocks = 1 + order_depth(places as u32);
        let lines = vec![Line([0; LINE_BYTES]); blocks * BLOCK_BYTES / LINE_BYTES];
        Self { order: order(places as u32, own as u32).collect(), blocks, lines }
    }

    /// The order, and a buffer for a peer's operand and one for each entry of the stack, for blocks of up to
    /// `stride` bytes.
    #[inline]
    fn parts(&mut self, stride: usize) -> (&[OrderStep], &mut [u8], &mut [u8]) {
        let needed = self.blocks * stride / LINE_BYTES;
        if needed > self.lines.len() {
            self.grow(needed);
        }
        let (theirs, stack) = bytemuck::cast_slice_mut(&mut self.lines).split_at_mut(stride);
        (&self.order, theirs, stack)
    }

    /// Makes room for elements that are longer than blocks.
    #[cold]
    fn grow(&mut self, needed: usize) {
        self.lines.resize(needed, Line([0; LINE_BYTES]));
    }
}

/// Bytes between two blocks of partial results: those of a block, or of one element if that is longer.
#[inline]
fn stride<F: Fold>(fold: &F) -> usize {
    if fold.wide() <= BLOCK_BYTES { BLOCK_BYTES } else { fold.wide().next_multiple_of(LINE_BYTES) }
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
        &mut self,
        (step, offset): (Step, usize),
        mut part: Part<'_>,
        fold: &F,
    ) -> Result<(), F::Error> {
        assert!(!matches!(part, Part::Published(_)), "a result that goes nowhere");
        let bytes = part.bytes();
        check_inline(offset.saturating_add(bytes));
        let at = step.control() + PAYLOAD_AT + offset;
        if fold.wide() == fold.size() {
            return self.reductions.reduce(&self.peers, at, part, fold).map(drop);
        }
        let length = (BLOCK_BYTES / fold.wide()).max(1) * fold.size();
        for start in (0..bytes).step_by(length) {
            let block = part.block(start..bytes.min(start + length));
            self.reductions.reduce(&self.peers, at + start, block, fold)?;
        }
        Ok(())
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
        for from in (0..bytes).step_by(length) {
            let to = bytes.min(from + length);
            let (at, next, left) = (start + from, start + to, bytes - to);
            for peer in self.peers.iter().flatten() {
                blocks::prefetch_to_read(peer, next, left);
            }
            if publishing && !streams {
                blocks::prefetch_to_write(&self.own, next, left);
            }
            let Self { peers, reductions, own, .. } = self;
            let block = reductions.reduce(peers, at, part.block(from..to), fold)?;
            if publishing && streams {
                own.stream_unfenced(at, block);
            } else if publishing {
                own.write_block(at, block);
            }
        }
        Ok(())
    }
}

impl Reductions {
    /// Reduces one block, whose operands are at `at` of the areas of `peers`; returns where the result is.
    #[inline(always)]
    fn reduce<'a, F: Fold>(
        &'a mut self,
        peers: &[Option<PeerArea>],
        at: usize,
        part: Part<'a>,
        fold: &F,
    ) -> Result<&'a [u8], F::Error> {
        match (part, &*self.order) {
            // Two ranks need no stack.
            (Part::InPlace(own), &[_, OrderStep::Add(place)])
                if fold.wide() == fold.size() && own.len() <= BLOCK_BYTES =>
            {
                let theirs = &mut bytemuck::cast_slice_mut(&mut self.lines)[..own.len()];
                if let Some(peer) = &peers[place as usize] {
                    peer.read_block(at, theirs);
                    fold.take(own, theirs)?;
                }
                fold.end_in_place(own);
                Ok(own)
            }
            (part, _) => self.reduce_by_stack(peers, at, part, fold),
        }
    }

    /// The same for any number of ranks.
    fn reduce_by_stack<'a, F: Fold>(
        &'a mut self,
        peers: &[Option<PeerArea>],
        at: usize,
        part: Part<'a>,
        fold: &F,
    ) -> Result<&'a [u8], F::Error> {
        let bytes = part.bytes();
        let stride = stride(fold);
        let (order, theirs, stack) = self.parts(stride);
        if fold.wide() != fold.size() {
            let wide = bytes / fold.size() * fold.wide();
            let (first, above) = stack.split_at_mut(stride);
            let first = &mut first[..wide];
            match &part {
                Part::InPlace(data) => fold.start(first, data),
                Part::Apart(operand, _) | Part::Published(operand) => fold.start(first, operand),
            }
            let buffers = Buffers { theirs: &mut theirs[..bytes], first, above, stride };
            buffers.run(order, peers, at, fold)?;
            let result = match part {
                Part::InPlace(result) | Part::Apart(_, result) => result,
                Part::Published(_) => &mut theirs[..bytes],
            };
            fold.end(result, &mut stack[..wide]);
            return Ok(result);
        }
        let (first, above) = stack.split_at_mut(stride);
        // Elements are not wide, so the bottom of the stack may be where the result goes.
        let own = match part {
            Part::InPlace(data) => data,
            Part::Apart(operand, result) => {
                result.copy_from_slice(operand);
                result
            }
            Part::Published(operand) => {
                let own = &mut first[..bytes];
                own.copy_from_slice(operand);
                own
            }
        };
        let buffers = Buffers { theirs: &mut theirs[..bytes], first: &mut *own, above, stride };
        buffers.run(order, peers, at, fold)?;
        fold.end_in_place(own);
        Ok(own)
    }
}

/// The buffers of the reduction of one block.
struct Buffers<'a> {
    /// For the operand of a peer.
    theirs: &'a mut [u8],
    /// The bottom of the stack, with this rank's operand.
    first: &'a mut [u8],
    /// The entries above it, each `stride` bytes after the one before.
    above: &'a mut [u8],
    stride: usize,
}

impl Buffers<'_> {
    /// Runs the order, which leaves the result at the bottom of the stack.
    #[inline]
    fn run<F: Fold>(
        self,
        order: &[OrderStep],
        peers: &[Option<PeerArea>],
        at: usize,
        fold: &F,
    ) -> Result<(), F::Error> {
        let Self { theirs, first, above, stride } = self;
        let wide = first.len();
        // Entries above the first.
        let mut height = 0;
        for step in order {
            match *step {
                OrderStep::Push(place) => {
                    // The first step is this rank's own.
                    let Some(peer) = &peers[place as usize] else { continue };
                    let top = &mut above[height * stride..][..wide];
                    height += 1;
                    if wide == theirs.len() {
                        peer.read_block(at, top);
                    } else {
                        peer.read_block(at, theirs);
                        fold.start(top, theirs);
                    }
                }
                OrderStep::Add(place) => {
                    let Some(peer) = &peers[place as usize] else { continue };
                    peer.read_block(at, theirs);
                    let top = match height {
                        0 => &mut *first,
                        _ => &mut above[(height - 1) * stride..][..wide],
                    };
                    fold.take(top, theirs)?;
                }
                OrderStep::Merge => {
                    height -= 1;
                    let (below, top) = above.split_at_mut(height * stride);
                    let below = match height {
                        0 => &mut *first,
                        _ => &mut below[(height - 1) * stride..][..wide],
                    };
                    fold.combine(below, &top[..wide])?;
                }
            }
        }
        Ok(())
    }
}
