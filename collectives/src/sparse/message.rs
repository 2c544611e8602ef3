//! Sparse vectors as messages of two parts: indices and values.

use brevity_compress::SparseVec;
use ucx_sys_wrap::Lengths;

use crate::call::Call;
use crate::error::Result;

/// Buffers to receive the indices and values of a sparse vector into.
pub(super) type EntryBuffers = (Vec<u32>, Vec<f32>);

/// Resizes `parts` to `entries` entries.
fn resized(call: &Call<'_, '_>, parts: EntryBuffers, entries: usize) -> Result<EntryBuffers> {
    let (mut indices, mut values) = parts;
    call.resize(&mut indices, entries)?;
    call.resize(&mut values, entries)?;
    Ok((indices, values))
}

/// Receives a sparse vector of at most `limit` entries below `dim` into `parts`, and checks it.
pub(super) async fn receive(
    call: &Call<'_, '_>,
    from: u32,
    round: u32,
    dim: usize,
    limit: usize,
    parts: EntryBuffers,
) -> Result<SparseVec> {
    let (arrived, lengths) = call.recv_up_to(from, round, resized(call, parts, limit)?).await?;
    let (mut indices, mut values) = arrived;
    indices.truncate(entries(call, &lengths, from)?);
    values.truncate(indices.len());
    SparseVec::from_parts(dim, indices, values)
        .map_err(|error| call.refuse(from, format!("a sparse vector with {error}")))
}

/// The number of entries of a message whose parts have these lengths.
pub(super) fn entries(call: &Call<'_, '_>, lengths: &Lengths, from: u32) -> Result<usize> {
    match lengths[..] {
        [indices, values] if indices == values && indices % size_of::<u32>() == 0 => {
            Ok(indices / size_of::<u32>())
        }
        _ => {
            let what =
                format!("a sparse vector with parts of {lengths:?} bytes, expected equal multiples of 4");
            Err(call.refuse(from, what))
        }
    }
}
