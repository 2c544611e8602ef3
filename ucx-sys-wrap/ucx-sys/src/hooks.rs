//! Keeps UCX from hooking memory functions while it is loaded into a process with threads.
//!
//! `libucm` overwrites the first bytes of `munmap`, `brk` and their like when it first receives settings, and
//! moves the end of the heap to test the hooks. Another thread that allocates at that time crashes, or waits
//! for ever for the allocator's lock. So `libucm` is loaded before the rest, with settings that hook nothing;
//! UCX's constructors then pass the user's settings. Afterwards hooks are installed when something asks for
//! them (a cache of registrations), without moving the heap.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use crate::table::lookup;

const NAME: &str = "libucm.so.0";

/// Opens a library only if it is loaded already (`RTLD_NOLOAD`).
const LOADED_ONLY: i32 = RTLD_LOCAL | RTLD_NOW | libc::RTLD_NOLOAD;

/// Settings that hook nothing: `ucm_global_config_t` as zeroes, more than any version reads.
#[repr(C, align(16))]
struct NoHooks([u8; 1024]);

type SetGlobalOpts = unsafe extern "C" fn(*const NoHooks);

/// Prepares the UCX at `libucp` to install hooks on demand, not when it is loaded.
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
    // Lazily, because it uses functions of `libucs`, which comes with `libucp`.
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
