//! Broadcast over slots: the root writes and all others read.
//!
//! Vectors of up to 512 bytes are in the cache line of the flag. Longer ones are in chunks, so that the
//! others read one while the root writes the next; the root may be up to four chunks ahead of the slowest.
//! The root writes every byte once for all ranks. Vectors that do not fit in caches are received with
//! non-temporal stores, which do not fetch the lines that they overwrite.

use ucx_sys_wrap::shm::{INLINE_BYTES, Step};

use super::turn::SlotTurn;
use crate::error::Result;

const CHUNK_BYTES: usize = 64 << 10;

/// From this length on, received data does not stay in caches until it is read.
const LONG_BYTES: usize = 32 << 20;

/// Copies the `input` of `root` to the `output` of all ranks; without an `input`, the root's `output`. All
/// ranks pass equal lengths and the same valid root, and only the root an input.
///
/// The root may return before the others have the data.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
///
/// # Panics
/// When `input` is not as long as `output`.
pub async fn broadcast(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    root: u32,
) -> Result<()> {
    let Some(input) = input else {
        broadcast_part(turn, output, root).await?;
        turn.finish();
        return Ok(());
    };
    assert_eq!(input.len(), output.len(), "bytes of the broadcast vector");
    let (chunk, first) = take_steps(turn, input.len());
    give(turn, first, input, chunk).await?;
    turn.finish();
    // A copy: the root's own output, while the others read.
    output.copy_from_slice(input);
    Ok(())
}

/// Likewise, as a part of a turn.
pub(crate) async fn broadcast_part(turn: &mut SlotTurn<'_>, bytes: &mut [u8], root: u32) -> Result<()> {
    let root = root as usize;
    let (chunk, first) = take_steps(turn, bytes.len());
    if turn.slots().own_place() == root {
        return give(turn, first, bytes, chunk).await;
    }
    if bytes.len() <= INLINE_BYTES {
        return receive_short(turn, (root, first), bytes).await;
    }
    receive(turn, (root, first), bytes, chunk).await
}

/// Takes the steps of a vector of so many bytes: the bytes of its chunks, and the first step.
fn take_steps(turn: &mut SlotTurn<'_>, bytes: usize) -> (usize, Step) {
    let chunk = CHUNK_BYTES.min(bytes).max(1);
    (chunk, turn.take_steps(bytes.div_ceil(chunk).max(1)))
}

/// The part of the root.
async fn give(turn: &mut SlotTurn<'_>, first: Step, bytes: &[u8], chunk: usize) -> Result<()> {
    if bytes.len() <= INLINE_BYTES {
        return publish_short(turn, first, bytes).await;
    }
    publish(turn, first, bytes, chunk).await
}

async fn publish_short(turn: &mut SlotTurn<'_>, step: Step, bytes: &[u8]) -> Result<()> {
    turn.until_free(step).await?;
    let header = turn.header();
    turn.slots().publish_inline(step, header, bytes);
    turn.slots().acknowledge(step);
    Ok(())
}

async fn receive_short(turn: &mut SlotTurn<'_>, (root, step): (usize, Step), bytes: &mut [u8]) -> Result<()> {
    turn.until_published(root, step).await?;
    turn.slots().read_inline(root, step, 0, bytes);
    turn.slots().acknowledge(step);
    Ok(())
}

/// Publishes pieces of `chunk` bytes from step `first` on.
async fn publish(turn: &mut SlotTurn<'_>, first: Step, bytes: &[u8], chunk: usize) -> Result<()> {
    let header = turn.header();
    for (index, piece) in bytes.chunks(chunk).enumerate() {
        let step = first.plus(index as u64);
        turn.until_free(step).await?;
        turn.slots().write(step, step.place_for(chunk), piece);
        turn.slots().publish(step, header);
        turn.slots().acknowledge(step);
    }
    Ok(())
}

/// Reads such pieces.
async fn receive(
    turn: &mut SlotTurn<'_>,
    (root, first): (usize, Step),
    bytes: &mut [u8],
    chunk: usize,
) -> Result<()> {
    let is_long = bytes.len() >= LONG_BYTES;
    for (index, piece) in bytes.chunks_mut(chunk).enumerate() {
        let step = first.plus(index as u64);
        turn.until_published(root, step).await?;
        if is_long {
            turn.slots().read_past_caches(root, step, step.place_for(chunk), piece);
        } else {
            turn.slots().read(root, step, step.place_for(chunk), piece);
        }
        turn.slots().acknowledge(step);
    }
    Ok(())
}
