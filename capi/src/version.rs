//! The version of the library that a program runs with.

use std::ffi::{CStr, c_char};

/// Rises with every change that breaks programs compiled against an older header; also the number in the
/// soname.
pub(crate) const ABI_VERSION: u32 = 2;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version has a NUL byte"),
};

/// The library's version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn brv_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The library's ABI version.
#[unsafe(no_mangle)]
pub extern "C" fn brv_abi_version() -> u32 {
    ABI_VERSION
}
