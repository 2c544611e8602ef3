//! Memory as transports see it: leases for the time of an operation, and the memory of regions; whether it is
//! a copy that a fork has made.
//! [`buffer`](crate::buffer) makes both from users' buffers and guarantees their lifetimes.
#![allow(unsafe_code)]

pub(crate) mod forks;
mod lease;
mod region;

pub use lease::{ReadLease, WriteLease};
pub use region::RegionMemory;
pub(crate) use region::Shared;
