//! Selections as compressors.

use super::{Compressor, Gradient, Residual};
use crate::error::check_length;
use crate::select::{Blocks, TopKScratch, non_zero_blocks, top_k};
use crate::{Error, SparseVec, SparseView};

/// Keeps the `k` entries of largest magnitude unchanged. Feeds a residual in one pass.
#[derive(Debug, Clone)]
pub struct TopK {
    k: usize,
    scratch: TopKScratch,
}

impl TopK {
    /// Keeps at most `k` entries.
    pub fn new(k: usize) -> Self {
        Self::with_scratch(k, TopKScratch::new())
    }

    /// Like [`new`](Self::new), with a work space that sets the number of threads.
    pub fn with_scratch(k: usize, scratch: TopKScratch) -> Self {
        Self { k, scratch }
    }

    /// Changes `k`, for a density schedule.
    pub fn set_k(&mut self, k: usize) {
        self.k = k;
    }
}

impl Compressor for TopK {
    type Message = SparseVec;

    fn compress(&mut self, dense: &[f32], message: &mut SparseVec) -> Result<(), Error> {
        top_k(dense, self.k, message, &mut self.scratch)
    }

    fn add_decoded(&self, message: &SparseVec, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        add_entries(message.view(), factor, dense)
    }

    fn feed(
        &mut self,
        residual: &mut Residual,
        gradient: Gradient<'_>,
        message: &mut SparseVec,
    ) -> Result<(), Error> {
        let Some(first) = residual.feed_top_k(gradient, self.k, message, &mut self.scratch)? else {
            return Ok(());
        };
        residual.put_back(message.view())?;
        residual.withdraw(gradient)?;
        message.clear();
        Err(Error::NonFinite { index: first.index, value: first.value })
    }
}

/// Any other selection: a function that copies some entries of a dense vector, unchanged, to a sparse vector
/// by rising index.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::feedback::{ErrorFeedback, SelectBy};
///
/// let mut feedback = ErrorFeedback::new(3, SelectBy(|values: &[f32], out: &mut SparseVec| {
///     out.reset(values.len());
///     let large = (0..).zip(values).filter(|(_, value)| value.abs() > 1.0);
///     large.for_each(|(index, &value)| out.push(index, value));
///     Ok(())
/// }));
/// let mut message = SparseVec::new(3);
/// feedback.compress(&[0.75, 2.0, 0.5][..], &mut message)?;
/// feedback.compress(&[0.75, 0.0, 0.0][..], &mut message)?;
/// assert_eq!((message.indices(), message.values()), (&[0][..], &[1.5][..]));
/// assert_eq!(feedback.residual().values(), [0.0, 0.0, 0.5]);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SelectBy<F>(pub F);

impl<F: FnMut(&[f32], &mut SparseVec) -> Result<(), Error>> Compressor for SelectBy<F> {
    type Message = SparseVec;

    fn compress(&mut self, dense: &[f32], message: &mut SparseVec) -> Result<(), Error> {
        (self.0)(dense, message)
    }

    fn add_decoded(&self, message: &SparseVec, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        add_entries(message.view(), factor, dense)
    }
}

/// Selects all blocks that are not entirely zero: see [`non_zero_blocks`]. By the own rule, only the
/// gradients of lost messages ever stay in the residual.
///
/// ```
/// use brevity_compress::feedback::{ErrorFeedback, NonZeroBlocks};
/// use brevity_compress::select::{BLOCK_PLACES, Blocks};
///
/// let mut gradient = vec![0.0; 3 * BLOCK_PLACES];
/// gradient[BLOCK_PLACES] = 2.5;
/// let (mut feedback, mut message) = (ErrorFeedback::new(gradient.len(), NonZeroBlocks), Blocks::new());
/// feedback.compress(&gradient[..], &mut message)?;
/// assert_eq!((message.places(), message.values().len()), (&[1][..], BLOCK_PLACES));
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NonZeroBlocks;

impl Compressor for NonZeroBlocks {
    type Message = Blocks;

    fn compress(&mut self, dense: &[f32], message: &mut Blocks) -> Result<(), Error> {
        non_zero_blocks(dense, message)
    }

    fn add_decoded(&self, message: &Blocks, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        check_length(message.dim(), dense.len())?;
        let sums = message.iter().map(|(index, value)| (index, dense[index] + factor * value));
        if let Some((index, value)) = sums.into_iter().find(|(_, sum)| !sum.is_finite()) {
            return Err(Error::NonFinite { index, value });
        }
        message.add_scaled_to(factor, dense)
    }
}

/// `dense += factor * entries`; changes nothing on an error.
pub(crate) fn add_entries(entries: SparseView<'_>, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
    check_length(entries.dim(), dense.len())?;
    let sums = entries.iter().map(|(index, value)| (index as usize, dense[index as usize] + factor * value));
    if let Some((index, value)) = sums.into_iter().find(|(_, sum)| !sum.is_finite()) {
        return Err(Error::NonFinite { index, value });
    }
    entries.iter().for_each(|(index, value)| dense[index as usize] += factor * value);
    Ok(())
}
