//! Messages between two ranks.

use std::ffi::c_void;

use brevity::{Element, Group, Message};

use crate::boundary::{check, guard_poll};
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
        let (to, tag) = (rank_of(group, to, "to")?, tag_of(tag, "tag")?);
        with_element!(r#type, T => {
            let data = Stretch::<T>::new(data.cast(), n, "data")?;
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
    guard_poll(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let (to, tag) = (rank_of(group, to, "to")?, tag_of(tag, "tag")?);
        with_element!(r#type, T => {
            let data = Stretch::<T>::new(data.cast(), n, "data")?;
            // SAFETY: the caller in C guarantees set memory that nobody writes.
            Ok(group.try_send(unsafe { data.read() }, to, tag)?)
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
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let pick = pick(group, from, tag, "tag")?;
        check_place(message)?;
        // SAFETY: the caller in C guarantees the memory of `data`.
        let received = with_element!(r#type, T => unsafe {
            recv::<T>(&options.on(group), data.cast(), n, pick)
        })?;
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { store(message, received) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// # Safety
/// Like [`brv_recv`].
unsafe fn recv<T: Element>(
    group: &Group,
    data: *mut T,
    n: usize,
    (from, tag): (Option<u32>, Option<u32>),
) -> Result<Message, Failure> {
    let data = Stretch::new(data, n, "data")?;
    // SAFETY: the caller in C guarantees memory that nobody else uses.
    Ok(group.recv(unsafe { data.unset() }, from, tag)?)
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
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let (to, tag) = (rank_of(group, to, "to")?, tag_of(tag, "tag")?);
        let pick = pick(group, from, place_tag, "place_tag")?;
        check_place(message)?;
        let group = options.on(group);
        // SAFETY: the caller in C guarantees the memory of `data` and `place`.
        let received = with_element!(r#type, T => unsafe {
            send_recv::<T>(&group, (data.cast(), n, to, tag), (place.cast(), place_n), pick)
        })?;
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { store(message, received) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
}

/// # Safety
/// Like [`brv_send_recv`].
unsafe fn send_recv<T: Element>(
    group: &Group,
    (data, n, to, tag): (*const T, usize, u32, u32),
    (place, place_n): (*mut T, usize),
    (from, place_tag): (Option<u32>, Option<u32>),
) -> Result<Message, Failure> {
    let (data, place) = (Stretch::new(data, n, "data")?, Stretch::new(place, place_n, "place")?);
    data.check_apart(place, "data and place")?;
    // SAFETY: the caller in C guarantees the memory of both; they are apart, as just checked.
    let (data, place) = unsafe { (data.read(), place.unset()) };
    Ok(group.send_recv((data, to, tag), (place, from, place_tag))?)
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
    let body = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let (from, tag) = pick(group, from, tag, "tag")?;
        check(message, "message")?;
        let found = options.on(group).probe(from, tag)?;
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { store(message, found) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees the options.
    unsafe { waiting_call(options, body) }
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
    guard_poll(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let (from, tag) = pick(group, from, tag, "tag")?;
        check(message, "message")?;
        let Some(found) = group.try_probe(from, tag)? else { return Ok(false) };
        // SAFETY: checked just now; the caller in C guarantees that it may be written.
        unsafe { store(message, found) };
        Ok(true)
    })
}

/// The source and the tag of a receive or probe; `None` for any.
pub(crate) fn pick(
    group: &Group,
    from: i32,
    tag: i32,
    tag_name: &str,
) -> Result<(Option<u32>, Option<u32>), Failure> {
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

/// Checks the place for a message, which may be NULL.
pub(crate) fn check_place(message: *mut brv_message) -> Result<(), Failure> {
    if message.is_null() { Ok(()) } else { check(message, "message") }
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
