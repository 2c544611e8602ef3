//! Ranks as threads, meeting on a port that no other process gets.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use ucx_sys_wrap::bootstrap::{Identity, JobKey, Master, Rendezvous};
use ucx_sys_wrap::{Error, Rank, Result};

/// Deadlines of joins that should succeed: only a hang reaches them.
pub const AMPLE: Duration = Duration::from_secs(60);

/// Deadlines of joins that can't succeed.
pub const SHORT: Duration = Duration::from_millis(1500);

pub const KEY: &str = "correct horse battery staple";

/// A port chosen by the system, kept bound so that no other process gets it.
pub struct Port(Socket);

impl Port {
    pub fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self(socket)
    }

    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }

    pub fn identity(&self, rank: u32, world_size: u32, join_timeout: Duration) -> Identity {
        let master = Master { host: "127.0.0.1".into(), port: self.address().port() };
        let mut identity = Identity::new(Rank(rank), world_size, master);
        identity.key = JobKey::parse(KEY);
        identity.job = "test".into();
        identity.join_timeout = join_timeout;
        identity.port_reserved = true;
        identity
    }
}

/// Runs `body` as a rank on its own thread.
pub fn rank<T: Send + 'static>(
    identity: Identity,
    body: impl FnOnce(&Identity, Rendezvous) -> Result<T> + Send + 'static,
) -> JoinHandle<Result<T>> {
    thread::spawn(move || body(&identity, Rendezvous::join(&identity)?))
}

pub fn all_ranks<T: Send + 'static>(
    world_size: u32,
    body: impl Fn(&Identity, Rendezvous) -> Result<T> + Copy + Send + 'static,
) -> Vec<T> {
    let port = Port::reserve();
    // The highest first: callers come before rank 0 listens.
    let ranks = (0..world_size).rev().map(|number| rank(port.identity(number, world_size, AMPLE), body));
    let mut ranks: Vec<_> = ranks.collect();
    ranks.reverse();
    ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect()
}

pub fn joined(_: &Identity, _: Rendezvous) -> Result<()> {
    Ok(())
}

pub fn error<T>(rank: JoinHandle<Result<T>>) -> Error {
    match rank.join().unwrap() {
        Ok(_) => panic!("the rank has joined"),
        Err(error) => error,
    }
}

pub fn missing(error: &Error) -> Vec<u32> {
    match error {
        Error::MissingRanks { missing, .. } => missing.iter().map(|rank| rank.0).collect(),
        other => panic!("{other}"),
    }
}
