//! Worlds of ranks in this process: over real sockets, over memory that they share, and over UCX.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Barrier, Mutex};
use std::thread::scope;

use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use ucx_sys_wrap::bootstrap::{Identity, JobKey, Master, Rendezvous, connect_mesh};
use ucx_sys_wrap::shm::LocalGroup;
use ucx_sys_wrap::tcp::Tcp;
use ucx_sys_wrap::ucx::{Options, Ucx};
use ucx_sys_wrap::{Rank, Transport};

/// The sockets of one rank, by peer; none to itself.
pub type Row = Vec<Option<TcpStream>>;

/// Ranks as transports of any kind.
#[must_use]
pub fn boxed(ranks: Vec<impl Transport + 'static>) -> Vec<Box<dyn Transport>> {
    ranks.into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
}

/// A socket between any two ranks of a world, a row for each rank.
///
/// # Panics
/// When the system has no sockets.
#[must_use]
pub fn sockets(world_size: u32) -> Vec<Row> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let size = world_size as usize;
    let mut rows: Vec<Row> = (0..size).map(|_| (0..size).map(|_| None).collect()).collect();
    for (low, high) in (0..size).flat_map(|high| (0..high).map(move |low| (low, high))) {
        rows[high][low] = Some(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        rows[low][high] = Some(listener.accept().unwrap().0);
    }
    rows
}

/// Ranks over sockets.
///
/// # Panics
/// When the system has no sockets.
#[must_use]
pub fn over_sockets(world_size: u32) -> Vec<Tcp> {
    let rows = Rank::all(world_size).zip(sockets(world_size));
    rows.map(|(rank, row)| Tcp::new(rank, world_size, row).unwrap()).collect()
}

/// Ranks of one host, over sockets and memory that they share; `may_read` lets them read each other's own.
///
/// # Panics
/// When the system has no sockets or no memory.
#[must_use]
pub fn local_peers(world_size: u32, may_read: bool) -> Vec<Tcp> {
    let mut ranks = over_sockets(world_size);
    for (rank, local_group) in ranks.iter_mut().zip(LocalGroup::in_process(world_size).unwrap()) {
        rank.share_memory(&local_group, may_read).unwrap();
    }
    ranks
}

/// A port on loopback that nobody else takes as long as the socket is kept; rank 0 of a job binds it too,
/// told that it is reserved.
///
/// # Panics
/// When the system has no sockets.
#[must_use]
pub fn reserved_port() -> (OwnedFd, u16) {
    let reserved = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set_socket_reuseport(&reserved, true).unwrap();
    bind(&reserved, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = SocketAddr::try_from(getsockname(&reserved).unwrap()).unwrap().port();
    (reserved, port)
}

/// Ranks that have met as processes do, encrypted or not, and share no memory.
///
/// # Panics
/// When they can't meet.
#[must_use]
pub fn joined(world_size: u32, encrypt: bool) -> Vec<Tcp> {
    // Held until rank 0 has it too.
    let (_reserved, port) = reserved_port();
    let join = |rank: Rank| {
        let mut identity = Identity::new(rank, world_size, Master { host: "127.0.0.1".into(), port });
        (identity.key, identity.port_reserved) = (JobKey::parse("correct horse battery"), true);
        identity.encrypt = encrypt;
        let wires = connect_mesh(&identity, &mut Rendezvous::join(&identity).unwrap()).unwrap();
        Tcp::over(rank, world_size, wires).unwrap()
    };
    side_by_side(world_size, join)
}

/// What makes UCX take these transports of its own (`UCX_TLS`).
#[must_use]
pub fn lanes(names: &str) -> Options {
    Options { settings: vec![("TLS".into(), names.into())], ..Options::default() }
}

/// Ranks over UCX.
///
/// # Panics
/// Without a UCX that works.
#[must_use]
pub fn over_ucx(world_size: u32, options: &Options) -> Vec<Ucx> {
    let cards = Mutex::new(vec![Vec::new(); world_size as usize]);
    let met = Barrier::new(world_size as usize);
    side_by_side(world_size, |rank| {
        let mut exchange = |own: &[u8]| {
            cards.lock().unwrap()[rank.index()] = own.to_vec();
            met.wait();
            Ok(cards.lock().unwrap().clone())
        };
        Ucx::connect(rank, world_size, &mut exchange, options).unwrap()
    })
}

/// The same, of which the first `near` share memory of ours: the others are as if on other hosts.
///
/// # Panics
/// When the system has no memory.
#[must_use]
pub fn sharing(mut ranks: Vec<Ucx>, near: u32) -> Vec<Ucx> {
    for (rank, local_group) in ranks.iter_mut().zip(LocalGroup::in_process(near).unwrap()) {
        rank.share_memory(&local_group, true).unwrap();
    }
    ranks
}

/// What each rank makes on a thread of its own, in their order.
fn side_by_side<T: Send>(world_size: u32, make: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    scope(|threads| {
        let make = &make;
        let ranks: Vec<_> = Rank::all(world_size).map(|rank| threads.spawn(move || make(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
