//! Finding the library, checking its version, and saying why it can't be used.

use std::error::Error as _;
use std::ffi::c_uint;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::hooks;
use crate::signals::Kept;
use crate::table::{Ucp, lookup};
use crate::{UCP_API_MAJOR, UCP_API_MINOR};

/// Why there is no usable UCX.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker did not load the library.
    NotLoaded {
        /// The file name or path that was asked for.
        looked_for: PathBuf,
        /// What the dynamic linker said.
        reason: String,
    },
    /// The library is not UCX, or incomplete.
    MissingSymbols {
        /// The file that was loaded.
        path: PathBuf,
        /// The functions that it lacks, all of them.
        names: Vec<&'static str>,
    },
    /// The library is a UCX of a version that these bindings do not fit.
    UnsupportedVersion {
        /// The file that was loaded.
        path: PathBuf,
        /// Its major, minor and release number.
        found: (u32, u32, u32),
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded { looked_for, reason } => {
                write!(f, "no UCX library (looked for {}): {reason}; {REMEDY}", looked_for.display())
            }
            Self::MissingSymbols { path, names } => {
                write!(
                    f,
                    "{} is not a complete UCX library, it lacks {}; {REMEDY}",
                    path.display(),
                    names.join(", ")
                )
            }
            Self::UnsupportedVersion { path, found } => write!(
                f,
                "{} is UCX {}.{}.{}, expected {UCP_API_MAJOR}.x from {UCP_API_MAJOR}.{UCP_API_MINOR} on; \
                 {REMEDY}",
                path.display(),
                found.0,
                found.1,
                found.2
            ),
        }
    }
}

impl std::error::Error for LoadError {}

impl Ucp {
    /// Loads UCX from `path`, or else `libucp.so.0` from where the dynamic linker looks.
    ///
    /// The library stays loaded until the process ends, even if this call then fails, so its functions and
    /// strings never dangle: UCX patches the C library's `munmap` and the like (in a process with threads
    /// only once a cache of registrations asks for it), installs exit handlers and starts threads. Its signal
    /// handlers are removed again, unless `UCX_HANDLE_ERRORS` or `UCX_DEBUG_SIGNO` is set. Loading again is
    /// cheap and returns the same library. Allocates.
    ///
    /// # Errors
    ///
    /// [`LoadError`], whose text is one line with the remedy.
    ///
    /// # Safety
    ///
    /// Loading runs the file's constructors, and the symbols found are taken to have the types that
    /// UCX's headers give them: the file must be UCX, or none at all. With a `path`, no other UCX may
    /// be loaded in the process: the dynamic linker would join this `libucp` with the other's `libucs`.
    pub unsafe fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let looked_for = path.unwrap_or(Path::new(DEFAULT_NAME));
        let signals = Kept::now();
        // SAFETY: the caller vouches for this UCX.
        unsafe { hooks::defer(looked_for) };
        // SAFETY: the caller vouches for the file.
        let library = unsafe { Library::open(Some(looked_for), RTLD_NOW | RTLD_LOCAL) };
        signals.restore();
        let library = ManuallyDrop::new(library.map_err(|error| not_loaded(looked_for, &error))?);

        // The version comes first, because an older library lacks symbols.
        // SAFETY: the caller vouches for the types of the symbols; this is the header's.
        let get_version = unsafe { lookup::<GetVersion>(&library, "ucp_get_version") };
        let Some(get_version) = get_version else {
            return Err(LoadError::MissingSymbols {
                path: looked_for.to_owned(),
                names: vec!["ucp_get_version"],
            });
        };
        let path = mapped_file(get_version as usize).unwrap_or_else(|| looked_for.to_owned());
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: the pointers are to locals that outlive the call.
        unsafe { get_version(&mut major, &mut minor, &mut release) };
        let version = (major, minor, release);
        if major != UCP_API_MAJOR || minor < UCP_API_MINOR {
            return Err(LoadError::UnsupportedVersion { path, found: version });
        }
        // SAFETY: the caller vouches for the types of the symbols.
        unsafe { Self::from_library(library, path.clone(), version) }
            .map_err(|names| LoadError::MissingSymbols { path, names })
    }
}

type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);

const DEFAULT_NAME: &str = "libucp.so.0";
const REMEDY: &str =
    "install UCX 1.13 or newer (package libucx0 or ucx), or set BREVITY_UCX_LIB to its libucp.so.0";

fn not_loaded(looked_for: &Path, error: &libloading::Error) -> LoadError {
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    // The dynamic linker repeats the name that the message has already.
    let prefix = format!("{}: ", looked_for.display());
    let reason = reason.strip_prefix(&prefix).unwrap_or(&reason).to_owned();
    LoadError::NotLoaded { looked_for: looked_for.to_owned(), reason }
}

/// The file that is mapped at `address` in this process, if there is one.
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    file_at(&maps, address)
}

/// Looks `address` up in the text of `/proc/self/maps`: `from-to permissions offset device inode path`.
fn file_at(maps: &str, address: usize) -> Option<PathBuf> {
    let line = maps.lines().find(|line| {
        let bounds = line.split(' ').next().and_then(|range| {
            let (from, to) = range.split_once('-')?;
            let from = usize::from_str_radix(from, 16).ok()?;
            Some(from..usize::from_str_radix(to, 16).ok()?)
        });
        bounds.is_some_and(|bounds| bounds.contains(&address))
    })?;
    let path = &line[line.find('/')?..];
    Some(path.strip_suffix(" (deleted)").unwrap_or(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_are_found_by_address() {
        let maps = "1000-2000 r--p 00000000 fe:01 77    /opt/my libs/libucp.so.0\n\
                    2000-3000 r-xp 00001000 fe:01 77    /usr/lib/libucp.so.0.0.0 (deleted)\n\
                    7000-8000 rw-p 00000000 00:00 0     [stack]\n\
                    8000-9000 rw-p 00000000 00:00 0\n";
        let found = |address| file_at(maps, address).map(|path| path.display().to_string());
        assert_eq!(found(0x1000).as_deref(), Some("/opt/my libs/libucp.so.0"));
        assert_eq!(found(0x1fff).as_deref(), Some("/opt/my libs/libucp.so.0"));
        assert_eq!(found(0x2000).as_deref(), Some("/usr/lib/libucp.so.0.0.0"));
        assert_eq!(found(0x0fff), None);
        assert_eq!(found(0x3000), None);
        assert_eq!(found(0x7000), None);
        assert_eq!(found(0x8000), None);
    }

    #[test]
    fn this_program_is_mapped() {
        let address = mapped_files_are_found_by_address as fn() as usize;
        assert_eq!(mapped_file(address), std::env::current_exe().ok());
    }
}
