//! The peer of a Unix socket, as the kernel reports it.

use std::ffi::{c_int, c_uint};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that has connected a socket, or that listened where it was connected to.
///
/// Unlike `rustix`, this allows for the process number zero, which the kernel gives for a process in a
/// namespace that is not visible from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// Its process number here; `None` if it is not visible from here.
    pub(crate) process: Option<c_int>,
    /// Its user id in this process's user namespace.
    pub(crate) user: u32,
}

/// What the kernel writes: process, user, group.
type Written = [c_int; 3];

/// `SOL_SOCKET` and `SO_PEERCRED`; the latter differs on some architectures.
const SOCKET_LEVEL: c_int = 1;
const PEER_CREDENTIALS: c_int =
    if cfg!(any(target_arch = "powerpc", target_arch = "powerpc64")) { 21 } else { 17 };

unsafe extern "C" {
    fn getsockopt(socket: c_int, level: c_int, name: c_int, value: *mut Written, bytes: *mut c_uint)
    -> c_int;
}

impl Credentials {
    /// The credentials of the peer of a connected Unix socket. Costs a system call.
    ///
    /// # Errors
    /// When it is no such socket.
    pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> Result<Self> {
        let mut written = Written::default();
        let mut bytes = size_of::<Written>() as c_uint;
        // SAFETY: both places are local, and the kernel is told the size of the first; every bit pattern is
        // valid.
        let status = unsafe {
            getsockopt(socket.as_raw_fd(), SOCKET_LEVEL, PEER_CREDENTIALS, &raw mut written, &raw mut bytes)
        };
        if status != 0 {
            return Err(Error::last_os_error());
        }
        if bytes as usize != size_of::<Written>() {
            return Err(Error::new(
                ErrorKind::InvalidData,
                format!("{bytes} bytes of credentials, expected 12"),
            ));
        }
        let [process, user, _] = written;
        Ok(Self { process: Some(process).filter(|process| *process > 0), user: user.cast_unsigned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_socket_pair_are_this_process() {
        let (one, other) = UnixStream::pair().unwrap();
        let own = Credentials {
            process: c_int::try_from(std::process::id()).ok(),
            user: rustix::process::geteuid().as_raw(),
        };
        for socket in [&one, &other] {
            assert_eq!(Credentials::of_peer(socket.as_fd()).unwrap(), own);
        }
    }

    #[test]
    fn other_descriptors_have_no_credentials() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Credentials::of_peer(file.as_fd()).is_err());
    }
}
