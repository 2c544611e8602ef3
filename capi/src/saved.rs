//! Saves and loads feedbacks, so that a program can go on after a restart.
//!
//! The file has two saved states in sequence (see [`brevity::compress::state`]): what the feedback is for, in
//! five numbers, and its exchange.

use std::ffi::c_void;
use std::io::{self, Write};
use std::sync::Arc;

use brevity::compress::state::{self, Fault, Reader, State, Writer};

use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::feedback::{Bound, NO_DENSITY, Shape, brv_feedback, build, feedback_of, never_used};
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
        let bound = unsafe { feedback_of(feedback) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, |to| bound.as_ref().ok_or_else(never_used)?.save(to)) }
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
        let bound = unsafe { feedback_of(feedback) }?;
        let save = |to: &mut Vec<u8>| bound.as_ref().ok_or_else(never_used)?.save(to);
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, "brv_feedback_saved_size", save) }
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
    guard(|| {
        // SAFETY: the caller in C guarantees a live feedback.
        let mut state = unsafe { feedback_of(feedback) }?;
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.shared();
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        let loaded = Bound::load(group, saved)?;
        if let Some(own) = &*state {
            own.check_group(group)?;
            if own.shape != loaded.shape {
                return Err(Failure::argument(format!(
                    "saved state is of {}, expected {}: was it saved of another tensor?",
                    loaded.shape, own.shape
                )));
            }
        }
        // Assigned last, so that a failure changes nothing.
        *state = Some(loaded);
        Ok(())
    })
}

impl Bound {
    fn save(&self, to: &mut impl Write) -> Result<(), Failure> {
        let purpose = Purpose { shape: self.shape, density: self.density };
        state::save(&purpose, to).map_err(brevity::Error::from)?;
        Ok(self.exchange.save(to)?)
    }

    fn load(group: &Arc<Shared>, mut saved: &[u8]) -> Result<Self, Failure> {
        let mut purpose = Purpose { shape: Shape::Gtopk { n: 0 }, density: NO_DENSITY };
        state::load(&mut purpose, &mut saved).map_err(brevity::Error::from)?;
        let Purpose { shape, density } = purpose;
        // Checked before memory is allocated for it.
        let expected = shape.count().and_then(|n| n.checked_mul(size_of::<f32>()));
        if expected.is_none_or(|expected| expected > saved.len()) {
            return Err(refused(Fault::Truncated {
                found: saved.len(),
                expected: expected.unwrap_or(usize::MAX),
            }));
        }
        let mut exchange = build(group, shape, density)?;
        exchange.load(&mut saved)?;
        nothing_follows(saved)?;
        Ok(Self { group: Arc::clone(group), shape, density, exchange })
    }
}

/// Stores the number of bytes that `save` writes.
///
/// # Safety
/// `bytes` is NULL, or may be written.
pub(crate) unsafe fn write_size(
    bytes: *mut usize,
    save: impl FnOnce(&mut Counted) -> Result<(), Failure>,
) -> Result<(), Failure> {
    check(bytes, "bytes")?;
    let mut counted = Counted(0);
    save(&mut counted)?;
    // SAFETY: not NULL and aligned, as just checked; writable, as the caller of this function guarantees.
    unsafe { bytes.write(counted.0) };
    Ok(())
}

/// Writes what `save` writes to `out`. `asks` is the name of the function that returns the number of bytes.
///
/// # Safety
/// `out` has `bytes` bytes that nobody else uses meanwhile.
pub(crate) unsafe fn write_saved(
    out: *mut c_void,
    bytes: usize,
    asks: &str,
    save: impl FnOnce(&mut Vec<u8>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let out = Stretch::new(out.cast::<u8>().cast_const(), bytes, "out")?;
    let mut saved = Vec::new();
    save(&mut saved)?;
    if saved.len() != bytes {
        return Err(Failure::argument(format!("bytes is {bytes}, expected {}: ask {asks}", saved.len())));
    }
    // SAFETY: the caller of this function guarantees the memory of `out`.
    unsafe { out.fill(&saved) }
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

/// A writer that counts bytes.
pub(crate) struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
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
        format!("{:?}", Bound::load(group.shared(), bytes).err().unwrap())
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
