//! Memory as a transport sees it, below the transport itself: leases, which it gives back when an operation has
//! ended, and the memory of regions.
//!
//! [`buffer`](crate::buffer) makes both from what users hand in, and says until when. This folder and that one
//! hold all that is unsafe about lending memory to a network.
#![allow(unsafe_code)]

mod lease;
mod region;

pub use lease::{ReadLease, WriteLease};
pub use region::RegionMemory;
pub(crate) use region::Shared;
