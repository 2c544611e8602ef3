//! Element types and reductions by their C numbers.

use brevity::ReduceOp;

use crate::failure::Failure;

/// An element type's number. C may pass any number, so this is not a Rust enum.
pub type brv_type = u32;
/// A reduction's number. C may pass any number, so this is not a Rust enum.
pub type brv_reduction = u32;

pub(crate) const F32: brv_type = 1;
pub(crate) const F64: brv_type = 2;
pub(crate) const I32: brv_type = 3;
pub(crate) const I64: brv_type = 4;
pub(crate) const U32: brv_type = 5;
pub(crate) const U64: brv_type = 6;
pub(crate) const U8: brv_type = 7;

pub(crate) const SUM: brv_reduction = 1;
pub(crate) const AVERAGE: brv_reduction = 2;
pub(crate) const MAX: brv_reduction = 3;
pub(crate) const MIN: brv_reduction = 4;

/// Evaluates an expression with `$element` as the Rust type of a number.
macro_rules! with_element {
    ($number:expr, $element:ident => $body:expr) => {
        match $number {
            $crate::element::F32 => {
                type $element = f32;
                $body
            }
            $crate::element::F64 => {
                type $element = f64;
                $body
            }
            $crate::element::I32 => {
                type $element = i32;
                $body
            }
            $crate::element::I64 => {
                type $element = i64;
                $body
            }
            $crate::element::U32 => {
                type $element = u32;
                $body
            }
            $crate::element::U64 => {
                type $element = u64;
                $body
            }
            $crate::element::U8 => {
                type $element = u8;
                $body
            }
            other => Err($crate::element::unknown_type(other)),
        }
    };
}
pub(crate) use with_element;

/// The reduction with this number.
pub(crate) fn reduction(number: brv_reduction) -> Result<ReduceOp, Failure> {
    match number {
        SUM => Ok(ReduceOp::Sum),
        AVERAGE => Ok(ReduceOp::Average),
        MAX => Ok(ReduceOp::Max),
        MIN => Ok(ReduceOp::Min),
        other => {
            Err(Failure::argument(format!("reduction is {other}, expected a brv_reduction ({SUM} to {MIN})")))
        }
    }
}

pub(crate) fn unknown_type(number: brv_type) -> Failure {
    Failure::argument(format!("type is {number}, expected a brv_type ({F32} to {U8})"))
}
