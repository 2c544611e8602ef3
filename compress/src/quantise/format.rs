//! The formats of encoded values.

/// The byte format of values. The numbers are part of the wire format and don't change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Format {
    /// 4 bytes a value.
    F32 = 0,
    /// 2 bytes a value.
    F16 = 1,
    /// 2 bytes a value.
    Bf16 = 2,
    /// The magnitude (`f32`), then sign bits.
    Sign = 3,
    /// The number of columns (`u32`), a mean for each (`f32`), then sign bits.
    SignColumns = 4,
    /// The number of columns (`u32`), the mean of positive and of negative values for each (2 `f32`), then
    /// sign bits.
    SignPairs = 5,
    /// The small and the large magnitude (2 `f32`), then codes of 2 bits: sign, and whether the magnitude is
    /// the large one.
    TwoBit = 6,
    /// The magnitude (`f32`), then codes of 2 bits: sign, and whether the value is not zero.
    Ternary = 7,
    /// Bucket length and number of levels `s` (2 `u32`); a bucket: norm (`f32`), then `s + level` in 2, 4 or
    /// 8 bits.
    Qsgd = 8,
    /// Bucket length (`u32`); a bucket: smallest value and step (2 `f32`), then steps in 8 bits.
    MinMax = 9,
}

impl Format {
    /// All formats, by number.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Sign,
        Self::SignColumns,
        Self::SignPairs,
        Self::TwoBit,
        Self::Ternary,
        Self::Qsgd,
        Self::MinMax,
    ];

    /// The number of the format in messages.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The format with this number; `None` for a number that this version does not know.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }
}

/// Bits of a QSGD code for `levels`.
pub(super) fn qsgd_width(levels: u8) -> usize {
    match levels {
        0..=1 => 2,
        2..=7 => 4,
        _ => 8,
    }
}
