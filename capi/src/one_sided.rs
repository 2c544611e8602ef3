//! Memory that peers read and write.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use ucx_sys_wrap::RegionKey;
use ucx_sys_wrap::buffer::{LentMemory, Region, RemoteRegion};

use crate::boundary::{check, free, guard, guard_pending, hand_out, object};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of, rank_of};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// The most bytes of a key.
const MAX_KEY_BYTES: usize = 1024;

/// Memory of this rank that peers put to and get from.
pub struct brv_memory {
    /// Before the group.
    region: Region<LentMemory>,
    /// Keeps the job, whose calls and thread carry out what peers ask for.
    group: Arc<Shared>,
}

/// What a peer needs to know of it.
#[repr(C)]
pub struct brv_memory_key {
    length: u32,
    bytes: [u8; MAX_KEY_BYTES],
}

/// A region of a peer that this rank has opened.
pub struct brv_remote_memory {
    /// Before the group.
    region: RemoteRegion,
    group: Arc<Shared>,
}

/// Registers memory and stores its key.
///
/// # Safety
/// `group` is NULL or a live group; `start` has `bytes` bytes, set, until the region has been freed, or until
/// the process ends if that has not given them back; meanwhile nobody else writes them, or reads what peers
/// write at that time. `memory` and `key` are NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_memory_register(
    group: *mut brv_group,
    start: *mut c_void,
    bytes: usize,
    memory: *mut *mut brv_memory,
    key: *mut brv_memory_key,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        check(key, "key")?;
        let stretch = Stretch::<u8>::new(start.cast(), bytes, "start")?;
        // SAFETY: the caller in C guarantees the memory. This reference ends here.
        let start = NonNull::from(unsafe { stretch.write() }).cast();
        // SAFETY: the caller in C guarantees the memory until it is given back.
        let lent = unsafe { LentMemory::new(start, bytes) };
        let region = group.group().register(lent)?;
        let made = pack(region.key())?;
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { key.write(made) };
        Ok(Some(brv_memory { region, group: Arc::clone(group.shared()) }))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(memory, "memory", make) })
}

/// Ends all access and frees the region. Does nothing for NULL.
///
/// # Safety
/// `memory` is NULL or a live region that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_memory_free(memory: *mut brv_memory) -> brv_status {
    guard_pending(|| {
        if memory.is_null() {
            return Ok(brv_status::Ok);
        }
        // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
        let memory = *unsafe { Box::from_raw(memory) };
        // A child's copy of the memory is out of everybody's reach.
        if memory.group.group.check_process().is_err() {
            std::mem::forget(memory);
            return Ok(brv_status::Ok);
        }
        let brv_memory { region, group } = memory;
        let is_given_back = region.unregister().is_some();
        drop(group);
        Ok(brv_status::of_done(is_given_back))
    })
}

/// Opens a peer's region.
///
/// # Safety
/// `group` is NULL or a live group; `key` is NULL or a key, set; `memory` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_remote_memory_open(
    group: *mut brv_group,
    owner: i32,
    key: *const brv_memory_key,
    memory: *mut *mut brv_remote_memory,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        let owner = rank_of(group.group(), owner, "owner")?;
        // SAFETY: the caller in C guarantees a key.
        let brv_memory_key { length, bytes } = unsafe { object(key, "key") }?;
        let Some(bytes) = bytes.get(..*length as usize) else {
            return Err(Failure::argument(format!(
                "key.length is {length}, expected at most {MAX_KEY_BYTES}: send the whole brv_memory_key"
            )));
        };
        let region = group.group().open_region(owner, bytes)?;
        Ok(Some(brv_remote_memory { region, group: Arc::clone(group.shared()) }))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(memory, "memory", make) })
}

/// Closes a peer's region. Does nothing for NULL.
///
/// # Safety
/// `memory` is NULL or a live region that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_remote_memory_free(memory: *mut brv_remote_memory) {
    // SAFETY: the caller in C guarantees a live region, or NULL.
    let is_of_parent = unsafe { memory.as_ref() }.is_some_and(|memory| {
        // In a forked child everything but the handle is the parent's.
        memory.group.group.check_process().is_err()
    });
    if !is_of_parent {
        // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
        unsafe { free(memory) }
    }
}

/// Writes bytes to a peer's memory.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `bytes` bytes, set, that nobody writes meanwhile; `to` is NULL
/// or a live region; `options` as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_put(
    group: *mut brv_group,
    data: *const c_void,
    bytes: usize,
    to: *mut brv_remote_memory,
    offset: usize,
    options: *const brv_options,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group and region.
        let (group, to) = unsafe { (group_of(group)?, object(to, "to")?) };
        check_job(group, to)?;
        let data = Stretch::<u8>::new(data.cast(), bytes, "data")?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        Ok(options.on(group.group()).put(unsafe { data.read() }, &to.region, offset)?)
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// Reads bytes from a peer's memory.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `bytes` bytes that nobody else uses meanwhile; `from` is NULL
/// or a live region; `options` as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_get(
    group: *mut brv_group,
    data: *mut c_void,
    bytes: usize,
    from: *mut brv_remote_memory,
    offset: usize,
    options: *const brv_options,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group and region.
        let (group, from) = unsafe { (group_of(group)?, object(from, "from")?) };
        check_job(group, from)?;
        let data = Stretch::<u8>::new(data.cast(), bytes, "data")?;
        // SAFETY: the caller in C guarantees memory that nobody else uses.
        Ok(options.on(group.group()).get(unsafe { data.unset() }, &from.region, offset)?)
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// Waits until earlier puts to a rank have reached its memory.
///
/// # Safety
/// `group` is NULL or a live group; `options` as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_flush(
    group: *mut brv_group,
    to: i32,
    options: *const brv_options,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let to = rank_of(group, to, "to")?;
        Ok(options.on(group).flush(to)?)
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// A key as C has it.
fn pack(key: &RegionKey) -> Result<brv_memory_key, Failure> {
    let key = key.to_bytes();
    let mut packed = brv_memory_key { length: key.len() as u32, bytes: [0; MAX_KEY_BYTES] };
    let found = key.len();
    let place = packed.bytes.get_mut(..found).ok_or_else(|| {
        // No transport has such keys yet.
        let why = format!("its key has {found} bytes, and brv_memory_key only {MAX_KEY_BYTES}");
        ucx_sys_wrap::Error::Unavailable { name: "ucx", why }
    })?;
    place.copy_from_slice(&key);
    Ok(packed)
}

/// Refuses a region that was opened in another job.
fn check_job(group: &brv_group, memory: &brv_remote_memory) -> Result<(), Failure> {
    if Arc::ptr_eq(group.group().engine(), memory.group.group.engine()) {
        return Ok(());
    }
    Err(Failure::argument("the memory was opened with a group of another job: use a group of that job"))
}
