//! The meeting of all ranks at rank 0.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};

use super::environment::{Identity, key_needed};
use super::lobby::Lobby;
use super::member::Member;
use super::proof::{Party, Purpose};
use super::root::Root;
use super::wire::MAX_BLOB_BYTES;
use super::{WIRE_VERSION, interface};
use crate::{Error, Rank, Result};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// All ranks of a job, connected to rank 0.
pub struct Rendezvous(Seat);

enum Seat {
    /// The only rank.
    Alone,
    Root(Root),
    Member(Member),
}

impl Rendezvous {
    /// Meets the other ranks at rank 0; blocks until all have come, at most for the identity's join timeout.
    ///
    /// # Errors
    /// [`Error::MissingRanks`], the same ranks on all ranks that have come. [`Error::Disagreement`] when ranks have
    /// different versions or world sizes, or two have one rank. [`Error::Unauthenticated`] when this rank's key is
    /// another. [`Error::System`] when the master's address can't be used.
    pub fn join(identity: &Identity) -> Result<Self> {
        if identity.world_size == 1 {
            return Ok(Self(Seat::Alone));
        }
        let (party, master) = (party(identity), identity.master.to_string());
        if identity.rank == Rank(0) {
            let lobby = lobby(identity, &party)?;
            let mut root = Root::new(party, master, lobby, identity.join_timeout);
            root.join()?;
            return Ok(Self(Seat::Root(root)));
        }
        let addresses = || addresses(identity);
        Ok(Self(Seat::Member(Member::join(party, master, addresses, identity.join_timeout)?)))
    }

    /// Gives every rank the blobs of all ranks, in rank order; blocks until all have called this.
    ///
    /// # Errors
    /// [`Error::MissingRanks`] when some rank does not call this in time, [`Error::PeerLost`] when it has gone.
    ///
    /// # Panics
    /// When the blob is longer than [`MAX_BLOB_BYTES`].
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        assert!(mine.len() <= MAX_BLOB_BYTES, "a blob of {} bytes, at most {MAX_BLOB_BYTES}", mine.len());
        match &mut self.0 {
            Seat::Alone => Ok(vec![mine.to_vec()]),
            Seat::Root(root) => root.exchange(mine),
            Seat::Member(member) => member.exchange(mine),
        }
    }

    /// The address of this host that peers of this job reach: of the interface asked for, or of the way to the master.
    pub(super) fn own_address(&self, identity: &Identity) -> Result<SocketAddr> {
        let address = match &self.0 {
            Seat::Alone => Ok(SocketAddr::from(([127, 0, 0, 1], 0))),
            Seat::Root(root) => root.address(),
            Seat::Member(member) => member.local_address(),
        };
        let address = address.map_err(|error| Error::system("can't tell this rank's own address", error))?;
        match &identity.interface {
            None => Ok(SocketAddr::new(address.ip(), 0)),
            Some(name) => Ok(SocketAddr::new(interface::address_of(name, address.ip())?, 0)),
        }
    }
}

/// What this rank says about itself.
pub(super) fn party(identity: &Identity) -> Party {
    Party {
        key: identity.key.as_ref().map_or(Vec::new(), |key| key.bytes().to_vec()),
        job: identity.job.clone(),
        rank: identity.rank.0,
        world_size: identity.world_size,
        wire_version: WIRE_VERSION,
    }
}

/// A listener on `address`; `shared` where the launcher holds the port bound for this process.
pub(super) fn listen(address: SocketAddr, shared: bool) -> Result<TcpListener> {
    let listener = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok::<TcpListener, std::io::Error>(socket.into())
    };
    listener().map_err(|error| Error::system(format!("can't listen on {address}"), error))
}

fn lobby(identity: &Identity, party: &Party) -> Result<Lobby> {
    let listener = listen(addresses(identity)?[0], identity.port_reserved)?;
    Lobby::new(listener, party.clone(), Purpose::Rendezvous)
        .map_err(|error| Error::system("can't set up the rendezvous", error))
}

/// Where the master may be; at least one address.
fn addresses(identity: &Identity) -> Result<Vec<SocketAddr>> {
    let master = &identity.master;
    let unknown = |error| Error::system(format!("can't find the address of {master}"), error);
    let addresses: Vec<SocketAddr> = (master.host.as_str(), master.port).to_socket_addrs().map_err(unknown)?.collect();
    if addresses.is_empty() {
        return Err(unknown(std::io::ErrorKind::NotFound.into()));
    }
    if identity.key.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(key_needed());
    }
    Ok(addresses)
}
