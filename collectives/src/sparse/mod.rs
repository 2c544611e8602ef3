//! Collectives on sparse vectors.

mod all_gather;
mod gtopk;
mod message;

pub(crate) use all_gather::describe as describe_all_gather;
pub use all_gather::{sparse_all_gather, topk_all_reduce};
pub(crate) use gtopk::describe as describe_gtopk;
pub use gtopk::{Gtopk, PutBack, gtopk_all_reduce};
