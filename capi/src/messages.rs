//! Messages between two ranks.

use std::ffi::c_void;

use brevity::{Group, Message};

use crate::boundary::{check, guard_pending};
use crate::element::{brv_type, with_element};
use crate::failure::Failure;
use crate::group::{brv_group, group_of, rank_of, small};
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// Any rank, as a source; any tag.
pub(crate) const ANY: i32 = -1;

/// A message that was received, or that has come.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct brv_message {
    source: i32,
    tag: i32,
    bytes: u64,
}

impl From<Message> for brv_message {
    fn from(message: Message) -> Self {
        let Message { source, tag, bytes } = message;
        // Tags have 31 bits.
        Self { source: small(source), tag: tag.cast_signed(), bytes: bytes as u64 }
    }
}

/// Sends `n` elements to rank `to`.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `n` elements of `r#type`, set, that nobody writes meanwhile;
/// `options` as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_send(
    group: *mut brv_group,
    data: *const c_void,
    n: usize,
    r#type: brv_type,
    to: i32,
    tag: i32,
    options: *const brv_options,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        with_element!(r#type, T => {
            let (data, to, tag) = sending::<T>(group, data.cast(), n, (to, tag))?;
            // SAFETY: the caller in C guarantees set memory that nobody writes.
            Ok(options.on(group).send(unsafe { data.read() }, to, tag)?)
        })
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// Sends a copy of `n` elements to rank `to` without waiting.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `n` elements of `r#type`, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_try_send(
    group: *mut brv_group,
    data: *const c_void,
    n: usize,
    r#type: brv_type,
    to: i32,
    tag: i32,
) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        with_element!(r#type, T => {
            let (data, to, tag) = sending::<T>(group, data.cast(), n, (to, tag))?;
            // SAFETY: the caller in C guarantees set memory that nobody writes.
            Ok(brv_status::of_done(group.try_send(unsafe { data.read() }, to, tag)?))
        })
    })
}

/// Receives a message of at most `n` elements.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `n` elements of `r#type` that nobody else uses meanwhile;
/// `message` is NULL, or may be written; `options` as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_recv(
    group: *mut brv_group,
    data: *mut c_void,
    n: usize,
    r#type: brv_type,
    from: i32,
    tag: i32,
    message: *mut brv_message,
    options: *const brv_options,
) -> brv_status {
    let call = |group: &Group, (from, tag): Pick| {
        with_element!(r#type, T => {
            let data = Stretch::<T>::new(data.cast_const().cast(), n, "data")?;
            // SAFETY: the caller in C guarantees memory that nobody else uses.
            Ok(group.recv(unsafe { data.unset() }, from, tag)?)
        })
    };
    // SAFETY: the caller in C guarantees the group, the place and the options.
    unsafe { receiving(group, (from, tag, "tag"), message, options, call) }
}

/// Sends one message and receives another at the same time.
///
/// # Safety
/// `group` is NULL or a live group; `data` has `n` elements of `r#type`, set, that nobody writes meanwhile;
/// `place` has `place_n` elements of `r#type` that nobody else uses meanwhile; `message` is NULL, or may be
/// written; `options` as for `Options::read`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "two messages")]
pub unsafe extern "C" fn brv_send_recv(
    group: *mut brv_group,
    data: *const c_void,
    n: usize,
    to: i32,
    tag: i32,
    place: *mut c_void,
    place_n: usize,
    from: i32,
    place_tag: i32,
    r#type: brv_type,
    message: *mut brv_message,
    options: *const brv_options,
) -> brv_status {
    let call = |group: &Group, (from, place_tag): Pick| {
        with_element!(r#type, T => {
            let (data, to, tag) = sending::<T>(group, data.cast(), n, (to, tag))?;
            let place = Stretch::<T>::new(place.cast_const().cast(), place_n, "place")?;
            data.check_apart(place, "data and place")?;
            // SAFETY: the caller in C guarantees set memory that nobody writes.
            let data = unsafe { data.read() };
            // SAFETY: the caller in C guarantees memory that nobody else uses; it is apart from `data`.
            let place = unsafe { place.unset() };
            Ok(group.send_recv((data, to, tag), (place, from, place_tag))?)
        })
    };
    // SAFETY: the caller in C guarantees the group, the place for the message and the options.
    unsafe { receiving(group, (from, place_tag, "place_tag"), message, options, call) }
}

