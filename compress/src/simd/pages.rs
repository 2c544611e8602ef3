//! How the CPU fetches the pages of long vectors.

use std::sync::OnceLock;

/// Whether the prefetcher goes on into the next page by itself, as AMD's does (measured on Zen 4): then a
/// plain loop is the fastest. Others stop at the end of each page, and loops help them.
#[inline]
pub(crate) fn are_fetched_ahead() -> bool {
    #[cfg(test)]
    if let Some(assumed) = tests::assumed() {
        return assumed;
    }
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(find)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn find() -> bool {
    #[allow(unused_unsafe, reason = "newer compilers have it as a safe function")]
    // SAFETY: every x86-64 CPU has the instruction.
    let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"AuthenticAMD"
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn find() -> bool {
    false
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        static ASSUMED: Cell<Option<bool>> = const { Cell::new(None) };
    }

    pub(super) fn assumed() -> Option<bool> {
        ASSUMED.get()
    }

    /// Runs a test on both kinds of CPU, as far as this thread can tell.
    pub(crate) fn on_both(test: impl Fn()) {
        for kind in [true, false] {
            ASSUMED.set(Some(kind));
            test();
        }
        ASSUMED.set(None);
    }

    #[test]
    fn a_test_runs_on_both_kinds() {
        let seen = Cell::new([false; 2]);
        on_both(|| {
            let mut both = seen.get();
            both[usize::from(super::are_fetched_ahead())] = true;
            seen.set(both);
        });
        assert_eq!(seen.get(), [true; 2]);
        assert_eq!(super::are_fetched_ahead(), super::find());
    }
}
