//! Memory that may be missing: asked for when an exchange is built, because a step can't stop half-way.

use std::hint::black_box;

/// The number of bytes that there is no memory for.
pub(super) type Lacking = usize;

/// Fails unless there is memory for `bytes` now. It is given back: the step that needs it will ask again.
pub(super) fn check(bytes: usize) -> Result<(), Lacking> {
    let mut room = Vec::<u8>::new();
    let checked = room.try_reserve_exact(bytes).map_err(|_| bytes);
    // An allocation that nobody sees may be left out.
    black_box(&room);
    checked
}

/// `count` zeros.
pub(super) fn zeros(count: usize) -> Result<Vec<f32>, Lacking> {
    let mut vector = with_room(count)?;
    vector.resize(count, 0.0);
    Ok(vector)
}

/// An empty vector with room for `count` elements.
pub(super) fn with_room(count: usize) -> Result<Vec<f32>, Lacking> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(|_| count.saturating_mul(size_of::<f32>()))?;
    Ok(vector)
}

/// What an error of a compressor says of memory; 0 for other errors.
pub(super) fn lacking(error: &brevity_compress::Error) -> Lacking {
    if let brevity_compress::Error::Memory { bytes } = error { *bytes } else { 0 }
}
