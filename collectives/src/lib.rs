//! Collectives of Brevity: what ranks do together, on dense, sparse and low-rank gradients.
//!
//! Every algorithm is one `async fn` over "send to a peer, receive from a peer" ([`Call`]), in a file that
//! states its rounds, its bytes and its source. An [`engine`] polls them; [`Group`] has the blocking and the
//! non-blocking form of each. Results are the same bits on every rank (but for which NaN a sum with NaN is):
//! the order of a reduction depends on the number of ranks, the length and the algorithm alone.
#![forbid(unsafe_code)]

mod call;
mod choose;
pub mod dense;
mod description;
mod element;
pub mod engine;
mod environment;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod host;
pub mod low_rank;
pub mod pattern;
mod poison;
pub mod sparse;

pub use call::{Call, Identity, Receiving, ReceivingUpTo, Sending};
pub use choose::{Cost, DenseAllReduce};
pub use description::{Description, Operation};
pub use element::{Element, Reduction};
pub use error::{Error, Result};
pub use group::{CallFuture, DEFAULT_TIMEOUT, Group, Settings};
pub use poison::Poison;
pub use ucx_sys_wrap::buffer::Chunk;
