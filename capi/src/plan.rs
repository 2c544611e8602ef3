//! What it takes to sum a vector as it is and compressed, as `brevity plan` says.

use std::ffi::{CString, c_char};

use brevity::Group;
use brevity::compress::Density;
use brevity_collectives::sparse::Wire;
use brevity_collectives::{Ground, Machine, Planned, Summand, Topology, compare, recommend};

use crate::boundary::{check, free, guard, guard_value, hand_out, object};
use crate::exchange::text;
use crate::failure::Failure;
use crate::group::{brv_group, group_of};
use crate::policy::{VALUES_TEXT, values};
use crate::saved::write_size;
use crate::status::brv_status;

/// The most ranks of a plan.
const MOST_RANKS: u32 = 1 << 20;

/// A vector that is to be summed, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_summand {
    size: u32,
    values: i32,
    elements: u64,
    density: f64,
    rank: u32,
    ranks: u32,
    hosts: u32,
    unused: u32,
    machine: *const c_char,
    reserved: [u64; 4],
}

/// A way to sum it, as in C.
#[repr(C)]
pub struct brv_plan_row {
    size: u64,
    collective: *const c_char,
    algorithm: *const c_char,
    rounds: u32,
    is_sum: u32,
    bytes: f64,
    collective_seconds: f64,
    own_seconds: f64,
    wire: *const c_char,
    reserved: [u64; 3],
}

/// All ways to sum a vector, the fastest first. It does not change.
pub struct brv_plan {
    rows: Vec<Row>,
    choice: CString,
    reason: CString,
}

/// A way with its names.
struct Row {
    way: Planned,
    collective: CString,
    algorithm: CString,
    wire: CString,
}

/// Makes a plan.
///
/// # Safety
/// `group` is NULL or a live group; `summand` is as for `read`; `plan` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_new(
    group: *const brv_group,
    summand: *const brv_summand,
    plan: *mut *mut brv_plan,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a summand.
        let summand = unsafe { read(summand) }?;
        let own = if group.is_null() {
            Own::default()
        } else {
            // SAFETY: the caller in C guarantees a live group.
            let group = unsafe { group_of(group) }?.group();
            let is_own = summand.ranks == 0 && summand.hosts == 0 && summand.machine.is_null();
            if is_own {
                return Ok(Some(brv_plan::of(group.compare(&of_rust(&summand)?))));
            }
            Own::of(group)
        };
        // SAFETY: the caller in C guarantees text.
        let ground = unsafe { ground(&summand, &own) }?;
        Ok(Some(brv_plan::of(compare(&of_rust(&summand)?, &ground))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(plan, "plan", make) })
}

/// Frees a plan. Does nothing for NULL.
///
/// # Safety
/// `plan` is NULL or a live plan that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_free(plan: *mut brv_plan) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(plan) }
}

/// The fastest sum. Empty for NULL. Valid until the plan is freed.
///
/// # Safety
/// `plan` is NULL or a live plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_choice(plan: *const brv_plan) -> *const c_char {
    // SAFETY: the caller in C guarantees a live plan.
    guard_value(c"".as_ptr(), || Ok(unsafe { object(plan, "plan") }?.choice.as_ptr()))
}

/// Why it is the choice. Empty for NULL. Valid until the plan is freed.
///
/// # Safety
/// `plan` is NULL or a live plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_reason(plan: *const brv_plan) -> *const c_char {
    // SAFETY: the caller in C guarantees a live plan.
    guard_value(c"".as_ptr(), || Ok(unsafe { object(plan, "plan") }?.reason.as_ptr()))
}

/// Stores the number of ways.
///
/// # Safety
/// `plan` is NULL or a live plan; `count` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_count(plan: *const brv_plan, count: *mut usize) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live plan.
        let plan = unsafe { object(plan, "plan") }?;
        check(count, "count")?;
        // SAFETY: the caller in C guarantees the memory of `count`.
        unsafe { write_size(count, || Ok(plan.rows.len())) }
    })
}

