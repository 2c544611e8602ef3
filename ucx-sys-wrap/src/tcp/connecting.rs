//! Sets up the socket to a peer.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};

use super::connection::Connection;
use super::poller::Poller;
use super::wire::Wire;
use crate::one_sided::Regions;
use crate::{Error, Rank, Result};

/// The kernel probes a peer that is silent for `IDLE`, every `INTERVAL`, and gives the connection up after
/// `RETRIES` probes without an answer. A rank that only computes is alive: its kernel answers. A host that
/// has restarted refuses the probe.
///
/// A connection that was given up is lost for good, so a temporary network failure must not cost one: the
/// deadlines of calls end what waits. An idle connection is given up after some 15 minutes, like one with
/// unacknowledged bytes by the kernel's `tcp_retries2`. `TCP_USER_TIMEOUT` does not serve: before Linux 5.11 it
/// also gives up peers that answer and read nothing.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 90;

/// Sets up the socket to a peer and registers it with the poller.
pub(super) fn connect(
    (own, peer, world_size): (Rank, Rank, u32),
    wire: Wire,
    poller: &Poller,
    regions: &Arc<Mutex<Regions>>,
) -> Result<Connection> {
    set_up(wire.socket())
        .map_err(|error| Error::system(format!("can't set up the connection to rank {peer}"), error))?;
    let mut connection = Connection::new(own, peer, world_size, wire, Arc::clone(regions));
    poller.add(peer.index(), &mut connection)?;
    Ok(connection)
}

/// Sends small messages at once, and lets the kernel notice that a host has vanished.
fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a call of 300 s, the usual, and of one of twice that.
    #[test]
    fn a_link_that_is_cut_costs_no_connection_before_calls_have_ended_by_their_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_up(&stream).unwrap();
        let socket = SockRef::from(&stream);
        let retries = socket.tcp_keepalive_retries().unwrap();
        let silence =
            socket.tcp_keepalive_time().unwrap() + retries * socket.tcp_keepalive_interval().unwrap();
        assert!(socket.keepalive().unwrap() && silence > Duration::from_secs(600), "{silence:?}");
    }
}
