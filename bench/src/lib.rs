//! What `brevity perf` measures, and the same measurements on other libraries, side by side.
//!
//! - [`perf`]: the rows of `brevity perf`;
//! - [`kernels`]: kernels of compression beside their floors: `brevity perf compress`;
//! - [`p2p`]: messages between two ranks: latency, bandwidth, both ways at once, in several parts;
//! - [`order`]: what a measured process is told, and what it answers;
//! - [`seat`]: a rank of ours that does what it is told;
//! - [`floor`]: what the system can do at best: bare sockets;
//! - [`peers`]: the other libraries that are there;
//! - [`compare`]: ours and theirs in turns, with ratios and their intervals;
//! - [`output`]: the files and the standard output that results go to;
//! - [`record`]: what is kept of a run.
#![forbid(unsafe_code)]

pub mod collective;
pub mod compare;
mod error;
pub mod floor;
pub mod job;
pub mod kernels;
mod memory;
pub mod order;
pub mod output;
pub mod p2p;
pub mod peers;
pub mod perf;
pub mod probe;
pub mod processor;
pub mod record;
pub mod seat;
pub mod size;
pub mod statistics;

pub use error::{Error, Result};
