//! The reductions of the library: a kernel for each element type and operation.

use brevity_compress::reduce::{Float, Half, Number, Op};
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::{Bool, DataType, ReduceOp};
use crate::error::{Error, Result};

/// The functions that reduce vectors of one element type in one way. A [`Reducer`](super::Reducer) calls them.
#[derive(Debug)]
pub struct Kernel {
    pub(super) data: DataType,
    pub(super) op: ReduceOp,
    /// Bytes of an element.
    pub(super) size: usize,
    /// Bytes of an element of a partial result.
    pub(super) wide: usize,
    pub(super) is_exact: bool,
    /// Whether results depend on the thread's floating-point mode.
    pub(super) has_mode: bool,
    /// Wide op= wide.
    pub(super) combine: fn(&mut [u8], &[u8]),
    /// Wide op= narrow.
    pub(super) take: fn(&mut [u8], &[u8]),
    /// Wide = wide op wide.
    pub(super) combine_from: fn(&mut [u8], &[u8], &[u8]),
    /// The conversions of a type whose partial results have another.
    pub(super) conversion: Option<Conversion>,
    /// Divides wide elements by a number of ranks: of averages.
    pub(super) divide: Option<fn(&mut [u8], u32)>,
}

/// Conversions between the elements of operands and results, which are narrow, and those of partial results.
#[derive(Debug)]
pub(super) struct Conversion {
    /// Wide = narrow.
    pub(super) widen: fn(&mut [u8], &[u8]),
    /// Narrow = wide, rounded.
    pub(super) narrow: fn(&mut [u8], &[u8]),
}

impl Kernel {
    /// The element type.
    #[must_use]
    pub const fn data(&self) -> DataType {
        self.data
    }

    /// The operation.
    #[must_use]
    pub const fn op(&self) -> ReduceOp {
        self.op
    }

    const fn with_divide(self, divide: fn(&mut [u8], u32)) -> Self {
        match self.op {
            ReduceOp::Average => Self { divide: Some(divide), ..self },
            _ => self,
        }
    }
}

/// An operation as a type, so that a function can be chosen by it.
trait Reduction {
    const OP: ReduceOp;
    /// What is done with two elements.
    const PAIR: Op;
}

/// The elements in these bytes. An empty slice may have any address.
///
/// # Panics
/// If the address is not a multiple of an element's alignment, or the length not one of its size.
#[inline]
fn elements<T: Pod>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { cast_slice(bytes) }
}

/// Like [`elements`].
#[inline]
fn elements_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { cast_slice_mut(bytes) }
}

fn combine<N: Number, R: Reduction>(into: &mut [u8], from: &[u8]) {
    // `kernels!` names only operations that the type has.
    if let Some(kernel) = N::kernel(R::PAIR) {
        kernel(elements_mut(into), elements(from));
    }
}

fn combine_from<N: Number, R: Reduction>(out: &mut [u8], a: &[u8], b: &[u8]) {
    if let Some(kernel) = N::kernel_from(R::PAIR) {
        kernel(elements_mut(out), elements(a), elements(b));
    }
}

fn take_half<H: Half, R: Reduction>(into: &mut [u8], from: &[u8]) {
    if let Some(kernel) = H::wide_kernel(R::PAIR) {
        kernel(elements_mut(into), elements::<H>(from));
    }
}

fn widen<H: Half>(into: &mut [u8], from: &[u8]) {
    H::widen(elements(from), elements_mut(into));
}

fn narrow<H: Half>(into: &mut [u8], from: &[u8]) {
    H::narrow(elements(from), elements_mut(into));
}

fn divide<F: Float>(values: &mut [u8], ranks: u32) {
    F::divide(elements_mut(values), ranks);
}

/// The operation on two truth values; the result is 0 or 1.
#[inline(always)]
fn pair<R: Reduction>(a: u8, b: u8) -> u8 {
    let (a, b) = (u8::from(a != 0), u8::from(b != 0));
    match R::OP {
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
        _ => a ^ b,
    }
}

