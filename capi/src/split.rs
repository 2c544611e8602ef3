//! New groups of the ranks of a group.

use brevity::Group;
use brevity::collectives::Hosts;

use crate::boundary::{check, guard, guard_value, hand_out};
use crate::failure::Failure;
use crate::group::{brv_group, group_of, small};
use crate::options::{Options, brv_options, timeout, with_options};
use crate::status::brv_status;

/// The colour of a rank that gets no group.
pub(crate) const NO_COLOUR: i32 = -1;

/// Splits a group by colour.
///
/// # Safety
/// `group` is NULL or a live group; `part` is NULL, or may be written; `options` are as for
/// `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_split(
    group: *mut brv_group,
    colour: i32,
    key: i32,
    part: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    let split = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        let part = options.on(group.group()).split(read_colour(colour)?, rising(key))?;
        Ok(part.map(|part| group.part(part)))
    };
    // SAFETY: the caller in C guarantees what `hand_out` and `read` demand.
    unsafe { hand_out_by(part, "part", options, split) }
}

/// Makes another group of the same ranks.
///
/// # Safety
/// `group` is NULL or a live group; `duplicate` is NULL, or may be written; `options` are as for
/// `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_duplicate(
    group: *mut brv_group,
    duplicate: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    let make = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        Ok(Some(group.part(options.on(group.group()).duplicate()?)))
    };
    // SAFETY: the caller in C guarantees what `hand_out` and `read` demand.
    unsafe { hand_out_by(duplicate, "duplicate", options, make) }
}

/// Makes a group of the ranks that are left of a closed one, if they are a majority.
///
/// # Safety
/// `group` is NULL or a live group; `left` is NULL, or may be written; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_shrink(
    group: *mut brv_group,
    left: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what this demands.
    unsafe { shrink_by(group, left, options, Group::shrink) }
}

/// Makes a group of the ranks that are left of a closed one, however few they are.
///
/// # Safety
/// As for `brv_group_shrink`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_shrink_any(
    group: *mut brv_group,
    left: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    // SAFETY: the caller in C guarantees what this demands.
    unsafe { shrink_by(group, left, options, Group::shrink_any) }
}

/// # Safety
/// As for `brv_group_shrink`.
unsafe fn shrink_by(
    group: *mut brv_group,
    left: *mut *mut brv_group,
    options: *const brv_options,
    shrink: fn(&Group) -> brevity::collectives::Result<Group>,
) -> brv_status {
    let make = |options: &Options| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?;
        Ok(Some(group.part(shrink(&options.on(group.group()))?)))
    };
    // SAFETY: the caller in C guarantees what `hand_out` and `read` demand.
    unsafe { hand_out_by(left, "left", options, make) }
}

/// Makes the groups for calls in two levels: the ranks of this host, and the first rank of each host.
///
/// # Safety
/// `group` is NULL or a live group; `local` and `leaders` are NULL, or may be written; `options` are as for
/// `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_hosts(
    group: *mut brv_group,
    local: *mut *mut brv_group,
    leaders: *mut *mut brv_group,
    options: *const brv_options,
) -> brv_status {
    guard(|| {
        // Both are checked before anything is sent.
        check(local, "local")?;
        if std::ptr::eq(local, leaders) {
            return Err(Failure::argument("local and leaders are the same pointer, expected two places"));
        }
        let mut hosts = None;
        let make_leaders = |options: &Options| {
            // SAFETY: the caller in C guarantees a live group.
            let group = unsafe { group_of(group) }?;
            let Hosts { local, leaders } = options.on(group.group()).hosts()?;
            hosts = Some(group.part(local));
            Ok(leaders.map(|leaders| group.part(leaders)))
        };
        // SAFETY: the caller in C guarantees what `hand_out` demands.
        let made = unsafe { hand_out(leaders, "leaders", || with_options(options, make_leaders)) };
        // SAFETY: as above.
        unsafe { hand_out(local, "local", || made.map(|()| hosts)) }
    })
}

/// Sets the time that later calls on the group may take.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_set_timeout(group: *mut brv_group, seconds: f64) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let Some(timeout) = timeout(seconds, "seconds")? else {
            return Err(Failure::argument("seconds is 0.0, expected a number above 0, as 30 or 0.5"));
        };
        group.set_timeout(timeout);
        Ok(())
    })
}

/// The number in the world of a rank of the group, or -1.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_world_rank(group: *const brv_group, rank: i32) -> i32 {
    guard_value(-1, || {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let place = place_of(group, rank)?;
        Ok(small(group.members()[place].0))
    })
}

/// The place of a rank among the members of a group.
pub(crate) fn place_of(group: &Group, rank: i32) -> Result<usize, Failure> {
    let size = group.members().len();
    usize::try_from(rank).ok().filter(|place| *place < size).ok_or_else(|| {
        Failure::argument(format!("rank is {rank}, expected a rank of the group (0 to {})", size - 1))
    })
}

/// Stores what a call that waits has made in `*place`; NULL if it has made nothing, or fails.
///
/// # Safety
/// As for [`hand_out`] and [`with_options`].
unsafe fn hand_out_by<T>(
    place: *mut *mut T,
    name: &str,
    options: *const brv_options,
    make: impl FnOnce(&Options) -> Result<Option<T>, Failure>,
) -> brv_status {
    // SAFETY: the caller of this function guarantees what both demand.
    guard(|| unsafe { hand_out(place, name, || with_options(options, make)) })
}

fn read_colour(colour: i32) -> Result<Option<u32>, Failure> {
    match (u32::try_from(colour), colour) {
        (Ok(colour), _) => Ok(Some(colour)),
        (Err(_), NO_COLOUR) => Ok(None),
        _ => Err(Failure::argument(format!(
            "colour is {colour}, expected 0 or more, or BRV_NO_COLOUR ({NO_COLOUR})"
        ))),
    }
}

/// An unsigned key in the same order as the signed ones of C.
fn rising(key: i32) -> u32 {
    key.cast_unsigned() ^ 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order() {
        let keys = [i32::MIN, -7, -1, 0, 1, i32::MAX];
        assert!(keys.is_sorted_by_key(|&key| rising(key)));
    }
}
