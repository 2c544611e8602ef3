//! Densities that change from period to period, as in C.

use brevity::compress::Density;
use brevity::compress::schedule::Schedule;

use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::status::brv_status;

/// A warm-up's number. C may pass any number, so this is not a Rust enum.
pub type brv_warm_up = u32;

/// A density for each period, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_schedule {
    size: u32,
    warm_up: brv_warm_up,
    target: f64,
    densities: *const f64,
    periods: usize,
    reserved: [u64; 4],
}

/// Stores the density of a period.
///
/// # Safety
/// `schedule` is as for `schedule::read`; `density` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_schedule_density(
    schedule: *const brv_schedule,
    period: u64,
    density: *mut f64,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a schedule.
        let schedule = unsafe { read(schedule) }?;
        check(density, "density")?;
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees that it may be written.
        unsafe { density.write(schedule.density(period).share()) };
        Ok(())
    })
}

/// Reads a schedule.
///
/// # Safety
/// `schedule` is NULL, or points to at least 4 bytes that hold its size. If that is the size of
/// [`brv_schedule`], the whole struct may be read, and its densities have as many elements as it has periods,
/// set, that nobody writes.
pub(crate) unsafe fn read(schedule: *const brv_schedule) -> Result<Schedule, Failure> {
    check(schedule, "schedule")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*schedule).size).read() };
    if size as usize != size_of::<brv_schedule>() {
        let expected = size_of::<brv_schedule>();
        return Err(refused(
            "size",
            size,
            &format!("{expected}: begin with a macro, as BRV_SCHEDULE_LINEAR"),
        ));
    }
    // SAFETY: it has the size of a schedule, so the caller of this function guarantees all of it.
    let schedule = unsafe { schedule.read() };
    if schedule.reserved != [0; 4] {
        return Err(Failure::argument(
            "a reserved field of schedule is set, expected 0: begin with a macro, as BRV_SCHEDULE_LINEAR",
        ));
    }
    let target = || density(schedule.target).ok_or_else(|| refused("target", schedule.target, DENSITIES));
    let periods = || {
        let count = u32::try_from(schedule.periods).ok();
        count.ok_or_else(|| refused("periods", schedule.periods, "at most 2^32 - 1"))
    };
    match schedule.warm_up {
        1 => Ok(Schedule::constant(target()?)),
        2 => Ok(Schedule::exponential(target()?, periods()?)),
        3 => Ok(Schedule::linear(target()?, periods()?)),
        4 => {
            // SAFETY: the caller of this function guarantees as many elements, which nobody writes.
            let listed = unsafe { listed(&schedule) }?;
            Ok(Schedule::listed(&listed, target()?))
        }
        5 => Ok(Schedule::deep_gradient_compression()),
        6 => Ok(Schedule::global_top_k()),
        7 => Ok(Schedule::global_top_k_recurrent()),
        other => Err(refused("warm_up", other, "a brv_warm_up (1 to 7)")),
    }
}

/// The densities of a list.
///
/// # Safety
/// `densities` has as many elements as the schedule has periods, set, that nobody writes.
unsafe fn listed(schedule: &brv_schedule) -> Result<Vec<Density>, Failure> {
    let listed = Stretch::new(schedule.densities, schedule.periods, "schedule.densities")?;
    // SAFETY: the caller of this function guarantees it.
    let listed = unsafe { listed.read() }.iter().enumerate();
    let each = listed.map(|(period, &share)| {
        density(share).ok_or_else(|| refused(&format!("densities[{period}]"), share, DENSITIES))
    });
    each.collect()
}

const DENSITIES: &str = "above 0 and at most 1";

fn density(share: f64) -> Option<Density> {
    Density::new(share).ok()
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("schedule.{field} is {found:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(warm_up: brv_warm_up, change: impl Fn(&mut brv_schedule)) -> Result<Schedule, String> {
        let densities = [1.0, 0.5, 0.25];
        let size = size_of::<brv_schedule>() as u32;
        let (densities, periods) = (densities.as_ptr(), densities.len());
        let mut schedule =
            brv_schedule { size, warm_up, target: 0.125, densities, periods, reserved: [0; 4] };
        change(&mut schedule);
        // SAFETY: the schedule and its densities are local variables.
        unsafe { read(&raw const schedule) }.map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn warm_ups_are_those_of_rust() {
        let plain = |warm_up| with(warm_up, |_| ()).unwrap();
        let of = |share| Density::new(share).unwrap();
        assert_eq!(plain(1), Schedule::constant(of(0.125)));
        assert_eq!(plain(2), Schedule::exponential(of(0.125), 3));
        assert_eq!(plain(3), Schedule::linear(of(0.125), 3));
        assert_eq!(plain(4), Schedule::listed(&[of(1.0), of(0.5), of(0.25)], of(0.125)));
        let unused = |schedule: &mut brv_schedule| (schedule.target, schedule.periods) = (-1.0, usize::MAX);
        assert_eq!(with(5, unused), Ok(Schedule::deep_gradient_compression()));
        assert_eq!(with(6, unused), Ok(Schedule::global_top_k()));
        assert_eq!(with(7, unused), Ok(Schedule::global_top_k_recurrent()));
    }

    #[test]
    fn wrong_fields_are_named() {
        let refused = |warm_up, field: &str, change: fn(&mut brv_schedule)| {
            let text = with(warm_up, change).unwrap_err();
            assert!(text.contains(&format!("schedule.{field}")), "{text}");
        };
        refused(1, "size is ", |schedule| schedule.size += 8);
        for warm_up in [0, 8] {
            refused(warm_up, "warm_up is ", |_| ());
        }
        for warm_up in 1..=4 {
            refused(warm_up, "target is 0.0", |schedule| schedule.target = 0.0);
            refused(warm_up, "target is NaN", |schedule| schedule.target = f64::NAN);
        }
        for warm_up in 2..=3 {
            refused(warm_up, "periods is ", |schedule| schedule.periods = 1 << 32);
        }
        refused(4, "densities is NULL", |schedule| schedule.densities = std::ptr::null());
        refused(4, "densities has ", |schedule| schedule.periods = usize::MAX);
        refused(4, "densities[1] is 1.5", |schedule| {
            schedule.densities = const { &[1.0, 1.5, 0.5] }.as_ptr();
        });
        assert!(with(1, |schedule| schedule.reserved[3] = 1).unwrap_err().contains("reserved"));
        // SAFETY: NULL may be read.
        assert!(unsafe { read(std::ptr::null()) }.unwrap_err().text().contains("schedule is NULL"));
    }
}
