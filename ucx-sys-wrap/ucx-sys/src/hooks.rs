//! UCX's hooks stay out of a process that has threads for as long as nobody needs them.
//!
//! While UCX is loaded it writes over the first bytes of `munmap`, `brk` and their like, and moves the end of
//! the heap to and fro to see whether that worked. Another thread that allocates just then finds its heap cut
//! off: it crashes, or waits for ever for the allocator's lock. UCX's `libucm` does this once, when it is
//! told settings for the first time. So it is loaded before the rest, and told first that nothing is to be
//! hooked; UCX's own constructors then tell it what the user wants. From there on hooks are made when
//! something asks for them (a cache of registrations), and the heap stays as it is.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use crate::table::lookup;

const NAME: &str = "libucm.so.0";

/// Only looks whether a library is there already (`RTLD_NOLOAD`).
const LOADED_ONLY: i32 = RTLD_LOCAL | RTLD_NOW | libc::RTLD_NOLOAD;

/// Settings with which nothing is hooked: `ucm_global_config_t` as zeroes, and as many as no version reads.
#[repr(C, align(16))]
struct NoHooks([u8; 1024]);

type SetGlobalOpts = unsafe extern "C" fn(*const NoHooks);

/// Has hooks made on demand, when the UCX at `libucp` is loaded next, and not by loading it.
///
/// Does nothing in a process with one thread, where hooking is safe, or where a UCX is loaded already.
///
/// # Safety
/// As for [`Ucp::load`](crate::Ucp::load), for the `libucm` beside `libucp`.
pub(crate) unsafe fn defer(libucp: &Path) {
    // SAFETY: nothing is loaded, so nothing is run.
    let is_loaded = unsafe { Library::open(Some(NAME), LOADED_ONLY) }.is_ok();
    if is_loaded || is_single_threaded() {
        return;
    }
    // By need, because it uses functions of `libucs`, which comes with `libucp`.
    // SAFETY: the caller vouches for the file.
    let Ok(library) = (unsafe { Library::open(Some(libucp.with_file_name(NAME)), RTLD_LAZY | RTLD_LOCAL) })
    else {
        return;
    };
    // SAFETY: the caller vouches that this is UCX, whose header has a pointer to a smaller struct here, which
    // is copied.
    if let Some(set_global_opts) = unsafe { lookup::<SetGlobalOpts>(&library, "ucm_set_global_opts") } {
        // SAFETY: the settings outlive the call; zeroes are values of all fields (numbers all).
        unsafe { set_global_opts(&NoHooks([0; 1024])) };
    }
    std::mem::forget(library);
}

/// Whether the caller is the only thread.
fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
