//! Element types and reductions by their C numbers.

use brevity::GradientElement;
use brevity_collectives::data::{DataType, ReduceOp};
use bytemuck::Pod;

use crate::failure::Failure;

/// An element type's number. C may pass any number, so this is not a Rust enum.
pub type brv_type = u32;
/// A reduction's number. C may pass any number, so this is not a Rust enum.
pub type brv_reduction = u32;

/// Evaluates an expression with `$element` as a Rust type of the size of the elements of a number: messages
/// move bytes, whatever these mean.
macro_rules! with_element {
    ($number:expr, $element:ident => $body:expr) => {
        match $crate::element::data_type($number).map(brevity_collectives::DataType::bytes) {
            Err(failure) => Err(failure),
            Ok(1) => {
                type $element = u8;
                $body
            }
            Ok(2) => {
                type $element = u16;
                $body
            }
            Ok(4) => {
                type $element = u32;
                $body
            }
            Ok(_) => {
                type $element = u64;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// An element type of gradients.
pub(crate) trait OfGradients: GradientElement + Pod {}

impl<E: GradientElement + Pod> OfGradients for E {}

/// Evaluates an expression with `$element` as the element type of gradients with a number.
macro_rules! with_gradients {
    ($number:expr, $element:ident => $body:expr) => {
        match $crate::element::type_of_gradients($number) {
            Err(failure) => Err(failure),
            Ok(brevity_collectives::DataType::F64) => {
                type $element = f64;
                $body
            }
            Ok(brevity_collectives::DataType::F16) => {
                type $element = half::f16;
                $body
            }
            Ok(brevity_collectives::DataType::Bf16) => {
                type $element = half::bf16;
                $body
            }
            Ok(_) => {
                type $element = f32;
                $body
            }
        }
    };
}
pub(crate) use with_gradients;

/// The element type of gradients with this number.
pub(crate) fn type_of_gradients(number: brv_type) -> Result<DataType, Failure> {
    match data_type(number)? {
        found @ (DataType::F32 | DataType::F64 | DataType::F16 | DataType::Bf16) => Ok(found),
        other => Err(Failure::argument(format!(
            "type is {other}, expected one of gradients: BRV_F32, BRV_F64, BRV_F16 or BRV_BF16"
        ))),
    }
}

/// The element type with this number.
pub(crate) fn data_type(number: brv_type) -> Result<DataType, Failure> {
    u8::try_from(number).ok().and_then(DataType::from_number).ok_or_else(|| {
        let all = DataType::ALL.len();
        Failure::argument(format!("type is {number}, expected a brv_type (1 to {all})"))
    })
}

/// The reduction of the library with this number.
pub(crate) fn reduction(number: brv_reduction) -> Result<ReduceOp, Failure> {
    u8::try_from(number).ok().and_then(ReduceOp::from_number).ok_or_else(|| {
        let all = ReduceOp::ALL.len();
        Failure::argument(format!("reduction is {number}, expected a brv_reduction (1 to {all})"))
    })
}

#[cfg(test)]
mod tests {
    use brevity::compress::dense::Element as Named;

    use super::*;

    #[test]
    fn numbers_are_those_of_the_tables_without_gaps() {
        for (index, data) in DataType::ALL.iter().enumerate() {
            assert_eq!(data_type(index as u32 + 1).unwrap(), *data);
            assert!([1, 2, 4, 8].contains(&data.bytes()), "messages have no elements like {data}");
        }
        for (index, op) in ReduceOp::ALL.iter().enumerate() {
            assert_eq!(reduction(index as u32 + 1).unwrap(), *op);
        }
        for number in [0, 15, 255, 256, 257, u32::MAX] {
            assert!(data_type(number).unwrap_err().text().contains("(1 to 14)"), "{number}");
            assert!(reduction(number).unwrap_err().text().contains("(1 to 8)"), "{number}");
        }
    }

    #[test]
    fn gradients_are_floating_point_numbers() {
        for data in DataType::ALL {
            let name = with_gradients!(data.number().into(), E => Ok(<E as Named>::NAME));
            match data {
                DataType::F32 | DataType::F64 | DataType::F16 | DataType::Bf16 => {
                    assert_eq!(name.unwrap(), data.name());
                }
                other => {
                    let refused = name.unwrap_err().text().to_owned();
                    assert!(refused.starts_with(&format!("type is {other}, expected one of")), "{refused}");
                }
            }
        }
        assert!(type_of_gradients(0).unwrap_err().text().contains("expected a brv_type"));
    }

    #[test]
    fn elements_of_messages_have_their_size() {
        for data in DataType::ALL {
            let size: Result<usize, Failure> = with_element!(data.number().into(), T => Ok(size_of::<T>()));
            assert_eq!(size.unwrap(), data.bytes(), "{data}");
        }
    }
}
