//! Messages that are read by rising index, straight into a sum.

use brevity_compress::codec::Decoder;
use brevity_compress::{Error as Compress, SparseVec, SparseView};

use super::message::{Message, Room};
use super::wire::Wire;

/// The entries of a message that are left. A coded message is decoded when they are asked for: the errors of
/// its indices come then. An entry that rounding has made 0 is there, unlike in what a
/// [`Coder`](super::Coder) reads as a whole; sums drop it.
pub(super) enum Reader<'a> {
    Pairs(SparseView<'a>),
    Coded(Decoder<'a>),
}

impl<'a> Reader<'a> {
    /// Of a message that has come where there is such room. A coded one is decoded into `memory`.
    pub(super) fn new(message: &'a Message, room: Room, memory: &'a mut SparseVec) -> Result<Self, Compress> {
        match (message, room.wire) {
            (Message::Pairs(entries), _) => Ok(Self::Pairs(entries.view())),
            (Message::Coded(bytes), Wire::Coded(values)) => {
                Decoder::of_values(bytes, room.dim, room.limit, values, memory).map(Self::Coded)
            }
            (Message::Coded(_), Wire::Pairs) => unreachable!("no coded message goes over a wire of pairs"),
        }
    }

    /// How many are left.
    pub(super) fn remaining(&self) -> usize {
        match self {
            Self::Pairs(rest) => rest.len(),
            Self::Coded(decoder) => decoder.remaining(),
        }
    }

    /// The next ones, if any are left.
    pub(super) fn next_block(&mut self) -> Result<Option<SparseView<'_>>, Compress> {
        match self {
            Self::Pairs(rest) => Ok(Some(taken(rest, rest.len())).filter(|block| !block.is_empty())),
            Self::Coded(decoder) => decoder.next_block(),
        }
    }

    /// Those below `end`.
    pub(super) fn until(&mut self, end: usize) -> Result<SparseView<'_>, Compress> {
        match self {
            Self::Pairs(rest) => {
                let count = rest.indices().partition_point(|&index| (index as usize) < end);
                Ok(taken(rest, count))
            }
            Self::Coded(decoder) => decoder.until(end),
        }
    }
}

/// The first `count` entries, which are no longer left.
fn taken<'a>(rest: &mut SparseView<'a>, count: usize) -> SparseView<'a> {
    let first = rest.slice(0..count);
    *rest = rest.slice(count..rest.len());
    first
}
