//! Quantisers as C handles: values as few bits, and back.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard};

use brevity::compress::feedback::{Compressor, Quantised};
use brevity::compress::in_standard_float_mode;
use brevity::compress::quantise::{Encoded, Quantiser};
use brevity::compress::state;

use super::held::Held;
use super::method::{Method, brv_quantiser_config, read};
use super::residual::{brv_residual, gradient_of, refused, residual_of};
use crate::boundary::{free, guard, hand_out, object};
use crate::element::brv_type;
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::saved::{nothing_follows, write_saved, write_size};
use crate::status::brv_status;

/// A quantiser of the library. The mutex turns use by two threads at once into an error.
pub struct brv_quantiser(Mutex<Held<Writer>>);

/// A quantiser and the message that it writes.
pub(super) struct Writer {
    pub(super) method: Method,
    message: Vec<u8>,
}

impl Writer {
    /// The bytes of a message of so many values.
    fn bytes(&self, count: usize) -> Result<usize, Failure> {
        if count > isize::MAX as usize / size_of::<f32>() {
            return Err(Failure::argument(format!("count is {count}, which no memory can hold")));
        }
        Ok(self.method.encoded_bytes(count))
    }

    /// The place for a message of so many values.
    fn place(&mut self, out: *mut c_void, bytes: usize, count: usize) -> Result<Stretch<u8>, Failure> {
        let expected = self.bytes(count)?;
        if bytes != expected {
            return Err(Failure::argument(format!(
                "bytes is {bytes}, expected {expected}: ask brv_quantiser_bytes"
            )));
        }
        self.message.clear();
        let has_room = self.message.try_reserve_exact(bytes).is_ok();
        let lacking = || brevity::Error::Memory { what: "a message of values".into(), bytes };
        if !has_room {
            return Err(lacking().into());
        }
        Stretch::new(out.cast::<u8>().cast_const(), bytes, "out")
    }

    /// A message of so many values, checked.
    ///
    /// # Safety
    /// `message` has `bytes` bytes, set, that nobody writes during `'a`.
    unsafe fn read<'a>(
        &self,
        message: *const c_void,
        bytes: usize,
        count: usize,
    ) -> Result<Encoded<'a>, Failure> {
        self.bytes(count)?;
        // SAFETY: the caller of this function guarantees set memory that nobody writes.
        let message = unsafe { Stretch::new(message.cast::<u8>(), bytes, "message")?.read() };
        Encoded::new(self.method.format(), count, message).map_err(refused)
    }
}

/// Checks memory for the values of a message, which is read meanwhile.
fn apart(
    (start, count, name): (*mut f32, usize, &str),
    (message, bytes): (*const c_void, usize),
) -> Result<Stretch<f32>, Failure> {
    let place = Stretch::new(start.cast_const(), count, name)?;
    let message = Stretch::new(message.cast::<u8>(), bytes, "message")?;
    place.bytes().check_apart(message, &format!("message and {name}"))?;
    Ok(place)
}

/// Locks the quantiser behind a handle for this call.
///
/// # Safety
/// The same as for [`object`].
pub(super) unsafe fn writer_of<'a>(
    quantiser: *const brv_quantiser,
) -> Result<MutexGuard<'a, Held<Writer>>, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    let object = unsafe { object(quantiser, "quantiser") }?;
    Held::lock(&object.0, "quantiser", "another thread: give each thread its own")
}

/// Makes a quantiser.
///
/// # Safety
/// `config` is as for `method::read`; `quantiser` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_new(
    config: *const brv_quantiser_config,
    quantiser: *mut *mut brv_quantiser,
) -> brv_status {
    let make = || {
        // SAFETY: the caller in C guarantees a config.
        let method = unsafe { read(config) }?;
        Ok(Some(brv_quantiser(Mutex::new(Held::new(Writer { method, message: Vec::new() })))))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(quantiser, "quantiser", make) })
}

/// Frees a quantiser. Does nothing for NULL.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_free(quantiser: *mut brv_quantiser) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(quantiser) }
}

/// Stores the number of bytes that so many values take.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_bytes(
    quantiser: *const brv_quantiser,
    count: usize,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || writer.value.bytes(count)) }
    })
}

/// Writes values as a message.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `values` has `count` elements, set, that nobody writes meanwhile;
/// `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_encode(
    quantiser: *mut brv_quantiser,
    values: *const f32,
    count: usize,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let mut writer = unsafe { writer_of(quantiser) }?;
        let place = writer.value.place(out, bytes, count)?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let values = unsafe { Stretch::new(values, count, "values")?.read() };
        let Writer { method, message } = &mut writer.value;
        // What fails leaves the generator as it was.
        let mut next = method.clone();
        in_standard_float_mode(|| next.encode(values, message)).map_err(refused)?;
        *method = next;
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { place.unset() }.copy_from_slice(message);
        Ok(())
    })
}

