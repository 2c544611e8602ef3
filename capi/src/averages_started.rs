//! Compressed averages that do not block.
//!
//! The exchange goes with its call and comes back with it: until then its feedback or list is in use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use brevity::{Averaging, GradientExchange};

use crate::boundary::{guard, hand_out};
use crate::element::OfGradients;
use crate::exchange::{brv_exchange, plan_of};
use crate::failure::Failure;
use crate::feedback::{NO_DENSITY, Shape, brv_feedback, feedback_of};
use crate::group::{Shared, brv_group, group_of};
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::options::{Options, brv_options};
use crate::request::{Call, Outcome, Started, brv_request};
use crate::status::brv_status;

/// An exchange that a started call has.
pub(crate) struct Away {
    /// Kept also when its request is freed: the residuals come back with it.
    call: Arc<Call>,
    place: Place,
}

/// Where the exchange comes back to.
#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<GradientExchange>>>);

impl Place {
    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Option<GradientExchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Away {
    /// Starts a call with an exchange. Gives the exchange back if it was refused.
    fn start<E: OfGradients>(
        shared: &Arc<Shared>,
        exchange: GradientExchange,
        gradients: Vec<Lent<E>>,
        options: Options,
    ) -> Sent {
        let place = Place::default();
        let averaging = options.start(exchange, gradients);
        let started = Box::new(StartedAverage { averaging, place: place.clone() });
        match Call::new(shared, started, options, false) {
            Ok(call) => Ok(Self { call, place }),
            Err(failure) => Err(Box::new((place.lock().take(), failure))),
        }
    }

    /// The exchange, if its call has ended.
    ///
    /// # Errors
    /// If the call is pending. If the exchange was lost in a panic.
    pub(crate) fn come_back(&self, name: &str) -> Result<GradientExchange, Failure> {
        if !self.call.settle() {
            return Err(Failure::argument(format!(
                "{name} is in use by a call that was started: wait for its request"
            )));
        }
        let lost = || Failure::panic(&"an earlier call with it was left unfinished");
        self.place.lock().take().ok_or_else(lost)
    }
}

struct StartedAverage<E> {
    averaging: Averaging<Lent<E>>,
    place: Place,
}

impl<E: OfGradients> Started for StartedAverage<E> {
    fn has_ended(&self) -> bool {
        self.averaging.has_ended()
    }

    fn wake_at_end(&self, waker: &Waker) -> bool {
        self.averaging.wake_at_end(waker)
    }

    /// Other ranks need it.
    fn cancel(&self) {}

    fn finish(self: Box<Self>) -> Outcome {
        let Self { averaging, place } = *self;
        let ((exchange, _), result) = averaging.wait();
        *place.lock() = Some(exchange);
        result.map(|()| None).map_err(Failure::from)
    }
}

/// Starts an average by gTop-k, in place.
///
/// # Safety
/// `group` and `feedback` are NULL or live; `gradient` has `n` elements, set, that nobody else uses until the
/// call has ended; `request` is NULL or may be written; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_igtopk_average(
    group: *mut brv_group,
    feedback: *mut brv_feedback,
    gradient: *mut f32,
    n: usize,
    density: f64,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `start` demands.
    unsafe { start(group, feedback, gradient, (Shape::Gtopk { n }, density), request, options) }
}

/// Starts an average by low-rank factors, in place.
///
/// # Safety
/// As for [`brv_igtopk_average`], with `rows * cols` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ilow_rank_average(
    group: *mut brv_group,
    feedback: *mut brv_feedback,
    gradient: *mut f32,
    rows: usize,
    cols: usize,
    rank: u32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let shape = Shape::LowRank { rows, cols, rank };
    // SAFETY: the caller in C guarantees what `start` demands.
    unsafe { start(group, feedback, gradient, (shape, NO_DENSITY), request, options) }
}

/// # Safety
/// As for [`brv_igtopk_average`], with the elements of the shape.
unsafe fn start(
    group: *mut brv_group,
    feedback: *mut brv_feedback,
    gradient: *mut f32,
    (shape, density): (Shape, f64),
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let make = || {
        // SAFETY: the caller of this function guarantees options.
        let options = unsafe { Options::read(options) }?;
        // SAFETY: the caller of this function guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        // SAFETY: the caller of this function guarantees a live feedback.
        let mut feedback = unsafe { feedback_of(feedback) }?;
        let gradient = Stretch::new(gradient.cast_const(), shape.elements()?, "gradient")?;
        feedback.enter(shared, shape, density)?.set_density(density)?;
        // SAFETY: the caller of this function guarantees set memory that nobody else uses until the call has
        // ended.
        let gradient = unsafe { Lent::new(gradient, &shared.loans) };
        let start = |exchange| Away::start(shared, exchange, vec![gradient], options);
        Ok(Some(brv_request::of(Arc::clone(&feedback.send_away(start)?.call))))
    };
    // SAFETY: the caller of this function guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// Starts an average of the gradients of all tensors, in place.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `gradients` has `tensors` pointers, each to the elements of its
/// tensor, set, that nobody else uses until the call has ended; `request` is NULL or may be written;
/// `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iexchange_average(
    exchange: *mut brv_exchange,
    gradients: *const *mut f32,
    tensors: usize,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    let make = || unsafe { start_all(exchange, gradients, tensors, options) };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// Starts an average of gradients of any type.
///
/// # Safety
/// As for [`brv_iexchange_average`].
pub(crate) unsafe fn start_all<E: OfGradients>(
    exchange: *mut brv_exchange,
    gradients: *const *mut E,
    tensors: usize,
    options: *const brv_options,
) -> Result<Option<brv_request>, Failure> {
    // SAFETY: the caller of this function guarantees options.
    let options = unsafe { Options::read(options) }?;
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees the pointers.
    let stretches = unsafe { plan.gradients(gradients, tensors) }?;
    let shared = Arc::clone(&plan.group);
    // SAFETY: the caller of this function guarantees set memory that nobody else uses until the call has
    // ended.
    let lend = |stretch| unsafe { Lent::new(stretch, &shared.loans) };
    let gradients = stretches.into_iter().map(lend).collect();
    let start = |exchange| Away::start::<E>(&shared, exchange, gradients, options);
    Ok(Some(brv_request::of(Arc::clone(&plan.send_away(start)?.call))))
}

/// What starts a call with an exchange, or gives it back.
pub(crate) type Sent = Result<Away, Box<(Option<GradientExchange>, Failure)>>;
