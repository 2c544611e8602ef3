//! The memory of calls over slots, and how it is cut.

use std::ops::Range;

use ucx_sys_wrap::shm::{CHUNK_BYTES, LINE_BYTES, Part, Step};

use super::turn::SlotTurn;

/// The vectors of a call.
pub(super) struct Memory<'a> {
    /// `None` in place: the output holds the input.
    pub(super) input: Option<&'a [u8]>,
    /// Empty on a rank that gets nothing.
    pub(super) output: &'a mut [u8],
}

impl Memory<'_> {
    /// The input.
    #[inline]
    pub(super) fn input(&self) -> &[u8] {
        self.input.unwrap_or(self.output)
    }

    /// A range of the input to read, and one of the output to write.
    ///
    /// # Panics
    /// When they overlap in one vector, or are outside.
    pub(super) fn pair(&mut self, read: Range<usize>, write: Range<usize>) -> (&[u8], &mut [u8]) {
        let Some(input) = self.input else {
            let all = &mut *self.output;
            return if read.end <= write.start {
                let (low, high) = all.split_at_mut(write.start);
                (&low[read], &mut high[..write.len()])
            } else {
                let (low, high) = all.split_at_mut(read.start);
                (&high[..read.len()], &mut low[write])
            };
        };
        (&input[read], &mut self.output[write])
    }

    /// A range of the input to reduce, with the range of the output for the result.
    #[inline]
    pub(super) fn part(&mut self, read: Range<usize>, write: Range<usize>) -> Part<'_> {
        match self.input {
            Some(input) => Part::Apart(&input[read], &mut self.output[write]),
            None => Part::InPlace(&mut self.output[write]),
        }
    }
}

/// Bytes at an offset of a slot, of a step, that are copied from or to a range of a vector.
pub(super) type Piece = (Step, usize, Range<usize>);

/// Writes a piece of the input to this rank's slot, and reads one of the output from the slot of the rank at
/// `place`.
pub(super) fn move_pieces(
    turn: &mut SlotTurn<'_>,
    memory: &mut Memory<'_>,
    place: usize,
    out: Option<Piece>,
    back: Option<Piece>,
) {
    match (out, back) {
        (Some((to, at, out)), Some((from, start, back))) => {
            let (out, back) = memory.pair(out, back);
            turn.slots().exchange((to, at, out), (place, from, start), back);
        }
        (Some((step, at, range)), None) => turn.slots().write(step, at, &memory.input()[range]),
        (None, Some((step, at, range))) => turn.slots().read(place, step, at, &mut memory.output[range]),
        (None, None) => {}
    }
}

/// Where the blocks of all ranks lie in a vector, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks<'a> {
    /// They have this length.
    Equal(usize),
    /// They end here.
    Ends(&'a [usize]),
}

impl Blocks<'_> {
    /// The block of the rank at `place`.
    #[inline]
    pub(crate) fn range(self, place: usize) -> Range<usize> {
        match self {
            Self::Equal(length) => place * length..(place + 1) * length,
            Self::Ends(ends) => place.checked_sub(1).map_or(0, |before| ends[before])..ends[place],
        }
    }

    /// Their length, if it is the same.
    pub(super) fn equal(self) -> Option<usize> {
        match self {
            Self::Equal(length) => Some(length),
            Self::Ends(_) => None,
        }
    }

    /// The length of the longest.
    pub(super) fn longest(self) -> usize {
        match self {
            Self::Equal(length) => length,
            Self::Ends(ends) => (0..ends.len()).map(|place| self.range(place).len()).max().unwrap_or(0),
        }
    }

    /// The length of all of them.
    pub(super) fn total(self, places: usize) -> usize {
        match self {
            Self::Equal(length) => places * length,
            Self::Ends(ends) => ends.last().copied().unwrap_or(0),
        }
    }
}

/// Bytes that a rank writes in a step, of vectors that fit in caches. Longer ones fill the slots.
const USUAL_STEP_BYTES: usize = 128 << 10;
const LONG_BYTES: usize = 4 << 20;

/// Bytes of a piece that all others read.
const READERS_BYTES: usize = 64 << 10;
const LONG_READERS_BYTES: usize = 256 << 10;

/// How blocks are cut into pieces, in bytes. A slot has a room for a piece of each of several blocks.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    piece: usize,
    room: usize,
    rooms: usize,
    count: usize,
}

impl Pieces {
    /// For blocks of up to `longest` bytes, of elements of `element` bytes that are not cut.
    pub(super) fn new(longest: usize, rooms: usize, element: usize) -> Self {
        let step = if longest.saturating_mul(rooms) < LONG_BYTES { USUAL_STEP_BYTES } else { CHUNK_BYTES };
        let room = (step / rooms).min(longest).max(element.max(LINE_BYTES));
        let piece = room / LINE_BYTES * LINE_BYTES / element * element;
        let piece = if piece == 0 { element } else { piece };
        Self { piece, room: piece.next_multiple_of(LINE_BYTES), rooms, count: longest.div_ceil(piece) }
    }

    /// For a block of each rank, of up to `longest` bytes, that all others read.
    pub(super) fn for_readers(longest: usize) -> Self {
        let piece = if longest < LONG_BYTES { READERS_BYTES } else { LONG_READERS_BYTES };
        let piece = piece.min(longest);
        Self { piece, room: piece, rooms: 1, count: longest.div_ceil(piece) }
    }

    /// How many there are of the longest block: the steps that are taken.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The offset of a room in the slot of a step.
    pub(super) fn at(&self, step: Step, room: usize) -> usize {
        step.place_for(self.rooms * self.room) + room * self.room
    }

    /// The piece of a block with this index, empty if there is none.
    pub(super) fn of(&self, block: Range<usize>, index: usize) -> Range<usize> {
        let start = block.end.min(block.start + index * self.piece);
        start..block.end.min(start + self.piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_block_and_fit_in_a_slot() {
        for rooms in 1..=33 {
            for element in [1, 2, 8, 12, 200] {
                for elements in [0, 1, 15, 1000, 65_537, 1_000_001] {
                    let longest = elements * element;
                    let pieces = Pieces::new(longest, rooms, element);
                    assert!(pieces.rooms * pieces.room <= CHUNK_BYTES, "{rooms} rooms of {element}");
                    for block in [100..100 + longest, 7..7 + longest / element / 2 * element] {
                        let mut end = block.start;
                        for index in 0..pieces.count() {
                            let piece = pieces.of(block.clone(), index);
                            assert!(piece.start == end && piece.len() <= pieces.room);
                            assert!(piece.len().is_multiple_of(element));
                            end = piece.end;
                        }
                        assert_eq!(end, block.end, "{rooms} rooms, {elements} of {element} bytes");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_lie_one_after_the_other() {
        let blocks = [Blocks::Equal(5), Blocks::Ends(&[5, 10, 15])];
        assert!(
            blocks.iter().all(|blocks| (0..3).all(|place| blocks.range(place) == (place * 5..place * 5 + 5)))
        );
        let blocks = Blocks::Ends(&[2, 2, 9]);
        assert_eq!([0, 1, 2].map(|place| blocks.range(place)), [0..2, 2..2, 2..9]);
        assert_eq!((blocks.longest(), blocks.total(3)), (7, 9));
    }
}
