//! Requests: calls that were started.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use brevity::Handle;

use crate::boundary::{check, guard, guard_pending, hand_out, object};
use crate::callback::{drop_elsewhere, is_in_callback, outside_callbacks};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::messages::brv_message;
use crate::notice::{Function, Notice, brv_request_function};
use crate::options::{Options, brv_options};
use crate::status::brv_status;

/// A started call.
pub struct brv_request(Arc<Call>);

/// What a request and the objects that it uses know of a call.
pub(crate) struct Call {
    shared: Arc<Shared>,
    state: Mutex<State>,
    notice: Arc<Notice>,
    options: Options,
    /// Whether it can be canceled: a send, a receive or a probe, or a call on a server.
    can_cancel: bool,
    /// Whether an event loop was told that it has ended.
    is_told: AtomicBool,
}

enum State {
    Pending(Box<dyn Started>),
    Ended(Outcome),
}

/// What a call returns, with the message of a receive or probe.
pub(crate) type Outcome = Result<Option<brv_message>, Failure>;

/// The handle of any call.
pub(crate) trait Started: Send {
    fn has_ended(&self) -> bool;

    fn wake_at_end(&self, waker: &Waker) -> bool;

    /// Cancels it: it ends in the next turn.
    fn cancel(&self);

    /// Its group is about to be aborted and freed: lets it end, if it does not for that.
    fn abandon(&self) {}

    /// The outcome of a call that has ended. Gives back what the call had.
    fn finish(self: Box<Self>) -> Outcome;
}

/// A handle, and what to make of its result.
pub(crate) struct Finished<T, F>(pub(crate) Handle<T>, pub(crate) F);

impl<T: Send, F: FnOnce(T) -> Outcome + Send> Started for Finished<T, F> {
    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    fn wake_at_end(&self, waker: &Waker) -> bool {
        self.0.wake_at_end(waker)
    }

    fn cancel(&self) {
        self.0.cancel_in_next_turn();
    }

    fn finish(self: Box<Self>) -> Outcome {
        self.1(self.0.wait())
    }
}

/// A call on buffers whose result says only whether it succeeded.
pub(crate) fn finished<B, E>(handle: Handle<(B, Result<(), E>)>) -> Box<dyn Started>
where
    B: Send + 'static,
    E: Send + 'static,
    Failure: From<E>,
{
    Box::new(Finished(handle, |(_, result): (B, Result<(), E>)| result.map(|()| None).map_err(Failure::from)))
}

impl brv_request {
    pub(crate) fn of(call: Arc<Call>) -> Self {
        Self(call)
    }
}

