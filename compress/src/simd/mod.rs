//! Kernels for the CPU at hand: the one room of this crate with unsafe code.
//!
//! A kernel is a safe function that takes a [`Level`] first. Most have one body, which [`per_level`] has the
//! compiler vectorise for each level; a few are written out in intrinsics where that does not do, those of
//! [`low_rank`] through the operations in `lanes`. Either way all levels give the same bits: the order of
//! additions is part of a kernel, and products are not fused into sums. (Where memory is the limit fusing
//! gains little: a step of PowerSGD at rank 8 takes 1.3 times what its reads and writes alone do, and CPUs
//! without fused instructions would call a library for each.)

mod close_up;
pub(crate) mod codes;
mod columns;
pub(crate) mod dense;
pub mod float_mode;
pub(crate) mod half;
mod lanes;
mod level;
pub(crate) mod low_rank;
mod merge;
pub(crate) mod momentum;
pub(crate) mod orthonormal;
pub(crate) mod pack;
mod part;
mod rising;
mod select;
mod side_by_side;
mod sieve;
pub(crate) mod step;

pub(crate) use close_up::close_up;
pub(crate) use columns::ColumnSums;
#[cfg(target_arch = "x86_64")]
pub(crate) use level::Kind;
pub(crate) use level::{Level, per_level};
pub(crate) use merge::{Look, merge};
pub(crate) use part::{List, SPARE, copy_band, part};
pub(crate) use rising::{GAPS, NARROW, measure_gaps, unpack_rising};
pub(crate) use select::{BLOCK, Pass, add_and_take, copy_out};
pub(crate) use sieve::{Dropped, Mesh, SIEVED, append_band, largest_of_bits, sieve};

/// Asks for the memory `ahead_bytes` after the start of each cache line of `block`, without waiting for it.
///
/// Helps where a loop does so much between loads that the CPU does not run ahead to the next page by itself.
#[inline(always)]
pub(crate) fn prefetch<T, const N: usize>(block: &[T; N], ahead_bytes: usize) {
    for line in (0..size_of_val(block)).step_by(64) {
        prefetch_line(block.as_ptr().cast::<u8>().wrapping_add(line + ahead_bytes));
    }
}

/// Asks for the cache line at `address`, whatever is there.
#[inline(always)]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing and does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for the memory of the element at `index`, without waiting for it. Nothing happens where there is no
/// such element.
#[inline(always)]
pub(crate) fn prefetch_at<T>(values: &[T], index: usize) {
    if let Some(element) = values.get(index) {
        prefetch(std::array::from_ref(element), 0);
    }
}
