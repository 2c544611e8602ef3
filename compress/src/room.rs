//! Vectors for which there may be no memory.

use crate::Error;

/// `count` zeros.
pub(crate) fn zeros(count: usize) -> Result<Vec<f32>, Error> {
    bytemuck::allocation::try_zeroed_vec(count)
        .map_err(|()| Error::Memory { bytes: count.saturating_mul(size_of::<f32>()) })
}
