//! The transport layer of Brevity: tagged bytes between ranks, over threads, TCP, UCX or a simulated network.
//!
//! A [`Transport`] moves messages between this rank and its peers. It is entered through a [`buffer::Port`],
//! one thread at a time, and used through [`buffer::Comm`], where an operation is a future that takes its
//! buffer by value and gives it back. This crate never sees a gradient: it moves bytes, and says who is
//! missing.
#![deny(unsafe_code)]

mod boot;
pub mod bootstrap;
pub mod buffer;
mod envelope;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
mod limits;
mod link;
pub mod local;
mod noise;
mod one_sided;
pub mod pollable;
mod process;
mod rank;
pub mod shm;
pub mod sim;
mod tag;
pub mod tcp;
mod tick;
mod told;
mod transport;
pub mod ucx;

pub use envelope::{Arrival, Envelope, Lengths, MAX_PARTS, Mark, Signature};
pub use error::{Error, Failure, Result};
pub use one_sided::{GetId, OneSided, PutId, RegionKey, Remote};
pub use process::Owner;
pub use rank::Rank;
pub use tag::{MAX_WORLD_SIZE, Tag};
pub use transport::{
    Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts, Statistics, Transport,
};
