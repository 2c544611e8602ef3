//! Selection of fixed blocks that are not entirely zero.

use crate::Error;
use crate::bits::check_finite;
use crate::error::{check_addressable, check_length};

/// Places of a block, as in OmniReduce.
pub const BLOCK_PLACES: usize = 256;

/// A vector of dense length [`dim`](Self::dim) in blocks of [`BLOCK_PLACES`]; the last block may be shorter.
/// Absent blocks are zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Blocks {
    dim: usize,
    places: Vec<u32>,
    values: Vec<f32>,
}

impl Blocks {
    /// An empty vector without blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Length of the dense vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The numbers of the present blocks, rising: block `b` begins at index `b * BLOCK_PLACES`.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// The values of all present blocks, in order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Index and value of every place of the present blocks.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> {
        let blocks = self.places.iter().zip(self.values.chunks(BLOCK_PLACES));
        blocks.flat_map(|(&place, block)| (place as usize * BLOCK_PLACES..).zip(block.iter().copied()))
    }

    /// `dense += factor * blocks`. Sums are not checked for overflow.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a `dense` of another length, which is unchanged then.
    pub fn add_scaled_to(&self, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        check_length(self.dim, dense.len())?;
        for (&place, block) in self.places.iter().zip(self.values.chunks(BLOCK_PLACES)) {
            let into = &mut dense[place as usize * BLOCK_PLACES..];
            into.iter_mut().zip(block).for_each(|(sum, value)| *sum += factor * value);
        }
        Ok(())
    }
}

/// Copies the blocks of `values` that are not entirely zero (OmniReduce, Fei et al., SIGCOMM 2021). Nothing
/// is lost.
///
/// Sent for each block: 4 bytes of place and `4 * BLOCK_PLACES` of values, which may include zeros. Suits
/// gradients whose zeros are adjacent, such as those of embeddings. Cost: one read of `values`, two of
/// present blocks.
///
/// # Errors
/// [`Error::NonFinite`] for the first value that is not finite, [`Error::TooLong`]. `out` has no block then.
pub fn non_zero_blocks(values: &[f32], out: &mut Blocks) -> Result<(), Error> {
    out.places.clear();
    out.values.clear();
    out.dim = values.len();
    check_addressable(values.len())?;
    for (place, block) in values.chunks(BLOCK_PLACES).enumerate() {
        if block.iter().fold(0, |bits, value| bits | (value.to_bits() << 1)) == 0 {
            continue;
        }
        if let Err(error) = check_finite(block) {
            out.places.clear();
            out.values.clear();
            return Err(match error {
                Error::NonFinite { index, value } => {
                    Error::NonFinite { index: place * BLOCK_PLACES + index, value }
                }
                other => other,
            });
        }
        out.places.push(place as u32);
        out.values.extend_from_slice(block);
    }
    Ok(())
}
