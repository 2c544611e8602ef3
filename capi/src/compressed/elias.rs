//! QSGD messages in Elias's codes.

use std::ffi::c_void;

use brevity::compress::quantise::elias;

use super::residual::refused;
use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::status::brv_status;

/// Writes a message of QSGD in Elias's codes.
///
/// # Safety
/// `message` has `bytes` bytes, set, that nobody writes meanwhile; `out` has `capacity` bytes that nobody
/// else uses meanwhile; `written` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_elias_encode(
    message: *const c_void,
    bytes: usize,
    count: usize,
    out: *mut c_void,
    capacity: usize,
    written: *mut usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { recode(elias::encode, (message, bytes), count, (out, capacity), written) })
}

/// Restores the message.
///
/// # Safety
/// As for [`brv_elias_encode`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_elias_decode(
    code: *const c_void,
    bytes: usize,
    count: usize,
    out: *mut c_void,
    capacity: usize,
    written: *mut usize,
) -> brv_status {
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { recode(elias::decode, (code, bytes), count, (out, capacity), written) })
}

type Recode = fn(&[u8], usize, &mut Vec<u8>) -> Result<(), brevity::compress::Error>;

/// # Safety
/// As for [`brv_elias_encode`].
unsafe fn recode(
    how: Recode,
    (message, bytes): (*const c_void, usize),
    count: usize,
    (out, capacity): (*mut c_void, usize),
    written: *mut usize,
) -> Result<(), Failure> {
    check(written, "written")?;
    // SAFETY: the caller of this function guarantees set memory that nobody writes.
    let message = unsafe { Stretch::new(message.cast::<u8>(), bytes, "message")?.read() };
    let mut other = Vec::new();
    how(message, count, &mut other).map_err(refused)?;
    // SAFETY: not NULL and aligned, as just checked; the caller of this function guarantees that it may be
    // written.
    unsafe { written.write(other.len()) };
    let needed = other.len();
    if capacity < needed {
        return Err(Failure::argument(format!("capacity is {capacity}, expected {needed} or more bytes")));
    }
    let place = Stretch::new(out.cast::<u8>().cast_const(), needed, "out")?;
    // SAFETY: the caller of this function guarantees as much memory.
    unsafe { place.unset() }.copy_from_slice(&other);
    Ok(())
}

#[cfg(test)]
mod tests {
    use brevity::compress::quantise::{Norm, Qsgd, Quantiser};

    use super::*;

    #[test]
    fn codes_are_those_of_rust_and_come_back() {
        let values: Vec<f32> = (0..1300_u16).map(|place| f32::from(place % 37) - 18.0).collect();
        let (mut message, mut expected) = (Vec::new(), Vec::new());
        Qsgd::new(3, 512, Norm::Euclidean, 8).encode(&values, &mut message).unwrap();
        elias::encode(&message, values.len(), &mut expected).unwrap();
        let mut out = vec![0_u8; message.len() + expected.len()];
        let mut recode = |how: Recode, from: &[u8], capacity: usize| {
            let (from, place, mut written) = ((from.as_ptr().cast(), from.len()), out.as_mut_ptr().cast(), 0);
            // SAFETY: local memory of these lengths.
            let done = unsafe { super::recode(how, from, 1300, (place, capacity), &raw mut written) };
            done.map(|()| out[..written].to_vec()).map_err(|failure| (written, failure.text().to_owned()))
        };
        let (needed, refused) = recode(elias::encode, &message, expected.len() - 1).unwrap_err();
        assert!(needed == expected.len() && refused.contains("capacity is"), "{refused}");
        assert_eq!(recode(elias::encode, &message, expected.len()).unwrap(), expected);
        assert_eq!(recode(elias::decode, &expected, message.len()).unwrap(), message);
        assert!(recode(elias::decode, &expected[1..], message.len()).is_err());
        assert!(recode(elias::encode, &expected, message.len()).is_err());
    }
}
