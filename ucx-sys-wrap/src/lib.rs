//! The transport layer of Brevity: tagged bytes between ranks, over threads, TCP, UCX or a simulated network.
//!
//! A [`Transport`] moves messages between this rank and its peers. It is entered through a [`buffer::Port`],
//! one thread at a time, and used through [`buffer::Comm`], where an operation is a future that takes its
//! buffer by value and gives it back. This crate never sees a gradient: it moves bytes, and says who is
//! missing.
//!
//! Features, all on by default: `encryption` (of TCP connections; needs a C compiler), `pmi` (asking mpirun,
//! mpiexec and srun where ranks meet) and `ucx` (the transport over UCX, which is loaded at run time). A
//! program that is asked for a feature it was built without ends with a line that names the feature.
#![deny(unsafe_code)]
// Some internals are used by one of these features alone.
#![cfg_attr(
    not(all(feature = "encryption", feature = "pmi", feature = "ucx")),
    allow(dead_code, unused_imports)
)]

#[cfg(not(target_os = "linux"))]
compile_error!("Brevity's transport runs on Linux alone: it uses memfd, pidfd, epoll and process_vm_readv");

mod boot;
pub mod bootstrap;
pub mod buffer;
mod envelope;
mod error;
mod exit;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
mod limits;
mod link;
pub mod local;
mod memory;
mod noise;
mod on_end;
mod one_sided;
pub mod pollable;
mod process;
mod rank;
pub mod shm;
pub mod sim;
mod table;
mod tag;
pub mod tcp;
mod tick;
mod told;
mod transport;
#[cfg_attr(not(feature = "ucx"), path = "without_ucx.rs")]
pub mod ucx;
mod wanted;
#[cfg(not(feature = "encryption"))]
mod without_snow;

pub use envelope::{Arrival, Envelope, Lengths, MAX_PARTS, Mark, Signature};
pub use error::{Error, Failure, Result};
pub use one_sided::{AccessId, AccessParts, OneSided, PostedAccess, RegionKey, Remote};
pub use process::{Owner, STANDSTILL};
pub use rank::Rank;
pub use tag::{MAX_WORLD_SIZE, Tag};
pub use transport::{
    CallDigest, Found, News, Notice, Posted, RecvDone, RecvId, RecvParts, Said, SendDone, SendId, SendParts,
    Statistics, Transport, Wanted, Which,
};
