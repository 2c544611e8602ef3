//! What changes from step to step of an exchange: densities by a schedule, the number of steps, and seeds.

use crate::boundary::{check, guard};
use crate::exchange::{brv_exchange, plan_of};
use crate::schedule::{self, brv_schedule};
use crate::status::brv_status;

/// Lets the density of all sparse tensors follow a schedule.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `schedule` is as for `schedule::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_set_schedule(
    exchange: *mut brv_exchange,
    schedule: *const brv_schedule,
    steps_in_period: u64,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees a schedule.
        plan.set_schedule(unsafe { schedule::read(schedule) }?, steps_in_period)
    })
}

/// Stores how many steps the exchange has made.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `steps` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_steps(exchange: *mut brv_exchange, steps: *mut u64) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        check(steps, "steps")?;
        let made = plan.exchange()?.steps();
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees that it may be written.
        unsafe { steps.write(made) };
        Ok(())
    })
}

/// Sets how many steps the exchange has made.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_set_steps(exchange: *mut brv_exchange, steps: u64) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        Ok(plan.exchange()?.set_steps(steps)?)
    })
}

/// Sets the seed of random numbers.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_set_seed(exchange: *mut brv_exchange, seed: u64) -> brv_status {
    // SAFETY: the caller in C guarantees a live exchange.
    guard(|| unsafe { plan_of(exchange) }?.set_seed(seed))
}
