//! Wake-ups of ranks that sleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::{Error, Rank, Result};

/// Wake-ups that one call discards.
const MAX_DISCARDED: usize = 1024;

/// A wake receiver: a descriptor that becomes readable when somebody sends a wake-up.
///
/// It is a pair of connected sockets. A peer shares the flags of a descriptor that it has, and could change
/// `O_NONBLOCK`; socket calls state for each call that they must not block, which writes to an eventfd can't.
/// A wake-up that finds no room may be dropped: others are pending.
pub struct WakeReceiver {
    /// The receiving end, which stays with its owner.
    receiver: OwnedFd,
    wake_sender: WakeSender,
}

/// A wake sender.
pub(crate) struct WakeSender(OwnedFd);

impl WakeReceiver {
    /// Makes a wake receiver without pending wake-ups.
    pub fn new() -> Result<Self> {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (receiver, wake_sender) =
            pair.map_err(|error| Error::system("can't make a wake receiver", error))?;
        Ok(Self { receiver, wake_sender: WakeSender(wake_sender) })
    }

    /// Sends a wake-up. Costs a system call, and never blocks.
    pub fn ring(&self) {
        self.wake_sender.ring();
    }

    /// Discards the pending wake-ups; returns whether there were any. Costs a system call, and never blocks.
    pub fn hear(&self) -> bool {
        recv(&self.receiver, &mut [0u8; MAX_DISCARDED], RecvFlags::DONTWAIT).is_ok()
    }

    /// The descriptor for senders.
    pub(super) fn wake_sender(&self) -> BorrowedFd<'_> {
        self.wake_sender.0.as_fd()
    }
}

impl AsFd for WakeReceiver {
    /// Readable while a wake-up is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl WakeSender {
    /// Takes over the wake sender to `rank`, whose descriptor came from there.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is no stream socket of the Unix domain.
    pub(crate) fn received(rank: Rank, descriptor: OwnedFd) -> Result<Self> {
        match (socket_domain(&descriptor), socket_type(&descriptor)) {
            (Ok(AddressFamily::UNIX), Ok(SocketType::STREAM)) => Ok(Self(descriptor)),
            found => Err(Error::Protocol { rank, what: format!("{found:?}, expected a wake sender") }),
        }
    }

    /// Sends a wake-up, like [`WakeReceiver::ring`].
    pub(super) fn ring(&self) {
        // Fails when the receiver is gone, or has enough wake-ups pending.
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    /// The descriptor of a peer, which shares its flags.
    fn shared_descriptor(wake_receiver: &WakeReceiver) -> OwnedFd {
        wake_receiver.wake_sender().try_clone_to_owned().unwrap()
    }

    /// A blocking call would hang this test.
    #[test]
    fn a_peer_that_shares_a_descriptor_can_make_nobody_block() {
        let wake_receiver = WakeReceiver::new().unwrap();
        let stranger = shared_descriptor(&wake_receiver);
        let flags = fcntl_getfl(&stranger).unwrap();
        fcntl_setfl(&stranger, flags | OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&stranger, &u64::MAX.to_ne_bytes()).is_ok() {}
        while rustix::io::write(&stranger, &[1]).is_ok() {}
        fcntl_setfl(&stranger, flags - OFlags::NONBLOCK).unwrap();
        wake_receiver.ring();
        let local_peer = WakeSender::received(Rank(1), shared_descriptor(&wake_receiver)).unwrap();
        local_peer.ring();
        while wake_receiver.hear() {}
        local_peer.ring();
        assert!(wake_receiver.hear() && !wake_receiver.hear(), "it still works");
    }

    #[test]
    fn waking_a_receiver_that_is_gone_does_nothing() {
        let wake_receiver = WakeReceiver::new().unwrap();
        let local_peer = WakeSender::received(Rank(1), shared_descriptor(&wake_receiver)).unwrap();
        drop(wake_receiver);
        local_peer.ring();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (datagrams, _) =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        for descriptor in [file.into(), tcp.into(), datagrams] {
            let refused = WakeSender::received(Rank(3), descriptor).err();
            assert!(matches!(refused, Some(Error::Protocol { rank: Rank(3), .. })), "{refused:?}");
        }
    }
}
