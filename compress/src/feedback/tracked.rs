//! A residual whose selections cost what has changed, not its length.

use crate::bits::magnitude;
use crate::error::{check_addressable, check_length};
use crate::select::{TopKScratch, top_k};
use crate::simd::prefetch_at;
use crate::{Error, SparseVec, SparseView, room};

/// Elements of a block: four lines of the cache.
const BLOCK: usize = 64;

/// Elements of a line of the cache.
const LINE: usize = 16;

/// Bounds that are looked at before the blocks that they point out are read.
const STRETCH: usize = 1024;

/// Blocks that are prefetched before they are read: they lie far apart, and what is found in one decides a
/// branch.
const BLOCKS_AHEAD: usize = 12;

/// Entries of a sum whose elements are prefetched.
const ENTRIES_AHEAD: usize = 24;

/// So many times a floor is looked for among the bounds before all elements are read.
const ATTEMPTS: usize = 4;

/// A dense residual to which sparse vectors are added, and which knows the largest magnitude of each block of
/// 64 elements.
///
/// [`select`](Self::select) has the result of [`Residual::select`](super::Residual::select) and reads a 64th
/// of the elements, and then at most about as many blocks as it selects entries. So it is for a long residual
/// to which little is added between two selections: what a server owes to one of its workers.
///
/// Holds one dense vector and a 64th of that.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::feedback::{Tracked, TrackedScratch};
///
/// let (mut owed, mut out) = (Tracked::try_new(1000)?, SparseVec::new(0));
/// owed.add(SparseVec::from_parts(1000, vec![3, 70, 999], vec![0.5, -2.0, 1.0])?.view())?;
/// owed.select(2, &mut out, &mut TrackedScratch::new())?;
/// assert_eq!((out.indices(), out.values()), (&[70, 999][..], &[-2.0, 1.0][..]));
/// assert_eq!(owed.values()[3], 0.5);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tracked {
    values: Vec<f32>,
    /// For each block a bound of its magnitudes. Additions only raise it; a selection that reads a block
    /// makes its bound exact.
    bounds: Vec<f32>,
}

/// Work space of [`Tracked::select`], reused from selection to selection, also of other residuals. Takes up
/// to 8 bytes for each element that may be selected: a little more than are, but all that are not zero where
/// more than about a 70th is selected.
#[derive(Debug, Clone, Default)]
pub struct TrackedScratch {
    top_k: TopKScratch,
    /// The largest bounds; then the places of the selected candidates.
    picked: SparseVec,
    /// Elements that may be selected, by rising index.
    candidates: SparseVec,
}

impl TrackedScratch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Tracked {
    /// A residual of `n` zeros.
    ///
    /// # Errors
    /// [`Error::TooLong`] for more than 2^32 elements, [`Error::Memory`].
    pub fn try_new(n: usize) -> Result<Self, Error> {
        check_addressable(n)?;
        Ok(Self { values: room::zeros(n)?, bounds: room::zeros(n.div_ceil(BLOCK))? })
    }

    /// The residual.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Adds `entries`. Cost: O(entries).
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first sum that is not finite. The residual is
    /// unchanged then, up to rounding.
    pub fn add(&mut self, entries: SparseView<'_>) -> Result<(), Error> {
        check_length(self.values.len(), entries.dim())?;
        for (place, (index, value)) in entries.iter().enumerate() {
            if let Some(&ahead) = entries.indices().get(place + ENTRIES_AHEAD) {
                prefetch_at(&self.values, ahead as usize);
                prefetch_at(&self.bounds, ahead as usize / BLOCK);
            }
            let sum = self.values[index as usize] + value;
            if !sum.is_finite() {
                self.take_out(entries, place);
                return Err(Error::NonFinite { index: index as usize, value: sum });
            }
            self.values[index as usize] = sum;
            let bound = &mut self.bounds[index as usize / BLOCK];
            *bound = bound.max(sum.abs());
        }
        Ok(())
    }

    /// Takes the first `count` of `entries` out again.
    #[cold]
    fn take_out(&mut self, entries: SparseView<'_>, count: usize) {
        for (index, value) in entries.iter().take(count) {
            let element = &mut self.values[index as usize];
            // The sum was rounded, so the difference may exceed the largest number by half a unit.
            *element = (*element - value).clamp(f32::MIN, f32::MAX);
            let bound = &mut self.bounds[index as usize / BLOCK];
            *bound = bound.max(element.abs());
        }
    }

