//! The formats of values that a caller chooses from, by name.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::seeded::Seeded;
use super::{
    ColumnSign, Encoded, Format, HalfPrecision, Magnitude, MinMax, Norm, Qsgd, Quantiser, Sign, Ternary,
    TwoBit,
};
use crate::Error;
use crate::codec::Plain;

/// Values of QSGD that share a scale, as in the paper's experiments.
const BUCKET: u32 = 512;

/// The numbers of levels.
const LEVELS: RangeInclusive<u8> = 2..=127;

/// How the values of a message are written. What rounding takes away is the caller's, to keep in a residual.
///
/// A message depends on its values alone, also where rounding is random: the seed is a hash of their bits, so
/// a restart, and another rank, write the same bytes for the same values. Residuals stay bounded with all
/// formats for the values of a selection, and for dense vectors with all but
/// [`Magnitude::Min`] ([`Quantiser::contracts`]). [`Ternary`](Self::Ternary) and [`Qsgd`](Self::Qsgd) are
/// therefore not those of the papers, which keep no residual: no error exceeds half of the largest magnitude.
///
/// ```
/// use brevity_compress::quantise::Values;
///
/// let values: Values = "bf16".parse()?;
/// assert_eq!((values, values.most_bytes(1000)), (Values::Bf16, 2000));
/// assert_eq!("one-bit-min".parse::<Values>()?.to_string(), "one-bit-min");
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Values {
    /// 32 bits, exact.
    #[default]
    F32,
    /// 16 bits, IEEE 754. A magnitude above 65,504 becomes 65,504.
    F16,
    /// 16 bits, bfloat16.
    Bf16,
    /// 8 bits: the nearest of 256 points between the smallest and the largest of 512 values.
    EightBit,
    /// The sign, times one magnitude of all.
    OneBit(Magnitude),
    /// The sign, times one of two magnitudes.
    TwoBit(Magnitude),
    /// The sign, times the mean magnitude of its column. Element `i` of a vector is in column `i % c`, for so
    /// many columns `c`. With 0, a policy takes those of the tensor's matrix, the product of all dimensions
    /// but the first, and 1 for a vector; elsewhere 0 counts as 1. A message has `4 c` bytes for the means:
    /// for many more values than columns. Dryden et al., MLHPC 2016; Aji and Heafield, EMNLP 2017.
    OneBitColumns(u32),
    /// -1, 0 or 1, at random, times half of the largest magnitude; larger values are clipped to it. TernGrad
    /// (Wen et al., NeurIPS 2017) with other clipping ([`Ternary::halved`](super::Ternary::halved)).
    Ternary,
    /// One of so many levels, 2 to 127, of the largest magnitude of 512 values, at random without bias: 4
    /// bits up to 7 levels, else 8. Other numbers count as the nearest of these. QSGD (Alistarh et al.,
    /// NeurIPS 2017), here with error feedback, as Wu et al., "Error compensated quantized SGD", ICML 2018.
    Qsgd(u8),
}

