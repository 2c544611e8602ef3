//! Helpers for tests of several ranks: ranks as threads, each with a deadline.
#![forbid(unsafe_code)]

pub mod command;
pub mod cycles;
pub mod dense;
pub mod faults;
pub mod long;
pub mod mixed;
pub mod network;
pub mod oracle;
pub mod pushes;
pub mod random;
pub mod reductions;
pub mod started;
pub mod suite;
mod threads;

pub use threads::{block_on, on_groups, on_host, on_local, on_transports};

/// The exit status of a rank that ended because another one was lost.
pub const LOST_STATUS: u8 = 3;

/// The exit status of a rank whose call has ended because its deadline passed, here or on another rank.
pub const TIMEOUT_STATUS: u8 = 4;
