//! Residuals as C handles: what of a tensor's gradients was not sent.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use brevity::compress::feedback::{Gradient, Residual};
use brevity::compress::select::TopKScratch;
use brevity::compress::{Error, SparseVec, SparseView, in_standard_float_mode, state};

use super::brv_sparse;
use super::held::Held;
use super::selection::over;
use super::sparse::sparse_of;
use crate::boundary::{check, free, guard, hand_out, object};
use crate::element::{brv_type, with_gradients};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::saved::{nothing_follows, write_saved, write_size};
use crate::status::brv_status;

/// A residual of the library. The mutex turns use by two threads at once into an error.
pub struct brv_residual(Mutex<Held<Kept>>);

/// A residual and the work space of its selections.
pub(super) struct Kept {
    pub(super) residual: Residual,
    scratch: TopKScratch,
}

impl Kept {
    /// `r += g`, and the `k` largest entries of the sum in its place.
    fn feed(&mut self, gradient: Gradient<'_>, k: usize) -> Result<SparseVec, Failure> {
        let (Self { residual, scratch }, mut selected) = (self, SparseVec::new(gradient.len()));
        let fed = residual.feed_top_k(gradient, k, &mut selected, scratch).map_err(refused)?;
        let Some(first) = fed else { return Ok(selected) };
        residual.put_back(selected.view()).map_err(refused)?;
        residual.withdraw(gradient).map_err(refused)?;
        Err(refused(Error::NonFinite { index: first.index, value: first.value }))
    }

    /// Takes what reaches a threshold, or the `limit` largest entries if these are fewer.
    fn select_over(&mut self, threshold: f32, limit: usize) -> Result<SparseVec, Error> {
        let (Self { residual, scratch }, mut selected) = (self, SparseVec::new(0));
        over(residual.values(), threshold, limit, &mut selected, scratch)?;
        residual.clear_at(selected.indices())?;
        Ok(selected)
    }

    /// Refuses a vector of another length.
    pub(super) fn check_length(&self, found: usize, name: &str) -> Result<(), Failure> {
        let expected = self.residual.len();
        if found == expected {
            return Ok(());
        }
        Err(Failure::argument(format!("{name} is {found}, expected {expected}, the length of the residual")))
    }

    /// Refuses memory of the residual itself, which [`brv_residual_view`] shows.
    fn check_apart<T: Copy>(&self, other: *const T, name: &str) -> Result<(), Failure> {
        let values = self.residual.values();
        let own = Stretch::new(values.as_ptr().cast::<u8>(), size_of_val(values), "residual")?;
        let other = Stretch::new(other.cast::<u8>(), values.len() * size_of::<T>(), name)?;
        own.check_apart(other, &format!("{name} and the residual itself"))
    }
}

/// Locks the residual behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(super) unsafe fn residual_of<'a>(
    residual: *const brv_residual,
) -> Result<MutexGuard<'a, Held<Kept>>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    let object = unsafe { object(residual, "residual") }?;
    Held::lock(&object.0, "residual", "another thread: give each tensor its own")
}

/// The gradient of a residual, of any type.
///
/// # Safety
/// `start` has `n` elements of the type, set, that nobody writes during `'a`.
pub(super) unsafe fn gradient_of<'a>(
    kept: &Kept,
    start: *const c_void,
    n: usize,
    r#type: brv_type,
) -> Result<Gradient<'a>, Failure> {
    with_gradients!(r#type, E => {
        let gradient = Stretch::new(start.cast::<E>(), n, "gradient")?;
        kept.check_length(n, "n")?;
        kept.check_apart(start.cast::<E>(), "gradient")?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes.
        let gradient: &'a [E] = unsafe { gradient.read() };
        Ok(Gradient::from(gradient))
    })
}

/// Makes a residual of zeros.
///
/// # Safety
/// `residual` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_new(n: usize, residual: *mut *mut brv_residual) -> brv_status {
    let make = || {
        // No index reaches longer ones.
        SparseView::new(n, &[], &[]).map_err(refused)?;
        let residual = Residual::try_new(n).map_err(refused)?;
        let kept = Kept { residual, scratch: TopKScratch::new() };
        Ok(Some(brv_residual(Mutex::new(Held::new(kept)))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(residual, "residual", make) })
}

/// Frees a residual. Does nothing for NULL.
///
/// # Safety
/// `residual` is NULL or a live residual that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_free(residual: *mut brv_residual) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(residual) }
}

/// Stores where the values are, and their number.
///
/// # Safety
/// `residual` is NULL or a live residual; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_view(
    residual: *const brv_residual,
    values: *mut *const f32,
    n: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { residual_of(residual) }?;
        check(values, "values")?;
        check(n, "n")?;
        let own = kept.value.residual.values();
        // SAFETY: not NULL and aligned; the caller in C guarantees that it may be written.
        unsafe { values.write(own.as_ptr()) };
        // SAFETY: likewise.
        unsafe { n.write(own.len()) };
        Ok(())
    })
}

