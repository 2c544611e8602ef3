//! A port that nobody else gets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// A port of `address`, of the system's choice, that nobody else gets while the socket lives: bound, not
/// listening, and shared with other sockets of this user that ask for it.
///
/// The IPv6 address that means all addresses means those of IPv4 too.
pub(crate) fn reserve(address: IpAddr) -> io::Result<(Socket, SocketAddr)> {
    let socket = socket(SocketAddr::new(address, 0), true)?;
    let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket, address))
}

/// A socket bound to `address`; `shared` allows other sockets of this user to be bound to the same port.
pub(super) fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
