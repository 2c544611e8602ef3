//! The UCX library of this process, loaded once.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use brevity_ucx_sys::{LoadError, Ucp};

use super::exiting;

/// The UCX library in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its major, minor and release number.
    pub version: (u32, u32, u32),
    /// The file that was loaded.
    pub path: PathBuf,
}

/// Says which UCX library is in use, or why there is none, in one line with the remedy.
///
/// The first call loads the library, from the path in `BREVITY_UCX_LIB` or else `libucp.so.0` from where the
/// dynamic linker looks; it stays loaded, and there is never a second one. Loading takes milliseconds, starts
/// UCX's own modules and changes the allocator's functions: ask only where UCX is wanted.
///
/// # Errors
/// The line.
pub fn available() -> Result<Report, String> {
    match load() {
        Ok(ucp) => Ok(Report { version: ucp.version(), path: ucp.path().to_owned() }),
        Err(error) => Err(error.to_string()),
    }
}

const LOG_LEVEL: &CStr = c"LOG_LEVEL";

/// While this lives, UCX logs errors only, unless the user has set its log level.
pub(super) struct QuietLog {
    ucp: &'static Ucp,
    before: Option<&'static CStr>,
}

impl QuietLog {
    pub(super) fn begin(ucp: &'static Ucp) -> Self {
        static BEFORE: OnceLock<Option<CString>> = OnceLock::new();
        // Read once: of two concurrent tear-downs the second would read what the first has set.
        let before = BEFORE.get_or_init(|| {
            let is_users = std::env::var_os("UCX_LOG_LEVEL").is_some();
            if is_users { None } else { ucp.global(LOG_LEVEL) }
        });
        Self { ucp, before: before.as_deref().filter(|_| ucp.set_global(LOG_LEVEL, c"error")) }
    }
}

impl Drop for QuietLog {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.ucp.set_global(LOG_LEVEL, before);
        }
    }
}

/// Loads the library at the first call.
pub(super) fn load() -> Result<&'static Ucp, &'static LoadError> {
    static LIBRARY: OnceLock<Result<Ucp, LoadError>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let path = std::env::var_os("BREVITY_UCX_LIB").filter(|path| !path.is_empty());
        if is_static() {
            let looked_for = path.unwrap_or("libucp.so.0".into()).into();
            let reason = "this program is linked statically, and can't load libraries".into();
            return Err(LoadError::NotLoaded { looked_for, reason });
        }
        // SAFETY: whoever installs a libucp.so.0, or names one in BREVITY_UCX_LIB, vouches that it is UCX;
        // nothing else in the process loads it.
        let library = unsafe { Ucp::load(path.as_deref().map(Path::new)) };
        match &library {
            Ok(ucp) => {
                exiting::prepare();
                tracing::info!(version = ?ucp.version(), path = %ucp.path().display(), "UCX is loaded");
            }
            Err(error) => tracing::info!(%error, "UCX can't be used"),
        }
        library
    });
    library.as_ref()
}

/// Whether this program is linked statically. A library that it loads would come with a libc of its own, and
/// crash: threads and allocations of one are unknown to the other.
#[cfg(target_os = "linux")]
fn is_static() -> bool {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" fn of_program(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a valid object, and `found` as it was given.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<bool>()) };
        // SAFETY: an object has as many headers, which live as long as it is loaded.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        *found = headers.iter().any(|header| header.p_type == libc::PT_INTERP);
        // The first object is the program; the others are not asked.
        1
    }

    let mut has_interpreter = true;
    // SAFETY: the function has the type that is expected, and the place outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(of_program), (&raw mut has_interpreter).cast()) };
    !has_interpreter
}

#[cfg(not(target_os = "linux"))]
fn is_static() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_linked_dynamically() {
        assert_eq!(is_static(), cfg!(target_feature = "crt-static"));
    }
}
