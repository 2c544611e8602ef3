//! Dense collectives that do not block.

use std::ffi::c_void;

use brevity::collectives::dense::AllReduce;
use brevity::{Element, Group, ReduceOp};

use crate::collective::gathered;
use crate::element::{brv_reduction, brv_type, reduction, with_element};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, rank_of};
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::options::brv_options;
use crate::request::{Started, brv_request, finished, start};
use crate::status::brv_status;

type Begun = Result<Box<dyn Started>, Failure>;

/// Starts to wait until all ranks have called this.
///
/// # Safety
/// `group` is NULL or a live group; `request` is NULL or may be written; `options` is NULL or as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ibarrier(
    group: *mut brv_group,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start` demands.
    unsafe { start(group, request, options, |group, _| Ok(finished(group.start_barrier()))) }
}

/// Starts to copy the elements of rank `root` to all ranks.
///
/// # Safety
/// As for [`brv_ibarrier`]; `data` is the memory of `n` elements, which nobody else uses until the call has
/// ended; set on the root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ibroadcast(
    group: *mut brv_group,
    data: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start` demands, and the memory of `data`.
    unsafe {
        start(
            group,
            request,
            options,
            |group, shared| with_element!(r#type, T => broadcast::<T>((group, shared), data.cast(), n, root)),
        )
    }
}

/// Starts to reduce elements over all ranks.
///
/// # Safety
/// As for [`brv_ibarrier`]; `input` and `output` are the memory of `n` elements each, which nobody else uses
/// until the call has ended, set at `input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_reduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start` demands, and the memory of `input` and `output`.
    unsafe {
        start(group, request, options, |group, shared| {
            let how = self::reduction(reduction)?;
            with_element!(r#type, T => {
                all_reduce::<T>((group, shared), input.cast(), output.cast(), n, how)
            })
        })
    }
}

/// Starts to gather the elements of every rank.
///
/// # Safety
/// As for [`brv_ibarrier`]; `own` is the memory of `n` elements and `all` that of as many for each rank,
/// which nobody else uses until the call has ended, set at `own`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_gather(
    group: *mut brv_group,
    own: *const c_void,
    all: *mut c_void,
    n: usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let begin = |group: &Group, shared: &Shared| {
        let around = (group, shared);
        // SAFETY: the caller in C guarantees the memory of `own` and `all`.
        with_element!(r#type, T => unsafe { all_gather::<T>(around, own.cast(), all.cast(), n) })
    };
    // SAFETY: the caller in C guarantees what `start` demands.
    unsafe { start(group, request, options, begin) }
}

/// # Safety
/// As for [`brv_ibroadcast`].
unsafe fn broadcast<T: Element>(
    (group, shared): (&Group, &Shared),
    data: *mut T,
    n: usize,
    root: i32,
) -> Begun {
    let data = Stretch::new(data.cast_const(), n, "data")?;
    let root = rank_of(group, root, "root")?;
    if root != group.rank() {
        // SAFETY: the caller of this function guarantees memory that nobody else uses.
        unsafe { data.unset() };
    }
    // SAFETY: likewise, until the call has ended; set on the root, and elsewhere just now.
    let data = unsafe { Lent::new(data, &shared.loans) };
    Ok(finished(group.start_broadcast(data, root)))
}

/// # Safety
/// As for [`brv_iall_reduce`].
unsafe fn all_reduce<T: Element>(
    (group, shared): (&Group, &Shared),
    input: *const T,
    output: *mut T,
    n: usize,
    how: ReduceOp,
) -> Begun {
    let (input, output) = (Stretch::new(input, n, "in")?, Stretch::new(output.cast_const(), n, "out")?);
    // Checked before `out` is written.
    AllReduce::new::<T>(how)?;
    if !input.is_same(output) {
        input.check_apart(output, "in and out")?;
        // SAFETY: the caller of this function guarantees the memory of both; they are apart, as just checked.
        unsafe { output.copied_from(input) };
    }
    // SAFETY: the caller of this function guarantees memory that nobody else uses until the call has ended;
    // set, or copied just now.
    let output = unsafe { Lent::new(output, &shared.loans) };
    Ok(finished(group.start_all_reduce(output, how)))
}

/// # Safety
/// As for [`brv_iall_gather`].
unsafe fn all_gather<T: Element>(
    (group, shared): (&Group, &Shared),
    own: *const T,
    all: *mut T,
    n: usize,
) -> Begun {
    // SAFETY: the caller of this function guarantees the memory of both.
    let all = unsafe { gathered(group, own, all, n) }?;
    // SAFETY: the caller of this function guarantees memory that nobody else uses until the call has ended;
    // set just now.
    let all = unsafe { Lent::new(all, &shared.loans) };
    Ok(finished(group.start_all_gather_in_place(all)))
}
