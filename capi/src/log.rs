//! Warnings on standard error, for programs that ask for them.

use crate::boundary::guard;
use crate::status::brv_status;

/// Prints the library's warnings on standard error from now on.
///
/// This sets the process's subscriber of `tracing` events. The process may have its own, so it is set only on
/// request.
#[unsafe(no_mangle)]
pub extern "C" fn brv_log_to_stderr() -> brv_status {
    guard(|| {
        brevity::log::to_stderr();
        Ok(())
    })
}

/// The same if the user asks for it, with the variable that sets the level.
pub(crate) fn if_asked() {
    if std::env::var_os(brevity::log::VARIABLE).is_some() {
        brevity::log::to_stderr();
    }
}
