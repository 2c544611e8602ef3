//! The ports that a rank may listen on, and how it reserves one.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// How many ports rank 0 tries where the other ranks can't learn its choice.
pub(super) const PORTS_TRIED: u32 = 16;

/// A range of ports to listen on; the default is the system's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    pub(super) first: u16,
    pub(super) last: u16,
}

impl Ports {
    /// Parses `first-last`, both included.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        Self::new(first.parse().ok()?, last.parse().ok()?)
    }

    /// A range of ports, both included; `None` if it has none.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (0 < first && first <= last).then_some(Self { first, last })
    }

    /// Whether the user has set a range.
    pub(crate) fn are_limited(self) -> bool {
        self != Self::default()
    }

    /// Distinct ports derived from `number`, in the order in which they are tried.
    pub(super) fn derived(self, number: u32) -> Vec<u16> {
        let count = u32::from(self.last - self.first) + 1;
        let tried = (0..PORTS_TRIED.min(count)).map(|next| (number % count + next) % count);
        tried.map(|number| self.first + number as u16).collect()
    }

    /// Opens the first of these ports of `address` that is free.
    ///
    /// # Errors
    /// When none is free, and when `open` fails for another reason.
    pub(crate) fn find<T>(
        self,
        address: IpAddr,
        open: impl Fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<T> {
        for port in self.first..=self.last {
            match open(SocketAddr::new(address, port)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && self.are_limited() => {}
                result => return result,
            }
        }
        Err(io::Error::new(ErrorKind::AddrInUse, format!("no port of BREVITY_PORT_RANGE={self} is free")))
    }
}

/// The form that [`parse`](Ports::parse) reads.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Reserves a port of `address` while the socket lives: bound, not listening, and shared with other sockets
/// of this user that ask for it. The unspecified IPv6 address includes IPv4.
pub(crate) fn reserve(address: IpAddr, ports: Ports) -> io::Result<(Socket, SocketAddr)> {
    let socket = if ports.are_limited() {
        ports.find(address, |address| {
            // Sharing is enabled after binding, so that binding fails where another job has reserved the
            // port.
            let socket = unbound(address)?;
            socket.bind(&address.into())?;
            socket.set_reuse_port(true)?;
            Ok(socket)
        })?
    } else {
        socket(SocketAddr::new(address, 0), true)?
    };
    let address = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
    Ok((socket, address))
}

/// A socket bound to `address`; `shared` allows other sockets of this user to be bound to the same port.
pub(super) fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = unbound(address)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn unbound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn ranges_of_ports() {
        for text in ["20000-20100", "7-7", "1-65535"] {
            assert_eq!(Ports::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "20000", "20100-20000", "0-10", "1-65536", "1-2-3", "a-b", "-"] {
            assert_eq!(Ports::parse(text), None, "{text}");
        }
    }

    /// Two jobs may look for a port at the same time.
    #[test]
    fn a_reserved_port_of_a_range_is_nobody_elses() {
        let (_, free) = reserve(LOOPBACK, Ports::default()).unwrap();
        let one = Ports { first: free.port(), last: free.port() };
        let (held, address) = reserve(LOOPBACK, one).unwrap();
        assert_eq!(address, free);
        let error = reserve(LOOPBACK, one).map(drop).unwrap_err();
        assert_eq!(error.to_string(), format!("no port of BREVITY_PORT_RANGE={one} is free"));
        let unshared = one.find(LOOPBACK, |address| socket(address, false));
        assert_eq!(unshared.map(drop).unwrap_err().kind(), ErrorKind::AddrInUse);
        socket(address, true).unwrap().listen(1).unwrap();
        drop(held);
        reserve(LOOPBACK, one).map(drop).unwrap();
    }
}
