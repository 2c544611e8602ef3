//! Calls on a server that do not block.
//!
//! The server goes with its call and comes back with it: until then its handle is in use.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use brevity::server::Step;
use brevity::{Handle, ParameterServer};
use brevity_collectives::Error as Collective;

use crate::boundary::{guard, hand_out};
use crate::callback::{drop_elsewhere, is_in_callback};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::options::{Options, brv_options};
use crate::request::{Call, Outcome, Started, brv_request};
use crate::server::{Serving, brv_server, serving_of};
use crate::server_state::{brv_server_step, check_step, write_step};
use crate::status::brv_status;

/// How long a call that nobody wants any more may take to end.
const FOR_CANCELED: Duration = Duration::from_millis(100);

/// A server that a started call has.
pub(crate) struct Away {
    /// Kept also when its request is freed: the server comes back with it.
    call: Arc<Call>,
    place: Arc<Place>,
}

/// Where the server comes back to.
#[derive(Default)]
struct Place(Mutex<Option<Box<ParameterServer>>>);

impl Place {
    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Option<Box<ParameterServer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    /// A server waits for its threads, one of which may be in a function of the program.
    fn drop(&mut self) {
        if let Some(server) = self.lock().take() {
            drop_elsewhere(server);
        }
    }
}

/// What a call with a server is to do.
#[derive(Clone, Copy)]
enum What {
    Fetch,
    Pull,
}

/// What a call has.
struct Load {
    server: Option<Box<ParameterServer>>,
    parameters: Vec<Lent<f32>>,
}

impl Drop for Load {
    /// The engine drops the load of a call that was freed, perhaps on a thread of the server.
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            // Without a thread for it, it is dropped here.
            let _ = thread::Builder::new().name("brv-drop".into()).spawn(move || drop(server));
        }
    }
}

/// The figures of a step, written when the call has ended.
struct Figures(*mut brv_server_step);

// SAFETY: the program leaves the memory to the call until this has ended, on every thread
// (`brv_iserver_pull`).
unsafe impl Send for Figures {}

struct StartedCall {
    /// `None` once its result was taken.
    handle: Option<Handle<(Load, brevity::Result<Step>)>>,
    place: Arc<Place>,
    shared: Arc<Shared>,
    figures: Figures,
    is_canceled: Arc<AtomicBool>,
}

impl Away {
    /// Starts a call with a server. Gives the server back if it was refused.
    fn start(
        shared: &Arc<Shared>,
        load: Load,
        (what, figures): (What, Figures),
        options: Options,
    ) -> Result<Self, (Option<Box<ParameterServer>>, Failure)> {
        let place = Arc::<Place>::default();
        let is_canceled = Arc::<AtomicBool>::default();
        let handle = Some(start(shared, load, what, &is_canceled));
        let (shared, is_at) = (Arc::clone(shared), Arc::clone(&place));
        let started = StartedCall { handle, place: is_at, shared: Arc::clone(&shared), figures, is_canceled };
        match Call::new(&shared, Box::new(started), options, true) {
            Ok(call) => Ok(Self { call, place }),
            Err(failure) => Err((place.lock().take(), failure)),
        }
    }

    /// The server, if its call has ended.
    ///
    /// # Errors
    /// If the call is pending. If the server was lost in a panic.
    pub(crate) fn come_back(&self) -> Result<Box<ParameterServer>, Failure> {
        if !self.call.settle() {
            return Err(Failure::argument(
                "server is in use by a call that was started: wait for its request",
            ));
        }
        let lost = || Failure::panic(&"an earlier call with it was left unfinished");
        self.place.lock().take().ok_or_else(lost)
    }
}

