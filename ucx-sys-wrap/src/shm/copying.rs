//! Copies between private memory and memory that other processes read or write at the same time.
//!
//! On x86-64 they are assembly, about which the compiler assumes nothing, so that races are harmless: any
//! bytes may come out. Elsewhere, and under miri, they use atomics of a word or a byte.

/// Assembly: a string instruction, and stores past the caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine {
    use std::arch::asm;
    use std::sync::atomic::AtomicU32;

    /// Copies `lines` times 64 bytes with `$store`; the caller guarantees both ranges.
    macro_rules! copy_lines {
        ($store:literal, $from:ident, $to:ident, $lines:ident) => {
            asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                concat!($store, " [{to}], {a}"),
                concat!($store, " [{to} + 16], {b}"),
                concat!($store, " [{to} + 32], {c}"),
                concat!($store, " [{to} + 48], {d}"),
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                from = inout(reg) $from => _,
                to = inout(reg) $to => _,
                lines = inout(reg) $lines => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            )
        };
    }

    /// Copies `bytes` bytes from `from` to `to`; either may be shared.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller guarantees both ranges; the direction flag is clear, as everywhere in Rust.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bytes => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Like [`copy`], for a block of a few hundred bytes: a string instruction would start late, and would
    /// not overlap with what comes before and after it.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    pub(in super::super) unsafe fn copy_block(from: *const u8, to: *mut u8, bytes: usize) {
        let lines = bytes / 64;
        if lines > 0 {
            // SAFETY: the caller guarantees both ranges.
            unsafe {
                copy_lines!("movups", from, to, lines);
            }
        }
        let done = bytes / 64 * 64;
        // SAFETY: `done` is at most `bytes`.
        let (from, to) = unsafe { (from.add(done), to.add(done)) };
        // SAFETY: the rest of the caller's ranges, less than 64 bytes.
        unsafe { copy_rest(from, to, bytes - done) };
    }

    /// Copies what one register takes.
    macro_rules! copy_through {
        ($instruction:literal, $modifier:literal, $register:ident, $from:ident, $to:ident) => {
            asm!(
                concat!($instruction, " {a", $modifier, "}, [{from}]"),
                concat!($instruction, " [{to}], {a", $modifier, "}"),
                from = in(reg) $from,
                to = in(reg) $to,
                a = out($register) _,
                options(nostack, preserves_flags)
            )
        };
    }

    /// Copies less than 64 bytes; a string instruction takes longer to start than this takes.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    unsafe fn copy_rest(mut from: *const u8, mut to: *mut u8, bytes: usize) {
        let mut left = bytes;
        while left >= 16 {
            // SAFETY: 16 bytes of the caller's ranges.
            unsafe { copy_through!("movups", "", xmm_reg, from, to) };
            // SAFETY: as above.
            (from, to) = unsafe { (from.add(16), to.add(16)) };
            left -= 16;
        }
        // At most one step each.
        for step in [8, 4, 2, 1] {
            if left >= step {
                // SAFETY: `step` bytes of the caller's ranges.
                unsafe {
                    match step {
                        8 => copy_through!("mov", ":r", reg, from, to),
                        4 => copy_through!("mov", ":e", reg, from, to),
                        2 => copy_through!("mov", ":x", reg, from, to),
                        _ => copy_through!("mov", "", reg_byte, from, to),
                    }
                }
                // SAFETY: as above.
                (from, to) = unsafe { (from.add(step), to.add(step)) };
                left -= step;
            }
        }
    }

    /// Copies `bytes` bytes past the caches, where `to` is a multiple of 64; a fence must follow.
    ///
    /// # Safety
    /// As [`copy`].
    pub(in super::super) unsafe fn stream_unfenced(from: *const u8, to: *mut u8, bytes: usize) {
        let lines = if to.addr().is_multiple_of(64) { bytes / 64 } else { 0 };
        let done = lines * 64;
        if lines > 0 {
            // SAFETY: a part of the caller's ranges, aligned as just checked.
            unsafe { copy_lines!("movntdq", from, to, lines) };
        }
        // SAFETY: `done` is at most `bytes`.
        let (from, to) = unsafe { (from.add(done), to.add(done)) };
        // SAFETY: the rest of the caller's ranges.
        unsafe { copy(from, to, bytes - done) };
    }

    #[inline]
    pub(crate) fn fence() {
        // SAFETY: a fence touches no memory. `Release` does not order stores past the caches, this does.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }

    /// A full fence, which orders stores before later loads; cheaper than the `mfence` that compilers emit.
    #[inline]
    pub(in super::super) fn full_fence() {
        let word = AtomicU32::new(0);
        // SAFETY: changes no bit of a local word. A locked instruction orders all stores before it, except
        // those past the caches, before all loads after it.
        unsafe { asm!("lock or dword ptr [{}], 0", in(reg) word.as_ptr(), options(nostack)) };
    }

    /// Prefetches the line at `address` for reading. It need not exist.
    #[inline]
    pub(in super::super) fn prefetch_to_read(address: *const u8) {
        // SAFETY: a hint without visible effect, whatever the address.
        unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
    }

    /// Prefetches the line at `address` for writing. It need not exist.
    #[inline]
    pub(in super::super) fn prefetch_to_write(address: *const u8) {
        // SAFETY: as above; processors that do not know it ignore it.
        unsafe { asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
    }
}

/// The same through atomics.
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
mod portable {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// Copies `bytes` bytes from `from` to `to`; either may be shared.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap.
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
        let is_aligned = from.addr().is_multiple_of(8) && to.addr().is_multiple_of(8);
        let words = if is_aligned { bytes / 8 } else { 0 };
        for word in 0..words {
            // SAFETY: aligned, and inside the caller's range.
            let value = unsafe { &*from.cast::<AtomicU64>().add(word) }.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { &*to.cast::<AtomicU64>().add(word) }.store(value, Ordering::Relaxed);
        }
        for byte in words * 8..bytes {
            // SAFETY: inside the caller's range.
            let value = unsafe { &*from.cast::<AtomicU8>().add(byte) }.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { &*to.cast::<AtomicU8>().add(byte) }.store(value, Ordering::Relaxed);
        }
    }

    // There is no portable way past the caches.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(in super::super) use self::{copy as copy_block, copy as stream_unfenced};

    /// Nothing was copied past the caches.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(crate) fn fence() {}

    /// A full fence.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(in super::super) fn full_fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Does nothing: there is no portable prefetch.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(in super::super) fn prefetch_to_read(_: *const u8) {}

    /// Does nothing: there is no portable prefetch.
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    pub(in super::super) fn prefetch_to_write(_: *const u8) {}
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
use machine as selected;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use portable as selected;

pub(crate) use selected::{copy, fence};
pub(super) use selected::{copy_block, full_fence, prefetch_to_read, prefetch_to_write, stream_unfenced};

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    fn check(name: &str, copied: Copy) {
        let source: Vec<u8> = (0..5000usize).map(|index| ((index * 31) >> 3) as u8).collect();
        for from in [0, 1, 8, 13] {
            for to in [0, 3, 16, 64, 65] {
                for bytes in [0, 1, 7, 8, 63, 64, 65, 130, 1024, 4097] {
                    let mut target = vec![0xAA; 5000];
                    // SAFETY: both ends lie inside vectors that nobody else touches.
                    unsafe { copied(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes) };
                    assert_eq!(
                        target[to..to + bytes],
                        source[from..from + bytes],
                        "{name} {from} {to} {bytes}"
                    );
                    let outside = target[..to].iter().chain(&target[to + bytes..]);
                    assert!(outside.copied().all(|byte| byte == 0xAA), "{name} {from} {to} {bytes}: outside");
                }
            }
        }
    }

    #[test]
    fn all_copies_copy_exactly_their_range() {
        check("copy", copy);
        check("copy of a block", copy_block);
        check("stream", stream_unfenced);
        fence();
        check("portable copy", portable::copy);
    }
}
