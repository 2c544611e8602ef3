//! Compressed collectives: a call of C becomes a [`Compressed`] and the places of its results.
//!
//! The functions of C are in `blocking.rs` and `started.rs`, which a test makes from the list in
//! `tests/capi/list_compressed.rs`. They only pass their arguments on. What a collective makes of them is in
//! a file of its own, and so are the objects of programs that compress by themselves.

mod all_gather;
mod blocking;
mod blocks;
mod elias;
mod entries;
mod gtopk;
mod held;
mod hierarchical;
mod low_rank;
mod low_rank_saved;
mod message;
mod method;
mod momentum;
mod ok_topk;
mod quantised;
mod quantiser;
mod random_k;
mod reduce_scatter;
mod residual;
mod selection;
mod sparse;
mod started;
mod topk;
mod vector;
mod vote;

use std::sync::Arc;

use brevity::compress::SparseVec;
use brevity::{Group, Handle};
use brevity_collectives::Compressed;

use crate::boundary::{guard, hand_out};
use crate::callback::check_may_wait;
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::options::{Options, brv_options};
use crate::request::{Call, Finished, Started, brv_request};
use crate::status::brv_status;

pub use blocking::*;
pub use elias::{brv_elias_decode, brv_elias_encode};
pub use hierarchical::brv_leader_sum;
pub use low_rank::{
    brv_low_rank, brv_low_rank_add, brv_low_rank_free, brv_low_rank_mean, brv_low_rank_new, brv_low_rank_own,
    brv_low_rank_warm,
};
pub use low_rank_saved::{brv_low_rank_load, brv_low_rank_save, brv_low_rank_saved_size};
pub use message::{brv_codec, brv_sparse_decode, brv_sparse_encode};
pub use method::{brv_format, brv_magnitude, brv_norm, brv_quantiser_config};
pub use momentum::{
    brv_momentum_residual, brv_momentum_residual_add, brv_momentum_residual_deliver,
    brv_momentum_residual_feed, brv_momentum_residual_free, brv_momentum_residual_load,
    brv_momentum_residual_new, brv_momentum_residual_put_back, brv_momentum_residual_save,
    brv_momentum_residual_saved_size, brv_momentum_residual_select, brv_momentum_residual_select_over,
    brv_momentum_residual_take, brv_momentum_residual_view,
};
pub use ok_topk::{
    brv_ok_topk, brv_ok_topk_free, brv_ok_topk_load, brv_ok_topk_new, brv_ok_topk_save,
    brv_ok_topk_saved_size, brv_ok_topk_select, brv_ok_topk_set_periods,
};
pub use quantiser::{
    brv_quantiser, brv_quantiser_add_to, brv_quantiser_bytes, brv_quantiser_decode, brv_quantiser_encode,
    brv_quantiser_feed, brv_quantiser_free, brv_quantiser_load, brv_quantiser_new, brv_quantiser_put_back,
    brv_quantiser_save, brv_quantiser_saved_size,
};
pub use random_k::brv_draw;
pub use residual::{
    brv_residual, brv_residual_add, brv_residual_clear_at, brv_residual_feed, brv_residual_free,
    brv_residual_load, brv_residual_new, brv_residual_put_back, brv_residual_save, brv_residual_saved_size,
    brv_residual_select, brv_residual_select_over, brv_residual_set, brv_residual_view,
};
pub use selection::{brv_residual_take, brv_selection_rule, brv_selector, brv_sparse_select};
pub use sparse::{
    brv_sparse, brv_sparse_add_to, brv_sparse_clear_in, brv_sparse_count, brv_sparse_free, brv_sparse_new,
    brv_sparse_read, brv_sparse_set, brv_sparse_view,
};
pub use started::*;

use all_gather::SparseAllGatherArguments;
use blocks::BlockArguments;
use entries::Entries;
use gtopk::GtopkArguments;
use hierarchical::HierarchicalArguments;
use low_rank::LowRankArguments;
use ok_topk::OkTopkArguments;
use quantised::QuantisedArguments;
use random_k::RandomKArguments;
use reduce_scatter::SparseReduceScatterArguments;
use sparse::Results;
use topk::TopkArguments;
use vote::VoteArguments;

/// The arguments of a call.
trait Arguments {
    /// Whether the caller may choose an algorithm.
    const HAS_ALGORITHMS: bool = false;

    /// Makes the call and waits for its end.
    ///
    /// # Safety
    /// Until the call has ended, memory and objects are as the header demands, or NULL.
    unsafe fn wait(self, group: &Group) -> Result<(), Failure>;

