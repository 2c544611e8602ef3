//! The byte streams to and from one peer over one socket, encrypted or not.
//!
//! `cipher.rs` defines the encrypted form. Statistics count the bytes of the stream, without what encryption
//! adds.

mod cipher;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use socket2::{SockRef, TcpKeepalive};

use crate::Statistics;
use crate::noise::Session;
use cipher::Cipher;

/// The most input that is discarded in one turn, in bytes.
const MAX_DISCARDED: usize = 4 << 20;

/// The kernel probes a peer that is silent for `IDLE`, every `INTERVAL`, and gives the connection up after
/// `RETRIES` probes without an answer. A rank that only computes is alive: its kernel answers. A host that
/// has restarted refuses the probe.
///
/// A connection that was given up is lost for good, so a temporary network failure must not cost one: the
/// deadlines of calls end what waits. An idle connection is given up after some 15 minutes, like one with
/// unacknowledged bytes by the kernel's `tcp_retries2`. `TCP_USER_TIMEOUT` does not serve: before Linux 5.11
/// it also gives up peers that answer and read nothing.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 90;

/// A socket to an authenticated peer, and its encryption, if any.
pub struct Wire {
    socket: TcpStream,
    cipher: Option<Box<Cipher>>,
    /// The events that the poller watches for.
    pub(super) interest: EventFlags,
}

impl From<TcpStream> for Wire {
    /// A connection without encryption.
    fn from(socket: TcpStream) -> Self {
        Self { socket, cipher: None, interest: EventFlags::empty() }
    }
}

impl Wire {
    /// An encrypted connection: both ends have agreed on this session.
    pub(crate) fn encrypted(socket: TcpStream, session: Session) -> Self {
        Self { cipher: Some(Box::new(Cipher::new(session))), ..Self::from(socket) }
    }

    /// The socket. Reading from or writing to it directly bypasses the encryption and breaks the stream.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the bytes are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    /// Makes the socket send small messages at once, and the kernel notice that a host has vanished.
    pub(super) fn set_up(&self) -> std::io::Result<()> {
        self.socket.set_nonblocking(true)?;
        self.socket.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        SockRef::from(&self.socket).set_tcp_keepalive(&keepalive)
    }

    /// Reads into the places in order; gives the number of bytes: fewer than asked for when there is nothing
    /// more for now, and none at the end of the stream.
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

    /// Writes the slices in order; gives the number of bytes that need not be written again.
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

    /// Whether the next byte to write is already part of a record that the kernel may have in part. It must
    /// be written again, and writing must go on until it counts.
    #[inline]
    pub(super) fn holds_a_byte(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.is_held)
    }

    /// Whether bytes can be read that the kernel no longer has.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.cipher.as_ref().is_some_and(|cipher| cipher.has_unread())
    }

    /// What the peer has sent against the protocol, if anything.
    pub(super) fn violation(&self) -> Option<&'static str> {
        self.cipher.as_ref().is_some_and(|cipher| cipher.is_forged).then_some(
            "bytes that do not decrypt, so that they were changed, repeated or left out on their way",
        )
    }

    /// Ends the stream to the peer.
    pub(super) fn finish_sending(&self) {
        // Fails only on a connection that is gone.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Reads and discards what there is, about 4 MiB at most; says whether more can come. An encrypted stream
    /// can't be read after this.
    pub(super) fn discard_input(&mut self, statistics: &mut Statistics) -> bool {
        let mut space = [0; 16 << 10];
        let mut rest = MAX_DISCARDED;
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

    /// Whether the kernel has bytes that it has not sent.
    pub(super) fn has_unsent(&self) -> bool {
        // With this option a socket is writable only when everything is sent. Where it can't be set, nothing
        // counts as unsent.
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

/// Reads from the socket in one system call.
#[inline]
fn read(socket: BorrowedFd<'_>, places: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
    match places {
        [place] => recv(socket, &mut **place, RecvFlags::empty()).map(|(got, _)| got),
        places => readv(socket, places),
    }
}

/// Writes to the socket in one system call. A closed connection is an error, never a signal.
#[inline]
fn write(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
    match slices {
        [slice] => send(socket, slice, SendFlags::NOSIGNAL),
        slices => sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL),
    }
}
