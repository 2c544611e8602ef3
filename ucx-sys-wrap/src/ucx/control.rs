//! One control connection.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::notice::NOTICE_BYTES;

/// How long a silent connection is trusted before the kernel probes the other host.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    notice: [u8; NOTICE_BYTES],
    filled: usize,
    /// Whether the other side has shown the token.
    pub(super) is_proven: bool,
    /// How many were accepted before it.
    pub(super) number: u64,
}

pub(super) enum Received {
    Nothing,
    Notice([u8; NOTICE_BYTES]),
    End(End),
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The host says that nobody listens there.
    Refused,
    /// It was made, and closed by the other side.
    Closed,
    /// The network has been silent too long, or has no route: nothing is known of the peer.
    Unreachable,
}

impl End {
    fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Unreachable,
        }
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, notice: [0; NOTICE_BYTES], filled: 0, is_proven: false, number: 0 }
    }

    /// Sends a notice from byte `sent` on, and counts that on. Returns whether it is over: false if the
    /// connection is not made yet, or is full. Ignores a connection that is gone.
    pub(super) fn send(&mut self, notice: &[u8; NOTICE_BYTES], sent: &mut usize) -> bool {
        loop {
            match self.stream.write(notice.get(*sent..).unwrap_or_default()) {
                Ok(0) => return true,
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }

    pub(super) fn receive(&mut self) -> Received {
        loop {
            match self.stream.read(&mut self.notice[self.filled..]) {
                Ok(0) => return Received::End(End::Closed),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Received::End(End::of(&error)),
            }
            if self.filled == NOTICE_BYTES {
                self.filled = 0;
                return Received::Notice(self.notice);
            }
        }
    }
}

/// Begins to connect, without waiting.
pub(super) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket.into()),
        connected => connected.map(|()| socket.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host that does not answer for a while does not say that nobody is there.
    #[test]
    fn only_the_other_host_can_say_that_nobody_is_there() {
        let ends = [
            (Errno::CONNREFUSED, End::Refused),
            (Errno::CONNRESET, End::Closed),
            (Errno::HOSTUNREACH, End::Unreachable),
            (Errno::NETUNREACH, End::Unreachable),
            (Errno::HOSTDOWN, End::Unreachable),
            (Errno::NETDOWN, End::Unreachable),
            (Errno::TIMEDOUT, End::Unreachable),
            (Errno::NOBUFS, End::Unreachable),
        ];
        for (error, end) in ends {
            assert_eq!(End::of(&error.into()), end, "{error}");
        }
    }
}