/// Stores a way.
///
/// # Safety
/// `plan` is NULL or a live plan; `row` is NULL, or 8 bytes may be read; if they hold the size of
/// [`brv_plan_row`], the whole struct may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_plan_get_row(
    plan: *const brv_plan,
    index: usize,
    row: *mut brv_plan_row,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live plan.
        let plan = unsafe { object(plan, "plan") }?;
        check(row, "row")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees 8 bytes.
        let size = unsafe { (&raw const (*row).size).read() };
        let expected = size_of::<brv_plan_row>() as u64;
        if size != expected {
            return Err(Failure::argument(format!(
                "row.size is {size}, expected {expected}: begin with BRV_PLAN_ROW_INIT"
            )));
        }
        let found = plan.rows.get(index).ok_or_else(|| {
            let count = plan.rows.len();
            Failure::argument(format!("index is {index}, expected less than {count}, the number of rows"))
        })?;
        // SAFETY: it has the size of a row, so the caller in C guarantees all of it.
        unsafe { row.write(found.into()) };
        Ok(())
    })
}

/// Reads a summand, except for its text.
///
/// # Safety
/// `summand` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
/// [`brv_summand`], the whole struct may be read.
unsafe fn read(summand: *const brv_summand) -> Result<brv_summand, Failure> {
    check(summand, "summand")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*summand).size).read() };
    if size as usize != size_of::<brv_summand>() {
        let expected = size_of::<brv_summand>();
        return Err(refused("size", size, &format!("{expected}: begin with BRV_SUMMAND_INIT")));
    }
    // SAFETY: it has the size of a summand, so the caller of this function guarantees all of it.
    let summand = unsafe { summand.read() };
    if summand.reserved != [0; 4] || summand.unused != 0 {
        return Err(Failure::argument(
            "a reserved field of summand is set, expected 0: begin with BRV_SUMMAND_INIT",
        ));
    }
    Ok(summand)
}

/// The vector, and how it may be compressed.
fn of_rust(summand: &brv_summand) -> Result<Summand, Failure> {
    let elements = usize::try_from(summand.elements).ok();
    let elements = elements.filter(|&elements| elements <= isize::MAX as usize / size_of::<f32>());
    let elements =
        elements.ok_or_else(|| refused("elements", summand.elements, "what fits in memory, as floats"))?;
    let values = match u32::try_from(summand.values) {
        Err(_) if summand.values == -1 => None,
        Ok(number) if values(number).is_some() => values(number),
        _ => return Err(refused("values", summand.values, &format!("{VALUES_TEXT}, or BRV_UNSET"))),
    };
    let entries = match summand.density {
        0.0 => None,
        share => match Density::new(share) {
            Ok(density) => Some(density.entries(elements)),
            Err(_) => return Err(refused("density", share, "above 0 and at most 1, or 0 for none")),
        },
    };
    let rank = Some(summand.rank as usize).filter(|&rank| rank > 0);
    Ok(Summand { elements, entries, wire: values.map(Wire::Coded), rank, values })
}

/// The settings of a group, in place of what the summand leaves out.
#[derive(Default)]
struct Own {
    machine: Machine,
    ranks: Option<u32>,
    hosts: Option<u32>,
    any_order: bool,
}

impl Own {
    fn of(group: &Group) -> Self {
        let settings = group.settings_in_force();
        let find = |name| settings.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str());
        Self {
            machine: find("machine").and_then(|machine| machine.parse().ok()).unwrap_or_default(),
            ranks: Some(group.world_size()),
            hosts: find("hosts").and_then(|hosts| hosts.parse().ok()),
            any_order: find("any_order") == Some("1"),
        }
    }
}

/// The network and the ranks.
///
/// # Safety
/// The machine of the summand is NULL, or text that ends with a zero.
unsafe fn ground(summand: &brv_summand, own: &Own) -> Result<Ground, Failure> {
    let is_own = summand.ranks == 0;
    let ranks = if is_own { own.ranks.unwrap_or(0) } else { summand.ranks };
    if !(1..=MOST_RANKS).contains(&ranks) {
        return Err(refused("ranks", ranks, &format!("1 to {MOST_RANKS}, or 0 for those of a group")));
    }
    let hosts = match summand.hosts {
        0 if is_own => own.hosts.unwrap_or(ranks),
        0 => ranks,
        hosts => hosts,
    };
    if !(1..=ranks).contains(&hosts) {
        return Err(refused("hosts", hosts, &format!("1 to {ranks}, the number of ranks, or 0 for as many")));
    }
    let machine = if summand.machine.is_null() {
        own.machine
    } else {
        // SAFETY: the caller of this function guarantees text.
        let speeds = unsafe { text(summand.machine, "summand.machine") }?;
        speeds.parse::<Machine>().map_err(|error| Failure::argument(format!("summand.machine: {error}")))?
    };
    let host_of = |rank: u32| (u64::from(rank) * u64::from(hosts) / u64::from(ranks)) as u32;
    let placed: Vec<u32> = (0..ranks).map(host_of).collect();
    let any_order = own.any_order;
    let (topology, has_slots) = (Topology::of(&placed), hosts == 1);
    Ok(Ground { topology, has_slots, any_order, ..Ground::new(machine, ranks) })
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("summand.{field} is {found:?}, expected {expected}"))
}

