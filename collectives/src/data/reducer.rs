//! What algorithms need of a reduction.

use std::sync::Arc;

use brevity_compress::in_standard_float_mode;

use super::{DataType, Kernel, ReduceOp, UserReduction};
use crate::description::{Description, Operation};
use crate::error::Result;

/// What algorithms need of a reduction.
///
/// Operands and results have *narrow* elements, as callers know them. Partial results have *wide* ones: `f32`
/// for [`F16`](DataType::F16) and [`Bf16`](DataType::Bf16), otherwise the same. A reduction begins with
/// [`start`](Self::start), takes narrow operands or combines wide ones, and is finished by [`end`](Self::end)
/// or [`end_in_place`](Self::end_in_place).
///
/// Slices are bytes of whole elements, an equal count in all slices of a call.
///
/// # Floating-point mode
/// Methods compute in the mode of the thread. Algorithms call them inside [`in_mode`](Self::in_mode), once
/// around as many of them as they have.
///
/// # Panics
/// All methods on slices panic if a slice that is not empty is not aligned to its elements, or has a length
/// that is no multiple of their size. A function of the program may panic itself.
#[derive(Clone, Debug)]
pub enum Reducer {
    /// A reduction of the library.
    Kernel(&'static Kernel),
    /// A reduction of the program, of elements of this type: [`Bytes`](DataType::Bytes) stands for all types
    /// that are not the library's.
    User(Arc<UserReduction>, DataType),
}

impl Reducer {
    /// The library's reduction of elements of a type.
    ///
    /// # Errors
    /// [`Error::Reduction`](crate::Error::Reduction) if it is not [defined](ReduceOp::is_defined_for).
    pub fn of(data: DataType, op: ReduceOp) -> Result<Self> {
        Kernel::of(data, op).map(Self::Kernel)
    }

    /// The reduction of partial results: of their elements, and without the division of an average.
    pub(crate) fn partial(&self) -> Self {
        let Self::Kernel(kernel) = self else { return self.clone() };
        let op = if kernel.op == ReduceOp::Average { ReduceOp::Sum } else { kernel.op };
        let data = if self.is_wide() { DataType::F32 } else { kernel.data };
        Self::of(data, op).unwrap_or_else(|_| unreachable!("what has averages has sums"))
    }

    /// The type of the elements: [`Bytes`](DataType::Bytes) for a type of the program.
    #[must_use]
    pub fn data(&self) -> DataType {
        match self {
            Self::Kernel(kernel) => kernel.data,
            Self::User(_, data) => *data,
        }
    }

    /// What ranks of an operation on `count` elements must agree on.
    #[must_use]
    pub fn describe(&self, operation: Operation, count: usize) -> Description {
        let element = if self.data() == DataType::Bytes { 0 } else { self.data().number() };
        let description =
            Description { reduction: self.number(), ..Description::new(operation, element, count) };
        match self {
            Self::Kernel(_) => description,
            Self::User(user, _) => description.with_detail(user.detail()),
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Kernel(kernel) => kernel.size,
            Self::User(user, _) => user.bytes(),
        }
    }

    /// Bytes of an element of a partial result.
    #[must_use]
    pub fn wide(&self) -> usize {
        match self {
            Self::Kernel(kernel) => kernel.wide,
            Self::User(user, _) => user.bytes(),
        }
    }

    /// Whether elements of partial results are larger.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.wide() != self.size()
    }

    /// Whether any order of the operands gives the same bits. A reduction of the program is taken not to be
    /// so.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Kernel(kernel) => kernel.is_exact,
            Self::User(..) => false,
        }
    }

    /// The operation's number on the wire.
    #[must_use]
    pub fn number(&self) -> u8 {
        match self {
            Self::Kernel(kernel) => kernel.op.number(),
            Self::User(..) => UserReduction::NUMBER,
        }
    }

    /// Runs `work` in the floating-point mode that the reduction needs: the standard mode for the library's
    /// reductions of floating-point numbers, otherwise the thread's own. Cost: a few nanoseconds if the
    /// thread is in the mode.
    pub fn in_mode<R>(&self, work: impl FnOnce() -> R) -> R {
        match self {
            Self::Kernel(kernel) if kernel.has_mode => in_standard_float_mode(work),
            _ => work(),
        }
    }

    /// `into = into op from`, all wide.
    ///
    /// # Errors
    /// [`Error::User`](crate::Error::User): the program's function has failed.
    #[inline]
    pub fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        debug_assert_eq!(into.len(), from.len());
        match self {
            Self::Kernel(kernel) => (kernel.combine)(into, from),
            Self::User(user, _) => user.combine(into, from)?,
        }
        Ok(())
    }

    /// `into = into op from`, `from` narrow.
    ///
    /// # Errors
    /// As for [`combine`](Self::combine).
    #[inline]
    pub fn take(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        debug_assert_eq!(into.len() / self.wide(), from.len() / self.size());
        match self {
            Self::Kernel(kernel) => (kernel.take)(into, from),
            Self::User(user, _) => user.combine(into, from)?,
        }
        Ok(())
    }

    /// `out = a op b`, all wide.
    ///
    /// # Errors
    /// As for [`combine`](Self::combine).
    pub fn combine_from(&self, out: &mut [u8], a: &[u8], b: &[u8]) -> Result<()> {
        debug_assert_eq!((out.len(), out.len()), (a.len(), b.len()));
        match self {
            Self::Kernel(kernel) => (kernel.combine_from)(out, a, b),
            Self::User(user, _) => {
                out.copy_from_slice(a);
                user.combine(out, b)?;
            }
        }
        Ok(())
    }

    /// `into = from`, `from` narrow: a copy, or an exact conversion.
    pub fn start(&self, into: &mut [u8], from: &[u8]) {
        match self {
            Self::Kernel(Kernel { conversion: Some(conversion), .. }) => (conversion.widen)(into, from),
            _ => into.copy_from_slice(from),
        }
    }

    /// `into = wide`, `into` narrow, divided by `ranks` before if the reduction is an average. Numbers of 16
    /// bits are rounded to nearest, ties to even. `wide` has no defined content afterwards.
    pub fn end(&self, into: &mut [u8], wide: &mut [u8], ranks: u32) {
        self.end_in_place(wide, ranks);
        match self {
            Self::Kernel(Kernel { conversion: Some(conversion), .. }) => (conversion.narrow)(into, wide),
            _ => into.copy_from_slice(wide),
        }
    }

    /// Divides `values`, which are wide, by `ranks` if the reduction is an average. Partial results whose
    /// elements are not [wide](Self::is_wide) are results then.
    pub fn end_in_place(&self, values: &mut [u8], ranks: u32) {
        if let Self::Kernel(Kernel { divide: Some(divide), .. }) = self {
            divide(values, ranks);
        }
    }
}
