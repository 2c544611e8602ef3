//! Memory as transports see it: leases, which they return when an operation has ended, and the memory of
//! regions.
//!
//! [`buffer`](crate::buffer) makes both from users' buffers and guarantees their lifetimes. These two folders
//! hold all unsafe code that lends memory to a network.
#![allow(unsafe_code)]

mod lease;
mod region;

pub use lease::{ReadLease, WriteLease};
pub use region::RegionMemory;
pub(crate) use region::Shared;