impl Values {
    /// All choices, those with a number by examples.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::EightBit,
        Self::OneBit(Magnitude::Mean),
        Self::OneBit(Magnitude::Min),
        Self::TwoBit(Magnitude::Mean),
        Self::TwoBit(Magnitude::Min),
        Self::OneBitColumns(7),
        Self::Ternary,
        Self::Qsgd(7),
        Self::Qsgd(127),
    ];

    /// What is [read](FromStr), where `C` is a number of columns and `S` one of levels.
    pub const NAMES: [&str; 12] = [
        "f32",
        "f16",
        "bf16",
        "eight-bit",
        "one-bit-mean",
        "one-bit-min",
        "two-bit-mean",
        "two-bit-min",
        "one-bit-columns",
        "one-bit-columns-C",
        "ternary",
        "qsgd-S",
    ];

    /// A quantiser that has not written a message yet.
    pub fn quantiser(self) -> Box<dyn Quantiser + Send> {
        match self {
            Self::F32 => Box::new(Plain),
            Self::F16 => Box::new(HalfPrecision::f16()),
            Self::Bf16 => Box::new(HalfPrecision::bf16()),
            Self::EightBit => Box::new(MinMax::default()),
            Self::OneBit(magnitude) => Box::new(Sign::new(magnitude)),
            Self::TwoBit(magnitude) => Box::new(TwoBit::new(magnitude)),
            Self::OneBitColumns(columns) => Box::new(ColumnSign::means(columns)),
            Self::Ternary => Box::new(Seeded(Ternary::halved(0))),
            Self::Qsgd(levels) => Box::new(Seeded(Qsgd::new(within(levels), BUCKET, Norm::Largest, 0))),
        }
    }

    /// Checks bytes from any source as `count` values of this format, with its columns and levels.
    ///
    /// # Errors
    /// As for [`Encoded::new`]; [`Error::Malformed`] for another number of columns or levels, or another
    /// bucket.
    pub fn read(self, count: usize, bytes: &[u8]) -> Result<Encoded<'_>, Error> {
        let encoded = Encoded::new(self.format(), count, bytes)?;
        let (what, expected, found) = match self {
            Self::OneBitColumns(columns) => ("columns", columns.max(1) as usize, encoded.columns()),
            Self::Qsgd(levels) => ("levels", within(levels).into(), encoded.levels()),
            _ => return Ok(encoded),
        };
        if found == expected { Ok(encoded) } else { Err(Error::Malformed { what, expected, found }) }
    }

    /// The same with the columns of a matrix, or 1 for a vector, where they are not given.
    #[must_use]
    pub const fn of_columns(self, columns: u32) -> Self {
        match self {
            Self::OneBitColumns(0) => Self::OneBitColumns(if columns == 0 { 1 } else { columns }),
            other => other,
        }
    }

    /// The format of the bytes.
    pub const fn format(self) -> Format {
        match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::EightBit => Format::MinMax,
            Self::OneBit(_) => Format::Sign,
            Self::TwoBit(_) => Format::TwoBit,
            Self::OneBitColumns(_) => Format::SignColumns,
            Self::Ternary => Format::Ternary,
            Self::Qsgd(_) => Format::Qsgd,
        }
    }

    /// The largest number of bytes that up to `count` values take.
    pub fn most_bytes(self, count: usize) -> usize {
        self.quantiser().encoded_bytes(count)
    }

    /// Whether every finite value comes back with the same bits.
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::F32)
    }

    /// The format for sums of values in this one. Less than 8 bits tell contributions apart that are alike; a
    /// sum of them that was written so again and again would lose its largest entries among the others.
    #[must_use]
    pub const fn of_sums(self) -> Self {
        match self {
            Self::OneBit(_) | Self::TwoBit(_) | Self::OneBitColumns(_) | Self::Ternary | Self::Qsgd(..=7) => {
                Self::Bf16
            }
            fine => fine,
        }
    }

    /// A number of the format and its parameters, other for each choice. It is part of what ranks agree on
    /// and doesn't change.
    pub const fn code(self) -> u64 {
        let parameter = match self {
            Self::OneBit(Magnitude::Min) | Self::TwoBit(Magnitude::Min) => 1,
            Self::OneBitColumns(0) => 1,
            Self::OneBitColumns(columns) => columns as u64,
            Self::Qsgd(levels) => within(levels) as u64,
            _ => 0,
        };
        self.format() as u64 | parameter << 8
    }
}

/// The number of levels in use.
const fn within(levels: u8) -> u8 {
    let (least, most) = (*LEVELS.start(), *LEVELS.end());
    if levels < least {
        least
    } else if levels > most {
        most
    } else {
        levels
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::EightBit => "eight-bit",
            Self::OneBit(Magnitude::Mean) => "one-bit-mean",
            Self::OneBit(Magnitude::Min) => "one-bit-min",
            Self::TwoBit(Magnitude::Mean) => "two-bit-mean",
            Self::TwoBit(Magnitude::Min) => "two-bit-min",
            Self::OneBitColumns(0) => "one-bit-columns",
            Self::OneBitColumns(columns) => return f.pad(&format!("one-bit-columns-{columns}")),
            Self::Ternary => "ternary",
            Self::Qsgd(levels) => return f.pad(&format!("qsgd-{}", within(*levels))),
        })
    }
}

