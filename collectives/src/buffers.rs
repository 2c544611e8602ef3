//! The memory of a dense collective, in bytes.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use ucx_sys_wrap::buffer::Chunk;

use crate::host::Blocks;

/// The memory of a dense collective on one rank.
///
/// A rank that has no input, or no output, passes nothing there.
pub struct Buffers<'env> {
    /// What this rank contributes; `None` if that lies in the output.
    pub input: Option<&'env [u8]>,
    /// What this rank gets.
    pub output: &'env mut [u8],
}

impl<'env> Buffers<'env> {
    /// The input is where the output will be.
    #[inline]
    #[must_use]
    pub fn in_place<T: Pod>(output: &'env mut [T]) -> Self {
        Self { input: None, output: bytemuck::cast_slice_mut(output) }
    }

    /// The input stays as it is.
    #[inline]
    #[must_use]
    pub fn apart<T: Pod>(input: &'env [T], output: &'env mut [T]) -> Self {
        Self { input: Some(bytemuck::cast_slice(input)), ..Self::in_place(output) }
    }

    /// The lengths.
    #[inline]
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes { input: self.input.map(<[u8]>::len), output: self.output.len() }
    }
}

/// The lengths of [`Buffers`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of the input; `None` if that lies in the output.
    pub input: Option<usize>,
    /// Of the output.
    pub output: usize,
}

impl Sizes {
    /// The length of the input.
    pub(crate) fn input(&self) -> usize {
        self.input.unwrap_or(self.output)
    }
}

/// The memory of a dense collective by messages, parts of which are lent to operations.
pub struct Memory<'env> {
    /// As in [`Buffers`].
    pub input: Option<&'env [u8]>,
    /// What this rank gets.
    pub output: Chunk<'env, u8>,
}

impl<'env> From<Buffers<'env>> for Memory<'env> {
    fn from(buffers: Buffers<'env>) -> Self {
        Self { input: buffers.input, output: Chunk::from(buffers.output) }
    }
}

impl<'env> Memory<'env> {
    /// The lengths.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes { input: self.input.map(<[u8]>::len), output: self.output.len() }
    }

    /// The input.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        self.input.unwrap_or(&self.output)
    }

    /// The output with a copy of the input, of equal length.
    #[must_use]
    pub(crate) fn loaded(mut self) -> Chunk<'env, u8> {
        if let Some(input) = self.input {
            // A copy: what is received is combined there with what was sent.
            self.output.copy_from_slice(input);
        }
        self.output
    }

    /// The segments of `length` bytes of a vector that the input and the output have alike: one if that is no
    /// longer, or if `length` is 0. One of input and output may be empty.
    pub(crate) fn segments(self, length: usize) -> Vec<Self> {
        let total = self.sizes().input().max(self.output.len());
        if length == 0 || total <= length {
            return vec![self];
        }
        let cut = |of: usize, piece: usize| (piece * length).min(of)..((piece + 1) * length).min(of);
        let (bytes, count, input) = (self.output.len(), total.div_ceil(length), self.input);
        let pieces = self.output.split_into((0..count).map(|piece| cut(bytes, piece).len()));
        let piece =
            |(index, output)| Self { input: input.map(|input| &input[cut(input.len(), index)]), output };
        pieces.into_iter().enumerate().map(piece).collect()
    }
}

/// The blocks of a vector, one for each rank, in rank order: their places in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Each of so many bytes.
    Equal { bytes: usize, ranks: usize },
    /// The end of each.
    Ends(Arc<[usize]>),
}

impl Layout {
    /// Blocks that begin where a cache line does, as equal as they can be.
    pub(crate) fn of_lines(bytes: usize, ranks: u32, size: usize) -> Self {
        let unit = line(size);
        let each = bytes.div_ceil(ranks as usize).next_multiple_of(unit);
        Self::Ends((1..=ranks as usize).map(|end| (end * each).min(bytes)).collect())
    }

    /// The same blocks, and empty ones behind them up to this number.
    pub(crate) fn with_empty(self, ranks: u32) -> Self {
        let mut ends: Vec<usize> = (0..self.ranks()).map(|rank| self.block(rank).end).collect();
        ends.resize(ranks as usize, self.total());
        Self::Ends(ends.into())
    }

