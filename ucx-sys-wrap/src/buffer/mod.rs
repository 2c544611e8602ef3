//! Safe lending of memory to the network.
//!
//! - [leases](ReadLease): memory as a transport sees it, given back when the operation has ended;
//! - [`Buffer`]: what users pass in: slices, vectors, shared vectors, tuples;
//! - [`Pool`]: reusable page-aligned memory, handed out as [`PoolBuffer`] (one writer) or [`SharedBuffer`];
//! - [`Chunk`]: borrowed or owned memory that is split between operations and joined again;
//! - [`Port`]: a shared handle of a transport that tracks every operation in flight;
//! - [`Comm`] and [`scope`]: operations as futures on borrowed buffers, ended before the scope returns;
//! - [`Task`]: the same on buffers that the future owns;
//! - [`Region`]: memory that peers put to and get from; [`RemoteRegion`]: such memory of a peer.
//!
//! All unsafe code that lends memory to a network is in this folder and in `memory`, which lies below the
//! transports. An operation holds its buffer until it has ended. Dropping or forgetting its future leaves the
//! operation registered with the scope, which ends it before `'env` ends.
#![allow(unsafe_code)]

mod abort;
mod call_log;
mod call_time;
mod chunk;
mod comm;
mod contexts;
mod giving_up;
mod lent;
mod memory;
#[cfg(doctest)]
mod misuse;
mod operation;
mod orphans;
mod pages;
mod pool;
mod pooled;
mod port;
mod probing;
mod region;
mod remote;
mod scope;
mod scopes;
mod shared;
mod signals;
mod task;
mod waking;

pub use crate::memory::{ReadLease, RegionMemory, WriteLease};
pub use call_log::CallLog;
pub use call_time::CallTime;
pub use chunk::Chunk;
pub use comm::Comm;
pub use contexts::{MAX_CONTEXTS, OnLoss};
pub use giving_up::GiveUp;
pub use lent::LentMemory;
pub use memory::{Buffer, RawSlice, RawVec, RecvBuffer, SendBuffer};
pub use operation::{Direction, PostedOperation, Recv, Send};
pub(crate) use pages::HUGE_PAGE_BYTES;
pub use pages::HugePages;
pub use pool::{Pool, PoolStatistics};
pub use pooled::PoolBuffer;
pub use port::Port;
pub use region::Region;
pub use remote::{Flush, Get, Put, RemoteRegion};
pub use scope::{Turn, scope, scope_in_turns};
pub use shared::SharedBuffer;
pub use signals::with_signals_blocked;
pub use task::{Task, TaskFuture};
pub use waking::{is_for_next_turn, next_turn};

/// Lends buffers to transports in tests that use no scope and keep the buffers themselves.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod testing {
    use super::{Buffer, RecvBuffer, SendBuffer};
    use crate::transport::{RecvParts, SendParts};

    /// Leases of `buffers`, which outlive them.
    #[cfg(test)]
    pub(crate) fn lent_to_send(buffers: &[Vec<u8>]) -> SendParts {
        let lease = |bytes: &Vec<u8>| {
            // SAFETY: tests keep their buffers, unchanged, while they have the leases.
            unsafe { super::ReadLease::new(std::ptr::NonNull::from(&bytes[..]).cast(), bytes.len()) }
        };
        buffers.iter().map(lease).collect()
    }

    /// Lends a buffer that the test keeps until the operation has ended.
    pub(crate) fn lend_to_receive<B: RecvBuffer>(raw: &mut <B as Buffer>::Raw, parts: &mut RecvParts) {
        // SAFETY: tests keep their buffers until they have the leases back.
        unsafe { B::lend(raw, parts) };
    }

    /// Lends a buffer that the test keeps until the operation has ended.
    pub(crate) fn lend_to_send<B: SendBuffer>(raw: &<B as Buffer>::Raw, parts: &mut SendParts) {
        // SAFETY: as above.
        unsafe { B::lend(raw, parts) };
    }
}
