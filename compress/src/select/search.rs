//! The search for the first `k` of all: a guess, one pass, and the proof that the guess was low enough.

use super::candidates::{Candidates, LeftOut};
use super::cut::{CutScratch, find_cut};
use super::guess::sampled_bound;
use super::part::Part;
use crate::SparseVec;
use crate::bits::INFINITE;
use crate::simd::{Level, Mesh};

/// Work space of a selection, for reuse: calls with the same number of elements and `k` do not allocate
/// again, except for threads and lists of tensors. Takes `24 * k` bytes and 64 KiB for each thread, at most
/// `8 * n`.
#[derive(Debug, Clone)]
pub struct TopKScratch {
    threads: usize,
    workers: Vec<Candidates>,
    sample: Vec<u32>,
    cut: CutScratch,
}

impl Default for TopKScratch {
    fn default() -> Self {
        Self { threads: 1, workers: Vec::new(), sample: Vec::new(), cut: CutScratch::default() }
    }
}

impl TopKScratch {
    /// An empty work space for selections by the calling thread alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty work space for selections by up to `threads` threads. They are started for each selection
    /// with at least half a million elements a thread. The result does not depend on the number.
    pub fn with_threads(threads: usize) -> Self {
        Self { threads: threads.max(1), ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> Vec<usize> {
        let workers = self.workers.iter().map(Candidates::capacity);
        workers.chain([self.workers.capacity(), self.sample.capacity(), self.cut.capacity()]).collect()
    }

    /// Tensor and index of each sum of the last selection that was not finite although the gradient's element
    /// was.
    pub(crate) fn overflowed(&self) -> impl Iterator<Item = (usize, u32)> {
        self.workers.iter().flat_map(|worker| worker.overflowed.iter().copied())
    }
}

/// With fewer elements, starting a thread does not pay.
const A_THREADS_WORTH: usize = 1 << 19;

/// The result of a search.
pub(super) struct Found {
    /// The smallest magnitude selected, if `k` values were selected.
    pub(super) threshold: Option<u32>,
    pub(super) left_out: Option<LeftOut>,
}

/// Selects the first `k` of all values in `parts`, which are whole tensors numbered from 0, into `outs`, one
/// for each, and takes them out of residuals. `bound` is a guess of what the `k`-th magnitude reaches;
/// without one, a sample is taken.
///
/// Stops early if values of a fixed part are not finite; `outs` are empty then.
pub(super) fn search(
    parts: &mut [Part<'_>],
    k: usize,
    bound: Option<u32>,
    outs: &mut [SparseVec],
    scratch: &mut TopKScratch,
) -> Found {
    let total: usize = parts.iter().map(Part::len).sum();
    let k = k.min(total);
    scratch.prepare(total, k);
    let first_bound =
        if k == 0 { INFINITE } else { bound.unwrap_or_else(|| scratch.sampled(parts, total, k)) };
    let left_out = scratch.pass(parts, total, first_bound, k);
    if left_out.is_some() && !parts.iter().any(Part::is_residual) {
        return Found { threshold: None, left_out };
    }
    let bound = scratch.search_lower(parts, total, first_bound, k);
    let mesh = scratch.cut(bound, k);
    scratch.emit(mesh, parts, outs);
    Found { threshold: (mesh.threshold > 0 && k > 0).then_some(mesh.threshold), left_out }
}

impl TopKScratch {
    fn prepare(&mut self, total: usize, k: usize) {
        let workers = self.threads.min(total / A_THREADS_WORTH).max(1);
        self.workers.resize_with(workers.max(self.workers.len()), Candidates::default);
        self.workers.iter_mut().for_each(|worker| worker.reset(0));
        self.workers[..workers].iter_mut().for_each(|worker| worker.reset(room(total, k)));
    }

    fn sampled(&mut self, parts: &[Part<'_>], total: usize, k: usize) -> u32 {
        sampled_bound(parts, total, k, &mut self.sample)
    }

    /// The number of candidates.
    fn count(&self) -> usize {
        self.workers.iter().map(|worker| worker.bits().len()).sum()
    }

    /// One pass over everything. Returns what had to be left out.
    fn pass(&mut self, parts: &mut [Part<'_>], total: usize, bound: u32, k: usize) -> Option<LeftOut> {
        let (level, room) = (Level::best(), room(total, k));
        let workers = self.threads.min(total / A_THREADS_WORTH).max(1);
        if workers == 1 {
            self.workers[0].collect(level, parts, bound, k, room);
        } else {
            let shares = share_out(parts, total, workers);
            std::thread::scope(|scope| {
                let mut pairs = self.workers.iter_mut().zip(shares);
                let own = pairs.next();
                for (worker, mut share) in pairs {
                    scope.spawn(move || worker.collect(level, &mut share, bound, k, room));
                }
                if let Some((worker, mut share)) = own {
                    worker.collect(level, &mut share, bound, k, room);
                }
            });
        }
        parts.iter_mut().for_each(Part::set_added);
        let all = self.workers.iter().filter_map(|worker| worker.left_out);
        all.reduce(|first, other| LeftOut { count: first.count + other.count, ..first })
    }

    /// While the bound is too high, searches again: first below it by a sample, then everywhere. Returns the
    /// bound that was low enough.
    fn search_lower(&mut self, parts: &mut [Part<'_>], total: usize, first: u32, k: usize) -> u32 {
        let mut bound = first;
        while self.count() < k && bound > 1 {
            self.workers.iter_mut().for_each(|worker| worker.put_back(parts));
            let sampled = if bound == first { self.sampled(parts, total, k) } else { 1 };
            bound = if sampled < bound { sampled } else { 1 };
            self.pass(parts, total, bound, k);
        }
        bound
    }

    fn cut(&mut self, low: u32, k: usize) -> Mesh {
        find_cut(Level::best(), self.workers.iter().map(Candidates::bits), low, k, &mut self.cut)
    }

    /// Moves the selection to `outs`, and returns the other candidates to their parts.
    fn emit(&mut self, mut mesh: Mesh, parts: &mut [Part<'_>], outs: &mut [SparseVec]) {
        for worker in &mut self.workers {
            worker.keep(Level::best(), &mut mesh, parts);
            for (tensor, indices, bits) in worker.segments() {
                outs[tensor].extend_from_bits(indices, bits);
            }
        }
    }
}

/// Room for candidates. A bound that is slightly low lets no more through; one that is far too low is soon
/// raised.
fn room(total: usize, k: usize) -> usize {
    k.saturating_mul(3).saturating_add(8192).min(total)
}

/// Divides the elements of `parts` into even shares, in order. Each share is a run of tensors, of which the
/// first and the last may be partial.
fn share_out<'a>(parts: &'a mut [Part<'_>], total: usize, count: usize) -> Vec<Vec<Part<'a>>> {
    let mut shares: Vec<Vec<Part<'a>>> = vec![Vec::new()];
    let mut start = 0;
    for part in parts {
        let mut rest = part.stretch();
        loop {
            let end = (total as u128 * shares.len() as u128 / count as u128) as usize;
            let last = shares.len() - 1;
            if rest.len() <= end - start {
                start += rest.len();
                shares[last].push(rest);
                break;
            }
            let (here, there) = rest.split_at(end - start);
            start = end;
            shares[last].push(here);
            shares.push(Vec::new());
            rest = there;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_runs_of_tensors() {
        let tensors: Vec<Vec<f32>> = [0, 3, 0, 5, 1, 4].map(|n| vec![0.0; n]).into();
        for count in 1..=13 {
            let mut parts: Vec<_> =
                tensors.iter().enumerate().map(|(i, values)| Part::fixed(i, values)).collect();
            let shares = share_out(&mut parts, 13, count);
            assert_eq!(shares.len(), count);
            let mut lengths = [0; 6];
            for share in &shares {
                let elements: usize = share.iter().map(Part::len).sum();
                assert!((13 / count..=13_usize.div_ceil(count)).contains(&elements), "{count}: {elements}");
                // The candidates of a share find their parts by this property.
                assert!(share.windows(2).all(|pair| pair[1].tensor == pair[0].tensor + 1), "{count}");
                share.iter().for_each(|part| lengths[part.tensor] += part.len());
            }
            assert_eq!(lengths, [0, 3, 0, 5, 1, 4], "{count}");
        }
    }
}
