//! Messages between two ranks that do not block.

use std::ffi::c_void;

use brevity::{Element, Group, Message};

use crate::element::{brv_type, with_element};
use crate::failure::Failure;
use crate::group::{Shared, brv_group};
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::messages::{brv_message, pick, sending};
use crate::options::brv_options;
use crate::request::{Finished, Started, brv_request, finished, start_message};
use crate::status::brv_status;

type Begun = Result<Box<dyn Started>, Failure>;

/// Starts to send elements to another rank.
///
/// # Safety
/// `group` is NULL or a live group; `data` is the memory of `n` elements, set, which nobody writes until the
/// call has ended; `request` is NULL or may be written; `options` is NULL or as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_isend(
    group: *mut brv_group,
    data: *const c_void,
    n: usize,
    r#type: brv_type,
    to: i32,
    tag: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start_message` demands, and the memory of `data`.
    unsafe {
        start_message(
            group,
            request,
            options,
            |group, shared| with_element!(r#type, T => send::<T>((group, shared), data.cast(), n, (to, tag))),
        )
    }
}

/// Starts to receive a message.
///
/// # Safety
/// As for [`brv_isend`]; nobody else uses the memory of `data` until the call has ended, and it need not be
/// set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_irecv(
    group: *mut brv_group,
    data: *mut c_void,
    n: usize,
    r#type: brv_type,
    from: i32,
    tag: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let begin = |group: &Group, shared: &Shared| {
        let which = (from, tag);
        // SAFETY: the caller in C guarantees the memory of `data`.
        with_element!(r#type, T => unsafe { recv::<T>((group, shared), data.cast(), n, which) })
    };
    // SAFETY: the caller in C guarantees what `start_message` demands.
    unsafe { start_message(group, request, options, begin) }
}

/// Starts to wait for a message that stays where it is.
///
/// # Safety
/// As for [`brv_isend`], without memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iprobe(
    group: *mut brv_group,
    from: i32,
    tag: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start_message` demands.
    unsafe {
        start_message(group, request, options, |group, _| {
            let (from, tag) = pick(group, from, tag, "tag")?;
            Ok(received(group.start_probe(from, tag)))
        })
    }
}

/// # Safety
/// As for [`brv_isend`].
unsafe fn send<T: Element>(
    (group, shared): (&Group, &Shared),
    data: *const T,
    n: usize,
    (to, tag): (i32, i32),
) -> Begun {
    let (data, to, tag) = sending(group, data, n, (to, tag))?;
    // SAFETY: the caller of this function guarantees set memory that nobody writes until the call has ended.
    let data = unsafe { Lent::new(data, &shared.loans) };
    Ok(finished(group.start_send(data, to, tag)))
}

/// # Safety
/// As for [`brv_irecv`].
unsafe fn recv<T: Element>(
    (group, shared): (&Group, &Shared),
    data: *mut T,
    n: usize,
    (from, tag): (i32, i32),
) -> Begun {
    let data = Stretch::new(data.cast_const(), n, "data")?;
    let (from, tag) = pick(group, from, tag, "tag")?;
    // SAFETY: the caller of this function guarantees memory that nobody else uses.
    unsafe { data.unset() };
    // SAFETY: likewise, until the call has ended; set just now.
    let data = unsafe { Lent::new(data, &shared.loans) };
    Ok(received(group.start_recv(data, from, tag)))
}

/// A receive or a probe on a buffer.
fn received<B, E>(handle: brevity::Handle<(B, Result<Message, E>)>) -> Box<dyn Started>
where
    B: Send + 'static,
    E: Send + 'static,
    Failure: From<E>,
{
    Box::new(Finished(handle, |(_, result): (B, Result<Message, E>)| {
        result.map(|message| Some(brv_message::from(message))).map_err(Failure::from)
    }))
}
