//! How the ranks of a job find each other, check that they belong together, and open a transport.
//!
//! [`Identity::from_env`] reads a process's identity by the rules of its [`Launcher`]; under an MPI launcher,
//! [`introduce`] then learns from rank 0 where to meet. A program that starts its ranks itself fills in an
//! [`Identity`], with an address or with a [`JobId`] that rank 0 has made. [`Rendezvous::join`] meets the
//! other ranks at rank 0, under a deadline, and then exchanges small blobs between all of them.
//! [`connect_mesh`] makes a TCP connection for every pair of ranks, [`share_memory`] sets up the local group
//! of each host, and [`open`] does all of this and chooses the transport. Lost ranks [`come_back`] to those
//! that are left, whose lowest one has a [`Reception`]; then all join a new world.
//!
//! Every connection begins with a mutual proof that both sides hold the job's key, before anything else is
//! read:
//!
//! | step | who | bytes |
//! | --- | --- | --- |
//! | 1 | caller | an opening of fixed size: magic, wire version, purpose, role, rank, peer, world size, stream, job, nonce |
//! | 2 | answerer | its own opening |
//! | 3 | caller | HMAC-SHA256 of role and both openings under the job's key |
//! | 4 | answerer | one byte: accepted or refused; if accepted, its own HMAC |
//!
//! The hash covers the role, so that a proof can't be reflected, and both nonces, so that it can't be
//! replayed. A listener serves all its callers at once and drops those that do not prove themselves in time:
//! strangers can neither stop nor delay a job.
//!
//! The rendezvous carries no secrets, only capabilities and addresses. Where the job is encrypted, each
//! connection of the mesh makes a handshake of its own after the proof ([`crate::tcp`]).
#![forbid(unsafe_code)]

mod acceptor;
mod call;
mod channel;
mod choice;
mod comeback;
mod conversation;
mod deadline;
pub(crate) mod descriptors;
mod environment;
mod fd_exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod host;
mod id;
mod identity;
#[cfg(test)]
mod impostor_tests;
mod interface;
mod introduction;
mod invitation;
mod job;
mod key;
mod launcher;
mod leaf;
#[cfg(test)]
mod leaving_tests;
mod local_peers;
mod master;
mod mesh;
mod names;
mod open;
mod place;
mod proof;
mod rendezvous;
mod reserve;
mod returning;
mod root;
mod root_listener;
mod secrecy;
mod signs;
mod slurm;
mod variables;
#[cfg(test)]
mod version_tests;
mod wire;

pub use choice::{Agreed, Capability, Choice, Selected, choose};
pub use comeback::{Comeback, come_back};
pub use deadline::Cancel;
pub use id::JobId;
pub use identity::{Identity, Introduction};
pub use introduction::{introduce, pmix_available};
pub use invitation::{Invitation, Member};
pub use key::JobKey;
pub use launcher::Launcher;
pub use local_peers::share_memory;
pub use master::Master;
pub use mesh::connect_mesh;
pub(crate) use names::warn_of_unknown;
pub use names::{NAMES, TEST_NAMES};
pub use open::{Opened, open};
pub use rendezvous::{MAX_BLOB_BYTES, Rendezvous};
pub use reserve::Ports;
pub(crate) use reserve::reserve;
pub use returning::Reception;
pub use variables::{SWITCH, switch};

/// The version of everything that ranks send each other: bootstrap, frames of tcp, and collectives. It must
/// be the same on all ranks, and is part of the first bytes that each sends. It rises with every change of
/// the wire formats, of which tests hold a digest. UCX and shared memory have versions of their own, which
/// are compared when ranks exchange their endpoint info and when they map each other's segments.
pub const WIRE_VERSION: u32 = 17;