impl brv_plan {
    fn of(ways: Vec<Planned>) -> Self {
        let (choice, reason) = recommend(&ways);
        // None of the texts has a zero.
        let text = |text: String| CString::new(text).unwrap_or_default();
        let row = |way: Planned| Row {
            collective: text(way.collective()),
            algorithm: text(way.algorithm.name().to_owned()),
            wire: text(way.wire.map(|wire| wire.to_string()).unwrap_or_default()),
            way,
        };
        Self { rows: ways.into_iter().map(row).collect(), choice: text(choice), reason: text(reason) }
    }
}

impl From<&Row> for brv_plan_row {
    fn from(Row { way, collective, algorithm, wire }: &Row) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            collective: collective.as_ptr(),
            algorithm: algorithm.as_ptr(),
            rounds: way.estimate.rounds,
            is_sum: way.is_sum.into(),
            bytes: way.estimate.bytes,
            collective_seconds: way.estimate.seconds,
            own_seconds: way.own_seconds,
            wire: wire.as_ptr(),
            reserved: [0; 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summand() -> brv_summand {
        let size = size_of::<brv_summand>() as u32;
        let (values, elements, density, rank) = (-1, 1000, 0.0, 0);
        let (ranks, hosts, unused, machine) = (8, 0, 0, std::ptr::null());
        brv_summand { size, values, elements, density, rank, ranks, hosts, unused, machine, reserved: [0; 4] }
    }

    #[test]
    fn what_is_left_out_is_that_of_the_group() {
        let group = Group::solo();
        let own = Own::of(&group);
        // SAFETY: there is no text.
        let of = |summand: &brv_summand| unsafe { ground(summand, &own) }.unwrap();
        let found = of(&brv_summand { ranks: 0, ..summand() });
        assert_eq!(
            (found.world_size, found.topology, found.machine),
            (1, Topology::one_host(1), own.machine)
        );
        assert_eq!(of(&summand()).topology, Topology::apart(8));
        let placed = of(&brv_summand { hosts: 3, ..summand() });
        assert_eq!(placed.topology, Topology::of(&[0, 0, 0, 1, 1, 1, 2, 2]));
        let machine = brv_summand { machine: c"between:50,2,8".as_ptr(), ..summand() };
        // SAFETY: the text is a literal.
        let found = unsafe { ground(&machine, &own) }.unwrap();
        assert_eq!(found.machine.between.alpha, 50e-6);
    }

    #[test]
    fn compressions_are_those_that_were_asked_for() {
        let of = |summand: &brv_summand| of_rust(summand).unwrap();
        let none = of(&summand());
        assert_eq!((none.elements, none.entries, none.rank, none.values), (1000, None, None, None));
        let all = of(&brv_summand { density: 0.01, rank: 4, values: 2, ..summand() });
        assert_eq!((all.entries, all.rank, all.values), (Some(10), Some(4), values(2)));
        assert_eq!((all.wire, none.wire), (Some(Wire::Coded(values(2).unwrap())), None));
        let refused = |summand: brv_summand| of_rust(&summand).unwrap_err().text().to_owned();
        assert!(refused(brv_summand { values: 8, ..summand() }).contains("summand.values is 8"));
        assert!(refused(brv_summand { values: -2, ..summand() }).contains("summand.values is -2"));
        assert!(refused(brv_summand { density: 1.5, ..summand() }).contains("summand.density is 1.5"));
        assert!(refused(brv_summand { elements: u64::MAX, ..summand() }).contains("summand.elements"));
    }
}
