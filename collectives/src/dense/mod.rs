//! Collectives on dense vectors.

mod all_gather;
mod all_reduce;
mod barrier;
mod broadcast;

pub use all_gather::{all_gather, all_gather_varying};
pub use all_reduce::{all_reduce, describe as describe_all_reduce, recursive_doubling, ring};
pub use barrier::barrier;
pub(crate) use broadcast::to_children;
pub use broadcast::{broadcast, broadcast_frozen, broadcast_shared};
