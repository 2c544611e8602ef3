//! Pages from the kernel, huge ones if available.

use std::fs;
use std::ptr::NonNull;
use std::sync::LazyLock;

pub(super) const PAGE_BYTES: usize = 4096;
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The huge pages that the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HugePages {
    /// Reserved pages of 2 MiB (`vm.nr_hugepages`): the number of free ones.
    Reserved(u64),
    /// The kernel merges ordinary pages on request (`MADV_HUGEPAGE`), and this process is not kept from it
    /// (`PR_SET_THP_DISABLE`).
    Transparent,
    /// None.
    None,
}

impl HugePages {
    /// Asks the kernel.
    #[must_use]
    pub fn find() -> Self {
        let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let is_disabled = rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(false);
        Self::from_kernel(free.ok().as_deref(), enabled.ok().as_deref(), is_disabled)
    }

    /// Whether there were any when this process first asked.
    pub(crate) fn were_found() -> bool {
        static FOUND: LazyLock<bool> = LazyLock::new(|| HugePages::find() != HugePages::None);
        *FOUND
    }

    /// The number of free reserved pages, what is enabled, and whether this process may not have it.
    fn from_kernel(free: Option<&str>, enabled: Option<&str>, is_disabled: bool) -> Self {
        let is_enabled = enabled.is_some_and(|enabled| !enabled.contains("[never]"));
        match free.and_then(|free| free.trim().parse().ok()) {
            Some(free) if free > 0 => Self::Reserved(free),
            _ if is_enabled && !is_disabled => Self::Transparent,
            _ => Self::None,
        }
    }
}

/// Exclusively owned pages, zeroed at first.
///
/// Invariant: `pointer` is the start of a mapping of `length` bytes that only this unmaps.
pub(super) struct Pages {
    pub(super) pointer: NonNull<u8>,
    pub(super) length: usize,
}

// SAFETY: it exclusively owns plain memory.
unsafe impl Send for Pages {}

#[cfg(not(miri))]
mod system {
    use std::ffi::c_void;
    use std::ptr::{self, NonNull};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::{HUGE_PAGE_BYTES, Pages};

    impl Pages {
        /// Maps `length` bytes, a multiple of a page. `None` if the system has no memory.
        pub(in super::super) fn map(length: usize) -> Option<Self> {
            if length < HUGE_PAGE_BYTES {
                return map(length, MapFlags::PRIVATE).map(|pointer| Self { pointer, length });
            }
            if let Some(pointer) = map(length, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB) {
                return Some(Self { pointer, length });
            }
            let pointer = map_aligned(length)?;
            // SAFETY: the range was just mapped, and this advice does not change its contents. If the kernel
            // refuses it, the pages stay ordinary ones.
            let _ = unsafe { madvise(pointer.as_ptr().cast(), length, Advice::LinuxHugepage) };
            Some(Self { pointer, length })
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            unmap(self.pointer.as_ptr(), self.length);
        }
    }

    fn map(length: usize, flags: MapFlags) -> Option<NonNull<u8>> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped =
            unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags) };
        NonNull::new(mapped.ok()?.cast())
    }

    /// Maps more than requested and unmaps the unaligned ends.
    fn map_aligned(length: usize) -> Option<NonNull<u8>> {
        let start = map(length.checked_add(HUGE_PAGE_BYTES)?, MapFlags::PRIVATE)?;
        let before = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `before` is less than a huge page, so the result lies inside the mapping.
        let aligned = unsafe { start.add(before) };
        // SAFETY: as above; at most one past the end.
        let after = unsafe { aligned.add(length) };
        unmap(start.as_ptr(), before);
        unmap(after.as_ptr(), HUGE_PAGE_BYTES - before);
        Some(aligned)
    }

    fn unmap(pointer: *mut u8, length: usize) {
        if length > 0 {
            // SAFETY: part of our own mapping, which nobody uses. On failure it stays mapped, which is
            // harmless.
            let _ = unsafe { munmap(pointer.cast::<c_void>(), length) };
        }
    }
}

/// A substitute under miri, which has no kernel.
#[cfg(miri)]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    use super::{PAGE_BYTES, Pages};

    fn layout(length: usize) -> Option<Layout> {
        Layout::from_size_align(length, PAGE_BYTES).ok()
    }

    impl Pages {
        pub(in super::super) fn map(length: usize) -> Option<Self> {
            // SAFETY: the length of pages is never zero.
            let pointer = NonNull::new(unsafe { alloc_zeroed(layout(length)?) })?;
            Some(Self { pointer, length })
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            if let Some(layout) = layout(self.length) {
                // SAFETY: allocated with this layout.
                unsafe { dealloc(self.pointer.as_ptr(), layout) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_zero() {
        for length in [PAGE_BYTES, 3 * PAGE_BYTES, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES] {
            let pages = Pages::map(length).unwrap();
            let alignment = if length < HUGE_PAGE_BYTES || cfg!(miri) { PAGE_BYTES } else { HUGE_PAGE_BYTES };
            assert_eq!(pages.pointer.as_ptr() as usize % alignment, 0);
            // SAFETY: `length` bytes were mapped and are exclusively ours.
            let bytes = unsafe { std::slice::from_raw_parts_mut(pages.pointer.as_ptr(), length) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            (bytes[0], bytes[length - 1]) = (1, 1);
        }
        assert!(Pages::map(usize::MAX - (HUGE_PAGE_BYTES - 1)).is_none());
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        let transparent = Some("always [madvise] never\n");
        for (free, enabled, is_disabled, expected) in [
            (Some("12\n"), transparent, false, HugePages::Reserved(12)),
            (Some("12\n"), transparent, true, HugePages::Reserved(12)),
            (Some("0\n"), transparent, false, HugePages::Transparent),
            (Some("0\n"), transparent, true, HugePages::None),
            (None, Some("[always] madvise never"), false, HugePages::Transparent),
            (Some("0"), Some("always madvise [never]"), false, HugePages::None),
            (None, None, false, HugePages::None),
        ] {
            assert_eq!(HugePages::from_kernel(free, enabled, is_disabled), expected);
        }
    }
}
