//! How all ranks learn of a value that is not finite: by the marks of messages.

use ucx_sys_wrap::{Mark, Rank};

use crate::error::Error;

/// The rank and tensor of a value that is not finite. The lowest rank and tensor win.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poison {
    /// The rank that has the value.
    pub rank: u32,
    /// The tensor's position in the call, from 0.
    pub tensor: u32,
}

impl Poison {
    /// The mark that spreads the poison.
    pub(crate) const fn mark(self) -> Mark {
        Mark((!self.rank as u64) << 32 | !self.tensor as u64)
    }

    /// The poison of a mark, if any.
    pub(crate) fn from_mark(mark: Mark) -> Option<Self> {
        (mark != Mark::NONE).then_some(Self { rank: !((mark.0 >> 32) as u32), tensor: !(mark.0 as u32) })
    }
}

impl From<Poison> for Error {
    fn from(Poison { rank, tensor }: Poison) -> Self {
        Self::NonFinite { rank: Rank(rank), tensor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_and_tensor_make_the_largest_mark() {
        let mark = |rank, tensor| Poison { rank, tensor }.mark();
        assert!(mark(0, 5) > mark(1, 0));
        assert!(mark(1, 0) > mark(1, 1));
        assert_eq!(Poison::from_mark(mark(3, 7)), Some(Poison { rank: 3, tensor: 7 }));
        assert_eq!(Poison::from_mark(Mark::NONE), None);
    }
}
