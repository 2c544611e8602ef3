//! Collectives on sparse vectors.

mod all_gather;
mod gtopk;
mod message;

pub use all_gather::{describe_all_gather, describe_topk, sparse_all_gather, topk_all_reduce};
pub use gtopk::{
    Gtopk, PutBack, describe as describe_gtopk, gtopk_all_reduce, gtopk_all_reduce_with_feedback,
};