/// Adds a gradient to a residual, writes the sum as a message, and leaves what that misses.
///
/// # Safety
/// `quantiser` and `residual` are NULL or live; `gradient` has `n` elements of the type, set, that nobody
/// writes meanwhile; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_feed(
    quantiser: *mut brv_quantiser,
    residual: *mut brv_residual,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let mut writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let gradient = unsafe { gradient_of(&kept.value, gradient, n, r#type) }?;
        let place = writer.value.place(out, bytes, n)?;
        let Writer { method, message } = &mut writer.value;
        let mut next = Quantised::new(n, method.clone()).map_err(refused)?;
        in_standard_float_mode(|| next.feed(&mut kept.value.residual, gradient, message)).map_err(refused)?;
        *method = next.quantiser().clone();
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { place.unset() }.copy_from_slice(message);
        Ok(())
    })
}

/// Adds a message that was not delivered to a residual.
///
/// # Safety
/// `quantiser` and `residual` are NULL or live; `message` has `bytes` bytes, set, that nobody writes
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_put_back(
    quantiser: *const brv_quantiser,
    residual: *mut brv_residual,
    message: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees a live residual.
        let mut kept = unsafe { residual_of(residual) }?;
        let residual = &mut kept.value.residual;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let message = unsafe { writer.value.read(message, bytes, residual.len()) }?;
        let mut values = Vec::new();
        let needed = residual.len() * size_of::<f32>();
        let lacking = || brevity::Error::Memory { what: "the values of a message".into(), bytes: needed };
        values.try_reserve_exact(residual.len()).map_err(|_| lacking())?;
        values.resize(residual.len(), 0.0);
        let add = || message.decode_into(&mut values).and_then(|()| residual.accumulate(&values));
        in_standard_float_mode(add).map_err(refused)
    })
}

/// Reads a message.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `message` has `bytes` bytes, set, that nobody writes meanwhile;
/// `out` has `count` elements that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_decode(
    quantiser: *const brv_quantiser,
    message: *const c_void,
    bytes: usize,
    out: *mut f32,
    count: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        let place = apart((out, count, "out"), (message, bytes))?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let message = unsafe { writer.value.read(message, bytes, count) }?;
        // SAFETY: the caller in C guarantees the memory of `out`.
        let out = unsafe { place.unset() };
        in_standard_float_mode(|| message.decode_into(out)).map_err(refused)
    })
}

/// Adds the values of a message, times a factor, to a vector.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `message` has `bytes` bytes, set, that nobody writes meanwhile;
/// `dense` has `n` elements, set, that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_add_to(
    quantiser: *const brv_quantiser,
    message: *const c_void,
    bytes: usize,
    factor: f32,
    dense: *mut f32,
    n: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        let place = apart((dense, n, "dense"), (message, bytes))?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let message = unsafe { writer.value.read(message, bytes, n) }?;
        // SAFETY: the caller in C guarantees set memory that nobody else uses.
        let dense = unsafe { place.write() };
        in_standard_float_mode(|| message.add_to(factor, dense)).map_err(refused)
    })
}

/// Stores the number of bytes that [`brv_quantiser_save`] writes.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_saved_size(
    quantiser: *const brv_quantiser,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees the memory of `bytes`.
        unsafe { write_size(bytes, || Ok(writer.value.method.saved_bytes())) }
    })
}

/// Writes what the quantiser keeps between messages to `out`.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `out` has `bytes` bytes that nobody else uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_save(
    quantiser: *const brv_quantiser,
    out: *mut c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        let method = &writer.value.method;
        let save = |to: &mut &mut [u8]| match method.state() {
            Some(kept) => state::save(kept, to).map_err(refused),
            None => Ok(()),
        };
        // SAFETY: the caller in C guarantees the memory of `out`.
        unsafe { write_saved(out, bytes, ("brv_quantiser_saved_size", method.saved_bytes()), save) }
    })
}

/// Loads what [`brv_quantiser_save`] wrote.
///
/// # Safety
/// `quantiser` is NULL or a live quantiser; `saved` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_quantiser_load(
    quantiser: *mut brv_quantiser,
    saved: *const c_void,
    bytes: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live quantiser.
        let mut writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let mut saved = unsafe { Stretch::new(saved.cast::<u8>(), bytes, "saved")?.read() };
        // A failure changes nothing.
        let mut loaded = writer.value.method.clone();
        if let Some(kept) = loaded.state_mut() {
            state::load(kept, &mut saved).map_err(refused)?;
        }
        nothing_follows(saved)?;
        writer.value.method = loaded;
        Ok(())
    })
}