impl Call {
    /// Notes a started call. Fails, with nothing left, if it was refused.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        started: Box<dyn Started>,
        options: Options,
        can_cancel: bool,
    ) -> Result<Arc<Self>, Failure> {
        let (shared, state) = (Arc::clone(shared), Mutex::new(State::Pending(started)));
        let call = Arc::new(Self {
            shared,
            state,
            notice: Arc::default(),
            options,
            can_cancel,
            is_told: AtomicBool::new(false),
        });
        if call.settle()
            && let State::Ended(Err(failure)) = &*call.lock()
            && failure.has_sent_nothing()
        {
            return Err(failure.clone());
        }
        call.shared.note(&call);
        Ok(call)
    }

    /// Whether the call has ended, without moving it. Takes its outcome, and gives back what it had.
    pub(crate) fn settle(&self) -> bool {
        let mut state = self.lock();
        match &*state {
            State::Ended(_) => return true,
            State::Pending(started) if !started.has_ended() => return false,
            State::Pending(_) => {}
        }
        let unknown = State::Ended(Err(Failure::panic(&"the call's result was lost")));
        let State::Pending(started) = std::mem::replace(&mut *state, unknown) else { return true };
        let outcome = catch_unwind(AssertUnwindSafe(|| started.finish()))
            .unwrap_or_else(|payload| Err(Failure::panic(&*payload)));
        *state = State::Ended(outcome.map_err(|failure| self.options.explain(failure)));
        true
    }

    /// The outcome, once the call has ended.
    fn outcome(&self) -> Option<Outcome> {
        if !self.settle() {
            return None;
        }
        match &*self.lock() {
            State::Ended(outcome) => Some(outcome.clone()),
            State::Pending(_) => None,
        }
    }

    pub(crate) fn status(&self) -> Result<brv_status, Failure> {
        self.outcome().map_or(Ok(brv_status::Pending), |outcome| outcome.map(|_| brv_status::Ok))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A panic under the lock leaves an outcome that says so.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls of a job that may be pending.
#[derive(Default)]
pub(crate) struct Calls(Mutex<Vec<Weak<Call>>>);

impl Calls {
    pub(crate) fn note(&self, call: &Arc<Call>) {
        let mut calls = self.lock();
        if calls.len() == calls.capacity() {
            calls.retain(|call| call.strong_count() > 0);
        }
        calls.push(Arc::downgrade(call));
    }

    /// Takes the outcome of each call of a group that has ended. Returns whether all have.
    pub(crate) fn settle(&self, group: &Shared) -> bool {
        let calls = self.live().into_iter().filter(|call| std::ptr::eq(&*call.shared, group));
        calls.fold(true, |all, call| call.settle() & all)
    }

    /// Lets all calls of a group end that is about to be aborted.
    pub(crate) fn abandon(&self, group: &Shared) {
        for call in self.live().into_iter().filter(|call| std::ptr::eq(&*call.shared, group)) {
            if let State::Pending(started) = &*call.lock() {
                started.abandon();
            }
        }
    }

    /// Whether calls have ended since this was asked before.
    pub(crate) fn have_ended(&self) -> bool {
        let calls = self.live().into_iter();
        calls.fold(false, |any, call| (call.settle() && !call.is_told.swap(true, Ordering::Relaxed)) | any)
    }

    /// Settling may run code of other objects, which is not done under the lock.
    fn live(&self) -> Vec<Arc<Call>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Call>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts a dense collective and stores its request.
///
/// # Safety
/// `group` is NULL or a live group; `request` is NULL or may be written; `options` as for [`Options::read`].
pub(crate) unsafe fn start(
    group: *mut brv_group,
    request: *mut *mut brv_request,
    options: *const brv_options,
    begin: impl FnOnce(&Options, &Arc<Shared>) -> Result<Box<dyn Started>, Failure>,
) -> brv_status {
    // SAFETY: the caller of this function guarantees live options.
    let read = || unsafe { Options::read_dense(options) };
    // SAFETY: the caller of this function guarantees the rest.
    unsafe { start_with(group, request, read, false, begin) }
}

/// Starts a send, a receive or a probe and stores its request.
///
/// # Safety
/// As for [`start`].
pub(crate) unsafe fn start_message(
    group: *mut brv_group,
    request: *mut *mut brv_request,
    options: *const brv_options,
    begin: impl FnOnce(&brevity::Group, &Shared) -> Result<Box<dyn Started>, Failure>,
) -> brv_status {
    // SAFETY: the caller of this function guarantees live options.
    let read = || unsafe { Options::read(options) };
    let begin = |options: &Options, shared: &Arc<Shared>| begin(&options.on(&shared.group), shared);
    // SAFETY: the caller of this function guarantees the rest.
    unsafe { start_with(group, request, read, true, begin) }
}

/// # Safety
/// `group` is NULL or a live group; `request` is NULL or may be written.
unsafe fn start_with(
    group: *mut brv_group,
    request: *mut *mut brv_request,
    read: impl FnOnce() -> Result<Options, Failure>,
    can_cancel: bool,
    begin: impl FnOnce(&Options, &Arc<Shared>) -> Result<Box<dyn Started>, Failure>,
) -> brv_status {
    let make = || {
        let options = read()?;
        // SAFETY: the caller of this function guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        let started = begin(&options, shared).map_err(|failure| options.explain(failure))?;
        Ok(Some(brv_request(Call::new(shared, started, options, can_cancel)?)))
    };
    // SAFETY: the caller of this function guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// The call behind a handle, which a callback may free while it is used.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn call_of(request: *const brv_request) -> Result<Arc<Call>, Failure> {
    // A function that is called when the call ends may free the request.
    // SAFETY: the caller of this function guarantees what `object` demands.
    Ok(Arc::clone(&unsafe { object(request, "request") }?.0))
}

/// Moves calls once, and tells the outcome of one.
///
/// # Safety
/// `request` is NULL or a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_test(request: *mut brv_request) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live request.
        let call = unsafe { call_of(request) }?;
        if !call.settle() {
            let group = &call.shared.group;
            group.check_process().map_err(Failure::from)?;
            // In a callback this thread is moving calls already.
            if !is_in_callback() {
                group.progress();
            }
        }
        call.status()
    })
}

