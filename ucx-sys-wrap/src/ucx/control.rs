//! One control connection: what is said and heard on it, and what its end means.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::notice::NOTICE_BYTES;

/// How long a silent connection is trusted before the kernel asks the other host for a sign of life.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

pub(super) struct Connection {
    pub(super) stream: TcpStream,
    notice: [u8; NOTICE_BYTES],
    filled: usize,
    /// Whether whoever is there has shown that it knows the token.
    pub(super) is_proven: bool,
    /// How many were accepted before it.
    pub(super) number: u64,
}

pub(super) enum Received {
    Nothing,
    Notice([u8; NOTICE_BYTES]),
    /// The connection is at its end.
    End(End),
}

/// How a connection has ended, which says what is known of who was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Nobody listens there: the host says so.
    Refused,
    /// It was made, and closed at the other end, in order or not.
    Closed,
    /// The network has brought nothing for too long, or knows no way there: nothing is known.
    Unreachable,
}

impl End {
    /// What an error says that a read has given.
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

    /// Sends a notice; false if the connection is not made yet. If it is gone there is nobody to tell.
    pub(super) fn send(&mut self, notice: &[u8; NOTICE_BYTES]) -> bool {
        // A notice is far smaller than any socket's room: it is taken whole or not at all.
        !matches!(self.stream.write(notice), Err(error) if error.kind() == ErrorKind::WouldBlock)
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

    /// A host that does not answer for a while is no host that says that nobody is there.
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
