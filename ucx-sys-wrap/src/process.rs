//! The process of a rank, as the other ranks of its host see it: the kernel tells whether it still runs.
//!
//! A socket ends when all its holders have closed it, and a forked child (a data loader, for example) holds
//! every socket of its parent. So a socket that has ended shows that a peer is gone, but an open one does not
//! show that it is there. A descriptor of the process itself (`pidfd`) shows that. Ranks of other hosts, and
//! processes that are not visible from here, have only their sockets.

use std::fmt;
use std::fs::read_to_string;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::fields::Fields;
use crate::memory::forks;

/// A longer time between two looks at the clock, by a process that looks every few milliseconds while it
/// waits, shows that the process stood still: a signal stopped it, or it was frozen with its container. On a
/// crowded processor it may as well have waited for its turn; deadlines then move by as much.
pub const STANDSTILL: Duration = Duration::from_millis(500);

/// The bytes of a [`ProcessName`].
pub(crate) const PROCESS_NAME_BYTES: usize = 28;

/// Identifies a process of a running kernel, also among later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessName {
    /// The process namespace: device and inode.
    namespace: (u64, u64),
    number: u32,
    /// Its start time, in ticks since boot.
    began: u64,
}

/// The process that has made something. A forked child has a copy, and must not release what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    process: u32,
    forks: u32,
}

impl Owner {
    /// This process.
    #[must_use]
    pub fn here() -> Self {
        forks::watch();
        Self { process: std::process::id(), forks: forks::so_far() }
    }

    /// Whether it is this process. Costs a system call.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.process == std::process::id()
    }

    /// Whether this process is a forked child of it. Costs a load; does not notice a child that was made
    /// without `fork`, by a bare system call.
    #[inline]
    #[must_use]
    pub fn has_forked(self) -> bool {
        self.forks != forks::so_far()
    }
}

/// A process of this host; its descriptor is readable once it has ended.
pub(crate) struct PeerProcess(OwnedFd);

impl ProcessName {
    /// This process; `None` where the system does not tell.
    pub(crate) fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process with this number in this process's namespace.
    pub(crate) fn of(number: u32) -> Option<Self> {
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?;
        Some(Self { namespace: (namespace.dev(), namespace.ino()), number, began: beginning(number)? })
    }

    /// The number of the process, if it is visible to the process `own`.
    pub(crate) fn number_for(&self, own: &Self) -> Option<Pid> {
        if self.namespace == own.namespace { Pid::from_raw(i32::try_from(self.number).ok()?) } else { None }
    }

    /// Opens the process, if it runs, is visible to the process `own`, and is another.
    pub(crate) fn open(&self, own: &Self) -> Option<PeerProcess> {
        let number = self.number_for(own).filter(|_| self != own)?;
        let process = pidfd_open(number, PidfdFlags::empty());
        let process =
            process.inspect_err(|error| tracing::debug!(%error, "can't watch the process of a peer")).ok()?;
        // The number may belong to a later process by now. If the start time still matches after opening, the
        // opened process is the peer.
        (beginning(self.number)? == self.began).then_some(PeerProcess(process))
    }

    pub(crate) fn encode(&self) -> [u8; PROCESS_NAME_BYTES] {
        let Self { namespace: (device, inode), number, began } = *self;
        let mut bytes = [0; PROCESS_NAME_BYTES];
        for (place, long) in bytes.chunks_exact_mut(8).zip([device, inode, began]) {
            place.copy_from_slice(&long.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// `None` when fewer bytes are left.
    pub(crate) fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let (namespace, began) = ((fields.u64()?, fields.u64()?), fields.u64()?);
        Some(Self { namespace, number: fields.u32()?, began })
    }
}

/// Namespace, number and start time: unique to the process.
impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.namespace.1, self.number, self.began)
    }
}

impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The start time of a process: the 22nd word of its line; the second, its name in parentheses, may hold
/// anything.
fn beginning(number: u32) -> Option<u64> {
    let line = read_to_string(format!("/proc/{number}/stat")).ok()?;
    line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A process that ends when its input does.
    fn patient() -> Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn has_ended(process: &PeerProcess) -> bool {
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
            > 0
    }

    #[test]
    fn a_process_has_ended_before_anybody_reaps_it() {
        let (own, mut child) = (ProcessName::own().unwrap(), patient());
        let process = ProcessName::of(child.id()).unwrap().open(&own).unwrap();
        assert!(!has_ended(&process));
        drop(child.stdin.take());
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec { tv_sec: 60, tv_nsec: 0 }))
            .unwrap();
        assert!(has_ended(&process));
        child.wait().unwrap();
        assert!(has_ended(&process));
    }

    #[test]
    fn only_the_process_that_is_meant_is_opened() {
        let (own, mut child) = (ProcessName::own().unwrap(), patient());
        let name = ProcessName::of(child.id()).unwrap();
        assert!(name.open(&own).is_some() && own.open(&own).is_none());
        assert!(
            ProcessName { began: name.began + 1, ..name }.open(&own).is_none(),
            "a later one of the same number"
        );
        assert!(
            ProcessName { namespace: (name.namespace.0, 1), ..name }.open(&own).is_none(),
            "not to be seen from here"
        );
        for number in [0, u32::MAX] {
            assert!(ProcessName { number, ..name }.open(&own).is_none());
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(name.open(&own).is_none(), "it has gone");
    }

    #[test]
    fn names_come_back() {
        let name = ProcessName { namespace: (1 << 60, 2), number: 1 << 31, began: 1 << 50 };
        assert_eq!(ProcessName::decode(&mut Fields(&name.encode())), Some(name));
    }
}
