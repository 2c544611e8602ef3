//! Sparse vectors as C handles: where the results of collectives on sparse vectors are kept.

use std::sync::{Arc, Mutex, MutexGuard};

use brevity::compress::{SparseVec, SparseView, in_standard_float_mode};

use super::entries::Entries;
use super::held::{Held, Place};
use crate::boundary::{check, guard, hand_out, object};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::request::Call;
use crate::status::brv_status;

/// A sparse vector of the library. The mutex turns use by two threads at once into an error.
#[derive(Default)]
pub struct brv_sparse(Mutex<Held<SparseVec>>);

/// Locks the vector behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(super) unsafe fn sparse_of<'a>(
    sparse: *const brv_sparse,
    name: &str,
) -> Result<MutexGuard<'a, Held<SparseVec>>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    let object = unsafe { object(sparse, name) }?;
    Held::lock(&object.0, name, "another call: give each result its own brv_sparse")
}

/// The objects that get the results of a call, in the order of the results. No other call can use them
/// meanwhile.
pub(super) struct Results<'a>(Vec<Option<MutexGuard<'a, Held<SparseVec>>>>);

/// Where the results of a started call are left.
#[derive(Clone)]
pub(super) struct Places(Vec<Place<SparseVec>>);

impl<'a> Results<'a> {
    /// Holds the objects for a sum and for what this rank keeps, which may be NULL if that is nothing.
    ///
    /// # Safety
    /// As for [`hold`](Self::hold).
    pub(super) unsafe fn of_sum(
        sum: *mut brv_sparse,
        kept: *mut brv_sparse,
        keeps_nothing: bool,
    ) -> Result<Self, Failure> {
        if kept.is_null() && !keeps_nothing {
            return Err(Failure::argument(
                "kept is NULL, expected a brv_sparse: without it, what is not sent is lost",
            ));
        }
        let handles = [(sum, "sum".to_owned(), false), (kept, "kept".to_owned(), keeps_nothing)];
        // SAFETY: the caller of this function guarantees the same.
        unsafe { Self::hold(handles) }
    }

    /// Holds objects, each with its name; some may be NULL, if their result is not wanted.
    ///
    /// # Safety
    /// Each handle is NULL or a live vector, which is not freed during `'a`.
    pub(super) unsafe fn hold(
        handles: impl IntoIterator<Item = (*mut brv_sparse, String, bool)>,
    ) -> Result<Self, Failure> {
        let hold = |(sparse, name, may_be_null): (*mut brv_sparse, String, bool)| {
            if sparse.is_null() && may_be_null {
                return Ok(None);
            }
            // SAFETY: the caller of this function guarantees a live vector.
            unsafe { sparse_of(sparse.cast_const(), &name) }.map(Some)
        };
        handles.into_iter().map(hold).collect::<Result<_, _>>().map(Self)
    }

    /// Puts the results of a call into the objects.
    pub(super) fn set(self, results: Vec<SparseVec>) {
        for (sparse, entries) in self.0.into_iter().zip(results) {
            if let Some(mut sparse) = sparse {
                sparse.value = entries;
            }
        }
    }

    /// New places, one for each result.
    pub(super) fn places(&self) -> Places {
        Places(self.0.iter().map(|_| Place::default()).collect())
    }

    /// Leaves the objects to a started call, which puts its results into the places.
    pub(super) fn await_call(self, call: &Arc<Call>, Places(places): Places) {
        for (sparse, place) in self.0.into_iter().zip(places) {
            if let Some(mut sparse) = sparse {
                sparse.await_call(call, place);
            }
        }
    }
}

impl Places {
    pub(super) fn set(&self, results: Vec<SparseVec>) {
        self.0.iter().zip(results).for_each(|(place, entries)| place.set(entries));
    }
}

/// Makes a vector without entries.
///
/// # Safety
/// `sparse` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_new(sparse: *mut *mut brv_sparse) -> brv_status {
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(sparse, "sparse", || Ok(Some(brv_sparse::default()))) })
}

/// Frees a vector. Does nothing for NULL.
///
/// # Safety
/// `sparse` is NULL or a live vector that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_free(sparse: *mut brv_sparse) {
    if sparse.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        let brv_sparse(mutex) = *unsafe { Box::from_raw(sparse) };
        Held::end(mutex);
        Ok(())
    });
}

/// Stores the number of entries and the dense length.
///
/// # Safety
/// `sparse` is NULL or a live vector; `count` and `dim` are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_count(
    sparse: *const brv_sparse,
    count: *mut usize,
    dim: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let sparse = unsafe { sparse_of(sparse, "sparse") }?;
        check(count, "count")?;
        if !dim.is_null() {
            check(dim, "dim")?;
            // SAFETY: not NULL and aligned; the caller in C guarantees that it may be written.
            unsafe { dim.write(sparse.value.dim()) };
        }
        // SAFETY: likewise.
        unsafe { count.write(sparse.value.len()) };
        Ok(())
    })
}

