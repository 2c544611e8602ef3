//! Taking lost ranks back.

use crate::boundary::{guard, guard_value, hand_out};
use crate::group::{brv_group, group_of, small};
use crate::options::{Options, brv_options, timeout, with_options};
use crate::split::place_of;
use crate::status::brv_status;

/// Makes a group of this one's ranks and of those lost ranks that come back within `wait` seconds.
///
/// # Safety
/// `group` is NULL or a live group; `grown` is NULL, or may be written; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_grow(
    group: *mut brv_group,
    wait: f64,
    grown: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    let make = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        let wait = timeout(wait, "wait")?.unwrap_or_default();
        let next = options.on(group.group()).grow(wait)?;
        // The same group without the timeout of this call.
        let is_same = next.is_same(group.group());
        Ok(Some(if is_same { group.part(group.group().clone()) } else { brv_group::new(next) }))
    };
    // SAFETY: the caller in C guarantees what `hand_out` and `read` demand.
    guard(|| unsafe { hand_out(grown, "grown", || with_options(options, make)) })
}

/// 1 if this rank of the group has come back by the grow that has made its world, 0 if not, -1 if the group
/// has no such rank or is NULL.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_has_returned(group: *const brv_group, rank: i32) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let rank = place_of(group, rank)? as u32;
        Ok(i32::from(group.returned().contains(&rank)))
    })
}

/// The number that a rank of the group had when the job began, or -1 if there is none.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_first_rank(group: *const brv_group, rank: i32) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let place = place_of(group, rank)?;
        Ok(small(group.first_ranks()[place].0))
    })
}

/// The number of ranks with which the job began, or -1 for NULL.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_first_size(group: *const brv_group) -> i32 {
    // SAFETY: the caller in C guarantees a live group.
    guard_value(-1, || Ok(small(unsafe { group_of(group) }?.group().first_world_size())))
}
