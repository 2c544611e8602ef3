//! The lengths of the blocks of all ranks, as C passes them.

use brevity_collectives::data::{DataType, Reducer};
use brevity_collectives::dense::Lengths;

use super::Count;
use crate::failure::Failure;
use crate::memory::Stretch;

/// Elements of the block of each rank.
#[derive(Clone, Copy)]
pub(super) enum Blocks<'a> {
    /// All have the same.
    Equal { elements: usize, ranks: usize },
    /// Each has its own. The list has a name, for texts.
    Each { lengths: &'a [usize], name: &'static str },
}

impl<'a> Blocks<'a> {
    /// Those of the blocks that are sent, and of those that are received.
    ///
    /// # Safety
    /// Lists are NULL, or have a length for each rank, which nobody writes during `'a`.
    pub(super) unsafe fn read(count: Count, ranks: u32) -> Result<(Self, Self), Failure> {
        let ranks = ranks as usize;
        let list = |lengths: *const usize, name| {
            let lengths = Stretch::new(lengths, ranks, name)?;
            // SAFETY: not NULL and aligned; the caller of this function guarantees the rest.
            Ok::<_, Failure>(Self::Each { lengths: unsafe { lengths.read() }, name })
        };
        Ok(match count {
            Count::Each(elements) => {
                let equal = Self::Equal { elements, ranks };
                (equal, equal)
            }
            Count::Lengths(lengths) => {
                let each = list(lengths, "lengths")?;
                (each, each)
            }
            Count::SentAndReceived(sent, received) => (list(sent, "sent")?, list(received, "received")?),
        })
    }

    /// Elements of a rank's block.
    pub(super) fn of(&self, rank: usize) -> usize {
        match self {
            Self::Equal { elements, .. } => *elements,
            Self::Each { lengths, .. } => lengths[rank],
        }
    }

    /// Elements before a rank's block, of blocks that have a [total](Self::total).
    pub(super) fn before(&self, rank: usize) -> usize {
        match self {
            Self::Equal { elements, .. } => rank * elements,
            Self::Each { lengths, .. } => lengths[..rank].iter().sum(),
        }
    }

    /// Elements of all blocks.
    pub(super) fn total(&self) -> Result<usize, Failure> {
        match self {
            Self::Equal { elements, ranks } => elements.checked_mul(*ranks).ok_or_else(|| {
                Failure::argument(format!(
                    "n is {elements}, which no memory can hold for every rank: check n"
                ))
            }),
            Self::Each { lengths, name } => {
                let total = lengths.iter().try_fold(0usize, |total, length| total.checked_add(*length));
                total.ok_or_else(|| {
                    Failure::argument(format!("{name} add up to more than memory can hold: check {name}"))
                })
            }
        }
    }

    /// Whether all blocks have the same lengths as others.
    pub(super) fn are(&self, others: &Self) -> bool {
        match (self, others) {
            (Self::Each { lengths, .. }, Self::Each { lengths: others, .. }) => lengths == others,
            _ => self.of(0) == others.of(0),
        }
    }

    pub(super) fn lengths(&self) -> Lengths {
        match self {
            Self::Equal { .. } => Lengths::Equal,
            Self::Each { lengths, .. } => Lengths::each(lengths),
        }
    }

    /// The lengths in elements of a reduction, which may be several of the type.
    pub(super) fn lengths_for(&self, reducer: &Reducer, data: DataType) -> Result<Lengths, Failure> {
        self.check_units(reducer, data)?;
        let unit = reducer.size() / data.bytes();
        Ok(match self {
            Self::Each { lengths, .. } if unit > 1 => {
                Lengths::Each(lengths.iter().map(|length| length / unit).collect())
            }
            _ => self.lengths(),
        })
    }

    /// Refuses blocks that are not whole elements of a reduction.
    pub(super) fn check_units(&self, reducer: &Reducer, data: DataType) -> Result<(), Failure> {
        let unit = reducer.size() / data.bytes();
        let is_whole = |length: &usize| length.is_multiple_of(unit);
        let broken = match self {
            Self::Equal { elements, .. } => Some(*elements).filter(|elements| !is_whole(elements)),
            Self::Each { lengths, .. } => lengths.iter().copied().find(|length| !is_whole(length)),
        };
        let Some(found) = broken else { return Ok(()) };
        let name = self.name();
        Err(Failure::argument(format!(
            "{name} is {found} bytes, expected a multiple of the {unit} of an element"
        )))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Equal { .. } => "n",
            Self::Each { name, .. } => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_no_memory_holds_are_refused() {
        let lengths = [usize::MAX, 1];
        // SAFETY: the list is live and has a length for each of the ranks.
        let (blocks, _) = unsafe { Blocks::read(Count::Lengths(lengths.as_ptr()), 2) }.unwrap();
        assert!(blocks.total().unwrap_err().text().contains("check lengths"));
        let equal = Blocks::Equal { elements: usize::MAX / 2, ranks: 3 };
        assert!(equal.total().unwrap_err().text().contains("check n"));
    }

    #[test]
    fn blocks_follow_each_other() {
        let (sent, received) = ([3, 0, 4], [3, 0, 5]);
        let count = Count::SentAndReceived(sent.as_ptr(), received.as_ptr());
        // SAFETY: the lists are live and have a length for each of the ranks.
        let (sent, received) = unsafe { Blocks::read(count, 3) }.unwrap();
        assert_eq!([0, 1, 2].map(|rank| (sent.before(rank), sent.of(rank))), [(0, 3), (3, 0), (3, 4)]);
        assert_eq!((sent.total().unwrap(), received.total().unwrap()), (7, 8));
        assert!(!sent.are(&received) && sent.are(&sent));
        // SAFETY: NULL is refused.
        let refused = unsafe { Blocks::read(Count::SentAndReceived([1].as_ptr(), std::ptr::null()), 1) };
        assert!(refused.err().unwrap().text().contains("received is NULL"));
    }
}
