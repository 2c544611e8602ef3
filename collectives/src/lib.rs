//! The collectives of Brevity, on dense, sparse and low-rank gradients.
//!
//! Every algorithm is one `async fn` that sends to and receives from peers through a [`Call`], in a file that
//! states its rounds, its bytes and its source. An [`engine`] polls them; [`Group`] has a blocking and a
//! non-blocking form of each. Results have the same bits on every rank, except for NaN payloads of sums: the
//! order of a dense sum depends only on the number of ranks, that of others also on the length and the
//! algorithm.
#![forbid(unsafe_code)]

mod all_pairs;
mod buffers;
mod call;
mod calls;
mod compressed;
mod context;
pub mod data;
pub mod dense;
mod description;
mod difference;
mod elsewhere;
pub mod engine;
mod environment;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod grow;
pub mod host;
mod join;
mod lanes;
pub mod low_rank;
mod messages;
pub mod pattern;
mod plan;
mod poison;
pub mod quantised;
mod shrink;
pub mod sparse;
pub mod vote;
mod world;

pub use buffers::{Buffers, Memory, Sizes};
pub use call::{Call, Receiving, ReceivingUpTo, Sending, Traffic};
pub use compressed::Compressed;
pub use data::{Bool, Byte, DataType, Element, ReduceOp, Reducer, Reduction};
pub use description::{Description, Operation};
pub use difference::Difference;
pub use error::{Error, Result};
pub use group::{
    CallFuture, DEFAULT_TIMEOUT, Group, Handler, Hosts, Leaving, Outbox, Peers, Reserved, Settings,
};
#[doc(hidden)]
pub use group::{FORMS, Form};
pub use grow::Growing;
pub use join::{Join, Joining};
pub use messages::Message;
pub use plan::{
    Algorithm, Estimate, Ground, Link, Machine, Planned, Row, Summand, Topology, UnknownMachine, UnknownWish,
    Wishes, Work, compare, compressed_estimates, estimates, recommend,
};
pub use poison::Poison;
pub use ucx_sys_wrap::buffer::Chunk;
