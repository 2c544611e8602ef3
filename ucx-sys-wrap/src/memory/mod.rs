//! Memory as transports see it: leases for the time of an operation, and the memory of regions.
//! [`buffer`](crate::buffer) makes both from users' buffers and guarantees their lifetimes.
#![allow(unsafe_code)]

mod lease;
mod region;

pub use lease::{ReadLease, WriteLease};
pub use region::RegionMemory;
pub(crate) use region::Shared;
