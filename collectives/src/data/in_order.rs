//! Reductions of all ranks' operands in the fixed order, by one who has them all.

use bytemuck::{Pod, Zeroable, cast_slice_mut};

use super::{OrderStep, Reducer, order, order_depth};
use crate::error::Result;

/// Bytes of a block of a partial result: the blocks on the stack stay in the nearest cache. An element of the
/// program that is larger is a block of its own.
const BLOCK_BYTES: usize = 4096;

/// The largest depth of a stack: operands are counted by 32 bits.
const MAX_DEPTH: usize = order_depth(u32::MAX);

/// Scratch memory, aligned for elements of any type.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE_BYTES]);

const LINE_BYTES: usize = 64;

impl Reducer {
    /// `out` = the operands of all ranks, reduced in the fixed order ([`order`]) and ended. All are narrow;
    /// operands are in rank order and as long as `out`.
    ///
    /// The bits of the result do not depend on `own`, the rank whose operand is read first. That operand may
    /// be `None`, if `out` holds it.
    ///
    /// Cost: every operand is read once, and `out` written once. Partial results are kept in blocks of 4 KiB.
    /// Allocates only for more than 255 operands, or for elements of more than 4 KiB. Like the other methods,
    /// it does not enter the [mode](Self::in_mode).
    ///
    /// # Errors
    /// [`Error::User`](crate::Error::User): the program's function has failed. `out` is unspecified then.
    ///
    /// # Panics
    /// If there is no rank `own`, the operand of another rank is `None`, or lengths differ.
    pub fn reduce_in_order(&self, operands: &[Option<&[u8]>], own: u32, out: &mut [u8]) -> Result<()> {
        assert!((own as usize) < operands.len(), "rank {own} is not among {} operands", operands.len());
        for operand in operands.iter().flatten() {
            assert_eq!(operand.len(), out.len(), "bytes of an operand, and of the result");
        }
        let elements = (BLOCK_BYTES / self.wide()).clamp(1, (out.len() / self.size()).max(1));
        let lines = (elements * self.wide()).div_ceil(LINE_BYTES);
        // The bottom of the stack is the result itself, if it can hold a partial result.
        let levels = order_depth(operands.len() as u32) - usize::from(!self.is_wide());
        let work = InOrder { reducer: self, operands, own, elements, lines };
        // Little scratch for short vectors, because it is filled with zeros.
        match levels * lines {
            0..=8 => work.with_scratch::<8>(out),
            9..=32 => work.with_scratch::<32>(out),
            33..=128 => work.with_scratch::<128>(out),
            129..=512 => work.with_scratch::<512>(out),
            more => work.run(out, &mut vec![Line::zeroed(); more]),
        }
    }
}

/// A reduction in the fixed order, block by block.
struct InOrder<'a> {
    reducer: &'a Reducer,
    operands: &'a [Option<&'a [u8]>],
    own: u32,
    /// Elements of a block.
    elements: usize,
    /// Lines of a block of a partial result.
    lines: usize,
}

