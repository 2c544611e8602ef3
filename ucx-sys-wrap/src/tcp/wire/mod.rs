//! The bytes to and from one peer: a stream each way over one socket, encrypted or not.
//!
//! `cipher.rs` defines the encrypted form. Statistics count the bytes of the stream, without what encryption
//! adds.

mod cipher;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod socket;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;

use crate::Statistics;
use crate::noise::Session;
use cipher::Cipher;

/// How much of what nobody wants is read in one turn, in bytes.
const THROWN_AWAY: usize = 4 << 20;

/// A socket that is connected to a peer which has proven itself, and its encryption, if it has one.
pub struct Wire {
    socket: TcpStream,
    cipher: Option<Box<Cipher>>,
    /// What the poller watches the socket for.
    pub(super) interest: EventFlags,
}

impl From<TcpStream> for Wire {
    /// A connection whose bytes are not encrypted.
    fn from(socket: TcpStream) -> Self {
        Self { socket, cipher: None, interest: EventFlags::empty() }
    }
}

impl Wire {
    /// A connection whose bytes are encrypted: both ends have just agreed on this session.
    pub(crate) fn encrypted(socket: TcpStream, session: Session) -> Self {
        Self { cipher: Some(Box::new(Cipher::new(session))), ..Self::from(socket) }
    }

    /// The socket. Bytes that are written to it or read from it directly bypass the encryption and break the
    /// stream.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the bytes are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Reads into places, one after another; gives the bytes got, fewer than asked for only when there is
    /// nothing more for now, and none at the end.
    #[inline]
    pub(super) fn read(
        &mut self,
        places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.cipher {
            None => socket::read(self.socket.as_fd(), places),
            Some(cipher) => cipher.read(self.socket.as_fd(), places, statistics),
        }
    }

    /// Writes slices, one after another; gives how many bytes need not be written again.
    #[inline]
    pub(super) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.cipher {
            None => socket::write(self.socket.as_fd(), slices),
            Some(cipher) => cipher.write(self.socket.as_fd(), slices, statistics),
        }
    }

    /// Whether the next byte to write is taken already, though it does not count as written: it must come
    /// again, and something must be written until it counts.
    #[inline]
    pub(super) fn holds_a_byte(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.holds_a_byte())
    }

    /// Whether something can be read of which the kernel knows nothing any more.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.has_unread())
    }

    /// What the peer has sent that ends the stream, if it has.
    pub(super) fn violation(&self) -> Option<&'static str> {
        self.cipher.as_ref().is_some_and(|cipher| cipher.is_forged()).then_some(
            "bytes that do not decrypt, so that they were changed, repeated or left out on their way",
        )
    }

    /// Says to the peer that nothing more comes.
    pub(super) fn finish_sending(&self) {
        // A connection that is gone already needs no shutting down.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Reads what there is, about 4 MiB at most, and forgets it; says whether more can come. Nothing can be
    /// read properly after this.
    pub(super) fn throw_away(&mut self, statistics: &mut Statistics) -> bool {
        let mut space = [0; 16 << 10];
        let mut rest = THROWN_AWAY;
        while rest > 0 {
            match recv(&self.socket, &mut space[..], RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((got, _)) => {
                    statistics.bytes_received += got as u64;
                    rest = rest.saturating_sub(got);
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Whether the kernel has something left that it has not sent.
    pub(super) fn has_unsent(&self) -> bool {
        // A socket counts as writable only when nothing is left that the kernel has not sent. Where it can't
        // be told so, it counts as always.
        let _ = SockRef::from(&self.socket).set_tcp_notsent_lowat(1);
        let mut poll_for = [PollFd::new(&self.socket, PollFlags::OUT)];
        matches!(poll(&mut poll_for, Some(&Timespec::default())), Ok(0))
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
