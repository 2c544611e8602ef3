//! Residuals with momentum as C handles: momentum correction, and sparsification-aware momentum.

mod kept;

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use brevity::compress::momentum::Clip;
use brevity::compress::{SparseVec, SparseView, in_standard_float_mode, state};

use super::brv_sparse;
use super::held::Held;
use super::residual::refused;
use super::sparse::sparse_of;
use crate::boundary::{check, free, guard, hand_out, object};
use crate::element::brv_type;
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::policy::brv_momentum;
use crate::saved::{nothing_follows, write_saved, write_size};
use crate::status::brv_status;
use kept::{Kept, Rule};

/// A residual with momentum. The mutex turns use by two threads at once into an error.
pub struct brv_momentum_residual(Mutex<Held<Kept>>);

/// Locks the residual behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
unsafe fn kept_of<'a>(residual: *const brv_momentum_residual) -> Result<MutexGuard<'a, Held<Kept>>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    let object = unsafe { object(residual, "residual") }?;
    Held::lock(&object.0, "residual", "another thread: give each tensor its own")
}

/// Makes a residual of zeros.
///
/// # Safety
/// `residual` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_new(
    n: usize,
    rule: brv_momentum,
    momentum: f64,
    clip: f64,
    ranks: u32,
    residual: *mut *mut brv_momentum_residual,
) -> brv_status {
    let make = || {
        // No index reaches longer ones.
        SparseView::new(n, &[], &[]).map_err(refused)?;
        let clip = match clip {
            0.0 => None,
            limit => Some(Clip::new(limit, ranks as usize).map_err(refused)?),
        };
        let kept = Kept::new(n, rule, momentum, clip)?;
        Ok(Some(brv_momentum_residual(Mutex::new(Held::new(kept)))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(residual, "residual", make) })
}

/// Frees a residual. Does nothing for NULL.
///
/// # Safety
/// `residual` is NULL or a live residual that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_free(residual: *mut brv_momentum_residual) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(residual) }
}

/// Stores where the values and the velocity are, and their number.
///
/// # Safety
/// `residual` is NULL or a live residual; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_view(
    residual: *const brv_momentum_residual,
    values: *mut *const f32,
    velocity: *mut *const f32,
    n: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { kept_of(residual) }?;
        check(values, "values")?;
        check(n, "n")?;
        if !velocity.is_null() {
            check(velocity, "velocity")?;
            let own = match &kept.value.rule {
                Rule::Corrected(corrected) => corrected.velocity().as_ptr(),
                Rule::Aware(_) => std::ptr::null(),
            };
            // SAFETY: not NULL and aligned; the caller in C guarantees that it may be written.
            unsafe { velocity.write(own) };
        }
        let own = kept.value.rule.values();
        // SAFETY: likewise.
        unsafe { values.write(own.as_ptr()) };
        // SAFETY: likewise.
        unsafe { n.write(own.len()) };
        Ok(())
    })
}

/// Adds a gradient.
///
/// # Safety
/// `residual` is NULL or a live residual; `gradient` has `n` elements of the type, set, that nobody writes
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_add(
    residual: *mut brv_momentum_residual,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { kept_of(residual) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        in_standard_float_mode(|| unsafe { kept.value.feed(gradient, n, r#type, 0) }).map(drop)
    })
}

/// Adds a gradient and takes the largest entries.
///
/// # Safety
/// As for [`brv_momentum_residual_add`]; `selected` is NULL or a live vector.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_feed(
    residual: *mut brv_momentum_residual,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
    k: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    // SAFETY: the caller in C guarantees set memory that nobody writes.
    let feed = |kept: &mut Kept| unsafe { kept.feed(gradient, n, r#type, k) };
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take_into(residual, selected, feed) })
}

/// Takes the largest entries.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_select(
    residual: *mut brv_momentum_residual,
    k: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take_into(residual, selected, |kept| kept.select(k)) })
}

