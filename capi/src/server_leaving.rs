//! The end of a server, and what a dedicated one waits for.

use crate::boundary::guard_pending;
use crate::options::{Options, brv_options, waiting_call, with_options};
use crate::server::{State, brv_server, serving_of};
use crate::status::brv_status;
use crate::wait::longest;

/// Serves until all workers are gone, at most for some seconds.
///
/// # Safety
/// `server` is NULL or a live server; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_serve(
    server: *mut brv_server,
    seconds: f64,
    options: *const brv_options,
) -> brv_status {
    let serve = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        let (longest, begun) = (longest(seconds)?, serving.begun()?);
        let is_deserted = match options.timeout() {
            Some(silence) => begun.serve_within(longest, silence),
            None => begun.serve_for(longest),
        };
        Ok(brv_status::of_done(is_deserted?))
    };
    // SAFETY: the caller in C guarantees options.
    guard_pending(|| unsafe { with_options(options, serve) })
}

/// Leaves, and serves until all other workers are gone.
///
/// # Safety
/// `server` is NULL or a live server; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_server_leave(
    server: *mut brv_server,
    options: *const brv_options,
) -> brv_status {
    let leave = |options: &Options| {
        // SAFETY: the caller in C guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        serving.timed(options)?;
        if let State::Begun(begun) = std::mem::replace(&mut serving.state, State::Ended(None)) {
            serving.state = State::Ended(begun.leave()?);
        }
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, leave) }
}
