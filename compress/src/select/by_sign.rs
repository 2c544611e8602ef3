//! Separate selection of positive and negative values.

use super::{TopKScratch, top_k};
use crate::bits::check_finite;
use crate::merge::add;
use crate::{Error, SparseVec};

/// Work space of [`top_k_by_sign`], for reuse. Takes `4 * n` bytes.
#[derive(Debug, Clone, Default)]
pub struct BySignScratch {
    /// The positive values, then the negative ones; zeros elsewhere.
    one_sign: Vec<f32>,
    positives: SparseVec,
    negatives: SparseVec,
    exact: TopKScratch,
}

impl BySignScratch {
    /// An empty work space.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Selects the largest `positives` of the positive values and the largest `negatives` of the negative values.
/// Each is sent as the mean of the selected values of its sign (Dryden et al., MLHPC 2016); its distance to
/// that mean stays.
///
/// The paper keeps the same share of both signs; here the caller gives both counts. Sent: two means, and an
/// index and a sign for each entry: `8 + 4 * entries` bytes. `out` has the means as values. Ties go to the
/// smaller index. A mean is summed in `f64` by rising index. Cost: the equivalent of six passes over
/// `values`.
///
/// # Errors
/// The same as for [`top_k`]; `out` is empty then.
pub fn top_k_by_sign(
    values: &[f32],
    positives: usize,
    negatives: usize,
    out: &mut SparseVec,
    scratch: &mut BySignScratch,
) -> Result<(), Error> {
    out.reset(values.len());
    check_finite(values)?;
    let one_sign = &mut scratch.one_sign;
    one_sign.resize(values.len(), 0.0);
    one_sign.iter_mut().zip(values).for_each(|(one, &value)| *one = if value > 0.0 { value } else { 0.0 });
    top_k(one_sign, positives, &mut scratch.positives, &mut scratch.exact)?;
    one_sign.iter_mut().zip(values).for_each(|(one, &value)| *one = if value < 0.0 { value } else { 0.0 });
    top_k(one_sign, negatives, &mut scratch.negatives, &mut scratch.exact)?;
    for selected in [&mut scratch.positives, &mut scratch.negatives] {
        let sum: f64 = selected.values().iter().map(|&value| f64::from(value)).sum();
        let mean = (sum / selected.len() as f64) as f32;
        selected.values_mut().fill(mean);
    }
    add(scratch.positives.view(), scratch.negatives.view(), out)
}
