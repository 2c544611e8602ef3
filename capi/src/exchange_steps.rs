//! Steps of an exchange whose gradients become ready one after the other.

use std::mem::size_of;

use brevity::{BucketReport, Error as Facade, Step};

use crate::boundary::{check, guard};
use crate::callback::check_may_wait;
use crate::element::OfGradients;
use crate::exchange::{Plan, brv_exchange, plan_of};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// What one bucket of a step took on this rank, in seconds, and what it moved.
#[repr(C)]
pub struct brv_bucket_report {
    size: u64,
    tensors: u64,
    first_tensor: u64,
    select: f64,
    communicate: f64,
    wait: f64,
    apply: f64,
    bytes_sent: u64,
    bytes_received: u64,
    bytes_shared: u64,
    reserved: [u64; 2],
}

/// Sets the bytes of gradients of a bucket.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_set_bucket_bytes(
    exchange: *mut brv_exchange,
    bytes: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees a live exchange.
    guard(|| unsafe { plan_of(exchange) }?.set_bucket_bytes(bytes))
}

/// Divides averages by the number of ranks that have a gradient.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_average_over_participants(exchange: *mut brv_exchange) -> brv_status {
    // SAFETY: the caller in C guarantees a live exchange.
    guard(|| unsafe { plan_of(exchange) }?.average_over_participants())
}

/// An average of a rank that has no gradient.
///
/// # Safety
/// As for `brv_exchange_average`; the memory need not be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_step_empty(
    exchange: *mut brv_exchange,
    averages: *const *mut f32,
    tensors: usize,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    let step = |options: &Options| unsafe { step_empty(exchange, averages, tensors, options) };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, step) }
}

/// Likewise, for averages of any type.
///
/// # Safety
/// As for [`brv_exchange_step_empty`].
pub(crate) unsafe fn step_empty<E: OfGradients>(
    exchange: *mut brv_exchange,
    averages: *const *mut E,
    tensors: usize,
    options: &Options,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    plan.check_no_step()?;
    // SAFETY: the caller of this function guarantees the pointers.
    let stretches = unsafe { plan.gradients(averages, tensors) }?;
    let mut slices: Vec<&mut [E]> = stretches
        .into_iter()
        // SAFETY: the caller of this function guarantees memory that nobody else uses; the stretches are
        // apart, as just checked. What is excluded, or refused, keeps its values.
        .map(|stretch| unsafe { stretch.unset() })
        .collect();
    let exchange = plan.exchange()?;
    Ok(match options.timeout() {
        Some(timeout) => exchange.step_empty_within::<E, _>(&mut slices, timeout),
        None => exchange.step_empty::<E, _>(&mut slices),
    }?)
}

/// Begins a step.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_begin(exchange: *mut brv_exchange) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        plan.exchange()?.begin()?.leave();
        plan.step_type = None;
        Ok(())
    })
}

/// Begins a step of a rank that has no gradient.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_begin_empty(exchange: *mut brv_exchange) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        plan.exchange()?.begin_empty()?.leave();
        plan.step_type = None;
        Ok(())
    })
}

/// Hands in the gradient of a tensor.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `gradient` has `n` elements, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_ready(
    exchange: *mut brv_exchange,
    tensor: usize,
    gradient: *const f32,
    n: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { ready(exchange, tensor, gradient, n) })
}

/// Likewise, a gradient of any type.
///
/// # Safety
/// As for [`brv_exchange_ready`].
pub(crate) unsafe fn ready<E: OfGradients>(
    exchange: *mut brv_exchange,
    tensor: usize,
    gradient: *const E,
    n: usize,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees as many elements.
    let gradient = unsafe { Stretch::new(gradient, n, "gradient")?.read() };
    plan.check_type::<E>()?;
    let mut step = step_of(&mut plan)?;
    let ready = step.ready(tensor, gradient);
    step.leave();
    ready?;
    plan.step_type = Some(E::NAME);
    Ok(())
}

/// Waits for the end of a step.
///
/// # Safety
/// As for `brv_exchange_average`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_finish(
    exchange: *mut brv_exchange,
    gradients: *const *mut f32,
    tensors: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { finish(exchange, gradients, tensors) })
}

/// Likewise, of gradients of any type.
///
/// # Safety
/// As for [`brv_exchange_finish`].
pub(crate) unsafe fn finish<E: OfGradients>(
    exchange: *mut brv_exchange,
    gradients: *const *mut E,
    tensors: usize,
) -> Result<(), Failure> {
    check_may_wait()?;
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees the pointers, and set memory that nobody else uses.
    let mut slices = unsafe { plan.slices::<E>(gradients, tensors) }?;
    plan.check_type::<E>()?;
    let report = step_of(&mut plan)?.finish::<E, _>(&mut slices)?;
    plan.report = report;
    Ok(())
}

/// What a bucket of the last step that was finished took.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `report` is NULL, or 8 bytes may be read; if they hold the size of
/// [`brv_bucket_report`], the whole struct may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_report(
    exchange: *mut brv_exchange,
    bucket: usize,
    report: *mut brv_bucket_report,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let plan = unsafe { plan_of(exchange) }?;
        check(report, "report")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees 8 bytes.
        let size = unsafe { (&raw const (*report).size).read() };
        let expected = size_of::<brv_bucket_report>() as u64;
        if size != expected {
            return Err(Failure::argument(format!(
                "report.size is {size}, expected {expected}: begin with BRV_BUCKET_REPORT_INIT"
            )));
        }
        let buckets = &plan.report.buckets;
        let found = buckets.get(bucket).ok_or_else(|| {
            let count = buckets.len();
            Failure::argument(format!(
                "bucket is {bucket}, expected less than {count}: as many had the last step"
            ))
        })?;
        // SAFETY: it has the size of a report, so the caller in C guarantees all of it.
        unsafe { report.write(found.into()) };
        Ok(())
    })
}

/// The step that has begun.
fn step_of(plan: &mut Plan) -> Result<Step<'_>, Failure> {
    let step = plan.exchange()?.resume();
    step.ok_or_else(|| {
        let (what, remedy) = ("a step that has not begun", "call brv_exchange_begin before");
        Facade::Order { what, remedy }.into()
    })
}

impl From<&BucketReport> for brv_bucket_report {
    fn from(report: &BucketReport) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            tensors: report.tensors.len() as u64,
            first_tensor: report.tensors.first().map_or(0, |&tensor| tensor as u64),
            select: report.select.as_secs_f64(),
            communicate: report.communicate.as_secs_f64(),
            wait: report.wait.as_secs_f64(),
            apply: report.apply.as_secs_f64(),
            bytes_sent: report.bytes_sent,
            bytes_received: report.bytes_received,
            bytes_shared: report.bytes_shared,
            reserved: [0; 2],
        }
    }
}