    /// Moves the `k` largest entries (see [`top_k`]) to `out` and leaves zeros in their place.
    ///
    /// Cost: a read of the bounds, and of about `1.1 k` blocks of 64 elements, if few bounds have become too
    /// high since their blocks were last read; in the worst case, and where most magnitudes are equal, of all
    /// elements.
    ///
    /// # Errors
    /// None that a caller can cause: those of [`top_k`] for values that are not finite.
    pub fn select(
        &mut self,
        k: usize,
        out: &mut SparseVec,
        scratch: &mut TrackedScratch,
    ) -> Result<(), Error> {
        out.reset(self.values.len());
        if k == 0 {
            return Ok(());
        }
        let mut attempts = 0..ATTEMPTS;
        loop {
            let floor = if attempts.next().is_some() { self.floor(k, scratch)? } else { 0.0 };
            if self.collect(floor, &mut scratch.candidates) >= k || floor == 0.0 {
                break;
            }
            for (index, value) in scratch.candidates.iter() {
                let bound = &mut self.bounds[index as usize / BLOCK];
                *bound = bound.max(value.abs());
            }
        }
        let (Self { values, bounds }, TrackedScratch { top_k: work, picked, candidates }) = (self, scratch);
        top_k(candidates.values(), k, picked, work)?;
        let mut picked = picked.indices().iter().peekable();
        for (place, (index, value)) in (0u32..).zip(candidates.iter()) {
            if picked.next_if_eq(&&place).is_some() {
                values[index as usize] = 0.0;
                out.push(index, value);
            } else {
                let bound = &mut bounds[index as usize / BLOCK];
                *bound = bound.max(value.abs());
            }
        }
        Ok(())
    }

    /// Moves all entries that are not zero to `out`. Cost: a read of the bounds and of the blocks that are
    /// not zero.
    pub fn take_all(&mut self, out: &mut SparseVec) {
        out.reset(self.values.len());
        for ((block, values), bound) in self.values.chunks_mut(BLOCK).enumerate().zip(&mut self.bounds) {
            if std::mem::take(bound) > 0.0 {
                for (index, value) in (block * BLOCK..).zip(values) {
                    if *value != 0.0 {
                        out.push(index as u32, std::mem::take(value));
                    }
                }
            }
        }
    }

    /// Sets every element to zero.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
        self.bounds.fill(0.0);
    }

    /// A magnitude that at least `k` elements reach if the largest bounds are exact; 0 if few blocks are not
    /// zero.
    fn floor(&self, k: usize, scratch: &mut TrackedScratch) -> Result<f32, Error> {
        let TrackedScratch { top_k: work, picked, .. } = scratch;
        // Some more, so that a few bounds may be too high.
        let blocks = k.saturating_add(k / 8 + 8);
        if blocks >= self.bounds.len() {
            return Ok(0.0);
        }
        top_k(&self.bounds, blocks, picked, work)?;
        let smallest = picked.values().iter().copied().min_by(f32::total_cmp);
        Ok(smallest.filter(|_| picked.len() == blocks).unwrap_or(0.0))
    }

    /// Collects the elements of at least this magnitude, but no zeros, and sets the bound of each block that
    /// it reads to the largest of the others. Returns their number.
    fn collect(&mut self, floor: f32, candidates: &mut SparseVec) -> usize {
        let Self { values, bounds } = self;
        candidates.reset(values.len());
        let least = magnitude(floor).max(1);
        let mut blocks = [0; STRETCH];
        for (stretch, bounds) in bounds.chunks_mut(STRETCH).enumerate() {
            let blocks = high(bounds, least, &mut blocks);
            let first = |block: u16| (stretch * STRETCH + usize::from(block)) * BLOCK;
            let prefetch = |block: u16| {
                (0..BLOCK).step_by(LINE).for_each(|element| prefetch_at(values, first(block) + element));
            };
            blocks.iter().take(BLOCKS_AHEAD).for_each(|block| prefetch(*block));
            for (place, &block) in blocks.iter().enumerate() {
                if let Some(&ahead) = blocks.get(place + BLOCKS_AHEAD) {
                    prefetch(ahead);
                }
                let first = first(block);
                let values = &values[first..values.len().min(first + BLOCK)];
                bounds[usize::from(block)] = collect_block(values, first, least, candidates);
            }
        }
        candidates.len()
    }
}

/// The places of the bounds of at least this magnitude.
fn high<'a>(bounds: &[f32], least: u32, places: &'a mut [u16; STRETCH]) -> &'a [u16] {
    let mut count = 0;
    for (place, bound) in (0..).zip(bounds) {
        // Without a branch, which could not be foreseen.
        places[count] = place;
        count += usize::from(magnitude(*bound) >= least);
    }
    &places[..count]
}

/// Collects the elements of a block that have at least this magnitude. Returns the largest magnitude of the
/// others.
fn collect_block(values: &[f32], first: usize, least: u32, candidates: &mut SparseVec) -> f32 {
    let mut rest = 0;
    for (line, values) in (first..).step_by(LINE).zip(values.chunks(LINE)) {
        let largest = values.iter().fold(0, |most, value| magnitude(*value).max(most));
        if largest < least {
            rest = largest.max(rest);
            continue;
        }
        for (index, value) in (line..).zip(values) {
            if magnitude(*value) >= least {
                candidates.push(index as u32, *value);
            } else {
                rest = rest.max(magnitude(*value));
            }
        }
    }
    f32::from_bits(rest)
}
