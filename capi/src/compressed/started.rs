//! Compressed collectives that do not block. Made from `tests/capi/list_compressed.rs`: see
//! `tests/capi/listed_compressed.rs`.

use super::{
    BlockArguments, Entries, GtopkArguments, HierarchicalArguments, LowRankArguments, OkTopkArguments,
    QuantisedArguments, RandomKArguments, SparseAllGatherArguments, SparseReduceScatterArguments,
    TopkArguments, VoteArguments, brv_draw, brv_leader_sum, brv_low_rank, brv_ok_topk, brv_sparse, starting,
};
use crate::group::brv_group;
use crate::options::brv_options;
use crate::policy::{brv_put_back, brv_values};
use crate::request::brv_request;
use crate::status::brv_status;

/// Starts a gtopk-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_igtopk_all_reduce(
    group: *mut brv_group,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
    k: usize,
    put_back: brv_put_back,
    format: brv_values,
    sum: *mut brv_sparse,
    kept: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let entries = Entries { indices, values, count, dim };
    let arguments = GtopkArguments { entries, k, put_back, format, sum, kept };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a topk-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_itopk_all_reduce(
    group: *mut brv_group,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
    limit: usize,
    format: brv_values,
    sum: *mut brv_sparse,
    kept: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let entries = Entries { indices, values, count, dim };
    let arguments = TopkArguments { entries, limit, format, sum, kept };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a sparse-all-gather.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_isparse_all_gather(
    group: *mut brv_group,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
    limit: usize,
    format: brv_values,
    all: *const *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let entries = Entries { indices, values, count, dim };
    let arguments = SparseAllGatherArguments { entries, limit, format, all };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a sparse-reduce-scatter.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_isparse_reduce_scatter(
    group: *mut brv_group,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
    limit: usize,
    format: brv_values,
    sum: *mut brv_sparse,
    kept: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let entries = Entries { indices, values, count, dim };
    let arguments = SparseReduceScatterArguments { entries, limit, format, sum, kept };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts an ok-topk-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iok_topk_all_reduce(
    group: *mut brv_group,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
    ok_topk: *mut brv_ok_topk,
    format: brv_values,
    sum: *mut brv_sparse,
    kept: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let entries = Entries { indices, values, count, dim };
    let arguments = OkTopkArguments { entries, ok_topk, format, sum, kept };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a hierarchical-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ihierarchical_all_reduce(
    group: *mut brv_group,
    input: *const f32,
    kept: *mut f32,
    n: usize,
    k: usize,
    leader_sum: brv_leader_sum,
    put_back: brv_put_back,
    format: brv_values,
    sum: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = HierarchicalArguments { input, kept, n, k, leader_sum, put_back, format, sum };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a random-k-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_irandom_k_all_reduce(
    group: *mut brv_group,
    input: *const f32,
    n: usize,
    k: usize,
    draw: brv_draw,
    seed: u64,
    step: u64,
    sum: *mut brv_sparse,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = RandomKArguments { input, n, k, draw, seed, step, sum };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a block-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iblock_all_reduce(
    group: *mut brv_group,
    input: *const f32,
    output: *mut f32,
    n: usize,
    block: usize,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = BlockArguments { input, output, n, block };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a quantised-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iquantised_all_reduce(
    group: *mut brv_group,
    input: *const f32,
    output: *mut f32,
    kept: *mut f32,
    n: usize,
    format: brv_values,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = QuantisedArguments { input, output, kept, n, format };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a vote-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ivote_all_reduce(
    group: *mut brv_group,
    input: *const f32,
    output: *mut f32,
    n: usize,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = VoteArguments { input, output, n };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}

/// Starts a low-rank-all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ilow_rank_all_reduce(
    group: *mut brv_group,
    low_rank: *mut brv_low_rank,
    matrices: *const *const f32,
    tensors: usize,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = LowRankArguments { low_rank, matrices, tensors };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, arguments, request, options) }
}
