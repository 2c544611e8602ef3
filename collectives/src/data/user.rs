//! Reductions that a program defines.

use std::fmt;

use crate::description::{fnv_1a, mix};
use crate::error::{Error, Result};

/// Combines elements in place, or returns a status.
type Combine = dyn Fn(&mut [u8], &[u8]) -> std::result::Result<(), i32> + Send + Sync;

/// A reduction that the program defines: a function of two vectors of bytes. [`Reduction`](super::Reduction)
/// has elements of a type.
///
/// The function must be the same on all ranks, and associative and commutative up to rounding. It is used in
/// the fixed order of sums, so results have the same bits on every rank if operands can be swapped without a
/// change of the result's bits. It runs in the thread's own floating-point mode. A panic in it unwinds
/// through the call.
///
/// ```
/// use brevity_collectives::data::UserReduction;
///
/// // Of pairs, the one with the larger first number.
/// let largest = UserReduction::new("largest", 8, |into, from| {
///     for (into, from) in into.chunks_exact_mut(8).zip(from.chunks_exact(8)) {
///         if from[..4] > into[..4] {
///             into.copy_from_slice(from);
///         }
///     }
///     Ok(())
/// });
/// assert_eq!(largest.bytes(), 8);
/// ```
pub struct UserReduction {
    name: String,
    bytes: usize,
    combine: Box<Combine>,
}

impl UserReduction {
    /// The operation's number on the wire. No [`ReduceOp`](super::ReduceOp) has it.
    pub const NUMBER: u8 = 9;

    /// A reduction of elements of `bytes` bytes: `combine(into, from)` makes `into[i] = into[i] op from[i]`
    /// for all elements of two slices of equal length, at least one element.
    ///
    /// The function may be called for any part of a vector and on any thread. An address is aligned to the
    /// largest power of two that divides `bytes`, up to 64, if the vectors are. An `Err` ends the call with
    /// [`Error::User`]. Ranks compare `name` and `bytes`.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn new<F>(name: impl Into<String>, bytes: usize, combine: F) -> Self
    where
        F: Fn(&mut [u8], &[u8]) -> std::result::Result<(), i32> + Send + Sync + 'static,
    {
        assert!(bytes > 0, "elements of a user's reduction have no bytes");
        Self { name: name.into(), bytes, combine: Box::new(combine) }
    }

    /// The name that ranks compare.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A hash of the name and of the size of elements.
    pub(super) fn detail(&self) -> u64 {
        mix(fnv_1a(self.name.as_bytes()) ^ self.bytes as u64)
    }

    /// `into[i] = into[i] op from[i]`. Empty slices may have any address, so the function doesn't get them.
    pub(super) fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        (self.combine)(into, from).map_err(|status| Error::User { name: self.name.clone(), status })
    }
}

impl fmt::Debug for UserReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bytes, combine: _ } = self;
        f.debug_struct("UserReduction").field("name", name).field("bytes", bytes).finish_non_exhaustive()
    }
}
