//! Reductions of dense vectors, element by element, at the speed of memory: what collectives compute.
//!
//! Elements are [`Number`]s: floating-point numbers of 32 and 64 bits and integers of 8 to 64 bits. Numbers
//! of 16 bits ([`Half`]) are reduced as `f32`: a sum of many begins with [`widen`], goes on with
//! [`combine_wide`] for 16-bit operands and [`combine`] for `f32` operands, and is rounded once, by
//! [`narrow`].
//!
//! Each element of a result depends on the operands at its place alone, and products are not fused into sums.
//! So results have the same bits on every CPU and however a vector is cut, except the sign and payload of a
//! NaN in a sum or product. Infinities and NaN pass through; nothing is checked but lengths. Functions here
//! compute in the floating-point mode of the calling thread
//! ([`in_standard_float_mode`](crate::in_standard_float_mode)). In the standard mode, subnormal numbers are
//! kept, and sums and products are rounded to nearest, ties to even.
//!
//! [`Number::kernel`] and its like give a reduction as a function pointer, for callers that choose it once
//! and use it often.
//!
//! ```
//! use brevity_compress::reduce::{self, Number, Op};
//!
//! let mut sums = [1.5_f32, -2.0];
//! reduce::combine(Op::Sum, &mut sums, &[1.0, 1.0])?;
//! assert_eq!(sums, [2.5, -1.0]);
//! assert!(u8::kernel(Op::Xor).is_some() && f32::kernel(Op::Xor).is_none());
//! # Ok::<(), brevity_compress::Error>(())
//! ```

mod number;

use std::fmt;

pub use number::{Float, Half, Kernel, KernelFrom, Number};

use crate::Error;
use crate::error::check_length;

/// A reduction of two elements. All of them commute, and all but sums and products of floating-point numbers
/// are associative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// The sum; integers wrap around.
    Sum,
    /// The product; integers wrap around.
    Product,
    /// The larger element. Of floating-point numbers, NaN (the positive quiet one without payload) if either
    /// is NaN; 0 is larger than -0. This is `maximum` of IEEE 754-2019.
    Max,
    /// The smaller element. Of floating-point numbers, NaN (the positive quiet one without payload) if either
    /// is NaN; -0 is smaller than 0. This is `minimum` of IEEE 754-2019.
    Min,
    /// The bits that both elements have; integers only.
    And,
    /// The bits that either element has; integers only.
    Or,
    /// The bits that exactly one element has; integers only.
    Xor,
}

impl Op {
    /// All reductions.
    pub const ALL: [Self; 7] =
        [Self::Sum, Self::Product, Self::Max, Self::Min, Self::And, Self::Or, Self::Xor];

    /// The reduction's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Max => "max",
            Self::Min => "min",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }

    /// The kernel, or the error for its absence.
    fn of<K>(self, kernel: Option<K>, element: &'static str) -> Result<K, Error> {
        kernel.ok_or(Error::UndefinedReduction { op: self, element })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `into[i] = into[i] op from[i]`. Cost: two reads and a write of memory.
///
/// # Errors
/// [`Error::LengthMismatch`]; [`Error::UndefinedReduction`] for a bitwise reduction of floating-point
/// numbers. `into` is unchanged then.
pub fn combine<N: Number>(op: Op, into: &mut [N], from: &[N]) -> Result<(), Error> {
    let kernel = op.of(N::kernel(op), N::NAME)?;
    check_length(into.len(), from.len())?;
    kernel(into, from);
    Ok(())
}

/// `out[i] = a[i] op b[i]`. Cost: two reads and a write of memory.
///
/// # Errors
/// The same as for [`combine`]; `out` is unchanged then.
pub fn combine_from<N: Number>(op: Op, out: &mut [N], a: &[N], b: &[N]) -> Result<(), Error> {
    let kernel = op.of(N::kernel_from(op), N::NAME)?;
    check_length(out.len(), a.len())?;
    check_length(out.len(), b.len())?;
    kernel(out, a, b);
    Ok(())
}

/// `into[i] = into[i] op from[i]`, computed in `f32`. The conversion of `from` is exact. Cost: two reads and
/// a write of memory.
///
/// # Errors
/// [`Error::LengthMismatch`]; [`Error::UndefinedReduction`] for a bitwise reduction. `into` is unchanged
/// then.
pub fn combine_wide<H: Half>(op: Op, into: &mut [f32], from: &[H]) -> Result<(), Error> {
    let kernel = op.of(H::wide_kernel(op), H::NAME)?;
    check_length(into.len(), from.len())?;
    kernel(into, from);
    Ok(())
}

/// `into = from`. Exact; a NaN becomes quiet and keeps its sign and payload. Unlike
/// [`dense::to_f32`](crate::dense::to_f32), it passes infinities and NaN. Cost: one pass.
///
/// # Errors
/// [`Error::LengthMismatch`]; `into` is unchanged then.
pub fn widen<H: Half>(from: &[H], into: &mut [f32]) -> Result<(), Error> {
    check_length(from.len(), into.len())?;
    H::widen(from, into);
    Ok(())
}

/// `into = from`, rounded to nearest, ties to even, as IEEE 754 says: subnormal numbers are rounded like
/// others, and a value that is too large becomes infinite. A NaN becomes quiet and keeps its sign and the
/// leading bits of its payload. Unlike [`dense::from_f32`](crate::dense::from_f32), it passes infinities and
/// NaN. Cost: one pass.
///
/// # Errors
/// [`Error::LengthMismatch`]; `into` is unchanged then.
pub fn narrow<H: Half>(from: &[f32], into: &mut [H]) -> Result<(), Error> {
    check_length(from.len(), into.len())?;
    H::narrow(from, into);
    Ok(())
}

/// `values[i] = values[i] / count`, rounded once: makes averages of sums. `count` is rounded to the type,
/// which matters only for `f32` and counts above 2^24. Divided by 0, numbers become infinite, and 0 becomes
/// NaN. Cost: one pass.
pub fn divide<F: Float>(values: &mut [F], count: u32) {
    F::divide(values, count);
}
