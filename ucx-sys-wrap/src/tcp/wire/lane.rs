//! One socket to a peer, encrypted or not.

use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd;

use rustix::event::epoll::EventFlags;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::cipher::Cipher;
use super::socket::{read, write};
use crate::Statistics;
use crate::noise::Session;

/// A socket that is connected to a peer which has proven itself, and what encrypts its bytes, if anything
/// does.
pub struct Lane {
    socket: TcpStream,
    cipher: Option<Box<Cipher>>,
    /// What the poller watches the socket for.
    pub(in crate::tcp) interest: EventFlags,
}

impl From<TcpStream> for Lane {
    /// A lane whose bytes are not encrypted.
    fn from(socket: TcpStream) -> Self {
        Self { socket, cipher: None, interest: EventFlags::empty() }
    }
}

impl Lane {
    /// A lane whose bytes are encrypted: both ends have just agreed on this session.
    pub(crate) fn encrypted(socket: TcpStream, session: Session) -> Self {
        Self { socket, cipher: Some(Box::new(Cipher::new(session))), interest: EventFlags::empty() }
    }

    /// The socket. What is written to it or read from it directly is not encrypted, and confuses who uses the
    /// lane.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether what passes is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Reads what there is; gives the bytes got, fewer than asked for only when there is nothing more for
    /// now.
    #[inline]
    pub(super) fn read(
        &mut self,
        places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.cipher {
            None => read(self.socket.as_fd(), places),
            Some(cipher) => cipher.read(self.socket.as_fd(), places, statistics),
        }
    }

    /// Writes as much as the kernel takes.
    #[inline]
    pub(super) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        match &mut self.cipher {
            None => write(self.socket.as_fd(), slices),
            Some(cipher) => cipher.write(self.socket.as_fd(), slices, statistics),
        }
    }

    /// Whether something was taken from the kernel that nobody has read yet.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.has_unread())
    }

    /// Whether the next byte to write is taken already, though it does not count as written.
    #[inline]
    pub(super) fn holds_a_byte(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.holds_a_byte())
    }

    /// Whether what has come does not open.
    pub(super) fn is_forged(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.is_forged())
    }

    /// Whether the peer has ended it, and nothing is left to read.
    pub(super) fn has_ended(&self) -> rustix::io::Result<bool> {
        match recv(&self.socket, &mut [0; 1][..], RecvFlags::PEEK) {
            Ok((count, _)) => Ok(count == 0),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
