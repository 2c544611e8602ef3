//! The C ABI of Brevity: `libbrevity.so`, `libbrevity.a` and `brevity.h`.
//!
//! `include/brevity.h` documents every function for C callers; the items here document only what Rust needs.
//! `install.sh` installs the libraries under their final names, with the header, a pkg-config file and a
//! CMake package.
//!
//! Every function keeps these rules. No panic leaves it ([`brv_status::Panic`]). Every pointer is checked for
//! NULL and alignment before use. Its `# Safety` section states what cannot be checked and the caller must
//! guarantee.
#![allow(non_camel_case_types, reason = "types have their C names")]

mod boundary;
mod collective;
mod element;
mod exchange;
mod exchange_state;
mod failure;
mod feedback;
mod group;
mod log;
mod memory;
mod saved;
mod split;
mod status;
mod version;

pub use collective::{brv_all_gather, brv_all_reduce, brv_barrier, brv_broadcast};
pub use element::{brv_reduction, brv_type};
pub use exchange::{
    brv_exchange, brv_exchange_add_dense, brv_exchange_add_gtopk, brv_exchange_add_low_rank,
    brv_exchange_add_topk, brv_exchange_average, brv_exchange_free, brv_exchange_new, brv_exchange_residual,
    brv_exchange_set_density,
};
pub use exchange_state::{
    brv_exchange_load, brv_exchange_load_of, brv_exchange_rejoin, brv_exchange_save, brv_exchange_saved_size,
};
pub use failure::{brv_last_error, brv_last_error_rank};
pub use feedback::{
    brv_feedback, brv_feedback_free, brv_feedback_new, brv_feedback_rejoin, brv_feedback_residual,
    brv_gtopk_all_reduce, brv_low_rank_all_reduce,
};
pub use group::{
    brv_group, brv_group_abort, brv_group_free, brv_group_from_env, brv_group_rank, brv_group_size,
    brv_group_solo, brv_group_transport,
};
pub use log::brv_log_to_stderr;
pub use saved::{brv_feedback_load, brv_feedback_load_of, brv_feedback_save, brv_feedback_saved_size};
pub use split::{
    brv_group_duplicate, brv_group_hosts, brv_group_set_timeout, brv_group_split, brv_group_world_rank,
};
pub use status::brv_status;
pub use version::{brv_abi_version, brv_version};