/// Takes the entries that reach a threshold.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_select_over(
    residual: *mut brv_momentum_residual,
    threshold: f32,
    limit: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take_into(residual, selected, |kept| kept.select_over(threshold, limit)) })
}

/// Takes these entries.
///
/// # Safety
/// `residual` and `entries` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_take(
    residual: *mut brv_momentum_residual,
    entries: *const brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { kept_of(residual) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let entries = unsafe { sparse_of(entries, "entries") }?;
        kept.value.check_entries(&entries.value, "entries")?;
        in_standard_float_mode(|| kept.value.take(&entries.value))
    })
}

/// All was delivered.
///
/// # Safety
/// `residual` is NULL or a live residual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_deliver(residual: *mut brv_momentum_residual) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { kept_of(residual) }?;
        in_standard_float_mode(|| kept.value.rule.deliver());
        kept.value.is_taken = true;
        Ok(())
    })
}

/// Takes entries back.
///
/// # Safety
/// `residual` and `entries` are NULL or live; `delivered` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_put_back(
    residual: *mut brv_momentum_residual,
    entries: *const brv_sparse,
    delivered: *const brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { kept_of(residual) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let entries = unsafe { sparse_of(entries, "entries") }?;
        kept.value.check_entries(&entries.value, "entries")?;
        let delivered = if delivered.is_null() {
            None
        } else {
            // SAFETY: the caller in C guarantees a live vector.
            Some(unsafe { sparse_of(delivered, "delivered") }?)
        };
        let mut sent: &[u32] = &[];
        if let Some(delivered) = &delivered {
            kept.value.check_entries(&delivered.value, "delivered")?;
            sent = delivered.value.indices();
        }
        in_standard_float_mode(|| kept.value.rule.put_back(&entries.value, sent)).map_err(refused)
    })
}

/// Puts what is taken from a residual into a vector.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
unsafe fn take_into(
    residual: *mut brv_momentum_residual,
    selected: *mut brv_sparse,
    how: impl FnOnce(&mut Kept) -> Result<SparseVec, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live residual.
    let mut kept = unsafe { kept_of(residual) }?;
    // SAFETY: the caller of this function guarantees a live vector.
    let mut selected = unsafe { sparse_of(selected, "selected") }?;
    selected.value = in_standard_float_mode(|| how(&mut kept.value))?;
    Ok(())
}

/// Stores the number of bytes that [`brv_momentum_residual_save`] writes.
///
/// # Safety
/// `residual` is NULL or a live residual; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_saved_size(
    residual: *const brv_momentum_residual,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { kept_of(residual) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(kept.value.rule.saved_bytes())) }
    })
}

/// Writes the residual to `out`.
///
/// # Safety
/// `residual` is NULL or a live residual; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_save(
    residual: *const brv_momentum_residual,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { kept_of(residual) }?;
        let rule = &kept.value.rule;
        let size = ("brv_momentum_residual_saved_size", rule.saved_bytes());
        let save = |to: &mut &mut [u8]| match rule {
            Rule::Corrected(corrected) => state::save(corrected, to).map_err(refused),
            Rule::Aware(aware) => state::save(aware, to).map_err(refused),
        };
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, save) }
    })
}

/// Loads what [`brv_momentum_residual_save`] wrote.
///
/// # Safety
/// `residual` is NULL or a live residual; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_momentum_residual_load(
    residual: *mut brv_momentum_residual,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { kept_of(residual) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        // A failure changes nothing.
        let mut loaded = kept.value.rule.clone();
        match &mut loaded {
            Rule::Corrected(corrected) => state::load(corrected, &mut saved),
            Rule::Aware(aware) => state::load(aware, &mut saved),
        }
        .map_err(refused)?;
        nothing_follows(saved)?;
        kept.value.rule = loaded;
        // The last message of the saved state counts as delivered.
        kept.value.is_taken = true;
        Ok(())
    })
}
