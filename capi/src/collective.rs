//! Collectives on dense vectors.

use std::ffi::c_void;

use brevity::collectives::dense::AllReduce;
use brevity::{Element, Group, ReduceOp};

use crate::element::{brv_reduction, brv_type, reduction, with_element};
use crate::failure::Failure;
use crate::group::{brv_group, group_of};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// Waits until all ranks have called this.
///
/// # Safety
/// `group` is NULL or a live group; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_barrier(group: *mut brv_group, options: *const brv_options) -> brv_status {
    // SAFETY: the caller in C guarantees a live group.
    let barrier = |options: &Options| Ok(options.on(unsafe { group_of(group) }?.group()).barrier()?);
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, barrier) }
}

/// Copies `data` of rank `root` to all ranks.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `n` elements of `r#type` that nobody else uses meanwhile, set
/// on the root; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_broadcast(
    group: *mut brv_group,
    data: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let broadcast = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = &*options.on(unsafe { group_of(group) }?.group());
        // SAFETY: the caller in C guarantees the memory of `data`.
        with_element!(r#type, T => unsafe { broadcast::<T>(group, data.cast(), n, root) })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, broadcast) }
}

/// Reduces `input` over all ranks into `output`, which may be the same memory.
///
/// # Safety
/// `group` is NULL or a live group; `input` and `output` have `n` elements of `r#type`; those of `input` are
/// set, and nobody else writes them meanwhile; nobody else uses those of `output` meanwhile; `options` are as
/// for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_reduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    options: *const brv_options,
) -> brv_status {
    let all_reduce = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = &*options.on(unsafe { group_of(group) }?.group());
        let how = self::reduction(reduction)?;
        // SAFETY: the caller in C guarantees the memory of `input` and `output`.
        with_element!(r#type, T => unsafe { all_reduce::<T>(group, input.cast(), output.cast(), n, how) })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, all_reduce) }
}

/// Gathers `own` of every rank into `all`, in rank order.
///
/// # Safety
/// `group` is NULL or a live group; `own` has `n` elements of `r#type`, set, that nobody writes meanwhile;
/// `all` has `n` for each rank, that nobody else uses meanwhile; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_gather(
    group: *mut brv_group,
    own: *const c_void,
    all: *mut c_void,
    n: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let all_gather = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = &*options.on(unsafe { group_of(group) }?.group());
        // SAFETY: the caller in C guarantees the memory of `own` and `all`.
        with_element!(r#type, T => unsafe { all_gather::<T>(group, own.cast(), all.cast(), n) })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, all_gather) }
}

/// # Safety
/// Like [`brv_broadcast`].
unsafe fn broadcast<T: Element>(group: &Group, data: *mut T, n: usize, root: i32) -> Result<(), Failure> {
    let data = Stretch::new(data, n, "data")?;
    let size = group.world_size();
    let Some(root) = u32::try_from(root).ok().filter(|&root| root < size) else {
        return Err(Failure::argument(format!(
            "root is {root}, expected a rank of the group (0 to {})",
            size - 1
        )));
    };
    let data = if root == group.rank() {
        // SAFETY: the caller in C guarantees memory that nobody else uses, set on the root.
        unsafe { data.write() }
    } else {
        // SAFETY: as above; on other ranks than the root the elements need not be set.
        unsafe { data.zeroed() }
    };
    Ok(group.broadcast(data, root)?)
}

/// # Safety
/// Like [`brv_all_reduce`].
unsafe fn all_reduce<T: Element>(
    group: &Group,
    input: *const T,
    output: *mut T,
    n: usize,
    reduction: ReduceOp,
) -> Result<(), Failure> {
    let (input, output) = (Stretch::new(input, n, "in")?, Stretch::new(output, n, "out")?);
    // Checked before `out` is written.
    AllReduce::new::<T>(reduction)?;
    let data = if input.is_same(output) {
        // SAFETY: the caller in C guarantees set memory that nobody else uses.
        unsafe { output.write() }
    } else {
        input.check_apart(output, "in and out")?;
        // Copied, so that `in` stays unchanged.
        // SAFETY: the caller in C guarantees the memory of both; they are apart, as just checked.
        unsafe { output.copied_from(input) }
    };
    Ok(group.all_reduce(data, reduction)?)
}

/// # Safety
/// Like [`brv_all_gather`].
unsafe fn all_gather<T: Element>(group: &Group, own: *const T, all: *mut T, n: usize) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees the memory of both.
    let all = unsafe { gathered(group, own, all, n) }?;
    // SAFETY: the caller of this function guarantees memory that nobody else uses; set just now.
    Ok(group.all_gather_in_place(unsafe { all.write() })?)
}

/// The memory of all ranks' elements, with those of this one in their place.
///
/// # Safety
/// Like [`brv_all_gather`].
pub(crate) unsafe fn gathered<T: Element>(
    group: &Group,
    own: *const T,
    all: *mut T,
    n: usize,
) -> Result<Stretch<T>, Failure> {
    let Some(total) = n.checked_mul(group.world_size() as usize) else {
        return Err(Failure::argument(format!("n is {n}, which no memory can hold for every rank: check n")));
    };
    let (own, all) = (Stretch::new(own, n, "own")?, Stretch::new(all.cast_const(), total, "all")?);
    let (before, rest) = all.split(group.rank() as usize * n);
    let (part, after) = rest.split(n);
    if !own.is_same(part) {
        own.check_apart(all, "own and all, and own is not this rank's place in all,")?;
        // SAFETY: the caller of this function guarantees the memory of both; they are apart, as just checked.
        unsafe { part.copied_from(own) };
    }
    // SAFETY: the caller of this function guarantees memory that nobody else uses.
    unsafe { (before.unset(), after.unset()) };
    Ok(all)
}