/// Replaces the values.
///
/// # Safety
/// `residual` is NULL or a live residual; `values` has `n` elements, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_set(
    residual: *mut brv_residual,
    values: *const f32,
    n: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        kept.value.check_length(n, "n")?;
        let place = Stretch::new(values, n, "values")?;
        kept.value.check_apart(values, "values")?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let values = unsafe { place.read() };
        kept.value.residual.load(values).map_err(refused)
    })
}

/// Adds a gradient.
///
/// # Safety
/// `residual` is NULL or a live residual; `gradient` has `n` elements of the type, set, that nobody writes
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_add(
    residual: *mut brv_residual,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let gradient = unsafe { gradient_of(&kept.value, gradient, n, r#type) }?;
        in_standard_float_mode(|| kept.value.feed(gradient, 0)).map(drop)
    })
}

/// Adds a gradient and takes the largest entries.
///
/// # Safety
/// As for [`brv_residual_add`]; `selected` is NULL or a live vector.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_feed(
    residual: *mut brv_residual,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
    k: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    let feed = |kept: &mut Kept| {
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let gradient = unsafe { gradient_of(kept, gradient, n, r#type) }?;
        kept.feed(gradient, k)
    };
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take(residual, selected, feed) })
}

/// Takes the largest entries.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_select(
    residual: *mut brv_residual,
    k: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    let select = |kept: &mut Kept| {
        let mut entries = SparseVec::new(0);
        kept.residual.select(k, &mut entries, &mut kept.scratch).map_err(refused)?;
        Ok(entries)
    };
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take(residual, selected, select) })
}

/// Takes the entries that reach a threshold.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_select_over(
    residual: *mut brv_residual,
    threshold: f32,
    limit: usize,
    selected: *mut brv_sparse,
) -> brv_status {
    let select = |kept: &mut Kept| kept.select_over(threshold, limit).map_err(refused);
    // SAFETY: the caller in C guarantees live objects.
    guard(|| unsafe { take(residual, selected, select) })
}

/// Puts what is taken from a residual into a vector.
///
/// # Safety
/// `residual` and `selected` are NULL or live.
unsafe fn take(
    residual: *mut brv_residual,
    selected: *mut brv_sparse,
    how: impl FnOnce(&mut Kept) -> Result<SparseVec, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live residual.
    let mut kept = unsafe { residual_of(residual) }?;
    // SAFETY: the caller of this function guarantees a live vector.
    let mut selected = unsafe { sparse_of(selected, "selected") }?;
    selected.value = in_standard_float_mode(|| how(&mut kept.value))?;
    Ok(())
}

/// Adds entries that were not delivered.
///
/// # Safety
/// `residual` and `entries` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_put_back(
    residual: *mut brv_residual,
    entries: *const brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let entries = unsafe { sparse_of(entries, "entries") }?;
        kept.value.check_length(entries.value.dim(), "the dim of entries")?;
        in_standard_float_mode(|| kept.value.residual.put_back(entries.value.view())).map_err(refused)
    })
}

/// Sets the elements at the indices of entries to 0.
///
/// # Safety
/// `residual` and `entries` are NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_clear_at(
    residual: *mut brv_residual,
    entries: *const brv_sparse,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees a live vector.
        let entries = unsafe { sparse_of(entries, "entries") }?;
        kept.value.check_length(entries.value.dim(), "the dim of entries")?;
        kept.value.residual.clear_at(entries.value.indices()).map_err(refused)
    })
}

/// Stores the number of bytes that [`brv_residual_save`] writes.
///
/// # Safety
/// `residual` is NULL or a live residual; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_saved_size(
    residual: *const brv_residual,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(state::saved_bytes(&kept.value.residual))) }
    })
}

/// Writes the residual to `out`.
///
/// # Safety
/// `residual` is NULL or a live residual; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_save(
    residual: *const brv_residual,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let kept = unsafe { residual_of(residual) }?;
        let residual = &kept.value.residual;
        let size = ("brv_residual_saved_size", state::saved_bytes(residual));
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, |to| state::save(residual, to).map_err(refused)) }
    })
}

/// Loads what [`brv_residual_save`] wrote.
///
/// # Safety
/// `residual` is NULL or a live residual; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_residual_load(
    residual: *mut brv_residual,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        // A failure changes nothing.
        let mut loaded = Residual::try_new(kept.value.residual.len()).map_err(refused)?;
        state::load(&mut loaded, &mut saved).map_err(refused)?;
        nothing_follows(saved)?;
        kept.value.residual = loaded;
        Ok(())
    })
}

/// What the arithmetic refuses.
pub(super) fn refused(error: Error) -> Failure {
    brevity::Error::from(error).into()
}
