//! Sparse vectors as bytes.

use std::ffi::c_void;

use brevity::compress::codec::{Encoder, decode_as};
use brevity::compress::quantise::{Format, Quantiser};
use brevity::compress::{Error, SparseVec, SparseView, in_standard_float_mode};

use super::brv_sparse;
use super::quantiser::{brv_quantiser, writer_of};
use super::residual::refused;
use super::sparse::sparse_of;
use crate::boundary::{check, guard};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::server_config::codec;
use crate::status::brv_status;

/// The number of a choice of codecs.
pub type brv_codec = u32;

/// Writes entries as a message.
///
/// # Safety
/// `quantiser`, `sparse` and `kept` are NULL or live; `out` has `capacity` bytes that nobody else uses
/// meanwhile; `bytes` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_encode(
    sparse: *const brv_sparse,
    quantiser: *mut brv_quantiser,
    number: brv_codec,
    kept: *mut brv_sparse,
    out: *mut c_void,
    capacity: usize,
    bytes: *mut usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let sparse = unsafe { sparse_of(sparse, "sparse") }?;
        // SAFETY: the caller in C guarantees a live quantiser.
        let mut writer = unsafe { writer_of(quantiser) }?;
        let kept = if kept.is_null() {
            None
        } else {
            // SAFETY: the caller in C guarantees a live vector.
            Some(unsafe { sparse_of(kept.cast_const(), "kept") }?)
        };
        let codec = codec(number)
            .ok_or_else(|| Failure::argument(format!("codec is {number}, expected a brv_codec (0 to 5)")))?;
        check(bytes, "bytes")?;
        let (mut method, mut message) = (writer.value.method.clone(), Vec::new());
        let entries = sparse.value.view();
        let encode = || Encoder::new().encode(entries, codec, &mut method, &mut message);
        in_standard_float_mode(encode).map_err(refused)?;
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees that it may be written.
        unsafe { bytes.write(message.len()) };
        if capacity < message.len() {
            let needed = message.len();
            return Err(Failure::argument(format!(
                "capacity is {capacity}, expected {needed} or more, the bytes of the message"
            )));
        }
        let place = Stretch::new(out.cast::<u8>().cast_const(), message.len(), "out")?;
        if let Some(mut kept) = kept {
            kept.value = rounding(entries, &message, method.format()).map_err(refused)?;
        }
        // SAFETY: the caller in C guarantees as much memory, and the message is no longer.
        unsafe { place.unset() }.copy_from_slice(&message);
        writer.value.method = method;
        Ok(())
    })
}

/// What a message of entries misses of them.
fn rounding(entries: SparseView<'_>, message: &[u8], format: Format) -> Result<SparseVec, Error> {
    let mut said = SparseVec::new(entries.dim());
    in_standard_float_mode(|| decode_as(message, entries.dim(), entries.len(), format, &mut said))?;
    let differences = entries.iter().zip(said.values()).map(|((index, value), said)| (index, value - said));
    let (indices, values) = differences.filter(|(_, difference)| *difference != 0.0).unzip();
    SparseVec::from_parts(entries.dim(), indices, values)
}

/// Reads a message of entries.
///
/// # Safety
/// `sparse` and `quantiser` are NULL or live; `message` has `bytes` bytes, set, that nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_sparse_decode(
    sparse: *mut brv_sparse,
    quantiser: *const brv_quantiser,
    message: *const c_void,
    bytes: usize,
    dim: usize,
    limit: usize,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live vector.
        let mut sparse = unsafe { sparse_of(sparse, "sparse") }?;
        // SAFETY: the caller in C guarantees a live quantiser.
        let writer = unsafe { writer_of(quantiser) }?;
        // SAFETY: the caller in C guarantees set memory that nobody writes.
        let message = unsafe { Stretch::new(message.cast::<u8>(), bytes, "message")?.read() };
        let (format, mut entries) = (writer.value.method.format(), SparseVec::new(dim));
        in_standard_float_mode(|| decode_as(message, dim, limit, format, &mut entries)).map_err(refused)?;
        sparse.value = entries;
        Ok(())
    })
}
