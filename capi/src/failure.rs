//! A failed call's status, text and rank, and where C reads them.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};

use crate::status::{self, Verdict, brv_status};

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    status: brv_status,
    text: String,
    rank: Option<u32>,
}

/// The last failure of a thread.
struct Last {
    text: CString,
    rank: i32,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), rank: NO_RANK });
}

const NO_RANK: i32 = -1;

impl Failure {
    /// The caller's mistake, with the remedy.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { status: brv_status::Argument, text: text.into(), rank: None }
    }

    /// A field of a config that is missing or invalid, with the remedy.
    pub(crate) fn setting(text: impl Into<String>) -> Self {
        Self { status: brv_status::Environment, ..Self::argument(text) }
    }

    /// Converts a caught panic.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self {
            status: brv_status::Panic,
            text: format!("a defect in the library, please report it: {text}"),
            rank: None,
        }
    }

    fn new((status, rank): Verdict, text: String) -> Self {
        Self { status, text, rank }
    }

    /// Names what the call was about, at the beginning of the text.
    pub(crate) fn about(self, name: &str) -> Self {
        Self { text: format!("{name}: {}", self.text), ..self }
    }

    /// Adds what the caller can do, at the end of the text.
    pub(crate) fn with_remedy(self, remedy: &str) -> Self {
        Self { text: format!("{}; {remedy}", self.text), ..self }
    }

    /// The same of a call that has closed its group: others know of it.
    pub(crate) fn of_closed_group(self) -> Self {
        let status = match self.status {
            brv_status::Exhausted => brv_status::Transport,
            brv_status::Argument => brv_status::Protocol,
            other => other,
        };
        Self { status, ..self }
    }

    /// Whether the call was refused before anything was sent.
    pub(crate) fn has_sent_nothing(&self) -> bool {
        matches!(self.status, brv_status::Argument | brv_status::Exhausted | brv_status::Unsupported)
    }

    /// The text.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Makes this the thread's last failure, and returns its status.
    pub(crate) fn record(self) -> brv_status {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        let rank = self.rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(NO_RANK);
        // A thread that is being torn down can no longer store a text; the caller still gets the status.
        let _ = LAST.try_with(|last| last.replace(Last { text, rank }));
        self.status
    }
}

impl From<brevity::Error> for Failure {
    fn from(error: brevity::Error) -> Self {
        Self::new(status::of_facade(&error), error.to_string())
    }
}

impl From<brevity_collectives::Error> for Failure {
    fn from(error: brevity_collectives::Error) -> Self {
        Self::new(status::of_collective(&error), error.to_string())
    }
}

impl From<ucx_sys_wrap::Error> for Failure {
    fn from(error: ucx_sys_wrap::Error) -> Self {
        Self::new(status::of_transport(&error), error.to_string())
    }
}

/// The text of this thread's last failed call; empty if none has failed. Never NULL, valid until the thread's
/// next failed call.
#[unsafe(no_mangle)]
pub extern "C" fn brv_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The rank that this thread's last failed call was about, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn brv_last_error_rank() -> i32 {
    LAST.try_with(|last| last.borrow().rank).unwrap_or(NO_RANK)
}
