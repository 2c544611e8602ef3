//! The floating-point mode of a thread: its rounding, and whether it flushes subnormal numbers.
//!
//! The mode is the control bits of MXCSR on x86-64 and of FPCR on 64-bit ARM. Rust has no API for them, and
//! its compiler assumes the standard mode, so inline assembly reads and writes them here. Nothing in this
//! crate uses the x87 unit, which has its own mode.

/// Runs `work` in the standard floating-point mode: rounds to nearest, keeps subnormal numbers, traps
/// nothing.
///
/// A thread has another mode after `_MM_SET_FLUSH_ZERO_MODE`, `torch.set_flush_denormal`, `fesetround` or
/// similar calls, in a program that is linked with `-ffast-math`, or if it inherited one from the thread that
/// started it. Ranks that compute in different modes get different bits, so everything that must have the
/// same bits on all ranks is computed inside this function. The collectives do so themselves.
///
/// The thread's mode is restored when `work` returns or unwinds. Exception flags that `work` has raised stay
/// raised.
///
/// Cost: reads the mode, a few nanoseconds at most, and calls `work` without inlining it. Writes the mode,
/// twice, only if it is not the standard one. On processors other than x86-64 and 64-bit ARM, `work` runs in
/// the thread's current mode.
pub fn in_standard_float_mode<R>(work: impl FnOnce() -> R) -> R {
    let _mode = StandardMode::begin();
    apart(work)
}

/// The compiler does not know that arithmetic depends on the mode. Within a function it may move arithmetic
/// across a change of the mode, but it can't move any out of a function that it does not inline.
#[inline(never)]
fn apart<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// While this value lives, the thread that made it is in the standard mode. It stays on that thread's stack.
struct StandardMode {
    /// The mode to restore.
    replaced: Option<u64>,
}

impl StandardMode {
    #[inline]
    fn begin() -> Self {
        let mode = register::mode();
        if mode == register::STANDARD {
            return Self { replaced: None };
        }
        register::set_mode(register::STANDARD);
        Self { replaced: Some(mode) }
    }
}

impl Drop for StandardMode {
    #[inline]
    fn drop(&mut self) {
        if let Some(mode) = self.replaced {
            register::set_mode(mode);
        }
    }
}

/// MXCSR: six sticky exception flags in its low bits, and the mode.
#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    /// All exceptions masked, round to nearest.
    pub(super) const STANDARD: u64 = 0x1f80;
    /// Flush subnormal operands (bit 6), exception masks (7 to 12), rounding (13 and 14), flush subnormal
    /// results (15). Other bits are exception flags or must not be changed here.
    const MODE: u32 = 0xffc0;

    #[inline]
    fn read() -> u32 {
        let mut register = 0_u32;
        // SAFETY: the instruction stores 4 bytes to `register`, which may be written, and nothing else.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags)) };
        register
    }

    #[inline]
    pub(super) fn mode() -> u64 {
        u64::from(read() & MODE)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn set_mode(mode: u64) {
        let register = read() & !MODE | mode as u32 & MODE;
        // SAFETY: the instruction loads 4 bytes from `register`. It faults only for bits that a processor
        // does not have: every x86-64 processor that runs Linux has all bits of `MODE`, and the others are
        // unchanged. The callers compute nothing themselves between two changes: see `apart`.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const register, options(nostack, preserves_flags)) };
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) mod modes {
        /// Subnormal operands and results are zeros.
        pub const FLUSHING: u64 = super::STANDARD | 1 << 15 | 1 << 6;
        /// Rounds towards zero.
        pub const TOWARDS_ZERO: u64 = super::STANDARD | 3 << 13;
        /// Rounds towards infinity.
        pub const UPWARDS: u64 = super::STANDARD | 2 << 13;
    }
}

/// FPCR, which contains only the mode: the exception flags have their own register.
#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    /// Traps nothing, rounds to nearest.
    pub(super) const STANDARD: u64 = 0;

    #[inline]
    pub(super) fn mode() -> u64 {
        let register: u64;
        // SAFETY: the instruction reads a register that every program may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) register, options(nostack, preserves_flags)) };
        register
    }

    #[cold]
    #[inline(never)]
    pub(super) fn set_mode(mode: u64) {
        // SAFETY: the instruction writes a register that every program may write; bits that a processor does
        // not have are ignored. The callers compute nothing themselves between two changes: see `apart`.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) };
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) mod modes {
        /// Subnormal operands and results are zeros.
        pub const FLUSHING: u64 = 1 << 24;
        /// Rounds towards zero.
        pub const TOWARDS_ZERO: u64 = 3 << 22;
        /// Rounds towards infinity.
        pub const UPWARDS: u64 = 1 << 22;
    }
}

