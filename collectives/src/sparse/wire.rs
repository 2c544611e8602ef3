//! How the entries of a sparse collective are written.

use std::{fmt, mem};

use brevity_compress::codec::{self, Choice, Encoder};
use brevity_compress::quantise::{Format, Values};
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode, merge};

use super::message::{Message, Room};
use super::reader::Reader;
use super::tensors::Tensors;
use crate::call::Call;
use crate::description::Description;
use crate::error::Result;

/// How the entries of a sparse collective are written. All ranks of a call use the same, which is part of
/// what they agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// An index of 4 bytes and a value of 4 bytes each, exact.
    #[default]
    Pairs,
    /// Messages of the [codec](brevity_compress::codec): packed indices, values in this format.
    Coded(Values),
}

impl Wire {
    /// The number in a description: 0 for pairs, else 1 + the format's.
    const fn number(self) -> u8 {
        match self {
            Self::Pairs => 0,
            Self::Coded(values) => 1 + values.format() as u8,
        }
    }

    /// The name of the wire with this number in descriptions; none for pairs.
    pub(crate) fn name(number: u8) -> Option<&'static str> {
        Some(match Format::from_id(number.checked_sub(1)?)? {
            Format::F32 => "packed, f32 values",
            Format::F16 => "packed, f16 values",
            Format::Bf16 => "packed, bf16 values",
            Format::Sign => "packed, 1-bit values",
            Format::TwoBit => "packed, 2-bit values",
            Format::MinMax => "packed, 8-bit values",
            Format::SignColumns => "packed, 1-bit values by columns",
            Format::Ternary => "packed, ternary values",
            Format::Qsgd => "packed, QSGD values",
            _ => return None,
        })
    }

    /// A description of a sparse collective on this wire.
    pub(crate) fn describe(self, description: Description) -> Description {
        let description = Description { reduction: self.number(), ..description };
        match self {
            // As in earlier versions.
            Self::Pairs => description,
            Self::Coded(values) => description.with_detail(values.code()),
        }
    }

    /// The wire for sums of what goes over this one.
    pub(super) const fn of_sums(self) -> Self {
        match self {
            Self::Pairs => Self::Pairs,
            Self::Coded(values) => Self::Coded(values.of_sums()),
        }
    }

    /// Whether an entry is read the same whatever else its message holds, so that a message can be cut.
    pub(super) const fn can_be_cut(self) -> bool {
        matches!(self, Self::Pairs | Self::Coded(Values::F32 | Values::F16 | Values::Bf16))
    }

    /// Whether all entries arrive with the bits that they were sent with.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        match self {
            Self::Pairs => true,
            Self::Coded(values) => values.is_exact(),
        }
    }

    /// The largest number of bytes that at most `limit` entries of a vector of length `dim` take.
    #[must_use]
    pub fn most_bytes(self, dim: usize, limit: usize) -> usize {
        match self {
            Self::Pairs => limit.min(dim).saturating_mul(8),
            Self::Coded(values) => codec::most_bytes(dim, limit, values),
        }
    }

    /// The bytes of a message of `entries` anywhere in a vector of length `dim`, on average.
    pub(crate) fn usual_bytes(self, dim: usize, entries: usize) -> usize {
        self.usual_bytes_of_part(dim, entries, 1)
    }

    /// Likewise, anywhere in one of so many equal parts of the vector.
    pub(crate) fn usual_bytes_of_part(self, dim: usize, entries: usize, parts: u32) -> usize {
        let places = dim.div_ceil(parts.max(1) as usize);
        // That of the part in the middle.
        let start = dim.saturating_sub(places) / 2;
        match self {
            Self::Pairs => entries.min(places).saturating_mul(8),
            Self::Coded(values) => codec::usual_bytes(dim, (start, places), entries, values),
        }
    }
}

/// As "pairs" or "packed f32".
impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pairs => f.pad("pairs"),
            Self::Coded(values) => f.pad(&format!("packed {values}")),
        }
    }
}

/// Writes and reads messages of a [`Wire`], and keeps its memory from call to call. What it writes depends on
/// the entries alone.
#[derive(Debug, Default)]
pub struct Coder {
    wire: Wire,
    encoder: Encoder,
    message: Vec<u8>,
    /// What the last message says.
    said: SparseVec,
    /// What is decoded of a message that is read block by block.
    block: SparseVec,
}

impl Coder {
    /// A coder that has not allocated memory yet.
    #[must_use]
    pub fn new(wire: Wire) -> Self {
        Self { wire, ..Self::default() }
    }

    /// A coder of [pairs](Wire::Pairs).
    #[must_use]
    pub fn pairs() -> Self {
        Self::new(Wire::Pairs)
    }

    /// How entries are written.
    #[must_use]
    pub const fn wire(&self) -> Wire {
        self.wire
    }

