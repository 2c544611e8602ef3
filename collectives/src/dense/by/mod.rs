//! Algorithms of dense collectives, by messages. Each is written for one segment of a vector, on bytes.
//!
//! Sums have the fixed [order](crate::data::order) in all of them but [`ring`].

pub(super) mod bruck;
pub(super) mod direct;
pub(super) mod doubling;
pub(super) mod halving;
pub(super) mod hosts;
pub(super) mod linear;
pub(super) mod pairwise;
pub(super) mod reduce_tree;
pub(super) mod ring;
pub(super) mod spread;
pub(super) mod tree;
