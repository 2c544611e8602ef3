//! Dense vectors of any [`Element`] type: sums, products and conversions at the speed of memory.
//!
//! Values of 16 bits are added in `f32` and rounded once to nearest, ties to even. All results have the same
//! bits on every CPU, except the bits of a NaN. `f32` and `f64` sums follow IEEE 754: [`add_assign`] and
//! [`scale`] do not check their input, so a NaN or an infinity passes through. Values that enter state or
//! change type are checked.

mod element;

pub use element::Element;

use crate::Error;
use crate::bits::INFINITE;
use crate::error::check_length;
use crate::simd::{Level, dense};

/// Elements that are checked before they are written; they stay in the first-level cache in between.
const BLOCK: usize = 1024;

/// `a += b`. Cost: two reads and a write of memory. Sums that overflow become infinite.
///
/// # Errors
/// [`Error::LengthMismatch`]; `a` is unchanged then.
pub fn add_assign<E: Element>(a: &mut [E], b: &[E]) -> Result<(), Error> {
    check_length(a.len(), b.len())?;
    E::add_assign(Level::best(), a, b);
    Ok(())
}

/// `a += b` in the loop that the compiler generates for this CPU, without prefetching. It is the baseline for
/// benchmarks of the kernels; use [`add_assign`] for work.
///
/// # Errors
/// The same as for [`add_assign`].
pub fn add_assign_plain(a: &mut [f32], b: &[f32]) -> Result<(), Error> {
    check_length(a.len(), b.len())?;
    dense::add_assign_plain(Level::best(), a, b);
    Ok(())
}

/// `values *= factor`. Products that overflow become infinite.
pub fn scale<E: Element>(values: &mut [E], factor: f32) {
    E::scale(Level::best(), values, factor);
}

/// `r += g`, in `f32`, whatever the type of `g`. Cost: one pass.
///
/// # Errors
/// [`Error::LengthMismatch`]: `r` is unchanged then. [`Error::NonFinite`] for the first sum that is not
/// finite as an `f32`: the `g` before that place has been added and subtracted again, so `r` is finite and
/// unchanged up to rounding.
pub fn accumulate<E: Element>(r: &mut [f32], g: &[E]) -> Result<(), Error> {
    check_length(r.len(), g.len())?;
    let level = Level::best();
    let mut wide = [0.0; BLOCK];
    if let Some(g) = E::as_f32(g) {
        let done = dense::add_finite(level, r, g);
        return if done == r.len() { Ok(()) } else { Err(undo(level, r, g, done)) };
    }
    for first in (0..r.len()).step_by(BLOCK) {
        let last = r.len().min(first + BLOCK);
        let block = as_f32(level, &g[first..last], &mut wide);
        let done = dense::add_finite(level, &mut r[first..last], block);
        if done < block.len() {
            return Err(undo(level, r, g, first + done));
        }
    }
    Ok(())
}

/// The first of the sums `r + g` that is not finite.
pub(crate) fn first_infinite_sum<E: Element>(r: &[f32], g: &[E]) -> Option<Error> {
    let mut wide = [0.0; BLOCK];
    r.chunks(BLOCK).zip(g.chunks(BLOCK)).enumerate().find_map(|(block, (r, g))| {
        let sums = r.iter().zip(as_f32(Level::best(), g, &mut wide)).map(|(r, g)| r + g);
        let (index, value) = sums.enumerate().find(|(_, sum)| !sum.is_finite())?;
        Some(Error::NonFinite { index: block * BLOCK + index, value })
    })
}

/// Takes the added part of `g` out again, and returns an error for the first sum after it that is not finite.
fn undo<E: Element>(level: Level, r: &mut [f32], g: &[E], done: usize) -> Error {
    let error = first_infinite_sum(&r[done..], &g[done..]);
    take_out(level, &mut r[..done], &g[..done]);
    match error {
        Some(Error::NonFinite { index, value }) => Error::NonFinite { index: done + index, value },
        _ => Error::NonFinite { index: done, value: f32::NAN },
    }
}

