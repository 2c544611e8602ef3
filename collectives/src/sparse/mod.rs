//! Collectives on sparse vectors.

mod all_gather;
mod calls;
mod gtopk;
mod message;
mod wire;

pub use all_gather::{TopK, describe_all_gather, describe_topk, sparse_all_gather, topk_all_reduce};
pub use calls::{Entries, GtopkAllReduce, SparseAllGather, TopkAllReduce};
pub(crate) use gtopk::names as names_of_gtopk;
pub use gtopk::{
    Gtopk, PutBack, describe as describe_gtopk, gtopk_all_reduce, gtopk_all_reduce_with_feedback,
};
pub use wire::{Coder, Wire};
