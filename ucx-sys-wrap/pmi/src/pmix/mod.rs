//! PMIx through `libpmix`, which connects to the launcher's server on this host.

mod library;
mod raw;

use std::ffi::{CStr, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

pub use library::DEFAULT_NAME;
use library::{Table, c_string};
use raw::{Info, PMIX_COLLECT_DATA, PMIX_GLOBAL, PMIX_STRING, Process, Value};

use crate::{Error, KEY, Result, check, is_plain};

/// Gives rank 0's `text` to all ranks of the job, through the PMIx server that the environment names.
///
/// `library` is the file to load, else [`DEFAULT_NAME`]. Rank 0 passes the text, the others `None`. Blocks
/// until all ranks of the job have called it, at most until `deadline`: the library has no deadlines, so it
/// runs on a thread of its own, which is left behind when the deadline passes. The library counts init and
/// finalize, so this does not disturb an MPI library that is initialised. Costs a fence over all ranks of the
/// job.
///
/// # Errors
/// [`Error::NotLoaded`] and [`Error::Incomplete`] when there is no such library, [`Error::Late`] at the
/// deadline, [`Error::OtherRank`] when this process is not `rank` to the server, [`Error::Refused`] by its
/// answers.
pub fn share(library: Option<&Path>, rank: u32, text: Option<&str>, deadline: Instant) -> Result<String> {
    text.map_or(Ok(()), check)?;
    let (library, text) = (library.map(Path::to_owned), text.map(str::to_owned));
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // The receiver is gone when the deadline has passed.
        let _ = sender.send(share_here(library, rank, text));
    };
    let thread = std::thread::Builder::new().name("brevity-pmix".into()).spawn(work);
    thread.map_err(|error| Error::system("a thread for PMIx", error))?;
    receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => Error::Late { call: "PMIx" },
            RecvTimeoutError::Disconnected => Error::Closed { call: "PMIx" },
        })
    })
}

/// Loads the PMIx library, to check that it can be used.
///
/// # Errors
/// [`Error::NotLoaded`] and [`Error::Incomplete`].
pub fn available(library: Option<&Path>) -> Result<()> {
    Table::load(library).map(drop)
}

fn share_here(library: Option<PathBuf>, rank: u32, text: Option<String>) -> Result<String> {
    let client = Client::init(library.as_deref())?;
    let found = client.share(rank, text);
    // The first error counts.
    let left = client.finalize();
    let found = found?;
    left?;
    Ok(found)
}

/// This process as a client of the server, between init and finalize.
struct Client {
    table: Table,
    own: Process,
}

impl Client {
    fn init(library: Option<&Path>) -> Result<Self> {
        let table = Table::load(library)?;
        let mut own = Process::zeroed();
        // SAFETY: `own` is written during the call only; no further information is given.
        let status = unsafe { (table.init)(&mut own, std::ptr::null_mut(), 0) };
        table.check("PMIx_Init", status)?;
        Ok(Self { table, own })
    }

    fn share(&self, rank: u32, text: Option<String>) -> Result<String> {
        if self.own.rank != rank {
            return Err(Error::OtherRank { found: self.own.rank, expected: rank });
        }
        if let Some(text) = &text {
            self.put(text)?;
        }
        self.fence()?;
        text.map_or_else(|| self.get(), Ok)
    }

    /// Stores the text for all ranks.
    fn put(&self, text: &str) -> Result<()> {
        let (key, text) = (c_string(KEY)?, c_string(text)?);
        let mut value = Value::new(PMIX_STRING);
        value.data.string = text.as_ptr().cast_mut();
        // SAFETY: key and value outlive the call, which copies both; the string is only read.
        let status = unsafe { (self.table.put)(PMIX_GLOBAL, key.as_ptr(), &mut value) };
        self.table.check("PMIx_Put", status)?;
        // SAFETY: the library is initialised.
        let status = unsafe { (self.table.commit)() };
        self.table.check("PMIx_Commit", status)
    }

    /// Waits for all ranks of this job, and collects their values on this host.
    fn fence(&self) -> Result<()> {
        let collect = Info::flag(PMIX_COLLECT_DATA);
        // SAFETY: no list of ranks means all of this job; `collect` outlives the call, which blocks.
        let status = unsafe { (self.table.fence)(null(), 0, &collect, 1) };
        self.table.check("PMIx_Fence", status)
    }

    /// The text of rank 0.
    fn get(&self) -> Result<String> {
        let key = c_string(KEY)?;
        let root = Process { rank: 0, ..self.own };
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: the pointers are to locals that outlive the call, which writes `value` only.
        let status = unsafe { (self.table.get)(&root, key.as_ptr(), null(), 0, &mut value) };
        self.table.check("PMIx_Get", status)?;
        let found = Found(value);
        let text = found.text().unwrap_or_default();
        let malformed = |found| Error::Malformed { call: "PMIx_Get", found, expected: "rank 0's text" };
        if is_plain(&text) { Ok(text) } else { Err(malformed(text.chars().take(120).collect())) }
    }

    fn finalize(self) -> Result<()> {
        // SAFETY: the library is initialised, and nothing of it is used after this.
        let status = unsafe { (self.table.finalize)(null(), 0) };
        self.table.check("PMIx_Finalize", status)
    }
}

/// A value that the library has allocated for this caller.
struct Found(*mut Value);

impl Found {
    /// Its text, if it is of this type.
    fn text(&self) -> Option<String> {
        let string = self.string()?;
        // SAFETY: a value of type string holds a closed string, owned by the value, which lives as long as
        // `self`.
        Some(unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
    }

    fn string(&self) -> Option<*mut std::ffi::c_char> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the library returned this pointer with success, so it points to a value, which `self` owns.
        let value = unsafe { *self.0 };
        if value.kind != PMIX_STRING {
            return None;
        }
        // SAFETY: the type says that the string is the member that was written.
        let string = unsafe { value.data.string };
        (!string.is_null()).then_some(string)
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let Some(string) = self.string() {
            // SAFETY: the library allocated the string with the C library, for the caller to free; nobody
            // else holds it.
            unsafe { free(string.cast()) };
        }
        // SAFETY: likewise the value itself; null is allowed. What is no string may hold more, which is
        // leaked.
        unsafe { free(self.0.cast()) };
    }
}

unsafe extern "C" {
    /// The C library's, with which values of PMIx are freed.
    fn free(pointer: *mut c_void);
}
