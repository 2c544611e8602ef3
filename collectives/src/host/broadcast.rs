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

/// Copies `bytes` of `root` to all ranks. All ranks pass equal lengths and the same valid root.
///
/// The root may return before the others have the data.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `bytes` are unspecified.
pub async fn broadcast(turn: &mut SlotTurn<'_>, bytes: &mut [u8], root: u32) -> Result<()> {
    broadcast_part(turn, bytes, root).await?;
    turn.finish();
    Ok(())
}

/// Likewise, as a part of a turn.
pub(crate) async fn broadcast_part(turn: &mut SlotTurn<'_>, bytes: &mut [u8], root: u32) -> Result<()> {
    let root = root as usize;
    let is_root = turn.slots().own_place() == root;
    let chunk = CHUNK_BYTES.min(bytes.len()).max(1);
    let count = bytes.len().div_ceil(chunk).max(1);
    let first = turn.take_steps(count);
    match (is_root, bytes.len() <= INLINE_BYTES) {
        (true, true) => publish_short(turn, first, bytes).await,
        (true, false) => publish(turn, first, bytes, chunk).await,
        (false, true) => receive_short(turn, (root, first), bytes).await,
        (false, false) => receive(turn, (root, first), bytes, chunk).await,
    }
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