/// On other processors the mode is not changed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub(super) const STANDARD: u64 = 0;

    pub(super) fn mode() -> u64 {
        STANDARD
    }

    pub(super) fn set_mode(_: u64) {}

    #[cfg(any(test, feature = "testing"))]
    pub(super) mod modes {
        pub const FLUSHING: u64 = super::STANDARD;
        pub const TOWARDS_ZERO: u64 = super::STANDARD;
        pub const UPWARDS: u64 = super::STANDARD;
    }
}

/// Other modes, for tests of results that must not depend on them.
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing {
    use super::register;
    pub use super::register::modes::{FLUSHING, TOWARDS_ZERO, UPWARDS};

    /// The mode in which programs start.
    pub const STANDARD: u64 = register::STANDARD;

    /// This thread's mode.
    pub fn float_mode() -> u64 {
        register::mode()
    }

    /// Changes this thread's mode. From then on, arithmetic in the calling code has no defined result; it may
    /// only move bits and call what is tested.
    pub fn set_float_mode(mode: u64) {
        register::set_mode(mode);
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::testing::*;
    use super::*;
    use crate::Density;
    use crate::schedule::Schedule;

    /// Separate functions, so that the arithmetic is not moved.
    #[inline(never)]
    fn half_of(bits: u32) -> u32 {
        (black_box(f32::from_bits(bits)) / black_box(2.0)).to_bits()
    }

    #[inline(never)]
    fn third_of(value: f64) -> u64 {
        (black_box(value) / black_box(3.0)).to_bits()
    }

    /// Runs a test in a thread of its own, whose mode ends with it.
    fn in_mode(mode: u64, test: impl FnOnce() + Send) {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                set_float_mode(mode);
                test();
                set_float_mode(STANDARD);
            });
        });
    }

    #[test]
    fn threads_start_in_the_standard_mode() {
        assert_eq!(float_mode(), STANDARD);
        in_standard_float_mode(|| assert_eq!(float_mode(), STANDARD));
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn subnormal_numbers_are_kept_inside() {
        in_mode(FLUSHING, || {
            assert_eq!((half_of(8), half_of(f32::MIN_POSITIVE.to_bits())), (0, 0), "the mode that it is for");
            assert_eq!(in_standard_float_mode(|| half_of(8)), 4);
            assert_eq!(in_standard_float_mode(|| half_of(1 << 23)), 1 << 22);
            assert_eq!((half_of(8), float_mode()), (0, FLUSHING));
        });
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn quotients_are_rounded_to_nearest_inside() {
        let nearest = third_of(5.0);
        in_mode(TOWARDS_ZERO, || {
            assert_eq!(third_of(5.0), nearest - 1, "the mode that it is for");
            assert_eq!(in_standard_float_mode(|| third_of(5.0)), nearest);
            assert_eq!((third_of(5.0), float_mode()), (nearest - 1, TOWARDS_ZERO));
        });
    }

    /// Decisions that every rank makes alone and that must agree: see also the tests of several ranks.
    #[test]
    fn densities_are_the_same_in_every_mode() {
        let decide = || {
            let density = Density::new(0.1).unwrap();
            let schedule = Schedule::exponential(Density::new(0.003).unwrap(), 7);
            let shares: Vec<u64> = (0..7).map(|period| schedule.density(period).share().to_bits()).collect();
            (density.entries(600), shares)
        };
        let expected = decide();
        assert_eq!(expected.0, 60, "0.1 is a little more than a tenth");
        for mode in [FLUSHING, TOWARDS_ZERO, UPWARDS] {
            in_mode(mode, || assert_eq!(decide(), expected, "{mode:#x}"));
        }
    }

    #[test]
    fn the_mode_comes_back_after_a_panic_and_from_a_nest() {
        for mode in [STANDARD, FLUSHING, TOWARDS_ZERO] {
            in_mode(mode, || {
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    in_standard_float_mode(|| std::panic::resume_unwind(Box::new(float_mode())))
                }));
                assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&STANDARD));
                assert_eq!(float_mode(), mode);
                in_standard_float_mode(|| {
                    in_standard_float_mode(|| assert_eq!(float_mode(), STANDARD));
                    assert_eq!(float_mode(), STANDARD, "of the outer one");
                });
                assert_eq!(float_mode(), mode);
            });
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn exception_flags_stay_raised() {
        use std::arch::asm;
        /// The whole MXCSR.
        fn read() -> u32 {
            let mut register = 0_u32;
            // SAFETY: stores 4 bytes to `register`.
            unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut register) };
            register
        }
        const INEXACT: u32 = 1 << 5;
        in_mode(TOWARDS_ZERO, || {
            let clear = read() & !0x3f;
            // SAFETY: loads 4 bytes of `clear`, the current mode without flags.
            unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const clear) };
            assert_eq!(read() & INEXACT, 0);
            in_standard_float_mode(|| third_of(1.0));
            assert_ne!(read() & INEXACT, 0, "raised inside");
            in_standard_float_mode(|| ());
            assert_ne!(read() & INEXACT, 0, "raised before");
        });
    }
}
