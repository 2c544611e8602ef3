//! Thresholds from a sample of the values.

use super::passing::{Passing, collect_passing, sampled_threshold};
use super::{TopKScratch, top_k};
use crate::generator::Generator;
use crate::{Error, SparseVec};

/// Work space of selections by a sampled threshold, for reuse.
#[derive(Debug, Clone, Default)]
pub struct SampledScratch {
    drawn: Vec<u32>,
    exact: TopKScratch,
}

impl SampledScratch {
    /// An empty work space.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Selects what reaches a threshold from a sample of a thousandth of the values, at least 1,024 (Aji and
/// Heafield, EMNLP 2017). On average that is `k` entries, or one in as many values as the sample has and one
/// more, if that is more than `k`. Unlike in the paper the result is bounded: at most `limit` entries, and at
/// least one if a value is not zero and `k` and `limit` are not 0.
///
/// Sent: the entries as they are, 8 bytes each. If more than `limit` reach the threshold, as for equal
/// values, the first `limit` in the total order of [`top_k`] are selected; if none does, the first one. Cost:
/// one read of `values`, plus that of [`top_k`] in these two cases. The selection depends on the state of
/// `generator`, which draws the sample (a thousandth of the values, at least 1,024, at most all) and one
/// number more.
///
/// # Errors
/// The same as for [`top_k`]; `out` is empty then.
pub fn sampled_top_k(
    values: &[f32],
    k: usize,
    limit: usize,
    generator: &mut Generator,
    out: &mut SparseVec,
    scratch: &mut SampledScratch,
) -> Result<(), Error> {
    let threshold = sampled_threshold(values, k, generator, &mut scratch.drawn);
    let passing = collect_passing(values, threshold, if k == 0 { 0 } else { limit }, out)?;
    if passing == Passing::TooMany {
        return top_k(values, limit, out, &mut scratch.exact);
    }
    if out.is_empty() && k > 0 && limit > 0 {
        return top_k(values, 1, out, &mut scratch.exact);
    }
    Ok(())
}

/// Selects what reaches a sampled threshold if that is from `0.8 k` to `1.3 k` entries, otherwise the exact
/// first `k` (Deep Gradient Compression, Lin et al., ICLR 2018; the authors' program moves the threshold up
/// to ten times, and selects again among the survivors if too many pass).
///
/// The first `k` among the survivors are the first `k` of all, because whatever is larger than a survivor
/// also survived. So if the sample misses, in either direction, the result is that of [`top_k`]. Sent: the
/// entries as they are, 8 bytes each; fewer than `0.8 k` only if fewer values are not zero. Cost: one read of
/// `values`, plus that of [`top_k`] if the sample misses. Draws from `generator` like [`sampled_top_k`].
///
/// # Errors
/// The same as for [`top_k`]; `out` is empty then.
pub fn resampled_top_k(
    values: &[f32],
    k: usize,
    generator: &mut Generator,
    out: &mut SparseVec,
    scratch: &mut SampledScratch,
) -> Result<(), Error> {
    let threshold = sampled_threshold(values, k, generator, &mut scratch.drawn);
    let most = k.saturating_add((k as u128 * 3 / 10) as usize);
    let passing = collect_passing(values, threshold, most, out)?;
    let least = k - k / 5;
    if passing == Passing::TooMany || out.len() < least {
        top_k(values, k, out, &mut scratch.exact)
    } else {
        Ok(())
    }
}
