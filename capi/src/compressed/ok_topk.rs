//! Ok-Topk all-reduce, and the state of a sequence of them as a C handle.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use brevity::Group;
use brevity::compress::{SparseVec, SparseView, state};
use brevity_collectives::sparse::{Coder, OkTopk, OkTopkAllReduce, OkTopkSum, Periods};

use super::entries::{Entries, coder};
use super::held::{Held, Place};
use super::sparse::sparse_of;
use super::{Arguments, Begun, Results, brv_sparse};
use crate::boundary::{guard, hand_out, object};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::policy::brv_values;
use crate::request::{Call, Finished};
use crate::saved::{nothing_follows, write_saved, write_size};
use crate::status::brv_status;

/// What Ok-Topk keeps from step to step. The mutex turns use by two threads at once into an error.
pub struct brv_ok_topk(Mutex<Held<OkTopk>>);

/// Locks the state behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
unsafe fn state_of<'a>(ok_topk: *const brv_ok_topk) -> Result<MutexGuard<'a, Held<OkTopk>>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    let object = unsafe { object(ok_topk, "ok_topk") }?;
    Held::lock(&object.0, "ok_topk", "another thread: give each tensor its own")
}

/// As in C.
pub(super) struct OkTopkArguments {
    pub(super) ok_topk: *mut brv_ok_topk,
    pub(super) entries: Entries,
    pub(super) format: brv_values,
    pub(super) sum: *mut brv_sparse,
    pub(super) kept: *mut brv_sparse,
}

/// What a call needs.
struct Parts<'a> {
    state: MutexGuard<'a, Held<OkTopk>>,
    local: SparseVec,
    coder: Coder,
    results: Results<'a>,
}

impl OkTopkArguments {
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read<'a>(self) -> Result<Parts<'a>, Failure> {
        // SAFETY: the caller of this function guarantees a live state.
        let state = unsafe { state_of(self.ok_topk) }?;
        let (coder, expected) = (coder(self.format)?, state.value.dim());
        if self.entries.dim != expected {
            let found = self.entries.dim;
            return Err(Failure::argument(format!("dim is {found}, expected {expected}, that of ok_topk")));
        }
        // SAFETY: the caller of this function guarantees the entries.
        let local = unsafe { self.entries.read(state.value.limit(), "2 k of ok_topk") }?;
        // SAFETY: the caller of this function guarantees live vectors.
        let results = unsafe { Results::of_sum(self.sum, self.kept, false) }?;
        Ok(Parts { state, local, coder, results })
    }
}

fn results(OkTopkSum { result, put_back }: OkTopkSum) -> Vec<SparseVec> {
    vec![result, put_back]
}

impl Arguments for OkTopkArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let Parts { mut state, local, mut coder, results: places } = unsafe { self.read() }?;
        let sum = group.ok_topk_all_reduce_by(local.view(), &mut state.value, &mut coder)?;
        places.set(results(sum));
        Ok(())
    }

    unsafe fn start<'a>(self, group: &Group, _: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let Parts { mut state, local, coder, results: places } = unsafe { self.read() }?;
        // The object keeps its own, for a call that fails.
        let handle = group.start_ok_topk_all_reduce(local, state.value.clone(), coder);
        let (place, vectors) = (Place::default(), places.places());
        let (after, into) = (place.clone(), vectors.clone());
        let ended = move |(collective, outcome): (OkTopkAllReduce, brevity_collectives::Result<_>)| {
            into.set(results(outcome?));
            after.set(collective.state);
            Ok(None)
        };
        let then = move |call: Option<&Arc<Call>>| {
            if let Some(call) = call {
                state.await_call(call, place);
                places.await_call(call, vectors);
            }
        };
        Ok(Begun { started: Box::new(Finished(handle, ended)), then: Box::new(then) })
    }
}

/// Makes the state before the first step.
///
/// # Safety
/// `group` is NULL or a live group; `ok_topk` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_new(
    group: *const brv_group,
    dim: usize,
    k: usize,
    ok_topk: *mut *mut brv_ok_topk,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        // There are no vectors that are longer.
        SparseView::new(dim, &[], &[]).map_err(brevity::Error::from)?;
        let state = OkTopk::new(dim, k, group.world_size());
        Ok(Some(brv_ok_topk(Mutex::new(Held::new(state)))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(ok_topk, "ok_topk", make) })
}

/// Frees a state. Does nothing for NULL.
///
/// # Safety
/// `ok_topk` is NULL or a live state that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_free(ok_topk: *mut brv_ok_topk) {
    if ok_topk.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        let brv_ok_topk(mutex) = *unsafe { Box::from_raw(ok_topk) };
        Held::end(mutex);
        Ok(())
    });
}

/// Sets the steps from one estimate to the next.
///
/// # Safety
/// `ok_topk` is NULL or a live state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_set_periods(
    ok_topk: *mut brv_ok_topk,
    local_threshold: u32,
    global_threshold: u32,
    partition: u32,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live state.
        let mut state = unsafe { state_of(ok_topk) }?;
        let named = [
            (local_threshold, "local_threshold"),
            (global_threshold, "global_threshold"),
            (partition, "partition"),
        ];
        if let Some((_, name)) = named.into_iter().find(|(steps, _)| *steps == 0) {
            return Err(Failure::argument(format!("{name} is 0, expected 1 step or more")));
        }
        let periods = Periods { local_threshold, global_threshold, partition };
        state.value = state.value.clone().with_periods(periods);
        Ok(())
    })
}

/// Selects a rank's entries for the next step.
///
/// # Safety
/// `ok_topk` and `selected` are NULL or live; `values` has `n` elements, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_select(
    ok_topk: *mut brv_ok_topk,
    values: *const f32,
    n: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live state.
        let mut state = unsafe { state_of(ok_topk) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let mut selected = unsafe { sparse_of(selected, "selected") }?;
        if n != state.value.dim() {
            let expected = state.value.dim();
            return Err(Failure::argument(format!("n is {n}, expected {expected}, the dim of ok_topk")));
        }
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let values = unsafe { Stretch::new(values, n, "values")?.read() };
        let mut entries = SparseVec::new(n);
        state.value.select(values, &mut entries)?;
        selected.value = entries;
        Ok(())
    })
}

/// Stores the number of bytes that [`brv_ok_topk_save`] writes.
///
/// # Safety
/// `ok_topk` is NULL or a live state; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_saved_size(
    ok_topk: *const brv_ok_topk,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live state.
        let state = unsafe { state_of(ok_topk) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(state::saved_bytes(&state.value))) }
    })
}

/// Writes the state to `out`.
///
/// # Safety
/// `ok_topk` is NULL or a live state; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_save(
    ok_topk: *const brv_ok_topk,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live state.
        let state = unsafe { state_of(ok_topk) }?;
        let size = ("brv_ok_topk_saved_size", state::saved_bytes(&state.value));
        let save = |to: &mut &mut [u8]| Ok(state::save(&state.value, to).map_err(brevity::Error::from)?);
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, save) }
    })
}

/// Loads what [`brv_ok_topk_save`] wrote.
///
/// # Safety
/// `ok_topk` is NULL or a live state; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ok_topk_load(
    ok_topk: *mut brv_ok_topk,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live state.
        let mut state = unsafe { state_of(ok_topk) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        let mut loaded = state.value.clone();
        state::load(&mut loaded, &mut saved).map_err(brevity::Error::from)?;
        nothing_follows(saved)?;
        state.value = loaded;
        Ok(())
    })
}