/// Waits for a message and leaves it where it is.
///
/// # Safety
/// `group` is NULL or a live group; `message` is NULL, or may be written; `options` as for
/// `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_probe(
    group: *mut brv_group,
    from: i32,
    tag: i32,
    message: *mut brv_message,
    options: *const brv_options,
) -> brv_status {
    let call = |group: &Group, (from, tag): Pick| {
        check(message, "message")?;
        Ok(group.probe(from, tag)?)
    };
    // SAFETY: the caller in C guarantees the group, the place and the options.
    unsafe { receiving(group, (from, tag, "tag"), message, options, call) }
}

/// Looks for a message without waiting.
///
/// # Safety
/// `group` is NULL or a live group; `message` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_try_probe(
    group: *mut brv_group,
    from: i32,
    tag: i32,
    message: *mut brv_message,
) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let (from, tag) = pick(group, from, tag, "tag")?;
        check(message, "message")?;
        let Some(found) = group.try_probe(from, tag)? else { return Ok(brv_status::Pending) };
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { store(message, found) };
        Ok(brv_status::Ok)
    })
}

/// Makes a call that receives or finds a message, and stores the message.
///
/// # Safety
/// `group` is NULL or a live group; `message` is NULL, or may be written; `options` as for `Options::read`.
unsafe fn receiving(
    group: *mut brv_group,
    (from, tag, tag_name): (i32, i32, &str),
    message: *mut brv_message,
    options: *const brv_options,
    call: impl FnOnce(&Group, Pick) -> Result<Message, Failure>,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller of this function guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let pick = pick(group, from, tag, tag_name)?;
        // It may be NULL.
        if !message.is_null() {
            check(message, "message")?;
        }
        let found = call(&options.on(group), pick)?;
        // SAFETY: checked just now; the caller of this function guarantees that it may be written.
        unsafe { store(message, found) };
        Ok(())
    };
    // SAFETY: the caller of this function guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// What a send is given, checked.
pub(crate) fn sending<T: Copy>(
    group: &Group,
    data: *const T,
    n: usize,
    (to, tag): (i32, i32),
) -> Result<(Stretch<T>, u32, u32), Failure> {
    Ok((Stretch::new(data, n, "data")?, rank_of(group, to, "to")?, tag_of(tag, "tag")?))
}

/// The source and the tag of a receive or probe; `None` for any.
pub(crate) type Pick = (Option<u32>, Option<u32>);

pub(crate) fn pick(group: &Group, from: i32, tag: i32, tag_name: &str) -> Result<Pick, Failure> {
    let from = if from == ANY { None } else { Some(rank_of(group, from, "from")?) };
    let tag = if tag == ANY { None } else { Some(tag_of(tag, tag_name)?) };
    Ok((from, tag))
}

/// A tag, which is 0 or more.
pub(crate) fn tag_of(tag: i32, name: &str) -> Result<u32, Failure> {
    u32::try_from(tag).map_err(|_| {
        Failure::argument(format!(
            "{name} is {tag}, expected 0 or more; BRV_ANY ({ANY}) is for receives and probes"
        ))
    })
}

/// Stores a message; does nothing for NULL.
///
/// # Safety
/// `message` is NULL, or aligned and may be written.
pub(crate) unsafe fn store(message: *mut brv_message, found: Message) {
    if !message.is_null() {
        // SAFETY: the caller of this function guarantees it.
        unsafe { message.write(found.into()) };
    }
}
