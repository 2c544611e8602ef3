//! A flag in shared memory by which ranks of one host see without asking that one of them is torn down.
//!
//! A receiver fetches a rendezvous payload from the sender's memory. A sender whose transport is torn down
//! takes its memory back; a receiver that fetches afterwards would take other bytes for the message. So the
//! sender writes its flag before it takes the memory back, and the receiver reads the flag after it has
//! fetched: if it is open, so was the memory. Only a process of the same host and process namespace can fetch
//! the memory, and such a process can open the flag too; for others the bytes pass through the sender's own
//! UCX, which is torn down.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};

use crate::shm::Mapping;
use crate::{Error, Result};

/// Proves that a file is the one that was meant.
pub(super) type Token = [u8; 16];

const FLAG_AT: u64 = size_of::<Token>() as u64;
const FILE_BYTES: u64 = FLAG_AT + 8;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What became of a rank's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    No,
    /// It was closed in good order.
    Left,
    /// It was torn down with operations under way: their memory was taken back.
    Abandoned,
}

impl Closed {
    /// As a number; 0 is open.
    pub(super) fn encode(self) -> u64 {
        match self {
            Self::No => 0,
            Self::Left => 1 << 32,
            Self::Abandoned => 2 << 32,
        }
    }

    pub(super) fn decode(bits: u64) -> Option<Self> {
        [Self::No, Self::Left, Self::Abandoned].into_iter().find(|closed| closed.encode() == bits)
    }
}

pub(super) struct OwnFailureFlag(File);

impl OwnFailureFlag {
    pub(super) fn new(token: &Token) -> Result<Self> {
        let make = || -> std::io::Result<File> {
            let memory = memfd_create("brevity-ucx", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&memory, FILE_BYTES)?;
            fcntl_add_seals(&memory, SEALS)?;
            let file = File::from(memory);
            file.write_all_at(token, 0)?;
            Ok(file)
        };
        make().map(Self).map_err(|error| Error::system("can't make the failure flag", error))
    }

    /// The descriptor that peers open it by.
    pub(super) fn number(&self) -> u32 {
        self.0.as_raw_fd() as u32
    }

    /// Tells the peers of this host.
    ///
    /// # Errors
    /// When the system can't write; then memory that peers may fetch must be kept.
    pub(super) fn write(&self, closed: Closed) -> Result<()> {
        let written = self.0.write_all_at(&closed.encode().to_le_bytes(), FLAG_AT);
        written.map_err(|error| Error::system("can't write the failure flag", error))
    }
}

/// A peer's flag, mapped: it is read after every message that was fetched.
pub(super) struct PeerFailureFlag(Mapping);

impl PeerFailureFlag {
    /// Opens the flag of a process of this host; `None` if it does not hold `token`, as in another process
    /// namespace.
    pub(super) fn open(process: u32, number: u32, token: &Token) -> Option<Self> {
        let path = format!("/proc/{process}/fd/{number}");
        let may_be_flag = |metadata: Metadata| metadata.is_file() && metadata.len() == FILE_BYTES;
        // Checked before opening: in another container the numbers may name any file, and opening some files
        // blocks or has effects.
        if !may_be_flag(std::fs::metadata(&path).ok()?) {
            return None;
        }
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&path).ok()?;
        let mut found = Token::default();
        if !may_be_flag(file.metadata().ok()?)
            || file.read_exact_at(&mut found, 0).is_err()
            || found != *token
        {
            return None;
        }
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return None;
        }
        // SAFETY: the file has this many bytes, and is sealed against being made shorter.
        unsafe { Mapping::new(&file, FILE_BYTES as usize, false) }.ok().map(Self)
    }

    /// The flag after all that was read before.
    #[inline]
    pub(super) fn read(&self) -> Closed {
        // SAFETY: inside the mapping.
        let flag = unsafe { self.0.start().as_ptr().add(FLAG_AT as usize) }.cast::<AtomicU64>();
        fence(Ordering::SeqCst);
        // SAFETY: aligned and readable while `self` lives. Its owner writes it through the kernel and takes
        // memory back only after that: a partly written flag reads as open or as an unknown number, and both
        // are true then.
        let flag = u64::from_le(unsafe { &*flag }.load(Ordering::SeqCst));
        Closed::decode(flag).unwrap_or(Closed::Left)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::spawn;
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn a_flag_is_found_by_its_token_and_seen_to_change() {
        let flag = OwnFailureFlag::new(&[7; 16]).unwrap();
        let process = std::process::id();
        assert!(PeerFailureFlag::open(process, flag.number(), &[8; 16]).is_none());
        assert!(PeerFailureFlag::open(process, u32::MAX, &[7; 16]).is_none());
        let seen = PeerFailureFlag::open(process, flag.number(), &[7; 16]).unwrap();
        assert_eq!(seen.read(), Closed::No);
        flag.write(Closed::Abandoned).unwrap();
        assert_eq!(seen.read(), Closed::Abandoned);
    }

    /// The numbers of another container may name anything here.
    #[test]
    fn files_that_are_no_flag_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Opening a pipe without a writer blocks.
        let fifo =
            rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
                .unwrap();
        let (number, (report, reports)) = (fifo.as_raw_fd() as u32, channel());
        spawn(move || report.send(PeerFailureFlag::open(std::process::id(), number, &[7; 16]).is_none()));
        // Generous: it only has to tell slow from stuck.
        assert_eq!(reports.recv_timeout(Duration::from_secs(30)), Ok(true));
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for closed in [Closed::No, Closed::Left, Closed::Abandoned] {
            assert_eq!(Closed::decode(closed.encode()), Some(closed));
        }
        for bits in [1, 1 << 32 | 1, 3 << 32, u64::MAX] {
            assert_eq!(Closed::decode(bits), None, "{bits:x}");
        }
    }
}
