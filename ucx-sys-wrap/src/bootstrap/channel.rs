//! A non-blocking connection with buffers for both directions, and a poll over many of them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::deadline::nap;
use super::wire::{Frame, HEADER_BYTES};

/// A non-blocking connection; [`ended`](Self::ended) for good once it has failed or the peer has closed it.
pub(super) struct Channel {
    stream: TcpStream,
    peer: SocketAddr,
    connecting: bool,
    ended: bool,
    inbox: Vec<u8>,
    /// Bytes to write, which other channels may share, and how many of them are written.
    outbox: VecDeque<(Arc<[u8]>, usize)>,
    ready: bool,
}

/// Read at a time from a connection that is being closed.
const CLOSING_BYTES: usize = 64 * 1024;

/// The peer sent an invalid frame, or a longer one than agreed.
#[derive(Debug)]
pub(super) struct Malformed;

impl Channel {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(Self::new(socket.into(), address, true))
    }

    /// Takes over an accepted connection.
    pub(super) fn accepted(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream, peer, false))
    }

    fn new(stream: TcpStream, peer: SocketAddr, connecting: bool) -> Self {
        let (inbox, outbox) = (Vec::new(), VecDeque::new());
        // Ready at first: bytes may have arrived before the first poll.
        Self { stream, peer, connecting, ended: false, inbox, outbox, ready: true }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address; an IPv4 address is not mapped, also on a socket of both families.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.stream.local_addr()?;
        Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// Whether nothing more can arrive or be sent; bytes that have arrived can still be taken.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the connection was made and has not ended.
    pub(super) fn is_connected(&self) -> bool {
        !self.connecting && !self.ended
    }

    /// The bytes that have arrived and were not taken.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.inbox
    }

    /// Whether the system has taken everything queued.
    pub(super) fn flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Queues bytes to be sent by the next pumps.
    pub(super) fn queue(&mut self, bytes: impl Into<Arc<[u8]>>) {
        self.outbox.push_back((bytes.into(), 0));
        self.ready = true;
    }

    pub(super) fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        (self.inbox.len() >= count).then(|| self.inbox.drain(..count).collect())
    }

    /// Takes the next frame once it has arrived; its body has at most `max_body` bytes.
    pub(super) fn take_frame(&mut self, max_body: usize) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, length @ ..], _)) = self.inbox.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > max_body {
            return Err(Malformed);
        }
        let Some(frame) = self.take(HEADER_BYTES + length) else { return Ok(None) };
        Frame::decode(kind, &frame[HEADER_BYTES..]).map(Some).ok_or(Malformed)
    }

    /// Writes and reads without blocking, if the last poll found the connection ready.
    ///
    /// Stops reading when `limit` bytes have arrived. An error ends the channel.
    pub(super) fn pump(&mut self, limit: usize) {
        if !std::mem::take(&mut self.ready) || self.ended {
            return;
        }
        let mut pump = || {
            if self.finish_connecting()? {
                self.write()?;
                self.read(limit)?;
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = pump() {
            tracing::debug!(peer = %self.peer, %error, "connection ended");
            self.ended = true;
        }
    }

    /// As [`pump`](Self::pump), up to one frame.
    pub(super) fn pump_frames(&mut self, max_body: usize) {
        self.pump(HEADER_BYTES + max_body);
    }

    pub(super) fn discard(&mut self) {
        self.inbox.clear();
    }

    /// The connection itself, non-blocking. Both buffers must be empty.
    pub(super) fn into_stream(self) -> TcpStream {
        debug_assert!(self.inbox.is_empty() && self.outbox.is_empty());
        self.stream
    }

    fn finish_connecting(&mut self) -> io::Result<bool> {
        if !self.connecting {
            return Ok(true);
        }
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        match self.stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error),
        }
        // A caller of an ephemeral port on which nobody listens can get that port itself (simultaneous open).
        if self.stream.local_addr()? == self.peer {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        self.stream.set_nodelay(true)?;
        self.connecting = false;
        Ok(true)
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some((bytes, written)) = self.outbox.front_mut() {
            match self.stream.write(&bytes[*written..]) {
                Ok(count) => *written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if *written == bytes.len() {
                self.outbox.pop_front();
            }
        }
        Ok(())
    }

    fn read(&mut self, limit: usize) -> io::Result<()> {
        let mut space = [0; 4096];
        while self.inbox.len() < limit {
            let most = space.len().min(limit - self.inbox.len());
            match self.stream.read(&mut space[..most]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.inbox.extend_from_slice(&space[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // More bytes than the limit may have arrived: the next pump must not wait for a poll.
        self.ready = true;
        Ok(())
    }

    fn interest(&self) -> PollFlags {
        let is_writing = self.connecting || !self.outbox.is_empty();
        if is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sleeps until a listener or a channel is ready, at most `longest`, often less; a signal ends it early.
///
/// Returns whether a listener has a caller; channels store their own readiness. Channels that have ended are
/// left out.
pub(super) fn wait_for<'a>(
    listeners: &[TcpListener],
    channels: impl Iterator<Item = &'a mut Channel>,
    longest: Duration,
) -> bool {
    let mut channels: Vec<&mut Channel> = channels.filter(|channel| !channel.ended).collect();
    let mut events: Vec<PollFd<'_>> = Vec::with_capacity(channels.len() + listeners.len());
    events.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
    events.extend(channels.iter().map(|channel| PollFd::new(&**channel, channel.interest())));
    let polled = nap(longest, |longest| {
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        poll(&mut events, Some(&timeout))
    });
    if polled.is_err() {
        return false;
    }
    let ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
    let (for_listeners, for_channels) = ready.split_at(listeners.len());
    for (channel, &ready) in channels.iter_mut().zip(for_channels) {
        channel.ready |= ready;
    }
    for_listeners.contains(&true)
}

/// Sends everything queued and waits until the peers have read it and closed, at most `patience`.
///
/// Closing a connection with unread bytes resets it, and the peer loses what was just sent.
pub(super) fn close(mut channels: Vec<Channel>, patience: Duration) {
    let start = Instant::now();
    let mut finished = vec![false; channels.len()];
    while channels.iter().any(|channel| !channel.ended) {
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        wait_for(&[], channels.iter_mut(), left);
        for (channel, finished) in channels.iter_mut().zip(&mut finished) {
            channel.pump(CLOSING_BYTES);
            channel.discard();
            if channel.flushed() && !std::mem::replace(finished, true) {
                // A connection that has ended needs no shutdown.
                let _ = channel.stream.shutdown(Shutdown::Write);
            }
        }
    }
}
