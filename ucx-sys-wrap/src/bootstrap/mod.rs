//! How the ranks of a job find each other, check that they belong together, and open a transport.
//!
//! [`Identity::from_env`] reads who this process is, by the rules of whatever [`Launcher`] has started it;
//! under an MPI launcher, [`introduce`] then learns from rank 0 where to meet. [`Rendezvous::join`] meets the
//! other ranks at rank 0, under a deadline, and then exchanges small blobs between all of them.
//! [`connect_mesh`] gives every pair of ranks a TCP connection, [`share_memory`] gives the ranks of one host
//! each other's segments, and [`open`] puts it all together and picks the transport.
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
//! The role is part of what is hashed, so that no side can send back what it got; both nonces are, so that
//! nothing can be replayed. A listener reads from all its callers at once and drops who does not prove itself
//! in time: strangers can neither stop nor delay a job.
//!
//! What is said at the rendezvous is no secret: who can do what, and where to connect. Where the job is
//! encrypted, the connections of the mesh agree on a secret of their own after the proof ([`crate::tcp`]).
#![forbid(unsafe_code)]

mod call;
mod channel;
mod choice;
mod conversation;
mod deadline;
pub(crate) mod descriptors;
mod doors;
mod environment;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod host;
mod identity;
#[cfg(test)]
mod impostor_tests;
mod interface;
mod introduction;
mod job;
mod key;
mod launcher;
mod leaf;
#[cfg(test)]
mod leaving_tests;
mod lobby;
mod master;
mod mesh;
mod names;
mod neighbours;
mod network;
mod open;
mod passing;
mod place;
mod proof;
mod rendezvous;
mod reserve;
mod root;
mod secrecy;
mod signs;
mod slurm;
mod terms;
mod variables;
#[cfg(test)]
mod version_tests;
mod wire;
#[cfg(not(feature = "pmi"))]
mod without_pmi;

pub use choice::{Agreed, Capability, Choice, Selected, choose};
pub use identity::{Identity, Introduction};
pub use introduction::{introduce, pmix_available};
pub use key::JobKey;
pub use launcher::Launcher;
pub use master::Master;
pub use mesh::connect_mesh;
pub(crate) use names::warn_of_unknown;
pub use names::{NAMES, TEST_NAMES};
pub use neighbours::share_memory;
pub use open::{Opened, open};
pub use rendezvous::{MAX_BLOB_BYTES, Rendezvous};
pub use reserve::Ports;
pub(crate) use reserve::reserve;
pub use variables::{SWITCH, switch};

/// The version of everything that ranks send each other: bootstrap, frames of tcp, and collectives. All ranks
/// must have the same, and each says it in the first bytes that it sends. Goes up with every change of what
/// is sent; tests hold a digest of it beside the version. What goes through UCX and through shared memory has
/// a version of its own beside it, which is compared when ranks exchange their cards and when they map each
/// other's segments.
pub const WIRE_VERSION: u32 = 11;
