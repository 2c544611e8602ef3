//! Sockets to a peer, set up and watched.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};

use super::connection::Connection;
use super::poller::Poller;
use super::wire::{Lane, Wire};
use crate::local::remote::Regions;
use crate::{Error, Rank, Result};

/// How long a silent peer is trusted before the kernel asks it for a sign of life, and how often it asks. A rank that
/// only computes is alive: its kernel answers, so there is no bound on how long it may leave bytes unread.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

/// Sets the sockets to a peer up and begins to watch them; `None` where there are none.
pub(super) fn connect(
    (own, peer, world_size): (Rank, Rank, u32),
    lanes: Vec<Lane>,
    poller: &Poller,
    regions: &Arc<Mutex<Regions>>,
) -> Result<Option<Connection>> {
    for lane in &lanes {
        set_up(lane.socket())
            .map_err(|error| Error::system(format!("can't set up the connection to rank {peer}"), error))?;
    }
    let Some(wire) = Wire::new(lanes) else { return Ok(None) };
    let mut connection = Connection::new(own, peer, world_size, wire, Arc::clone(regions));
    poller.add(peer.index(), &mut connection)?;
    Ok(Some(connection))
}

/// Small messages go out at once, and a host that has vanished is noticed in less than a minute.
fn set_up(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)
}