/// The names that [`Display`](fmt::Display) writes.
impl FromStr for Values {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownValues(name.to_owned());
        if let Some(columns) = name.strip_prefix("one-bit-columns-") {
            let columns = columns.parse().ok().filter(|&columns| columns > 0);
            return columns.map(Self::OneBitColumns).ok_or_else(unknown);
        }
        if let Some(levels) = name.strip_prefix("qsgd-") {
            let levels = levels.parse().ok().filter(|levels| LEVELS.contains(levels));
            return levels.map(Self::Qsgd).ok_or_else(unknown);
        }
        let known = Self::ALL.into_iter().chain([Self::OneBitColumns(0)]);
        known.into_iter().find(|values| values.to_string() == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_their_text() {
        let others = [Values::OneBitColumns(0), Values::OneBitColumns(u32::MAX), Values::Qsgd(2)];
        for values in Values::ALL.into_iter().chain(others) {
            assert_eq!(values.to_string().parse(), Ok(values));
        }
        for text in
            ["qsgd-1", "qsgd-128", "qsgd-", "qsgd", "qsgd-7.5", "one-bit-columns-0", "one-bit-columns-"]
        {
            assert!(text.parse::<Values>().is_err(), "{text}");
        }
        assert_eq!(
            [0, 1, 2, 127, 255].map(|levels| Values::Qsgd(levels).to_string()),
            ["qsgd-2", "qsgd-2", "qsgd-2", "qsgd-127", "qsgd-127",]
        );
        let unknown = "bf17".parse::<Values>().unwrap_err().to_string();
        assert!(unknown.contains("\"bf17\"") && unknown.contains("two-bit-min"), "{unknown}");
    }

    #[test]
    fn each_choice_has_a_code_of_its_own_and_the_format_of_its_quantiser() {
        let codes: std::collections::BTreeSet<u64> = Values::ALL.map(Values::code).into();
        assert_eq!(codes.len(), Values::ALL.len());
        for values in Values::ALL {
            assert_eq!(values.quantiser().format(), values.format(), "{values}");
        }
        assert_eq!((Values::F32.code(), Values::Bf16.code()), (0, 2));
    }

    #[test]
    fn another_number_of_columns_or_levels_is_refused() {
        let numbers: Vec<f32> = (0..300).map(|place| place as f32 - 70.5).collect();
        let mut bytes = Vec::new();
        for (written, read, what) in [
            (Values::OneBitColumns(7), Values::OneBitColumns(6), "columns"),
            (Values::Qsgd(7), Values::Qsgd(5), "levels"),
            (Values::Qsgd(127), Values::Qsgd(126), "levels"),
        ] {
            written.quantiser().encode(&numbers, &mut bytes).unwrap();
            assert!(written.read(300, &bytes).is_ok());
            let refused = read.read(300, &bytes).map(drop);
            assert!(matches!(refused, Err(Error::Malformed { what: found, .. }) if found == what));
            bytes[4..8].fill(0);
            assert!(written == Values::OneBitColumns(7) || written.read(300, &bytes).is_err(), "no level");
        }
        for values in Values::ALL {
            values.quantiser().encode(&numbers, &mut bytes).unwrap();
            assert!(values.read(300, &bytes).is_ok() && values.read(301 + 300, &bytes).is_err(), "{values}");
            bytes.pop();
            assert!(values.read(300, &bytes).is_err(), "{values}");
        }
    }

    #[test]
    fn columns_that_are_not_given_are_those_of_the_matrix() {
        let of = |columns| Values::OneBitColumns(0).of_columns(columns);
        assert_eq!((of(0), of(9)), (Values::OneBitColumns(1), Values::OneBitColumns(9)));
        for values in Values::ALL {
            assert_eq!(values.of_columns(9), values);
        }
    }
}
