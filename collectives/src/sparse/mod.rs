//! Collectives on sparse vectors.

pub(crate) mod all_gather;
pub(crate) mod blocks;
mod calls;
mod doubling;
pub(crate) mod gtopk;
pub(crate) mod hierarchical;
mod message;
pub(crate) mod ok_topk;
pub(crate) mod random_k;
mod reader;
pub(crate) mod reduce_scatter;
mod segments;
mod tensors;
pub(crate) mod topk;
mod wire;

pub use all_gather::{describe_all_gather, sparse_all_gather};
pub use blocks::{BlockAllReduce, block_all_reduce, describe as describe_blocks};
pub use calls::{Entries, GtopkAllReduce, SparseAllGather, SparseReduceScatter, TopkAllReduce};
pub(crate) use gtopk::names as names_of_gtopk;
pub use gtopk::{
    Gtopk, PutBack, describe as describe_gtopk, gtopk_all_reduce, gtopk_all_reduce_with_feedback,
};
pub(crate) use hierarchical::names as names_of_hierarchical;
pub use hierarchical::{
    HierarchicalAllReduce, HierarchicalSum, LeaderSum, describe as describe_hierarchical,
    hierarchical_all_reduce,
};
pub use ok_topk::{
    OkTopk, OkTopkAllReduce, OkTopkSum, Periods, describe as describe_ok_topk, ok_topk_all_reduce,
    ok_topk_all_reduce_with_feedback,
};
pub(crate) use random_k::name as name_of_places;
pub use random_k::{
    Draw, RandomKAllReduce, RandomPlaces, describe as describe_random_k, random_k_all_reduce,
};
pub use reduce_scatter::{Scattered, describe as describe_reduce_scatter, owned, sparse_reduce_scatter};
pub use tensors::{TensorEnd, Tensors};
pub use topk::{
    TopK, describe as describe_topk, topk_all_reduce, topk_all_reduce_by, topk_all_reduce_with_feedback,
};
pub use wire::{Coder, Wire};
