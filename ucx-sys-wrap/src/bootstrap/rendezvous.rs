//! Where the ranks of a job meet: a star around rank 0.

use std::net::IpAddr;
use std::sync::Arc;

use super::WIRE_VERSION;
use super::channel::Channel;
use super::deadline::Deadline;
use super::identity::Identity;
use super::interface::{LOOPBACK, serving_address};
use super::leaf::Leaf;
use super::proof::Party;
use super::root::Root;
use crate::ucx::Meeting;
use crate::{Error, Rank, Result};

pub use super::wire::MAX_BLOB_BYTES;

/// All ranks of a job, joined: each has proven to hold the job's key, and they agree on wire version, job and
/// world size.
pub struct Rendezvous {
    pub(super) party: Arc<Party>,
    /// The earliest of all ranks' deadlines.
    pub(super) deadline: Deadline,
    side: Side,
    failure: Option<Error>,
}

enum Side {
    Alone,
    Root(Root),
    Leaf(Leaf),
}

impl Rendezvous {
    /// Meets the other ranks; blocks until all have joined or the job has failed.
    ///
    /// Rank 0 listens on the master's address, the others call it until it answers. The earliest deadline of
    /// all joined ranks counts. Costs a connection and four messages a rank.
    ///
    /// # Errors
    /// The same on every joined rank: [`Error::MissingRanks`] at the deadline, [`Error::Disagreement`] when a
    /// rank has another wire version or world size. Only on the rank concerned: [`Error::Disagreement`] for a
    /// rank of another job or the second process of a rank; [`Error::Unauthenticated`] for a rank with
    /// another key; [`Error::PeerLost`] when rank 0 has gone; [`Error::Environment`] when there is no key and
    /// the master is not on loopback; [`Error::System`] when the master's name is unknown or its port is
    /// taken.
    pub fn join(identity: &Identity) -> Result<Self> {
        Self::join_by(identity, WIRE_VERSION, Deadline::after(identity.join_timeout))
    }

    /// As [`join`](Self::join), with a wire version and a deadline that may have begun earlier.
    pub(super) fn join_by(identity: &Identity, wire_version: u32, deadline: Deadline) -> Result<Self> {
        let party = Arc::new(Party {
            key: identity.key.as_ref().map_or(Vec::new(), |key| key.bytes().to_vec()),
            job: identity.job_and_port(),
            rank: identity.rank.0,
            world_size: identity.world_size,
            wire_version,
        });
        let (side, deadline) = if identity.world_size <= 1 {
            (Side::Alone, deadline)
        } else if identity.rank == Rank(0) {
            let (root, deadline) = Root::join(identity, &party, deadline)?;
            (Side::Root(root), deadline)
        } else {
            let (leaf, deadline) = Leaf::join(identity, &party, deadline)?;
            (Side::Leaf(leaf), deadline)
        };
        Ok(Self { party, deadline, side, failure: None })
    }

    /// Gives every rank the blobs of all ranks, in rank order. All ranks must call it equally often.
    ///
    /// Blocks until all ranks have called it, at most until the deadline of joining: there is one, the
    /// earliest of all ranks', for the joining and all exchanges together. Costs one message to rank 0 and
    /// one back, of all blobs. After an error every later exchange returns the same error.
    ///
    /// # Errors
    /// The same on every rank that is still there: [`Error::MissingRanks`] at the deadline,
    /// [`Error::PeerLost`] when a rank has gone. [`Error::TooLong`] when `mine` is longer than
    /// [`MAX_BLOB_BYTES`]: nothing was sent.
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.failure.clone().map_or(Ok(()), Err)?;
        if mine.len() > MAX_BLOB_BYTES {
            let (rank, sent) = (Rank(self.party.rank), mine.len() as u64);
            return Err(Error::TooLong { rank, part: 0, sent, capacity: MAX_BLOB_BYTES });
        }
        let blobs = match &mut self.side {
            Side::Alone => Ok(vec![mine.to_vec()]),
            Side::Root(root) => root.gather(mine, self.deadline),
            Side::Leaf(leaf) => leaf.exchange(mine, self.deadline),
        };
        blobs.inspect_err(|error| self.failure = Some(error.clone()))
    }

    /// The channels to poll: when one is ready, [`check`](Self::check) may fail.
    pub(super) fn channels(&mut self) -> Vec<&mut Channel> {
        match &mut self.side {
            Side::Alone => Vec::new(),
            Side::Root(root) => root.channels().collect(),
            Side::Leaf(leaf) => vec![&mut leaf.channel],
        }
    }

    /// The address of this host on which this rank serves its peers; loopback when there is no key.
    pub(super) fn own_address(&self, identity: &Identity) -> Result<IpAddr> {
        let towards = match &self.side {
            Side::Alone => LOOPBACK,
            Side::Root(root) => root.local_address(),
            Side::Leaf(leaf) => leaf.local_address(),
        };
        serving_address(identity, towards)
    }
}

impl Meeting for Rendezvous {
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Self::exchange(self, mine)
    }

    /// Checks that all ranks are still there, between two exchanges. Does not block.
    fn check(&mut self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)?;
        let checked = match &mut self.side {
            Side::Alone => Ok(()),
            Side::Root(root) => root.check(),
            Side::Leaf(leaf) => leaf.check(),
        };
        checked.inspect_err(|error| self.failure = Some(error.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bootstrap::Master;

    #[test]
    fn another_wire_version_is_named_on_both_sides() {
        let holder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        holder.set_reuse_port(true).unwrap();
        holder.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = holder.local_addr().unwrap().as_socket().unwrap().port();
        let identity = |rank| {
            let mut identity = Identity::new(Rank(rank), 2, Master { host: "127.0.0.1".into(), port });
            identity.port_reserved = true;
            identity.join_timeout = Duration::from_secs(20);
            identity
        };
        let root = std::thread::spawn({
            let identity = identity(0);
            move || Rendezvous::join_by(&identity, 7, Deadline::after(identity.join_timeout)).err()
        });
        let leaf = Rendezvous::join_by(&identity(1), 8, Deadline::after(Duration::from_secs(20))).err();
        for error in [root.join().unwrap(), leaf] {
            assert_eq!(error.unwrap().to_string(), "wire version: rank 1 has 8, expected 7");
        }
    }
}
