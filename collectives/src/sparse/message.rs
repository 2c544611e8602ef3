//! Sparse vectors as messages: indices and values, each gathered from where it lies.

use brevity_compress::SparseVec;
use ucx_sys_wrap::Lengths;

use crate::call::Call;
use crate::error::Result;

/// The room for a sparse vector that a peer will send.
pub(super) type Place = (Vec<u32>, Vec<f32>);

/// Room for `entries` entries, reusing `parts`.
pub(super) fn place(parts: Place, entries: usize) -> Place {
    let (mut indices, mut values) = parts;
    indices.resize(entries, 0);
    values.resize(entries, 0.0);
    (indices, values)
}

/// Receives a sparse vector of at most `limit` entries below `dim` into `parts`, and checks it.
pub(super) async fn receive(
    call: &Call<'_, '_>,
    from: u32,
    round: u32,
    dim: usize,
    limit: usize,
    parts: Place,
) -> Result<SparseVec> {
    let (arrived, lengths) = call.recv_up_to(from, round, place(parts, limit)).await?;
    let (mut indices, mut values) = arrived;
    indices.truncate(entries(call, &lengths, from)?);
    values.truncate(indices.len());
    SparseVec::from_parts(dim, indices, values)
        .map_err(|error| call.refuse(from, format!("a sparse vector with {error}")))
}

/// Entries of a message whose indices and values have these bytes.
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
