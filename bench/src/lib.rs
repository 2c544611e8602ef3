//! The measurements of `brevity perf`, and the same measurements on other libraries.
//!
//! - [`perf`]: the rows of `brevity perf`;
//! - [`kernels`]: kernels of compression and their floors: `brevity perf compress`;
//! - [`models`]: the tensors of well-known models;
//! - [`p2p`]: messages between two ranks: latency, bandwidth, both directions at once, several parts;
//! - [`collective`]: the dense collectives, and which of them Brevity has;
//! - [`order`]: the orders to a measured process, and its answers;
//! - [`seat`]: a rank of Brevity that executes orders;
//! - [`floor`]: what the system can do at best: bare sockets;
//! - [`net`]: several hosts on this machine;
//! - [`peers`]: the other libraries on this machine;
//! - [`compare`]: Brevity and peers in turns, with ratios and their intervals;
//! - [`server`]: pushes to a shard of a parameter server, and steps of its workers;
//! - [`output`]: the files and the standard output for results;
//! - [`record`]: what is kept of a run;
//! - [`timeline`]: what the ranks of a job did when, for Perfetto.
#![forbid(unsafe_code)]

pub mod collective;
pub mod compare;
mod error;
pub mod floor;
pub mod job;
pub mod kernels;
mod memory;
pub mod models;
pub mod net;
mod oracle;
pub mod order;
pub mod output;
pub mod p2p;
pub mod peers;
pub mod perf;
pub mod probe;
pub mod processor;
pub mod record;
pub mod seat;
pub mod server;
pub mod size;
pub mod statistics;
pub mod timeline;

pub use error::{Error, Result};