    /// The message of these entries on a wire, and what it rounds away.
    pub(super) fn message(&mut self, entries: SparseVec, wire: Wire) -> Result<(Message, SparseVec)> {
        let Wire::Coded(values) = wire else {
            let nothing = SparseVec::new(entries.dim());
            return Ok((Message::Pairs(entries), nothing));
        };
        let (_, said) = self.encode(entries.view(), values)?;
        let rounded =
            if wire.is_exact() { SparseVec::new(entries.dim()) } else { rounded_away(entries.view(), said)? };
        Ok((Message::Coded(mem::take(&mut self.message)), rounded))
    }

    /// Memory to receive a coded message into; none on a wire of pairs.
    pub(super) fn memory(&mut self) -> Option<Message> {
        matches!(self.wire, Wire::Coded(_)).then(|| Message::Coded(mem::take(&mut self.message)))
    }

    /// Keeps the memory of a message, for another one.
    pub(super) fn keep(&mut self, message: Message) {
        if let Message::Coded(bytes) = message {
            self.message = bytes;
        }
    }

    /// Reads a message block by block.
    pub(super) fn reader<'a>(
        &'a mut self,
        message: &'a Message,
        room: Room,
    ) -> std::result::Result<Reader<'a>, brevity_compress::Error> {
        Reader::new(message, room, &mut self.block)
    }

    /// The entries of a message. A coded one has no zeros: what rounding has made 0 was not sent.
    pub(super) fn read(
        &mut self,
        message: Message,
        room: Room,
    ) -> std::result::Result<SparseVec, brevity_compress::Error> {
        let (bytes, values) = match (message, room.wire) {
            (Message::Pairs(entries), _) => return Ok(entries),
            (Message::Coded(bytes), Wire::Coded(values)) => (bytes, values),
            (Message::Coded(_), Wire::Pairs) => unreachable!("no coded message goes over a wire of pairs"),
        };
        let mut entries = SparseVec::new(room.dim);
        in_standard_float_mode(|| codec::decode_values(&bytes, room.dim, room.limit, values, &mut entries))?;
        entries.drop_zeros();
        self.message = bytes;
        Ok(entries)
    }

    /// The message of `local`, in the format `values`, and the entries that every rank reads from it.
    pub(super) fn encode(
        &mut self,
        local: SparseView<'_>,
        values: Values,
    ) -> Result<(&[u8], SparseView<'_>)> {
        let Self { encoder, message, said, .. } = self;
        // A quantiser that keeps something from message to message would begin anew after a restart, with
        // other results.
        let (dim, limit) = (local.dim(), local.len());
        in_standard_float_mode(|| {
            encoder.encode(local, Choice::Fast, &mut *values.quantiser(), message)?;
            codec::decode_values(message, dim, limit, values, said)
        })?;
        Ok((message, said.view()))
    }
}

/// The entries to send: `local`, or none if a value is not finite, which poisons the call.
pub(super) fn finite_or_poison<'a>(
    call: &Call<'_, '_>,
    local: SparseView<'a>,
    tensors: Tensors<'_>,
) -> SparseView<'a> {
    match local.check_finite() {
        Ok(()) => local,
        Err(error) => {
            call.set_poison(tensors.of(&error));
            local.within(0..0)
        }
    }
}

/// What rounding takes away: the entries of `local` less what their message says. A value that became 0 is
/// there as a whole.
pub(super) fn rounded_away(local: SparseView<'_>, said: SparseView<'_>) -> Result<SparseVec> {
    let (mut negated, mut kept) = (said.to_owned(), SparseVec::new(local.dim()));
    in_standard_float_mode(|| {
        negated.scale(-1.0);
        merge::add(local, negated.view(), &mut kept)
    })?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wire_has_a_name_and_only_exact_ones_keep_nothing() {
        let local = SparseVec::from_parts(9, vec![1, 4, 8], vec![0.1, -3.0, 1e-30]).unwrap();
        assert!(Wire::name(Wire::Pairs.number()).is_none() && Wire::Pairs.is_exact());
        for values in Values::ALL {
            let wire = Wire::Coded(values);
            assert!(Wire::name(wire.number()).is_some(), "{values}");
            let mut coder = Coder::new(wire);
            let (message, said) = coder.encode(local.view(), values).unwrap();
            assert!(message.len() <= wire.most_bytes(9, 3));
            let kept = rounded_away(local.view(), said).unwrap();
            assert_eq!(kept.is_empty(), wire.is_exact(), "{values}: {kept:?}");
            assert!(!wire.is_exact() || wire.can_be_cut(), "{values}");
        }
        for number in [6, 11, 255] {
            assert_eq!(Wire::name(number), None);
        }
    }

    #[test]
    fn what_becomes_zero_stays_as_a_whole() {
        let local = SparseVec::from_parts(9, vec![1, 4], vec![1e-30, 2.0]).unwrap();
        let mut coder = Coder::new(Wire::Coded(Values::F16));
        let (_, said) = coder.encode(local.view(), Values::F16).unwrap();
        assert_eq!(said.values(), [0.0, 2.0]);
        let kept = rounded_away(local.view(), said).unwrap();
        assert_eq!((kept.indices(), kept.values()), (&[1][..], &[1e-30][..]));
    }
}
