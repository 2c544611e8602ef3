//! The tables of element types and reductions.

use std::any::TypeId;
use std::fmt;
use std::str::FromStr;

/// A name that no entry of a table has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no {what}: use one of {}", .expected.join(", "))]
pub struct UnknownName {
    /// What the name should be of: "element type" or "reduction".
    pub what: &'static str,
    /// The name that was given.
    pub found: String,
    /// The names that there are.
    pub expected: &'static [&'static str],
}

/// An enum whose variants have a number, by which ranks and C know them, and a name.
macro_rules! table {
    (
        $(#[$attribute:meta])* $table:ident, $what:literal;
        $($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $table {
            $($(#[$doc])* $variant = $number,)*
        }

        impl $table {
            /// All variants, by rising numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            const NAMES: &'static [&'static str] = &[$($name),*];

            /// The number on the wire and in C.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The variant with this number.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name, in lower case. It can be parsed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $table {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $table {
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, UnknownName> {
                let found = Self::ALL.iter().find(|entry| entry.name() == name);
                found.copied().ok_or_else(|| UnknownName {
                    what: $what,
                    found: name.to_owned(),
                    expected: Self::NAMES,
                })
            }
        }
    };
}

/// What an element is, as far as reductions care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Float,
    Integer,
    Truth,
    Raw,
}

/// The table of element types. It implements [`Element`](super::Element), too.
macro_rules! data_types {
    ($(
        $(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $type:ty, $class:ident;
    )*) => {
        table! {
            /// The type of the elements of a vector.
            DataType, "element type";
            $($(#[$doc])* $variant = $number, $name;)*
        }

        impl DataType {
            /// Bytes of an element.
            #[must_use]
            pub const fn bytes(self) -> usize {
                match self {
                    $(Self::$variant => size_of::<$type>(),)*
                }
            }

            /// The type of the library that `T` is, if it is one.
            pub(super) fn of<T: 'static>() -> Option<Self> {
                let found = TypeId::of::<T>();
                $(if found == TypeId::of::<$type>() {
                    return Some(Self::$variant);
                })*
                None
            }

            const fn class(self) -> Class {
                match self {
                    $(Self::$variant => Class::$class,)*
                }
            }
        }

        $(
            impl super::element::private::Sealed for $type {}

            impl super::Element for $type {
                const TYPE: DataType = DataType::$variant;
            }
        )*
    };
}

data_types! {
    /// `f32`.
    F32 = 1, "f32", f32, Float;
    /// `f64`.
    F64 = 2, "f64", f64, Float;
    /// `i32`.
    I32 = 3, "i32", i32, Integer;
    /// `i64`.
    I64 = 4, "i64", i64, Integer;
    /// `u32`.
    U32 = 5, "u32", u32, Integer;
    /// `u64`.
    U64 = 6, "u64", u64, Integer;
    /// `u8`.
    U8 = 7, "u8", u8, Integer;
    /// `i8`.
    I8 = 8, "i8", i8, Integer;
    /// `i16`.
    I16 = 9, "i16", i16, Integer;
    /// `u16`.
    U16 = 10, "u16", u16, Integer;
    /// [`half::f16`]: an IEEE 754 number of 16 bits, reduced as `f32`.
    F16 = 11, "f16", half::f16, Float;
    /// [`half::bf16`]: the upper half of an `f32`, reduced as `f32`.
    Bf16 = 12, "bf16", half::bf16, Float;
    /// A truth value of one byte, [`Bool`](super::Bool).
    Bool = 13, "bool", super::Bool, Truth;
    /// Bytes without a meaning, [`Byte`](super::Byte), which are moved but not reduced.
    Bytes = 14, "bytes", super::Byte, Raw;
}

table! {
    /// How the elements of all ranks are reduced to one.
    ///
    /// All operations commute. All but sums, averages and products of floating-point numbers are associative.
    ReduceOp, "reduction";
    /// The sum of numbers; integers wrap around.
    Sum = 1, "sum";
    /// The sum of floating-point numbers, divided once by the number of ranks.
    Average = 2, "average";
    /// The largest number. Of floating-point numbers, NaN if any is NaN; 0 is larger than -0.
    Max = 3, "max";
    /// The smallest number. Of floating-point numbers, NaN if any is NaN; -0 is smaller than 0.
    Min = 4, "min";
    /// The product of numbers; integers wrap around.
    Product = 5, "product";
    /// The bits that all integers have, or whether all truth values are true.
    And = 6, "and";
    /// The bits that any integer has, or whether any truth value is true.
    Or = 7, "or";
    /// The bits that an odd number of integers have, or whether an odd number of truth values are true.
    Xor = 8, "xor";
}

impl ReduceOp {
    /// Whether elements of this type can be reduced this way.
    #[must_use]
    pub const fn is_defined_for(self, data: DataType) -> bool {
        match self {
            Self::Sum | Self::Max | Self::Min | Self::Product => {
                matches!(data.class(), Class::Float | Class::Integer)
            }
            Self::Average => matches!(data.class(), Class::Float),
            Self::And | Self::Or | Self::Xor => matches!(data.class(), Class::Integer | Class::Truth),
        }
    }

    /// Whether any order of the operands gives the same bits.
    pub(super) const fn is_exact_for(self, data: DataType) -> bool {
        let rounds = matches!(self, Self::Sum | Self::Average | Self::Product);
        !(rounds && matches!(data.class(), Class::Float))
    }
}