    /// Starts the call.
    ///
    /// # Safety
    /// As for [`wait`](Self::wait).
    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure>;
}

/// A call that was started, and what becomes of the objects that it uses.
struct Begun<'a> {
    started: Box<dyn Started>,
    then: Box<Then<'a>>,
}

/// Leaves objects to the call, or takes back what they had if it was refused.
type Then<'a> = dyn FnOnce(Option<&Arc<Call>>) + 'a;

impl<'a> Begun<'a> {
    /// Of a call without objects.
    fn on_memory(started: Box<dyn Started>) -> Self {
        Self { started, then: Box::new(|_| ()) }
    }

    /// Of a call whose output are sparse vectors, in the order of their objects.
    fn into_vectors<C: Send + 'static, O: Send + 'static>(
        handle: Handle<(C, brevity_collectives::Result<O>)>,
        results: Results<'a>,
        vectors: impl FnOnce(O) -> Vec<SparseVec> + Send + 'static,
    ) -> Self {
        let places = results.places();
        let into = places.clone();
        let started = Finished(handle, move |(_, outcome): (C, brevity_collectives::Result<O>)| {
            into.set(vectors(outcome?));
            Ok(None)
        });
        let then = move |call: Option<&Arc<Call>>| {
            if let Some(call) = call {
                results.await_call(call, places);
            }
        };
        Self { started: Box::new(started), then: Box::new(then) }
    }
}

/// The arguments of a collective whose results are sparse vectors.
trait SparseArguments: 'static {
    type Collective: Compressed<Output: 'static> + 'static;

    const HAS_ALGORITHMS: bool = false;

    /// The collective, on a copy of the entries, and the objects for its results.
    ///
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read<'a>(self, group: &Group) -> Result<(Self::Collective, Results<'a>), Failure>;

    /// The results in the order of their objects.
    fn results(output: <Self::Collective as Compressed>::Output) -> Vec<SparseVec>;
}

impl<S: SparseArguments> Arguments for S {
    const HAS_ALGORITHMS: bool = S::HAS_ALGORITHMS;

    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (mut collective, results) = unsafe { self.read(group) }?;
        let output = group.call_compressed(&mut collective)?;
        results.set(S::results(output));
        Ok(())
    }

    unsafe fn start<'a>(self, group: &Group, _: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (collective, results) = unsafe { self.read(group) }?;
        Ok(Begun::into_vectors(group.start_compressed(collective), results, S::results))
    }
}

/// Makes a call and waits for its end.
///
/// # Safety
/// `group` is NULL or a live group; `options` are as for `Options::read`; `arguments` as for
/// [`Arguments::wait`].
unsafe fn waiting<A: Arguments>(
    group: *mut brv_group,
    arguments: A,
    options: *const brv_options,
) -> brv_status {
    guard(|| {
        check_may_wait()?;
        // SAFETY: the caller of this function guarantees the options.
        let options = unsafe { options_of::<A>(options) }?;
        let make = || {
            // SAFETY: the caller of this function guarantees a live group.
            let group = unsafe { group_of(group) }?.group();
            // SAFETY: the caller of this function guarantees the arguments.
            unsafe { arguments.wait(&options.on(group)) }
        };
        make().map_err(|failure| options.explain(failure))
    })
}

/// Starts a call and stores its request.
///
/// # Safety
/// As for [`waiting`], until the call has ended; `request` is NULL or may be written.
unsafe fn starting<A: Arguments>(
    group: *mut brv_group,
    arguments: A,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let make = || {
        // SAFETY: the caller of this function guarantees the options.
        let options = unsafe { options_of::<A>(options) }?;
        // SAFETY: the caller of this function guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        // SAFETY: the caller of this function guarantees the arguments.
        let begun = unsafe { arguments.start(&options.on(&shared.group), shared) };
        let Begun { started, then } = begun.map_err(|failure| options.explain(failure))?;
        let call = Call::new(shared, started, options, false);
        then(call.as_ref().ok());
        Ok(Some(brv_request::of(call?)))
    };
    // SAFETY: the caller of this function guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// # Safety
/// As for `Options::read`.
unsafe fn options_of<A: Arguments>(options: *const brv_options) -> Result<Options, Failure> {
    // SAFETY: the caller of this function guarantees the same.
    unsafe { if A::HAS_ALGORITHMS { Options::read_dense(options) } else { Options::read(options) } }
}
