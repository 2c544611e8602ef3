//! A non-blocking connection with what was read and what is still to be written, and a poll over many of
//! them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::deadline::nap;
use super::wire::{Frame, HEADER_BYTES};

/// A non-blocking connection. After it has failed or the peer has closed it, it stays [`ended`](Self::ended).
pub(super) struct Channel {
    stream: TcpStream,
    peer: SocketAddr,
    connecting: bool,
    ended: bool,
    inbox: Vec<u8>,
    outbox: VecDeque<Outgoing>,
    ready: bool,
}

/// Bytes to write, perhaps shared with other channels, and how many of them are written.
struct Outgoing {
    bytes: Arc<[u8]>,
    written: usize,
}

/// Read at a time from peers that are being left.
const FAREWELL_BYTES: usize = 64 * 1024;

/// The peer sent what is no frame, or a longer one than agreed.
#[derive(Debug)]
pub(super) struct Malformed;

impl Channel {
    /// Begins to connect to `address`.
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
        // Ready at first: whatever has arrived before the first poll must be looked at.
        Self {
            stream,
            peer,
            connecting,
            ended: false,
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            ready: true,
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end's address; one of IPv4 as such, also on a socket that serves both families.
    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.stream.local_addr()?;
        Ok(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// Whether nothing more can arrive and nothing more can be sent; what has arrived can still be taken.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the connection was made and is still there.
    pub(super) fn is_connected(&self) -> bool {
        !self.connecting && !self.ended
    }

    /// What has arrived and was not taken.
    pub(super) fn arrived(&self) -> &[u8] {
        &self.inbox
    }

    /// Whether everything queued is with the system.
    pub(super) fn flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Queues bytes to be sent by the next pumps.
    pub(super) fn queue(&mut self, bytes: impl Into<Arc<[u8]>>) {
        self.outbox.push_back(Outgoing { bytes: bytes.into(), written: 0 });
        self.ready = true;
    }

    /// Takes the first `count` bytes once they have arrived.
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

    /// Writes and reads what is possible without waiting, if a poll has said that something is.
    ///
    /// Reads no further than until `limit` bytes have arrived. An error ends the channel.
    pub(super) fn pump(&mut self, limit: usize) {
        if !std::mem::take(&mut self.ready) || self.ended {
            return;
        }
        let result = self.finish_connecting().and_then(|connected| {
            if !connected {
                return Ok(());
            }
            self.write().and_then(|()| self.read(limit))
        });
        if let Err(error) = result {
            tracing::debug!(peer = %self.peer, %error, "connection ended");
            self.ended = true;
        }
    }

    /// Reads frames only.
    pub(super) fn pump_frames(&mut self, max_body: usize) {
        self.pump(HEADER_BYTES + max_body);
    }

    /// Says that nothing more will be sent.
    pub(super) fn finish_sending(&self) {
        // A connection that is gone already needs no end.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Throws away what has arrived.
    pub(super) fn discard(&mut self) {
        self.inbox.clear();
    }

    /// The connection itself, non-blocking. Nothing may have been read ahead or be left to write.
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
        // Where nobody listens on a port that the system also hands out to callers, a caller can meet itself.
        if self.stream.local_addr()? == self.peer {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        self.stream.set_nodelay(true)?;
        self.connecting = false;
        Ok(true)
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(front) = self.outbox.front_mut() {
            match self.stream.write(&front.bytes[front.written..]) {
                Ok(count) => front.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if front.written == front.bytes.len() {
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
        // There may be more than the limit allowed: look again without waiting for a poll.
        self.ready = true;
        Ok(())
    }

    fn interest(&self) -> PollFlags {
        if self.connecting || !self.outbox.is_empty() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sleeps until something can be done on a listener or a channel, at most `longest`; often less.
///
/// Returns whether a listener has a caller; the channels remember for themselves. Channels that have ended
/// are left out. An interrupted sleep is a short sleep.
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

/// Sends what is queued and waits until the peers have read it and closed, at most `patience`.
///
/// Closing a connection with unread bytes would take away from the peer what was just sent to it.
pub(super) fn farewell(mut channels: Vec<Channel>, patience: Duration) {
    let start = Instant::now();
    let mut finished = vec![false; channels.len()];
    while channels.iter().any(|channel| !channel.ended) {
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() {
            return;
        }
        wait_for(&[], channels.iter_mut(), left);
        for (channel, finished) in channels.iter_mut().zip(&mut finished) {
            channel.pump(FAREWELL_BYTES);
            channel.discard();
            if channel.flushed() && !std::mem::replace(finished, true) {
                channel.finish_sending();
            }
        }
    }
}
