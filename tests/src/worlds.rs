//! Transports of a whole world of ranks in this process, over real sockets and over UCX.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Barrier, Mutex};
use std::thread::scope;

use brevity::transport::bootstrap::{Choice, Identity, JobKey, Master, open};
use brevity::transport::ucx::{Options, Ucx};
use brevity::transport::{Rank, Transport};
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

/// The sockets of one rank, by peer; none to itself.
pub type Row = Vec<Option<TcpStream>>;

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

/// A port on loopback that nobody else takes as long as the socket is kept; rank 0 of a job binds it too, told that it is
/// reserved.
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

/// A world over sockets that shares no memory: ranks that have joined a job as processes do, in order.
///
/// # Panics
/// When they can't.
#[must_use]
pub fn joined(world_size: u32, encrypt: bool) -> Vec<Box<dyn Transport>> {
    // Held until rank 0 has it too.
    let (_reserved, port) = reserved_port();
    let join = |rank: u32| {
        let mut identity = Identity::new(Rank(rank), world_size, Master { host: "127.0.0.1".into(), port });
        (identity.key, identity.port_reserved) = (JobKey::parse("correct horse battery"), true);
        (identity.transport, identity.encrypt, identity.shared_memory) = (Choice::Tcp, encrypt, false);
        open(&identity).unwrap().transport
    };
    scope(|threads| {
        let ranks: Vec<_> = (0..world_size).map(|rank| threads.spawn(move || join(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A world over UCX, in the order of ranks.
///
/// # Panics
/// Without a UCX that works.
#[must_use]
pub fn on_ucx(world_size: u32, options: &Options) -> Vec<Box<dyn Transport>> {
    ucx_ranks(world_size, options).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>).collect()
}

/// The same, not yet as transports of any kind.
///
/// # Panics
/// Without a UCX that works.
#[must_use]
pub fn ucx_ranks(world_size: u32, options: &Options) -> Vec<Ucx> {
    let cards = Mutex::new(vec![Vec::new(); world_size as usize]);
    let met = Barrier::new(world_size as usize);
    let connect = &|rank: Rank| {
        let mut exchange = |own: &[u8]| {
            cards.lock().unwrap()[rank.index()] = own.to_vec();
            met.wait();
            let all = cards.lock().unwrap().clone();
            met.wait();
            Ok(all)
        };
        Ucx::connect(rank, world_size, &mut exchange, options).unwrap()
    };
    scope(|threads| {
        let ranks: Vec<_> = Rank::all(world_size).map(|rank| threads.spawn(move || connect(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
