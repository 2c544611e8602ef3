//! Exchanges that outlive a process or a group: saving, loading, and moving to another group.

use std::ffi::c_void;
use std::sync::Arc;

use crate::boundary::guard;
use crate::exchange::{Plan, brv_exchange, plan_of};
use crate::failure::Failure;
use crate::group::{brv_group, group_of};
use crate::memory::Stretch;
use crate::saved::{nothing_follows, saved_rank, take_over, write_saved, write_size};
use crate::status::brv_status;

/// Stores the number of bytes that [`brv_exchange_save`] writes.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_saved_size(
    exchange: *mut brv_exchange,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        plan.check_no_step()?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(plan.exchange()?.saved_bytes())) }
    })
}

/// Writes what this rank needs after a restart to `out`.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_save(
    exchange: *mut brv_exchange,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        let exchange = plan.exchange()?;
        let size = ("brv_exchange_saved_size", exchange.saved_bytes());
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, |to| Ok(exchange.save(to)?)) }
    })
}

/// Loads what [`brv_exchange_save`] wrote on this rank.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_load(
    exchange: *mut brv_exchange,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        plan.load(None, unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() })
    })
}

/// Loads what [`brv_exchange_save`] wrote on rank `rank`.
///
/// # Safety
/// The same as for [`brv_exchange_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_load_of(
    exchange: *mut brv_exchange,
    rank: i32,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        let rank = saved_rank(rank)?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        plan.load(Some(rank), unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() })
    })
}

/// Adds what [`brv_exchange_save`] wrote of the residuals of rank `rank`.
///
/// # Safety
/// The same as for [`brv_exchange_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_take_over(
    exchange: *mut brv_exchange,
    rank: i32,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        let rank = saved_rank(rank)?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        plan.take_over(rank, unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() })
    })
}

/// Moves an exchange to another group, with its residuals.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_rejoin(
    exchange: *mut brv_exchange,
    group: *mut brv_group,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees a live group.
        plan.group = Arc::clone(unsafe { group_of(group) }?.shared());
        let Plan { group, number, exchange, .. } = &mut *plan;
        *number = match exchange {
            Some(exchange) => {
                exchange.rejoin(&group.group);
                exchange.number()
            }
            None => group.group.number_object(),
        };
        Ok(())
    })
}

impl Plan {
    /// Loads into a new exchange, so that a failure changes nothing.
    fn load(&mut self, rank: Option<u32>, mut saved: &[u8]) -> Result<(), Failure> {
        self.check_no_step()?;
        let mut loaded = self.build()?;
        loaded.load_of(rank.unwrap_or_else(|| self.group.group.rank()), &mut saved)?;
        nothing_follows(saved)?;
        self.exchange = Some(loaded);
        Ok(())
    }

    /// Adds what rank `rank` has saved. A failure changes nothing.
    fn take_over(&mut self, rank: u32, saved: &[u8]) -> Result<(), Failure> {
        self.check_no_step()?;
        match &mut self.exchange {
            Some(exchange) => take_over(exchange, rank, saved),
            None => {
                let mut exchange = self.build()?;
                take_over(&mut exchange, rank, saved)?;
                self.exchange = Some(exchange);
                Ok(())
            }
        }
    }
}