fn combine_truths<R: Reduction>(into: &mut [u8], from: &[u8]) {
    for (into, &from) in into.iter_mut().zip(from) {
        *into = pair::<R>(*into, from);
    }
}

fn combine_truths_from<R: Reduction>(out: &mut [u8], a: &[u8], b: &[u8]) {
    for (out, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *out = pair::<R>(a, b);
    }
}

const fn of_numbers<N: Number, R: Reduction>(data: DataType) -> Kernel {
    Kernel {
        data,
        op: R::OP,
        size: size_of::<N>(),
        wide: size_of::<N>(),
        is_exact: R::OP.is_exact_for(data),
        has_mode: false,
        combine: combine::<N, R>,
        take: combine::<N, R>,
        combine_from: combine_from::<N, R>,
        conversion: None,
        divide: None,
    }
}

const fn of_floats<F: Float, R: Reduction>(data: DataType) -> Kernel {
    Kernel { has_mode: true, ..of_numbers::<F, R>(data) }.with_divide(divide::<F>)
}

const fn of_halves<H: Half, R: Reduction>(data: DataType) -> Kernel {
    Kernel {
        size: size_of::<H>(),
        take: take_half::<H, R>,
        conversion: Some(Conversion { widen: widen::<H>, narrow: narrow::<H> }),
        ..of_floats::<f32, R>(data)
    }
}

const fn of_truths<B: Pod, R: Reduction>(data: DataType) -> Kernel {
    Kernel {
        size: size_of::<B>(),
        wide: size_of::<B>(),
        combine: combine_truths::<R>,
        take: combine_truths::<R>,
        combine_from: combine_truths_from::<R>,
        ..of_numbers::<u8, R>(data)
    }
}

macro_rules! reductions {
    ($($op:ident: $pair:ident;)*) => {
        /// Each operation as a type.
        mod reductions {
            use super::{Op, ReduceOp, Reduction};

            $(
                pub(super) struct $op;

                impl Reduction for $op {
                    const OP: ReduceOp = ReduceOp::$op;
                    const PAIR: Op = Op::$pair;
                }
            )*
        }
    };
}

reductions! {
    Sum: Sum;
    Average: Sum;
    Max: Max;
    Min: Min;
    Product: Product;
    And: And;
    Or: Or;
    Xor: Xor;
}

macro_rules! kernels {
    ($($variant:ident $type:ty: $kernel:ident [$($op:ident)*];)*) => {
        impl Kernel {
            /// The kernel of an operation on elements of a type.
            ///
            /// # Errors
            /// [`Error::Reduction`] if the operation is not [defined](ReduceOp::is_defined_for) for the type.
            pub fn of(data: DataType, op: ReduceOp) -> Result<&'static Self> {
                match (data, op) {
                    $($(
                        (DataType::$variant, ReduceOp::$op) => {
                            static KERNEL: Kernel = $kernel::<$type, reductions::$op>(DataType::$variant);
                            Ok(&KERNEL)
                        }
                    )*)*
                    _ => Err(Error::Reduction { reduction: op.name(), element: data.name() }),
                }
            }
        }
    };
}

kernels! {
    F32 f32: of_floats [Sum Average Max Min Product];
    F64 f64: of_floats [Sum Average Max Min Product];
    I32 i32: of_numbers [Sum Max Min Product And Or Xor];
    I64 i64: of_numbers [Sum Max Min Product And Or Xor];
    U32 u32: of_numbers [Sum Max Min Product And Or Xor];
    U64 u64: of_numbers [Sum Max Min Product And Or Xor];
    U8 u8: of_numbers [Sum Max Min Product And Or Xor];
    I8 i8: of_numbers [Sum Max Min Product And Or Xor];
    I16 i16: of_numbers [Sum Max Min Product And Or Xor];
    U16 u16: of_numbers [Sum Max Min Product And Or Xor];
    F16 f16: of_halves [Sum Average Max Min Product];
    Bf16 bf16: of_halves [Sum Average Max Min Product];
    Bool Bool: of_truths [And Or Xor];
}
