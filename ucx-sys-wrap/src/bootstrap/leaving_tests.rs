//! Ranks that go while the others are still joining are named at once, and not at the deadline.

use std::time::Duration;

use super::connect_mesh;
use super::identity::Identity;
use super::interface::LOOPBACK;
use super::master::Master;
use super::rendezvous::Rendezvous;
use super::reserve::{Ports, reserve};
use crate::{Error, Rank, Result};

/// Longer than any test takes: who waits for it fails.
const FOREVER: Duration = Duration::from_secs(100_000);

/// Three ranks meet; then rank 2 says one thing in an exchange, and goes.
fn leave_after<T>(last_words: &[u8], join: impl Fn(&Identity, &mut Rendezvous) -> Result<T> + Sync) {
    let (_held, address) = reserve(LOOPBACK, Ports::default()).unwrap();
    let meet = |rank| {
        let mut identity =
            Identity::new(Rank(rank), 3, Master { host: address.ip().to_string(), port: address.port() });
        identity.port_reserved = true;
        identity.join_timeout = FOREVER;
        let rendezvous = Rendezvous::join(&identity).unwrap();
        (identity, rendezvous)
    };
    std::thread::scope(|threads| {
        let stay = |rank| {
            let (identity, mut rendezvous) = meet(rank);
            join(&identity, &mut rendezvous).err()
        };
        let staying = [0, 1].map(|rank| threads.spawn(move || stay(rank)));
        meet(2).1.exchange(last_words).unwrap();
        for (rank, ended) in staying.into_iter().enumerate() {
            let error = ended.join().unwrap();
            assert!(matches!(error, Some(Error::PeerLost { rank: Rank(2) })), "rank {rank}: {error:?}");
        }
    });
}

#[test]
fn between_the_connections_of_a_mesh() {
    // Nobody answers there: the listener takes calls, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    leave_after(silent.local_addr().unwrap().to_string().as_bytes(), connect_mesh);
}
