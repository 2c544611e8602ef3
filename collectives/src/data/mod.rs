//! What collectives work on: element types, reductions of elements, and the order of sums.
//!
//! Algorithms move and reduce bytes. A [`Reducer`] is all that they know of the elements: their size, the
//! size of an element of a partial result, and functions on slices of bytes. A partial result of
//! [`F16`](DataType::F16) and [`Bf16`](DataType::Bf16) has `f32` elements, so a sum is rounded to 16 bits
//! once, at its end.

mod element;
mod in_order;
mod kernel;
mod reducer;
mod reduction;
mod types;
mod user;

#[cfg(test)]
mod in_order_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod tests;

pub use element::{Bool, Byte, Element};
pub use kernel::Kernel;
pub use reducer::Reducer;
pub use reduction::Reduction;
pub use types::{DataType, ReduceOp, UnknownName};
pub use ucx_sys_wrap::shm::order::{OrderStep, order, order_depth};
pub use user::UserReduction;
