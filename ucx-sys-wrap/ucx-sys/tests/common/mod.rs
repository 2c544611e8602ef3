//! Finds UCX for the tests.

use std::io::Write;
use std::path::PathBuf;

use brevity_ucx_sys::{LoadError, Ucp};

/// UCX, or nothing where it is not installed; then says so, or fails if `BREVITY_REQUIRE_UCX` is 1.
///
/// `BREVITY_UCX_LIB` names another library than the system's, and must then be right.
pub fn ucx() -> Option<Ucp> {
    let path = std::env::var_os("BREVITY_UCX_LIB").map(PathBuf::from);
    // SAFETY: who runs the tests vouches for the library.
    match unsafe { Ucp::load(path.as_deref()) } {
        Ok(ucp) => Some(ucp),
        Err(error @ LoadError::NotLoaded { .. }) if path.is_none() && !required() => {
            // Not `eprintln`, which the test harness swallows; in one piece, as tests run side by side.
            let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn required() -> bool {
    std::env::var_os("BREVITY_REQUIRE_UCX").is_some_and(|value| value == "1")
}
