//! The candidates that one thread has found, by rising tensor and index.

use super::cut::{ALL, CutScratch, find_cut};
use super::part::Part;
use crate::bits::INFINITE;
use crate::simd::{BLOCK, Dropped, Level, Mesh, SIEVED, largest_of_bits, sieve};

/// Values that were not finite and therefore not selected.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LeftOut {
    /// Their number.
    pub count: usize,
    /// The tensor of the first of them, as its position in the list of tensors; 0 for a single tensor.
    pub tensor: usize,
    /// Its index in the tensor.
    pub index: usize,
    /// The value found there, or the value that the sum would have.
    pub value: f32,
}

/// Candidates of one thread, in a buffer that is compacted when it is full.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates {
    /// Bits of the values. The first `len` are valid.
    bits: Vec<u32>,
    indices: Vec<u32>,
    len: usize,
    segments: Vec<Segment>,
    pub(super) left_out: Option<LeftOut>,
    /// Places where a sum was not finite although the gradient was.
    pub(super) overflowed: Vec<(usize, u32)>,
    cut: CutScratch,
}

/// Candidates of one tensor: those from the previous segment's end to this end.
#[derive(Debug, Clone, Copy)]
struct Segment {
    tensor: usize,
    end: usize,
}

impl Candidates {
    /// Forgets everything, and makes room for `room` candidates plus a block.
    pub(super) fn reset(&mut self, room: usize) {
        self.clear();
        self.left_out = None;
        self.overflowed.clear();
        let room = room + BLOCK;
        if self.bits.len() < room {
            self.bits.resize(room, 0);
            self.indices.resize(room, 0);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bits.capacity() + self.indices.capacity() + self.segments.capacity() + self.cut.capacity()
    }

    /// Forgets the candidates.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.segments.clear();
    }

    /// Returns all candidates to their parts.
    pub(super) fn put_back(&mut self, parts: &mut [Part<'_>]) {
        for (tensor, indices, bits) in self.segments() {
            parts[tensor].put_back(indices, bits);
        }
        self.clear();
    }

    /// The bits of the candidates, including the sign.
    pub(super) fn bits(&self) -> &[u32] {
        &self.bits[..self.len]
    }

    /// Tensor, indices and bits of the candidates of each tensor.
    pub(super) fn segments(&self) -> impl Iterator<Item = (usize, &[u32], &[u32])> {
        let starts = std::iter::once(0).chain(self.segments.iter().map(|segment| segment.end));
        starts.zip(&self.segments).map(|(start, segment)| {
            (segment.tensor, &self.indices[start..segment.end], &self.bits[start..segment.end])
        })
    }

    /// Passes over all `parts` once and collects what reaches `bound` and may belong to the first `k` of all.
    /// When the room is full, drops candidates that come after the first `k`.
    pub(super) fn collect(&mut self, level: Level, parts: &mut [Part<'_>], low: u32, k: usize, room: usize) {
        let (mut bound, room) = (low, room + BLOCK);
        for i in 0..parts.len() {
            self.segments.push(Segment { tensor: parts[i].tensor, end: self.len });
            let mut from = 0;
            while from < parts[i].len() {
                let (bits, indices) = (&mut self.bits[self.len..room], &mut self.indices[self.len..room]);
                let pass = parts[i].collect(level, from, bound, bits, indices);
                from += pass.done;
                self.len += pass.found;
                self.segments[i].end = self.len;
                if from < parts[i].len() {
                    bound = bound.max(self.shrink(level, parts, low, k));
                }
            }
        }
        self.strip(level, parts);
    }

    /// Reduces the candidates to the first `k`. Returns the bound that later candidates must reach to come
    /// before any of them; an equal magnitude is not enough.
    fn shrink(&mut self, level: Level, parts: &mut [Part<'_>], low: u32, k: usize) -> u32 {
        self.strip(level, parts);
        if self.len <= k {
            return low;
        }
        let candidates = &self.bits[..self.len];
        let mut mesh = find_cut(level, std::iter::once(candidates), low, k, &mut self.cut);
        self.keep(level, &mut mesh, parts);
        mesh.threshold + 1
    }

    /// Keeps the candidates that belong to the selection, and returns the others to their parts. Counts down
    /// the ties it uses.
    pub(super) fn keep(&mut self, level: Level, mesh: &mut Mesh, parts: &mut [Part<'_>]) {
        if *mesh == ALL {
            return;
        }
        let (mut start, mut kept, mut dropped) = (0, 0, Dropped::new());
        for segment in &mut self.segments {
            let part = &mut parts[segment.tensor - parts[0].tensor];
            while start < segment.end {
                let end = segment.end.min(start + SIEVED);
                let lists = (&mut self.bits[..end], &mut self.indices[..end]);
                kept = sieve(level, lists, (start, end), kept, mesh, &mut dropped);
                part.put_back(&dropped.indices[..dropped.count], &dropped.bits[..dropped.count]);
                start = end;
            }
            segment.end = kept;
        }
        self.len = kept;
    }

    /// Removes and records the values that are not finite.
    fn strip(&mut self, level: Level, parts: &[Part<'_>]) {
        if largest_of_bits(level, &self.bits[..self.len]) < INFINITE {
            return;
        }
        let (mut start, mut kept) = (0, 0);
        for segment in &mut self.segments {
            for i in start..segment.end {
                let (bits, index) = (self.bits[i], self.indices[i]);
                if f32::from_bits(bits).is_finite() {
                    (self.bits[kept], self.indices[kept]) = (bits, index);
                    kept += 1;
                    continue;
                }
                let value = f32::from_bits(bits);
                let first = LeftOut { count: 0, tensor: segment.tensor, index: index as usize, value };
                self.left_out.get_or_insert(first).count += 1;
                if parts[segment.tensor - parts[0].tensor].gradient_is_finite(index) {
                    self.overflowed.push((segment.tensor, index));
                }
            }
            start = segment.end;
            segment.end = kept;
        }
        self.len = kept;
    }
}
