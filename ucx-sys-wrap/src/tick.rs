//! A cheap coarse clock.

use rustix::time::{ClockId, clock_gettime};

/// The tick of the kernel's coarse clock, which lasts 1 to 10 ms. Costs a few nanoseconds through the vDSO,
/// or a system call where the C library does not provide it or valgrind runs.
#[inline]
pub(crate) fn tick() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    (time.tv_sec.cast_unsigned() << 32) + time.tv_nsec.cast_unsigned()
}
