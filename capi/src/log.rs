//! The library's warnings on standard error or in a function, for programs that ask for them.

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use brevity::log::{Level, LevelFilter, to_function, to_nowhere, to_stderr};

use crate::boundary::guard;
use crate::callback::in_callback;
use crate::failure::Failure;
use crate::status::brv_status;

/// A level's number. C may pass any number, so this is not a Rust enum.
pub type brv_log_level = u32;

/// Receives one line.
pub type brv_log_function =
    Option<unsafe extern "C" fn(level: brv_log_level, line: *const c_char, user_data: *mut c_void)>;

/// The levels by their numbers.
const LEVELS: [LevelFilter; 6] = [
    LevelFilter::OFF,
    LevelFilter::ERROR,
    LevelFilter::WARN,
    LevelFilter::INFO,
    LevelFilter::DEBUG,
    LevelFilter::TRACE,
];

/// Whether the program has said where the log goes.
static IS_DECIDED: AtomicBool = AtomicBool::new(false);

/// Prints the library's warnings on standard error from now on.
///
/// This sets the process's subscriber of `tracing` events. The process may have its own, so it is set only on
/// request.
#[unsafe(no_mangle)]
pub extern "C" fn brv_log_to_stderr() -> brv_status {
    guard(|| {
        IS_DECIDED.store(true, Ordering::Relaxed);
        to_stderr();
        Ok(())
    })
}

/// Hands the log to a function from now on; NULL ends that.
///
/// # Safety
/// `function` is NULL, or may be called with `user_data` by any thread, also for a short time after another
/// one has taken its place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_log_to_callback(
    function: brv_log_function,
    user_data: *mut c_void,
    level: brv_log_level,
) -> brv_status {
    guard(|| {
        let Some(&level) = LEVELS.get(level as usize) else {
            return Err(Failure::argument(format!("level is {level}, expected a brv_log_level (0 to 5)")));
        };
        let is_ours = match function {
            Some(function) => {
                let to = Receiver { function, user_data };
                to_function(level, move |level, line| to.receive(level, line))
            }
            None => {
                to_nowhere();
                true
            }
        };
        if !is_ours {
            return Err(Failure::argument(
                "this process has a subscriber of tracing events already, which receives the log",
            ));
        }
        IS_DECIDED.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Standard error, if the user asks for it with the variable that sets the level, and the program has not
/// said otherwise.
pub(crate) fn if_asked() {
    if std::env::var_os(brevity::log::VARIABLE).is_some() && !IS_DECIDED.load(Ordering::Relaxed) {
        to_stderr();
    }
}

/// The program's function with its data.
struct Receiver {
    function: unsafe extern "C" fn(brv_log_level, *const c_char, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the caller of `brv_log_to_callback` guarantees that any thread may call the function with its data.
unsafe impl Send for Receiver {}
// SAFETY: as above, several at once.
unsafe impl Sync for Receiver {}

impl Receiver {
    fn receive(&self, level: Level, line: &str) {
        let number = match level {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the caller of `brv_log_to_callback` guarantees the function; the line lives until it
        // returns.
        in_callback(|| unsafe { (self.function)(number, line.as_ptr(), self.user_data) });
    }
}
