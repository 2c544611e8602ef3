//! Waking a rank that sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::{Error, Rank, Result};

/// Rings that are forgotten by one call.
const HEARD_AT_ONCE: usize = 1024;

/// A descriptor that becomes readable when somebody rings.
///
/// Two connected sockets. Whoever shares a descriptor also shares its flags, and can fill what it leads to:
/// so neither ringing nor hearing leaves it to those whether it may block, which a write to an event
/// descriptor would. A ring that finds no room is none too few: there are others that nobody has heard.
pub struct Bell {
    /// Where it is heard. Stays with its owner.
    ear: OwnedFd,
    cord: Cord,
}

/// What a bell is rung by.
pub(crate) struct Cord(OwnedFd);

impl Bell {
    /// A bell that nobody has rung.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor left.
    pub fn new() -> Result<Self> {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ear, cord) = pair.map_err(|error| Error::system("can't make a bell", error))?;
        Ok(Self { ear, cord: Cord(cord) })
    }

    /// Rings. Costs a system call, and never blocks.
    pub fn ring(&self) {
        self.cord.ring();
    }

    /// Forgets the rings so far; says whether there were any. Costs a system call, and never blocks.
    pub fn hear(&self) -> bool {
        recv(&self.ear, &mut [0u8; HEARD_AT_ONCE], RecvFlags::DONTWAIT).is_ok()
    }

    /// What others ring it by.
    pub(super) fn cord(&self) -> BorrowedFd<'_> {
        self.cord.0.as_fd()
    }
}

impl AsFd for Bell {
    /// Readable from a ring until it is heard.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ear.as_fd()
    }
}

impl Cord {
    /// Takes over the cord of the bell of `rank`, whose descriptor came from there.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is none.
    pub(crate) fn received(rank: Rank, descriptor: OwnedFd) -> Result<Self> {
        match (socket_domain(&descriptor), socket_type(&descriptor)) {
            (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) => Ok(Self(descriptor)),
            found => Err(Error::Protocol { rank, what: format!("{found:?}, expected the cord of a bell") }),
        }
    }

    /// Rings the bell that it belongs to, as [`Bell::ring`].
    pub(super) fn ring(&self) {
        // Fails when nobody hears any more, or when nobody has for long: either way it is rung enough.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    /// A neighbour that has the cord, and whatever comes with it.
    fn given_away(bell: &Bell) -> OwnedFd {
        bell.cord().try_clone_to_owned().unwrap()
    }

    /// Would hang.
    #[test]
    fn who_shares_a_cord_can_make_nobody_wait() {
        let bell = Bell::new().unwrap();
        let stranger = given_away(&bell);
        let flags = fcntl_getfl(&stranger).unwrap();
        fcntl_setfl(&stranger, flags | OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&stranger, &u64::MAX.to_ne_bytes()).is_ok() {}
        while rustix::io::write(&stranger, &[1]).is_ok() {}
        fcntl_setfl(&stranger, flags - OFlags::NONBLOCK).unwrap();
        bell.ring();
        let neighbour = Cord::received(Rank(1), given_away(&bell)).unwrap();
        neighbour.ring();
        while bell.hear() {}
        neighbour.ring();
        assert!(bell.hear() && !bell.hear(), "it is a bell still");
    }

    #[test]
    fn a_cord_without_a_bell_is_pulled_in_vain() {
        let bell = Bell::new().unwrap();
        let neighbour = Cord::received(Rank(1), given_away(&bell)).unwrap();
        drop(bell);
        neighbour.ring();
    }

    #[test]
    fn what_is_no_cord_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (datagrams, _) =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        for descriptor in [file.into(), tcp.into(), datagrams] {
            let refused = Cord::received(Rank(3), descriptor).err();
            assert!(matches!(refused, Some(Error::Protocol { rank: Rank(3), .. })), "{refused:?}");
        }
    }
}
