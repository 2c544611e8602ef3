//! Waking a rank that sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, OFlags, fcntl_getfl, readlinkat};
use rustix::io::{read, write};

use crate::{Error, Rank, Result};

/// A descriptor that becomes readable when somebody rings; it counts, so that no ring is lost.
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left.
    pub fn new() -> Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        descriptor.map(Self).map_err(|error| Error::system("can't make an event descriptor", error))
    }

    /// Takes over the bell of `rank`, whose descriptor came from there.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is none: ringing something else could block.
    pub fn received(rank: Rank, descriptor: OwnedFd) -> Result<Self> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind =
            readlinkat(CWD, &path, Vec::new()).map_err(|error| Error::system(format!("can't read {path}"), error))?;
        let is_patient = !fcntl_getfl(&descriptor).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        if kind.as_bytes() != b"anon_inode:[eventfd]" || is_patient {
            let what = format!("{kind:?}, expected an event descriptor that does not block");
            return Err(Error::Protocol { rank, what });
        }
        Ok(Self(descriptor))
    }

    /// Rings. Costs a system call.
    pub fn ring(&self) {
        // Fails only when it has been rung 2^64 times without being heard, which leaves it readable.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets the rings so far; says whether there were any. Costs a system call.
    pub fn hear(&self) -> bool {
        read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
