//! Kernels for the CPU at hand: the one room of this crate with unsafe code.
//!
//! A kernel is a safe function that takes a [`Level`] first. Most have one body, which [`per_level`] has the compiler
//! vectorise for each level; a few are written out in intrinsics where that does not do. Either way all levels give the
//! same bits: the order of additions is part of a kernel, and products are not fused into sums.

mod dense;
mod level;

pub(crate) use dense::add_assign;
pub(crate) use level::{Kind, Level, per_level};
