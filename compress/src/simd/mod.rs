//! Kernels for the current CPU: the only part of this crate with unsafe code.
//!
//! A kernel is a safe function whose first argument is a [`Level`]. Most have one body, which [`per_level`]
//! compiles for each level and the compiler vectorises. A few are written in intrinsics because the compiler
//! does not vectorise them well; those of [`low_rank`] use the operations in `lanes`. All levels give the
//! same bits: the order of additions is part of a kernel, and products are not fused into sums. Fusing would
//! gain little where memory is the limit, and CPUs without fused instructions would call a library function
//! for each.

mod close_up;
pub(crate) mod codes;
mod columns;
pub(crate) mod dense;
pub mod float_mode;
pub(crate) mod half;
mod ladder;
mod lanes;
mod level;
pub(crate) mod low_rank;
mod merge;
pub(crate) mod momentum;
pub(crate) mod orthonormal;
pub(crate) mod pack;
mod pages;
mod part;
pub(crate) mod reduce;
mod rising;
mod select;
mod side_by_side;
mod sieve;
pub(crate) mod step;

pub(crate) use close_up::close_up;
pub(crate) use columns::ColumnSums;
pub(crate) use ladder::count_reaching;
#[cfg(target_arch = "x86_64")]
pub(crate) use level::Kind;
pub(crate) use level::{Level, per_level};
pub(crate) use merge::{Look, merge};
pub(crate) use part::{List, SPARE, copy_band, part};
pub(crate) use rising::{GAPS, NARROW, measure_gaps, unpack_rising};
pub(crate) use select::{BLOCK, Pass, add_and_take, copy_out};
pub(crate) use sieve::{Dropped, Mesh, SIEVED, append_band, largest_of_bits, sieve};

/// Prefetches the memory `ahead_bytes` after the start of each cache line of `block`.
///
/// Helps loops that do so much between loads that the CPU's prefetcher does not reach the next page.
#[inline(always)]
pub(crate) fn prefetch<T, const N: usize>(block: &[T; N], ahead_bytes: usize) {
    for line in (0..size_of_val(block)).step_by(64) {
        prefetch_line(block.as_ptr().cast::<u8>().wrapping_add(line + ahead_bytes));
    }
}

/// Prefetches the cache line at `address`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing and does not fault for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches the element at `index`. Does nothing if there is no such element.
#[inline(always)]
pub(crate) fn prefetch_at<T>(values: &[T], index: usize) {
    if let Some(element) = values.get(index) {
        prefetch(std::array::from_ref(element), 0);
    }
}
