//! Saves and loads feedbacks, so that a program can go on after a restart.
//!
//! The file has two saved states in sequence (see [`brevity::compress::state`]): what the feedback is for, in
//! five numbers, and its exchange.

use std::ffi::c_void;
use std::io::Write;
use std::sync::Arc;

use brevity::GradientExchange;
use brevity::compress::state::{self, Fault, Reader, State, Writer};

use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::feedback::{Bound, Feedback, NO_DENSITY, Shape, brv_feedback, feedback_of};
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::status::brv_status;

/// Stores the number of bytes that [`brv_feedback_save`] writes.
///
/// # Safety
/// `feedback` is NULL or a live feedback; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_saved_size(
    feedback: *const brv_feedback,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live feedback.
        let feedback = unsafe { feedback_of(feedback) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(feedback.used()?.saved_bytes())) }
    })
}

/// Writes what the feedback needs after a restart to `out`.
///
/// # Safety
/// `feedback` is NULL or a live feedback; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_save(
    feedback: *const brv_feedback,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live feedback.
        let feedback = unsafe { feedback_of(feedback) }?;
        let bound = feedback.used()?;
        let size = ("brv_feedback_saved_size", bound.saved_bytes());
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, size, |to| bound.save(to)) }
    })
}

/// Loads what [`brv_feedback_save`] wrote on this rank.
///
/// # Safety
/// `feedback` and `group` are NULL or live; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_load(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `load` demands.
    guard(|| unsafe { load(feedback, group, None, saved, bytes) })
}

/// Loads what [`brv_feedback_save`] wrote on rank `rank`.
///
/// # Safety
/// The same as for [`brv_feedback_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_load_of(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
    rank: i32,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees what `load` demands.
    guard(|| unsafe { load(feedback, group, Some(saved_rank(rank)?), saved, bytes) })
}

/// Adds what [`brv_feedback_save`] wrote of the residual of rank `rank`.
///
/// # Safety
/// The same as for [`brv_feedback_load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_feedback_take_over(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
    rank: i32,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        let rank = saved_rank(rank)?;
        // SAFETY: the caller in C guarantees what `with` demands.
        unsafe {
            with(feedback, group, saved, bytes, |state, group, saved| state.take_over(group, rank, saved))
        }
    })
}

/// # Safety
/// The same as for [`brv_feedback_load`].
unsafe fn load(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
    rank: Option<u32>,
    saved: *const c_void,
    bytes: usize,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees what `with` demands.
    unsafe { with(feedback, group, saved, bytes, |state, group, saved| state.load(group, rank, saved)) }
}