    /// The same blocks of elements of `size` bytes, where these have `wide` bytes each.
    pub(crate) fn narrowed(&self, size: usize, wide: usize) -> Self {
        Self::Ends((0..self.ranks()).map(|rank| self.block(rank).end / wide * size).collect())
    }

    /// The same, for the slots of a host.
    pub(crate) fn blocks(&self) -> Blocks<'_> {
        match self {
            Self::Equal { bytes, .. } => Blocks::Equal(*bytes),
            Self::Ends(ends) => Blocks::Ends(ends),
        }
    }

    pub(crate) fn block(&self, rank: usize) -> Range<usize> {
        match self {
            Self::Equal { bytes, .. } => rank * bytes..(rank + 1) * bytes,
            Self::Ends(ends) => rank.checked_sub(1).map_or(0, |before| ends[before])..ends[rank],
        }
    }

    pub(crate) fn total(&self) -> usize {
        match self {
            Self::Equal { bytes, ranks } => bytes * ranks,
            Self::Ends(ends) => ends.last().copied().unwrap_or(0),
        }
    }

    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranks()).map(|rank| self.block(rank).len())
    }

    pub(crate) fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Equal { ranks, .. } => *ranks,
            Self::Ends(ends) => ends.len(),
        }
    }

    /// The blocks of a vector that is only read.
    pub(crate) fn read<'env>(&self, vector: &'env [u8]) -> Vec<&'env [u8]> {
        (0..self.ranks()).map(|rank| &vector[self.block(rank)]).collect()
    }

    /// The blocks of a vector.
    pub(crate) fn split<'env>(&self, vector: Chunk<'env, u8>) -> Vec<Chunk<'env, u8>> {
        vector.split_into(self.lengths())
    }
}

/// Bytes of some whole elements that fill whole cache lines.
pub(crate) fn line(size: usize) -> usize {
    const LINE: usize = 64;
    if LINE.is_multiple_of(size) { LINE } else { size * LINE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_input_and_output_belong_together() {
        let input: Vec<u8> = (0..10).collect();
        let mut output = vec![0u8; 10];
        let lengths = |input: Option<&[u8]>, output: &mut [u8]| -> Vec<(Option<usize>, usize)> {
            let memory = Memory { input, output: Chunk::from(output) };
            memory
                .segments(4)
                .iter()
                .map(|piece| (piece.input.map(<[u8]>::len), piece.output.len()))
                .collect()
        };
        let all = [(Some(4), 4), (Some(4), 4), (Some(2), 2)];
        assert_eq!(lengths(Some(&input), &mut output), all);
        assert_eq!(lengths(None, &mut output), all.map(|(_, length)| (None, length)));
        assert_eq!(lengths(Some(&input), &mut []), all.map(|(length, _)| (length, 0)));
        assert_eq!(lengths(Some(&[]), &mut output), all.map(|(_, length)| (Some(0), length)));
        let memory = Memory::from(Buffers::apart(&input, &mut output)).segments(4);
        assert_eq!(memory[2].input(), [8, 9]);
        assert_eq!(Memory::from(Buffers::in_place::<u8>(&mut [])).segments(4).len(), 1);
        assert_eq!(lengths(None, &mut output[..4]), [(None, 4)]);
        let memory = Memory::from(Buffers::in_place(&mut output));
        assert_eq!(memory.segments(0).len(), 1);
    }

    #[test]
    fn layouts_cover_a_vector_once_and_in_order() {
        for (bytes, ranks, size) in [(0, 3, 4), (4, 3, 4), (1000, 7, 8), (1 << 20, 33, 2), (120, 2, 12)] {
            let layout = Layout::of_lines(bytes, ranks, size);
            let mut end = 0;
            for rank in 0..ranks as usize {
                let block = layout.block(rank);
                assert!(block.start == end && block.start.is_multiple_of(size), "{block:?}");
                assert!(block.is_empty() || block.start.is_multiple_of(line(size)));
                end = block.end;
            }
            assert_eq!((end, layout.total(), layout.ranks()), (bytes, bytes, ranks as usize));
        }
        let equal = Layout::Equal { bytes: 3, ranks: 4 };
        assert_eq!((equal.block(2), equal.total(), equal.longest()), (6..9, 12, 3));
    }
}