/// Starts a task that makes the call. It ends when the call does, or is canceled.
fn start(
    shared: &Shared,
    load: Load,
    what: What,
    is_canceled: &Arc<AtomicBool>,
) -> Handle<(Load, brevity::Result<Step>)> {
    let is_canceled = Arc::clone(is_canceled);
    // In a callback nothing may turn the engine, as the first poll does.
    let mut waits_for_turn = is_in_callback();
    shared.group.engine().spawn(Duration::MAX, load, move |_, load| {
        Box::pin(async move {
            let Load { server: Some(server), parameters } = load else {
                return Err(Collective::Canceled.into());
            };
            let mut call = pin!(async {
                match what {
                    What::Fetch => server.fetch_async(parameters).await.map(|()| Step::default()),
                    What::Pull => server.pull_async(parameters).await,
                }
            });
            poll_fn(|context| {
                if is_canceled.load(Ordering::Acquire) {
                    return Poll::Ready(Err(Collective::Canceled.into()));
                }
                if std::mem::take(&mut waits_for_turn) {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                call.as_mut().poll(context)
            })
            .await
        })
    })
}

impl StartedCall {
    /// Takes the result of a call that has ended, and puts the server back.
    fn take(&mut self) -> brevity::Result<Step> {
        let Some(handle) = self.handle.take() else { return Err(Collective::Canceled.into()) };
        let (mut load, result) = handle.wait();
        *self.place.lock() = load.server.take();
        result
    }
}

impl Started for StartedCall {
    fn has_ended(&self) -> bool {
        self.handle.as_ref().is_none_or(Handle::has_ended)
    }

    fn wake_at_end(&self, waker: &Waker) -> bool {
        self.handle.as_ref().is_none_or(|handle| handle.wake_at_end(waker))
    }

    fn cancel(&self) {
        self.is_canceled.store(true, Ordering::Release);
        if let Some(handle) = &self.handle {
            handle.cancel_in_next_turn();
        }
    }

    /// Its messages are not those of the group, whose end ends no wait for them.
    fn abandon(&self) {
        self.cancel();
    }

    fn finish(mut self: Box<Self>) -> Outcome {
        let step = self.take()?;
        // SAFETY: checked when the call was started; the caller of that has guaranteed the memory.
        unsafe { write_step(self.figures.0, step) };
        Ok(None)
    }
}

impl Drop for StartedCall {
    /// Nobody wants it any more, and other ranks do not need it.
    fn drop(&mut self) {
        if self.has_ended() || self.shared.group.check_process().is_err() {
            return;
        }
        self.cancel();
        if !is_in_callback() && self.shared.group.wait_until(FOR_CANCELED, || self.has_ended()) {
            // Its place drops the server.
            let _ = self.take();
        }
    }
}

/// Starts to replace the parameters by the model.
///
/// # Safety
/// `server` is NULL or a live server; `parameters` has `tensors` pointers, each to as many elements as the
/// tensor has, set, that nobody else uses until the call has ended; `request` is NULL or may be written;
/// `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iserver_fetch(
    server: *mut brv_server,
    parameters: *const *mut f32,
    tensors: usize,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let prepare = |_: &mut Serving| Ok(What::Fetch);
    let (place, figures) = ((parameters, tensors), std::ptr::null_mut());
    // SAFETY: the caller in C guarantees what `begin` demands.
    unsafe { begin(server, place, figures, request, options, prepare) }
}

/// Pushes gradients, and starts to wait for the answers.
///
/// # Safety
/// As for [`brv_iserver_pull`]; `gradients` has `tensors` pointers, each to as many elements as the tensor
/// has, set, that nobody writes during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iserver_take_step(
    server: *mut brv_server,
    gradients: *const *const f32,
    rate: f64,
    parameters: *const *mut f32,
    tensors: usize,
    step: *mut brv_server_step,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let push = |serving: &mut Serving| {
        // SAFETY: the caller in C guarantees the pointers, and set memory that nobody writes.
        let gradients = unsafe { serving.slices(gradients, tensors) }?;
        serving.begun()?.push(&gradients, rate as f32)?;
        Ok(What::Pull)
    };
    // SAFETY: the caller in C guarantees what `begin` demands.
    unsafe { begin(server, (parameters, tensors), step, request, options, push) }
}

/// Starts to wait for the answers, and to add them to the parameters.
///
/// # Safety
/// As for [`brv_iserver_fetch`]; `step` is NULL, or holds its size and may be written until the call has
/// ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iserver_pull(
    server: *mut brv_server,
    parameters: *const *mut f32,
    tensors: usize,
    step: *mut brv_server_step,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let prepare = |_: &mut Serving| Ok(What::Pull);
    // SAFETY: the caller in C guarantees what `begin` demands.
    unsafe { begin(server, (parameters, tensors), step, request, options, prepare) }
}

/// # Safety
/// As for [`brv_iserver_pull`].
unsafe fn begin(
    server: *mut brv_server,
    (parameters, tensors): (*const *mut f32, usize),
    step: *mut brv_server_step,
    request: *mut *mut brv_request,
    options: *const brv_options,
    prepare: impl FnOnce(&mut Serving) -> Result<What, Failure>,
) -> brv_status {
    let make = || {
        // SAFETY: the caller of this function guarantees options.
        let options = unsafe { Options::read(options) }?;
        // SAFETY: the caller of this function guarantees a live server.
        let mut serving = unsafe { serving_of(server) }?;
        // SAFETY: the caller of this function guarantees the pointers.
        let stretches = unsafe { serving.stretches(parameters.cast(), tensors, "the parameters") }?;
        Stretch::check_all_apart(&stretches, "the parameters of two tensors")?;
        // SAFETY: the caller of this function guarantees the memory of `step`.
        unsafe { check_step(step) }?;
        serving.timed(&options)?.group().check_process().map_err(Failure::from)?;
        let what = prepare(&mut serving).map_err(|failure| options.explain(failure))?;
        let shared = Arc::clone(&serving.shared);
        // SAFETY: the caller of this function guarantees set memory that nobody else uses until the call has
        // ended.
        let lend = |stretch| unsafe { Lent::new(stretch, &shared.loans) };
        let parameters = stretches.into_iter().map(lend).collect();
        let start = |server| {
            let load = Load { server: Some(server), parameters };
            Away::start(&shared, load, (what, Figures(step)), options)
        };
        Ok(Some(brv_request::of(Arc::clone(&serving.send_away(start)?.call))))
    };
    // SAFETY: the caller of this function guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// What starts a call with a server, or gives it back.
pub(crate) type Sent = Result<Away, (Option<Box<ParameterServer>>, Failure)>;
