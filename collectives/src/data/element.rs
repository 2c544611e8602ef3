//! The Rust types of elements.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use bytemuck::{Pod, Zeroable};

use super::DataType;

/// A Rust type of elements: `f32`, `f64`, integers of 8 to 64 bits, [`half::f16`], [`half::bf16`], [`Bool`]
/// and [`Byte`].
pub trait Element: Pod + Send + Sync + PartialEq + Debug + private::Sealed {
    /// The type's entry in the table of element types.
    const TYPE: DataType;
}

pub(super) mod private {
    pub trait Sealed {}
}

/// A truth value of one byte: 0 is false, any other value is true.
///
/// Rust's `bool` can't hold what another rank may send: any byte. Reductions of two or more values make bytes
/// of 0 or 1. Two values are equal if both are true or both are false. C's `bool` has the same bytes.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// The truth value.
    #[must_use]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(u8::from(value))
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

/// A byte without a meaning. Collectives move it, and no [`ReduceOp`](super::ReduceOp) is defined for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Byte(pub u8);
