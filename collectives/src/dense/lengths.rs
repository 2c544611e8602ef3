//! The lengths of the blocks of ranks.

use std::sync::Arc;

use crate::buffers::Layout;
use crate::description::{Description, fnv_1a};
use crate::error::{Error, Result};

/// The lengths of the blocks that a vector has, one for each rank, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All have the same, which is that of the vector, divided by the number of ranks.
    Equal,
    /// Elements of each.
    Each(Arc<[usize]>),
}

impl Lengths {
    /// So many elements each.
    #[must_use]
    pub fn each(lengths: &[usize]) -> Self {
        Self::Each(lengths.into())
    }

    /// Whether blocks may differ.
    pub(crate) fn is_uneven(&self) -> bool {
        matches!(self, Self::Each(_))
    }

    /// The layout of blocks of elements of `size` bytes. `each` is the length of one in bytes, if they are
    /// equal.
    ///
    /// # Errors
    /// [`Error::Length`] if there is not one for each rank, or all together are longer than memory can be.
    pub(crate) fn layout(&self, (each, size): (usize, usize), ranks: u32) -> Result<Layout> {
        let ranks = ranks as usize;
        let Self::Each(lengths) = self else { return Ok(Layout::Equal { bytes: each, ranks }) };
        if lengths.len() != ranks {
            return Err(Error::Length { what: "the list of lengths", found: lengths.len(), expected: ranks });
        }
        let mut end = 0usize;
        let ends = lengths.iter().map(|length| {
            end = length.checked_mul(size).and_then(|bytes| end.checked_add(bytes))?;
            Some(end)
        });
        let ends: Option<Arc<[usize]>> = ends.collect();
        let too_long =
            Error::Length { what: "the sum of lengths", found: usize::MAX, expected: usize::MAX / size };
        ends.map(Layout::Ends).ok_or(too_long)
    }

    /// The description of a call of which all ranks know these lengths, with a digest of them.
    pub(crate) fn on_all_ranks(&self, call: Description) -> Description {
        let Self::Each(lengths) = self else { return call };
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| (*length as u64).to_le_bytes()).collect();
        call.with_detail(fnv_1a(&bytes))
    }

    /// The description of a call of which a rank knows only its own lengths: that there are such is compared.
    pub(crate) fn on_some_ranks(&self, call: Description) -> Description {
        if self.is_uneven() { call.with_detail(1) } else { call }
    }
}