/// Copies the entries, if there is room for all of them.
///
/// # Safety
/// `sparse` is NULL or a live vector; `indices` and `values` have `capacity` elements that nobody else uses
/// meanwhile; `count` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_read(
    sparse: *const brv_sparse,
    indices: *mut u32,
    values: *mut f32,
    capacity: usize,
    count: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let sparse = unsafe { sparse_of(sparse, "sparse") }?;
        let entries = sparse.value.view();
        check(count, "count")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees that it may be written.
        unsafe { count.write(entries.len()) };
        if capacity < entries.len() {
            let needed = entries.len();
            return Err(Failure::argument(format!(
                "capacity is {capacity}, expected {needed} or more, the number of entries: they are kept, \
                 read them into more memory"
            )));
        }
        let place = Stretch::new(indices.cast_const(), entries.len(), "indices")?;
        let place_of_values = Stretch::new(values.cast_const(), entries.len(), "values")?;
        // SAFETY: the caller in C guarantees as many elements, and there are no more entries.
        unsafe { place.unset() }.copy_from_slice(entries.indices());
        // SAFETY: likewise.
        unsafe { place_of_values.unset() }.copy_from_slice(entries.values());
        Ok(())
    })
}

/// Replaces the entries by a copy of these.
///
/// # Safety
/// `sparse` is NULL or a live vector; `indices` and `values` have `count` elements, set, that nobody writes
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_set(
    sparse: *mut brv_sparse,
    indices: *const u32,
    values: *const f32,
    count: usize,
    dim: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let mut sparse = unsafe { sparse_of(sparse, "sparse") }?;
        // SAFETY: the caller in C guarantees the entries.
        sparse.value = unsafe { Entries { indices, values, count, dim }.read(dim, "dim") }?;
        Ok(())
    })
}

/// Stores where the entries are, and their number.
///
/// # Safety
/// `sparse` is NULL or a live vector; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_view(
    sparse: *const brv_sparse,
    indices: *mut *const u32,
    values: *mut *const f32,
    count: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let sparse = unsafe { sparse_of(sparse, "sparse") }?;
        let entries = sparse.value.view();
        check(indices, "indices")?;
        check(values, "values")?;
        check(count, "count")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees that it may be written.
        unsafe { indices.write(entries.indices().as_ptr()) };
        // SAFETY: likewise.
        unsafe { values.write(entries.values().as_ptr()) };
        // SAFETY: likewise.
        unsafe { count.write(entries.len()) };
        Ok(())
    })
}

/// Adds the entries, times a factor, to a dense vector.
///
/// # Safety
/// `sparse` is NULL or a live vector; `dense` has `n` elements, set, that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_add_to(
    sparse: *const brv_sparse,
    factor: f32,
    dense: *mut f32,
    n: usize,
) -> brv_status {
    let add = |entries: SparseView<'_>, dense: &mut [f32]| {
        in_standard_float_mode(|| entries.add_scaled_to(factor, dense));
    };
    // SAFETY: the caller in C guarantees what `change` demands.
    guard(|| unsafe { change(sparse, dense, n, add) })
}

/// Sets the elements of a dense vector at the indices of the entries to 0.
///
/// # Safety
/// As for [`brv_sparse_add_to`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_clear_in(
    sparse: *const brv_sparse,
    dense: *mut f32,
    n: usize,
) -> brv_status {
    let clear = |entries: SparseView<'_>, dense: &mut [f32]| {
        entries.indices().iter().for_each(|index| dense[*index as usize] = 0.0);
    };
    // SAFETY: the caller in C guarantees what `change` demands.
    guard(|| unsafe { change(sparse, dense, n, clear) })
}

/// Changes a dense vector of the length of a sparse one.
///
/// # Safety
/// As for [`brv_sparse_add_to`].
unsafe fn change(
    sparse: *const brv_sparse,
    dense: *mut f32,
    n: usize,
    how: impl FnOnce(SparseView<'_>, &mut [f32]),
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live vector.
    let sparse = unsafe { sparse_of(sparse, "sparse") }?;
    let entries = sparse.value.view();
    if n != entries.dim() {
        let expected = entries.dim();
        return Err(Failure::argument(format!("n is {n}, expected {expected}, the dim of the vector")));
    }
    // SAFETY: the caller of this function guarantees set memory that nobody else uses.
    how(entries, unsafe { Stretch::new(dense.cast_const(), n, "dense")?.write() });
    Ok(())
}
