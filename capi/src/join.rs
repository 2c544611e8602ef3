//! Joining a job.

use crate::boundary::{check, guard, hand_out};
use crate::callback::check_may_wait;
use crate::config::{Config, brv_config, brv_id};
use crate::group::brv_group;
use crate::status::brv_status;

/// Joins a job. Blocks until all ranks have joined.
///
/// # Safety
/// `config` is NULL or a config, whose pointers are NULL or point to what their fields say; `group` is NULL,
/// or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_join(config: *const brv_config, group: *mut *mut brv_group) -> brv_status {
    let join = || {
        check_may_wait()?;
        crate::log::if_asked();
        // SAFETY: the caller in C guarantees a config.
        let config = unsafe { Config::read(config) }?;
        // SAFETY: the caller in C guarantees what its pointers point to.
        Ok(Some(brv_group::new(unsafe { config.join() }?)))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(group, "group", join) })
}

/// Makes the identifier of a new job, with this process as its rank 0.
///
/// # Safety
/// `config` is as for [`brv_group_join`]; `id` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_id_new(config: *const brv_config, id: *mut brv_id) -> brv_status {
    guard(|| {
        check(id, "id")?;
        // SAFETY: the caller in C guarantees a config.
        let config = unsafe { Config::read(config) }?;
        // SAFETY: the caller in C guarantees what its pointers point to.
        let made = unsafe { config.make_id() }?;
        // SAFETY: not NULL, as just checked; writable, as the caller in C guarantees.
        unsafe { id.write(brv_id { bytes: made.to_bytes() }) };
        Ok(())
    })
}