/// Calls a function with what is behind the pointers.
///
/// # Safety
/// The same as for [`brv_feedback_load`].
unsafe fn with(
    feedback: *mut brv_feedback,
    group: *mut brv_group,
    saved: *const c_void,
    bytes: usize,
    function: impl FnOnce(&mut Feedback, &Arc<Shared>, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live feedback.
    let mut state = unsafe { feedback_of(feedback) }?;
    // SAFETY: the caller of this function guarantees a live group.
    let group = unsafe { group_of(group) }?.shared();
    // SAFETY: the caller of this function guarantees set memory that nobody writes.
    let saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
    function(&mut state, group, saved)
}

/// The rank of a saved state.
pub(crate) fn saved_rank(rank: i32) -> Result<u32, Failure> {
    u32::try_from(rank)
        .map_err(|_| Failure::argument(format!("rank is {rank}, expected 0 or more: the rank that saved")))
}

impl Bound {
    fn purpose(&self) -> Purpose {
        Purpose { shape: self.shape, density: self.density }
    }

    fn saved_bytes(&self) -> usize {
        state::saved_bytes(&self.purpose()) + self.exchange.saved_bytes()
    }

    fn save(&self, to: &mut impl Write) -> Result<(), Failure> {
        state::save(&self.purpose(), to).map_err(brevity::Error::from)?;
        Ok(self.exchange.save(to)?)
    }
}

impl Feedback {
    /// Replaces the state by a saved one of `rank`, or of this rank. A failure changes nothing.
    fn load(&mut self, group: &Arc<Shared>, rank: Option<u32>, mut saved: &[u8]) -> Result<(), Failure> {
        let Purpose { shape, density } = self.purpose_of(group, &mut saved)?;
        let mut loaded = self.build(group, shape, density)?;
        loaded.exchange.load_of(rank.unwrap_or_else(|| group.group.rank()), &mut saved)?;
        nothing_follows(saved)?;
        self.bound = Some(loaded);
        Ok(())
    }

    /// Adds what rank `rank` has saved. A failure changes nothing.
    fn take_over(&mut self, group: &Arc<Shared>, rank: u32, mut saved: &[u8]) -> Result<(), Failure> {
        let Purpose { shape, density } = self.purpose_of(group, &mut saved)?;
        match &mut self.bound {
            Some(bound) => take_over(&mut bound.exchange, rank, saved),
            None => {
                let mut bound = self.build(group, shape, density)?;
                take_over(&mut bound.exchange, rank, saved)?;
                self.bound = Some(bound);
                Ok(())
            }
        }
    }

    /// Reads what saved state is for, and refuses what this feedback is not for.
    fn purpose_of(&self, group: &Arc<Shared>, saved: &mut &[u8]) -> Result<Purpose, Failure> {
        let mut purpose = Purpose { shape: Shape::Gtopk { n: 0 }, density: NO_DENSITY };
        state::load(&mut purpose, saved).map_err(brevity::Error::from)?;
        let shape = purpose.shape;
        // Checked before memory is allocated for it.
        let expected = shape.count().and_then(|n| n.checked_mul(size_of::<f32>()));
        if expected.is_none_or(|expected| expected > saved.len()) {
            return Err(refused(Fault::Truncated {
                found: saved.len(),
                expected: expected.unwrap_or(usize::MAX),
            }));
        }
        if let Some(own) = &self.bound {
            own.check_group(group)?;
            if own.shape != shape {
                return Err(Failure::argument(format!(
                    "saved state is of {shape}, expected {}: was it saved of another tensor?",
                    own.shape
                )));
            }
        }
        Ok(purpose)
    }
}

/// Adds what rank `rank` has saved, in these bytes and no others.
pub(crate) fn take_over(exchange: &mut GradientExchange, rank: u32, mut saved: &[u8]) -> Result<(), Failure> {
    // Refused before anything changes.
    let bytes = saved.len().saturating_sub(exchange.saved_bytes());
    if bytes > 0 {
        return Err(refused(Fault::Trailing { bytes }));
    }
    Ok(exchange.take_over(rank, &mut saved)?)
}

/// Stores a number of bytes.
///
/// # Safety
/// `bytes` is NULL, or may be written.
pub(crate) unsafe fn write_size(
    bytes: *mut usize,
    size: impl FnOnce() -> Result<usize, Failure>,
) -> Result<(), Failure> {
    check(bytes, "bytes")?;
    let size = size()?;
    // SAFETY: not NULL and aligned, as just checked; writable, as the caller of this function guarantees.
    unsafe { bytes.write(size) };
    Ok(())
}

/// Writes the `expected` bytes that `save` writes to `out`. `asks` is the name of the function that returns
/// their number.
///
/// # Safety
/// `out` has `bytes` bytes that nobody else uses meanwhile.
pub(crate) unsafe fn write_saved(
    out: *mut c_void,
    bytes: usize,
    (asks, expected): (&str, usize),
    save: impl FnOnce(&mut &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let out = Stretch::new(out.cast::<u8>().cast_const(), bytes, "out")?;
    if bytes != expected {
        return Err(Failure::argument(format!("bytes is {bytes}, expected {expected}: ask {asks}")));
    }
    // SAFETY: the caller of this function guarantees the memory of `out`.
    save(&mut unsafe { out.zeroed() })
}

/// Refuses bytes after the saved state.
pub(crate) fn nothing_follows(rest: &[u8]) -> Result<(), Failure> {
    if rest.is_empty() { Ok(()) } else { Err(refused(Fault::Trailing { bytes: rest.len() })) }
}

fn refused(fault: Fault) -> Failure {
    brevity::Error::from(brevity::compress::Error::from(fault)).into()
}

/// What a feedback is for, as five numbers: the method (1 for gTop-k, 2 for low rank), the length or the
/// rows, the columns, the rank, and the bits of the density.
struct Purpose {
    shape: Shape,
    density: f64,
}

const GTOPK: u64 = 1;
const LOW_RANK: u64 = 2;

impl State for Purpose {
    fn kind(&self) -> [u8; 4] {
        *b"brvf"
    }

    fn shape(&self) -> Vec<u64> {
        Vec::new()
    }

    fn write_contents(&self, contents: &mut Writer) {
        let numbers = match self.shape {
            Shape::Gtopk { n } => [GTOPK, n as u64, 0, 0],
            Shape::LowRank { rows, cols, rank } => [LOW_RANK, rows as u64, cols as u64, rank.into()],
        };
        numbers.into_iter().for_each(|number| contents.u64(number));
        contents.u64(self.density.to_bits());
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity::compress::Error> {
        let [method, first, second, third] =
            [contents.u64()?, contents.u64()?, contents.u64()?, contents.u64()?];
        let lengths = usize::try_from(first).ok().zip(usize::try_from(second).ok());
        self.shape = match (method, lengths, u32::try_from(third)) {
            (GTOPK, Some((n, 0)), Ok(0)) => Shape::Gtopk { n },
            (LOW_RANK, Some((rows, cols)), Ok(rank)) => Shape::LowRank { rows, cols, rank },
            _ => return Err(Fault::Contents { what: "it is of no method that there is" }.into()),
        };
        self.density = f64::from_bits(contents.u64()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(shape: Shape, density: f64) -> Vec<u8> {
        state::to_bytes(&Purpose { shape, density })
    }

    fn error(bytes: &[u8]) -> String {
        let group = brv_group::solo();
        format!("{:?}", Feedback::default().load(group.shared(), None, bytes).err().unwrap())
    }

    #[test]
    fn lengths_that_the_bytes_do_not_hold_take_no_memory() {
        let huge = 1 << 60;
        for shape in [
            Shape::Gtopk { n: huge },
            Shape::Gtopk { n: 3 },
            Shape::LowRank { rows: huge, cols: huge, rank: 1 },
            Shape::LowRank { rows: 1 << 20, cols: 1 << 20, rank: 4 },
        ] {
            assert!(error(&saved(shape, 0.5)).contains("was it written to the end"), "{shape}");
        }
        let nothing = saved(Shape::LowRank { rows: 0, cols: huge, rank: u32::MAX }, 1.0);
        assert!(error(&nothing).contains("saved state ends"), "{}", error(&nothing));
        assert!(error(&saved(Shape::Gtopk { n: 0 }, f64::NAN)).contains("density"));
    }
}
