//! The boundary between C and Rust: no panic and no unchecked pointer crosses it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::callback::check_may_call;
use crate::failure::Failure;
use crate::status::brv_status;

/// Runs a function's body. A failure or a panic becomes a status and the thread's last error. In a reduction
/// of the program it is refused.
///
/// The body counts as unwind safe: the state that a panic leaves half done is behind a mutex, which the panic
/// poisons, or is not used again.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Failure>) -> brv_status {
    guard_anywhere(|| {
        check_may_call()?;
        body()
    })
}

/// Like [`guard`], also in a reduction, which a signal handler may have interrupted.
pub(crate) fn guard_anywhere(body: impl FnOnce() -> Result<(), Failure>) -> brv_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => brv_status::Ok,
        Ok(Err(failure)) => failure.record(),
        Err(payload) => {
            let status = Failure::panic(&*payload).record();
            // Dropping a payload may panic again.
            std::mem::forget(payload);
            status
        }
    }
}

/// Like [`guard`], for what may be pending.
pub(crate) fn guard_pending(body: impl FnOnce() -> Result<brv_status, Failure>) -> brv_status {
    let mut status = brv_status::Ok;
    let failed = guard(|| {
        status = body()?;
        Ok(())
    });
    if failed == brv_status::Ok { status } else { failed }
}

/// Like [`guard`], for a function that returns a value; returns `otherwise` after a failure.
pub(crate) fn guard_value<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut value = otherwise;
    let place = &mut value;
    guard(move || {
        *place = body()?;
        Ok(())
    });
    value
}

/// The object behind a handle.
///
/// # Safety
/// `handle` is NULL, or points to a live `T` which is not freed and not mutably borrowed during `'a`.
pub(crate) unsafe fn object<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    check(handle, name)?;
    // SAFETY: not NULL and aligned, as just checked; live and unborrowed, as the caller of this function
    // guarantees.
    Ok(unsafe { &*handle })
}

/// Stores a new object in `*place`, as a handle that [`free`] takes; NULL if `make` gives none, or fails.
///
/// # Safety
/// `place` is NULL, or may be written.
pub(crate) unsafe fn hand_out<T>(
    place: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<Option<T>, Failure>,
) -> Result<(), Failure> {
    check(place, name)?;
    // SAFETY: not NULL and aligned, as just checked; writable, as the caller of this function guarantees.
    unsafe { place.write(std::ptr::null_mut()) };
    if let Some(object) = make()? {
        let handle = Box::into_raw(Box::new(object));
        // SAFETY: as above.
        unsafe { place.write(handle) };
    }
    Ok(())
}

/// Drops the object behind a handle. Does nothing for NULL. Catches a panic of the object's destructor.
///
/// # Safety
/// `handle` is NULL or comes from [`hand_out`], and is not used again.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller of this function gives
        // it up.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    });
}

/// Refuses a pointer that is NULL or not aligned.
pub(crate) fn check<T>(pointer: *const T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL, expected a valid pointer")));
    }
    check_aligned(pointer, align_of::<T>(), name)
}

/// Refuses a pointer that is not aligned to so many bytes, a power of two.
pub(crate) fn check_aligned<T>(pointer: *const T, bytes: usize, name: &str) -> Result<(), Failure> {
    if !pointer.addr().is_multiple_of(bytes) {
        return Err(Failure::argument(format!(
            "{name} is {pointer:p}, expected a multiple of {bytes} bytes"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{brv_last_error, brv_last_error_rank};
    use std::ffi::CStr;

    fn last_error() -> String {
        // SAFETY: the text lives until this thread's next failure.
        unsafe { CStr::from_ptr(brv_last_error()) }.to_str().unwrap().to_owned()
    }

    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_message() {
        assert_eq!(guard(|| panic!("index {} is out of range", 7)), brv_status::Panic);
        assert!(last_error().contains("index 7 is out of range"), "{}", last_error());
        assert_eq!(brv_last_error_rank(), -1);
    }

    #[test]
    fn a_payload_that_panics_when_dropped_stays_inside() {
        assert_eq!(guard(|| std::panic::panic_any(PanicsWhenDropped)), brv_status::Panic);
        assert_eq!(guard_value(5, || std::panic::panic_any(PanicsWhenDropped)), 5);
    }

    #[test]
    fn what_is_not_done_is_pending_and_no_failure() {
        Failure::argument("before").record();
        assert_eq!(guard_pending(|| Ok(brv_status::of_done(false))), brv_status::Pending);
        assert_eq!(guard_pending(|| Ok(brv_status::of_done(true))), brv_status::Ok);
        assert_eq!(last_error(), "before");
        assert_eq!(guard_pending(|| Err(Failure::argument("now"))), brv_status::Argument);
    }

    #[test]
    fn a_destructor_that_panics_stays_inside() {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is a local variable.
        unsafe { hand_out(&raw mut handle, "handle", || Ok(Some(PanicsWhenDropped))) }.unwrap();
        // SAFETY: the handle comes from `hand_out` and is not used again.
        unsafe { free(handle) };
        assert!(last_error().contains("dropped"));
    }

    #[test]
    fn a_failed_constructor_leaves_null() {
        let mut handle = std::ptr::dangling_mut::<u8>();
        // SAFETY: the place is a local variable.
        let outcome = unsafe { hand_out::<u8>(&raw mut handle, "handle", || Err(Failure::argument("no"))) };
        assert!(outcome.is_err() && handle.is_null());
    }

    #[test]
    fn a_constructor_of_nothing_leaves_null() {
        let mut handle = std::ptr::dangling_mut::<u8>();
        // SAFETY: the place is a local variable.
        let outcome = unsafe { hand_out(&raw mut handle, "handle", || Ok(None)) };
        assert!(outcome.is_ok() && handle.is_null());
    }

    #[test]
    fn pointers_are_checked_for_null_and_alignment() {
        let words = [0u32; 2];
        assert!(check(words.as_ptr(), "words").is_ok());
        assert!(check(words.as_ptr().wrapping_byte_add(1), "words").is_err());
        assert!(check(std::ptr::null::<u32>(), "words").is_err());
    }

    #[test]
    fn texts_with_nul_bytes_are_kept() {
        assert_eq!(Failure::argument("a\0b").record(), brv_status::Argument);
        assert_eq!(last_error(), "a b");
    }
}
