//! The formats of values that a caller chooses from, by name.

use std::fmt;
use std::str::FromStr;

use super::{Format, HalfPrecision, Magnitude, MinMax, Quantiser, Sign, TwoBit};
use crate::Error;
use crate::codec::Plain;

/// How the values of a message are written. What rounding takes away is the caller's, to keep in a residual.
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
}

impl Values {
    /// All choices.
    pub const ALL: [Self; 8] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::EightBit,
        Self::OneBit(Magnitude::Mean),
        Self::OneBit(Magnitude::Min),
        Self::TwoBit(Magnitude::Mean),
        Self::TwoBit(Magnitude::Min),
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

    /// The format for sums of values in this one. One and two bits tell contributions apart that are alike; a
    /// sum of them that was written so again and again would lose its largest entries among the others.
    #[must_use]
    pub const fn of_sums(self) -> Self {
        match self {
            Self::OneBit(_) | Self::TwoBit(_) => Self::Bf16,
            fine => fine,
        }
    }

    /// A number of the format and its parameters, other for each choice. It is part of what ranks agree on
    /// and doesn't change.
    pub const fn code(self) -> u64 {
        let parameter = match self {
            Self::OneBit(Magnitude::Min) | Self::TwoBit(Magnitude::Min) => 1,
            _ => 0,
        };
        self.format() as u64 | parameter << 8
    }

    const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::EightBit => "eight-bit",
            Self::OneBit(Magnitude::Mean) => "one-bit-mean",
            Self::OneBit(Magnitude::Min) => "one-bit-min",
            Self::TwoBit(Magnitude::Mean) => "two-bit-mean",
            Self::TwoBit(Magnitude::Min) => "two-bit-min",
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The names that [`Display`](fmt::Display) writes.
impl FromStr for Values {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|values| values.name() == name);
        known.ok_or_else(|| Error::UnknownValues(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_their_text() {
        for values in Values::ALL {
            assert_eq!(values.to_string().parse(), Ok(values));
        }
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
}