impl InOrder<'_> {
    /// Apart, so that the stack holds no more scratch than is used.
    #[inline(never)]
    fn with_scratch<const LINES: usize>(&self, out: &mut [u8]) -> Result<()> {
        self.run(out, &mut [Line::zeroed(); LINES])
    }

    fn run(&self, out: &mut [u8], scratch: &mut [Line]) -> Result<()> {
        let Self { reducer, operands, lines, .. } = *self;
        let ranks = operands.len() as u32;
        let block_bytes = self.elements * reducer.size();
        for (index, block) in out.chunks_mut(block_bytes).enumerate() {
            let first = index * block_bytes;
            if reducer.is_wide() {
                let (bottom, above) = scratch.split_at_mut(lines);
                let bytes = block.len() / reducer.size() * reducer.wide();
                let bottom = &mut cast_slice_mut(bottom)[..bytes];
                if operands[self.own as usize].is_none() {
                    reducer.start(bottom, block);
                }
                self.reduce(first..first + block.len(), bottom, above)?;
                reducer.end(block, bottom, ranks);
            } else {
                self.reduce(first..first + block.len(), block, scratch)?;
                reducer.end_in_place(block, ranks);
            }
        }
        Ok(())
    }

    /// Reduces these bytes of the operands into `bottom`, which holds the own operand if that is `None`.
    fn reduce(&self, place: std::ops::Range<usize>, bottom: &mut [u8], above: &mut [Line]) -> Result<()> {
        let Self { reducer, operands, own, lines, .. } = *self;
        let operand = |rank: u32| match operands[rank as usize] {
            Some(operand) => &operand[place.clone()],
            None => panic!("rank {rank} has no operand, and is not the own rank {own}"),
        };
        let mut steps = order(operands.len() as u32, own);
        let mut stack = Stack { reducer, bottom, above, lines, entries: 0, unread: [None; MAX_DEPTH] };
        if operands[own as usize].is_none() {
            // The first step is that of the own operand, which is there.
            stack.entries = 1;
            steps.next();
        }
        for step in steps {
            match step {
                OrderStep::Push(rank) => stack.push(operand(rank)),
                OrderStep::Add(rank) => stack.add(operand(rank))?,
                OrderStep::Merge => stack.merge()?,
            }
        }
        stack.read_bottom();
        Ok(())
    }
}

/// A stack of blocks of partial results. An operand is not copied when it is pushed, but read when it is
/// first combined.
struct Stack<'a, 'b> {
    reducer: &'a Reducer,
    /// The block of entry 0.
    bottom: &'b mut [u8],
    /// The blocks of the other entries.
    above: &'b mut [Line],
    /// Lines of a block in `above`.
    lines: usize,
    entries: usize,
    /// The operands that are the values of entries whose blocks are not filled.
    unread: [Option<&'a [u8]>; MAX_DEPTH],
}

impl<'a> Stack<'a, '_> {
    fn push(&mut self, operand: &'a [u8]) {
        self.unread[self.entries] = Some(operand);
        self.entries += 1;
    }

    /// Combines the top with an operand.
    fn add(&mut self, operand: &[u8]) -> Result<()> {
        let top = self.entries - 1;
        let (reducer, unread) = (self.reducer, self.unread[top].take());
        let block = match top {
            0 => &mut *self.bottom,
            _ => &mut cast_slice_mut(&mut self.above[(top - 1) * self.lines..])[..self.bottom.len()],
        };
        match unread {
            Some(first) => pair(reducer, block, first, operand),
            None => reducer.take(block, operand),
        }
    }

    /// Combines the top into the entry below it.
    fn merge(&mut self) -> Result<()> {
        let (top, below) = (self.entries - 1, self.entries - 2);
        self.entries = top;
        let operands = (self.unread[below].take(), self.unread[top].take());
        let bytes = self.bottom.len();
        let (lower, upper) = self.above.split_at_mut(below * self.lines);
        let into = match below {
            0 => &mut *self.bottom,
            _ => &mut cast_slice_mut(&mut lower[(below - 1) * self.lines..])[..bytes],
        };
        let from = &mut cast_slice_mut(upper)[..bytes];
        let reducer = self.reducer;
        match operands {
            (None, None) => reducer.combine(into, from),
            (None, Some(operand)) => reducer.take(into, operand),
            (Some(first), Some(second)) => pair(reducer, into, first, second),
            (Some(operand), None) if reducer.is_wide() => {
                reducer.start(into, operand);
                reducer.combine(into, from)
            }
            (Some(operand), None) => reducer.combine_from(into, operand, from),
        }
    }

    /// Fills the block of a single operand that was not combined.
    fn read_bottom(&mut self) {
        if let Some(operand) = self.unread[0].take() {
            self.reducer.start(self.bottom, operand);
        }
    }
}

/// `into` = two operands, combined.
fn pair(reducer: &Reducer, into: &mut [u8], first: &[u8], second: &[u8]) -> Result<()> {
    if reducer.is_wide() {
        reducer.start(into, first);
        reducer.take(into, second)
    } else {
        reducer.combine_from(into, first, second)
    }
}
