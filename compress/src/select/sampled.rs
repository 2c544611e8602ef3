//! Thresholds from a sample of the values.

use super::passing::{Passing, collect_passing, sampled_threshold};
use super::{TopKScratch, top_k};
use crate::generator::Generator;
use crate::{Error, SparseVec};

/// Work space of selections by a sampled threshold, to be reused.
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

/// Selects what reaches a threshold that about `k` values reach, by a sample of a thousandth of them (Aji and
/// Heafield, EMNLP 2017), within bounds that the paper does not have: never more than `limit` entries, and
/// never none when a value differs from zero and `k` and `limit` are not 0.
///
/// Sent: the entries as they are, 8 bytes each. Where more than `limit` reach the threshold, as when all are
/// equal, the first `limit` in the total order of [`top_k`] are selected; where none does, the first one.
/// Cost: one read of `values`, and that of [`top_k`] in these two cases. What is selected depends on the
/// state of `generator`, which moves on by as many draws as the sample has values: a thousandth, at least
/// 1,024, at most all.
///
/// # Errors
/// As [`top_k`]; `out` is empty then.
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

/// Selects what reaches a sampled threshold if that is from `0.8 k` to `1.3 k` entries, and else the exact
/// first `k` (Deep Gradient Compression, Lin et al., ICLR 2018; its program moves the threshold up to ten
/// times, and selects again among the survivors when too many pass).
///
/// The first `k` among survivors are the first `k` of all, since whatever is larger than a survivor has
/// survived too: so where the sample misses, in either direction, the result is that of [`top_k`]. Sent: the
/// entries as they are, 8 bytes each; fewer than `0.8 k` only when fewer values differ from zero. Cost: one
/// read of `values`, and that of [`top_k`] where the sample misses. Draws from `generator` as
/// [`sampled_top_k`] does.
///
/// # Errors
/// As [`top_k`]; `out` is empty then.
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
