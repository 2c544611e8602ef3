//! Mapped pages of a file.

use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::told::later;
use crate::{Error, Result};

/// Pages that are shared with other processes.
///
/// Invariants: `bytes` bytes at `start` are mapped, readable, and writable if they were mapped so, until this
/// is dropped, and the file behind them can't shrink. Other processes may write them at any time.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`.
    pub(crate) unsafe fn new(file: impl AsFd, bytes: usize, is_writable: bool) -> Result<Self> {
        let access = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let mapped = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        let start = mapped.map_err(|error| Error::system("can't map shared memory", error))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| {
            Error::system(
                "can't map shared memory",
                std::io::Error::other("the system has mapped it at address zero"),
            )
        })?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: pages belong to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: the mapping itself is never changed; its bytes are reached through atomics and copies that allow
// for races.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: every pointer into these pages comes with a reference to the mapping, so none is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            later!(ERROR, %error, "can't unmap shared memory");
        }
    }
}