/// Gives up a message, or a call on a server.
///
/// # Safety
/// `request` is NULL or a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_cancel(request: *mut brv_request) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live request.
        let call = unsafe { call_of(request) }?;
        call.shared.group.check_process().map_err(Failure::from)?;
        if call.can_cancel
            && let State::Pending(started) = &*call.lock()
        {
            started.cancel();
        }
        if !is_in_callback() {
            call.shared.group.progress();
        }
        Ok(())
    })
}

/// The message of a receive or probe that has ended.
///
/// # Safety
/// `request` is NULL or a live request; `message` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_message(
    request: *const brv_request,
    message: *mut brv_message,
) -> brv_status {
    guard_pending(|| {
        check(message, "message")?;
        // SAFETY: the caller in C guarantees a live request.
        match unsafe { call_of(request) }?.outcome() {
            None => Ok(brv_status::Pending),
            Some(Ok(Some(found))) => {
                // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees the rest.
                unsafe { message.write(found) };
                Ok(brv_status::Ok)
            }
            Some(_) => Err(Failure::argument(
                "request has no message: expected a receive or a probe that has ended with BRV_OK",
            )),
        }
    })
}

/// Sets the function to call when the call ends.
///
/// # Safety
/// `request` is NULL or a live request. Until the request is freed, the function may be called once, on any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_on_end(
    request: *mut brv_request,
    function: brv_request_function,
    user_data: *mut std::ffi::c_void,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live request.
        let call = unsafe { call_of(request) }?;
        let Some(function) = function else {
            return Err(Failure::argument("function is NULL, expected a function"));
        };
        // SAFETY: the caller in C guarantees it, and freeing the request forgets the function.
        if !unsafe { call.notice.set(Function { function, request, user_data }) } {
            return Err(Failure::argument("the request has a function already: set one"));
        }
        let has_ended = match &*call.lock() {
            State::Pending(started) => started.wake_at_end(&Waker::from(Arc::clone(&call.notice))),
            State::Ended(_) => true,
        };
        if has_ended {
            outside_callbacks(Arc::clone(&call.notice));
        }
        Ok(())
    })
}

/// Frees a request. Does nothing for NULL.
///
/// # Safety
/// `request` is NULL or a live request that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_free(request: *mut brv_request) {
    if request.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the handle is live, as the caller in C guarantees.
        let call = Arc::clone(&unsafe { &*request }.0);
        // A function that runs may use the request until it returns. In a forked child one that ran in the
        // parent does not return.
        if call.shared.group.check_process().is_ok() {
            call.notice.forget();
        }
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        drop(unsafe { Box::from_raw(request) });
        if Arc::strong_count(&call.shared) > 1 {
            drop(call);
        } else {
            drop_elsewhere(call);
        }
        Ok(())
    });
}
