//! Saves and loads the states of low rank.

use std::ffi::c_void;

use brevity::compress::state;

use super::low_rank::{brv_low_rank, state_of};
use super::residual::refused;
use crate::boundary::guard;
use crate::memory::Stretch;
use crate::saved::{nothing_follows, write_saved, write_size};
use crate::status::brv_status;

/// Stores the number of bytes that [`brv_low_rank_save`] writes.
///
/// # Safety
/// `low_rank` is NULL or a live object; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_saved_size(
    low_rank: *mut brv_low_rank,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live object.
        let state = unsafe { state_of(low_rank) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(state::saved_bytes(&state.batch))) }
    })
}

/// Writes what the next call begins with to `out`.
///
/// # Safety
/// `low_rank` is NULL or a live object; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_save(
    low_rank: *mut brv_low_rank,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live object.
        let state = unsafe { state_of(low_rank) }?;
        let size = ("brv_low_rank_saved_size", state::saved_bytes(&state.batch));
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, |to| state::save(&state.batch, to).map_err(refused)) }
    })
}

/// Loads what [`brv_low_rank_save`] wrote.
///
/// # Safety
/// `low_rank` is NULL or a live object; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_low_rank_load(
    low_rank: *mut brv_low_rank,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live object.
        let mut state = unsafe { state_of(low_rank) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        // A failure changes nothing.
        let mut loaded = state.batch.clone();
        state::load(&mut loaded, &mut saved).map_err(refused)?;
        nothing_follows(saved)?;
        state.batch = loaded;
        state.factors = None;
        Ok(())
    })
}
