//! Loading the library.

use std::error::Error as _;
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::raw;
use crate::{Error, Result};

/// The default file name, the same for PMIx 2 to 6.
pub const DEFAULT_NAME: &str = "libpmix.so.2";

/// The functions of a PMIx library, which stays loaded for the life of the process.
pub(super) struct Table {
    pub(super) init: raw::Init,
    pub(super) finalize: raw::Finalize,
    pub(super) put: raw::Put,
    pub(super) commit: raw::Commit,
    pub(super) fence: raw::Fence,
    pub(super) get: raw::Get,
    error_string: raw::ErrorString,
}

impl Table {
    /// Loads the library at `path`, or else the one that the dynamic linker finds.
    ///
    /// It is never unloaded: it starts threads that would run into unmapped code.
    pub(super) fn load(path: Option<&Path>) -> Result<Self> {
        let looked_for = path.unwrap_or(Path::new(DEFAULT_NAME));
        // SAFETY: loading runs the file's constructors. The user, or the system, names it as the PMIx
        // library.
        let library = unsafe { Library::open(Some(looked_for), RTLD_NOW | RTLD_LOCAL) };
        let library = ManuallyDrop::new(library.map_err(|error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let prefix = format!("{}: ", looked_for.display());
            let reason = reason.strip_prefix(&prefix).unwrap_or(&reason).to_owned();
            Error::NotLoaded { looked_for: looked_for.to_owned(), reason }
        })?);
        let mut names = Vec::new();
        macro_rules! symbol {
            ($kind:ty, $name:literal) => {{
                // SAFETY: the type is the header's, which `ci/pmix-bindings.sh` checks; the file is a PMIx
                // library.
                let found = unsafe { library.get::<$kind>(concat!($name, "\0").as_bytes()) };
                if found.is_err() {
                    names.push($name);
                }
                found.map(|symbol| *symbol).ok()
            }};
        }
        let init = symbol!(raw::Init, "PMIx_Init");
        let finalize = symbol!(raw::Finalize, "PMIx_Finalize");
        let put = symbol!(raw::Put, "PMIx_Put");
        let commit = symbol!(raw::Commit, "PMIx_Commit");
        let fence = symbol!(raw::Fence, "PMIx_Fence");
        let get = symbol!(raw::Get, "PMIx_Get");
        let error_string = symbol!(raw::ErrorString, "PMIx_Error_string");
        match (init, finalize, put, commit, fence, get, error_string) {
            (
                Some(init),
                Some(finalize),
                Some(put),
                Some(commit),
                Some(fence),
                Some(get),
                Some(error_string),
            ) => Ok(Self { init, finalize, put, commit, fence, get, error_string }),
            _ => Err(Error::Incomplete { looked_for: looked_for.to_owned(), names }),
        }
    }

    /// An error unless `status` is success.
    pub(super) fn check(&self, call: &'static str, status: raw::Status) -> Result<()> {
        if status == raw::SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a string of the library's own, or null.
        let words = unsafe { (self.error_string)(status) };
        let reason = if words.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: it is a closed string that stays in the library, which is never unloaded.
            unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
        };
        Err(Error::Refused { call, reason })
    }
}

/// `text` as C takes it.
pub(super) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Unfit { text: text.to_owned() })
}