/// `r -= g` for a `g` that has been added, where both are finite. The sum was rounded, so the difference may
/// exceed the largest number by half a unit.
pub(crate) fn take_out<E: Element>(level: Level, r: &mut [f32], g: &[E]) {
    let mut wide = [0.0; BLOCK];
    for (r, g) in r.chunks_mut(BLOCK).zip(g.chunks(BLOCK)) {
        r.iter_mut()
            .zip(as_f32(level, g, &mut wide))
            .for_each(|(r, g)| *r = (*r - g).clamp(f32::MIN, f32::MAX));
    }
}

/// At most [`BLOCK`] elements as `f32`, converted into `wide` if they have another type.
fn as_f32<'a, E: Element>(level: Level, values: &'a [E], wide: &'a mut [f32; BLOCK]) -> &'a [f32] {
    if let Some(values) = E::as_f32(values) {
        return values;
    }
    let wide = &mut wide[..values.len()];
    E::to_f32(level, values, wide);
    wide
}

/// `to = from`, `f64` rounded to nearest.
///
/// # Errors
/// [`Error::LengthMismatch`]: `to` is unchanged then. [`Error::NonFinite`] for the first result that is NaN
/// or infinite: all of `to` is written then.
pub fn to_f32<E: Element>(from: &[E], to: &mut [f32]) -> Result<(), Error> {
    check_length(from.len(), to.len())?;
    let level = Level::best();
    let mut largest = 0;
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        E::to_f32(level, from, to);
        largest = largest.max(dense::largest_magnitude(level, to));
    }
    if largest < INFINITE { Ok(()) } else { Err(first_non_finite(to.iter().copied())) }
}

/// `to = from`, rounded to nearest.
///
/// # Errors
/// [`Error::LengthMismatch`]: `to` is unchanged then. [`Error::NonFinite`] for the first result that is NaN
/// or infinite (70,000 is infinite as an [`f16`](half::f16)): all of `to` is written then. Use
/// [`from_f32_saturating`] for values that may be too large.
pub fn from_f32<E: Element>(from: &[f32], to: &mut [E]) -> Result<(), Error> {
    check_length(from.len(), to.len())?;
    let level = Level::best();
    let mut largest = 0;
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        largest = largest.max(dense::largest_magnitude(level, from));
        E::from_f32(level, from, to);
    }
    if largest < E::OVERFLOW.to_bits() {
        return Ok(());
    }
    let results = from.iter().map(|&v| if v.abs() >= E::OVERFLOW { f32::INFINITY.copysign(v) } else { v });
    Err(first_non_finite(results))
}

/// `to = from`, rounded to nearest; values beyond [`Element::LARGEST`] become that, with their sign. Returns
/// how many values were cut off.
///
/// # Errors
/// [`Error::LengthMismatch`]: `to` is unchanged then. [`Error::NonFinite`] for the first NaN or infinity in
/// `from`: `to` is written up to that place at most.
pub fn from_f32_saturating<E: Element>(from: &[f32], to: &mut [E]) -> Result<usize, Error> {
    check_length(from.len(), to.len())?;
    let level = Level::best();
    let (mut cut, mut clamped) = (0, [0.0; BLOCK]);
    for (block, (values, to)) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).enumerate() {
        let largest = dense::largest_magnitude(level, values);
        if largest >= INFINITE {
            let found = values.iter().position(|v| !v.is_finite()).unwrap_or(0);
            return Err(Error::NonFinite { index: block * BLOCK + found, value: values[found] });
        }
        if largest <= E::LARGEST.to_bits() {
            E::from_f32(level, values, to);
            continue;
        }
        for (clamped, &value) in clamped.iter_mut().zip(values) {
            *clamped = value.clamp(-E::LARGEST, E::LARGEST);
            cut += usize::from(*clamped != value);
        }
        E::from_f32(level, &clamped[..values.len()], to);
    }
    Ok(cut)
}

/// The error for the first NaN or infinity. There must be one.
fn first_non_finite(mut values: impl Iterator<Item = f32>) -> Error {
    let mut index = 0;
    let value = values.find(|value| {
        index += 1;
        !value.is_finite()
    });
    Error::NonFinite { index: index - 1, value: value.unwrap_or(f32::NAN) }
}
