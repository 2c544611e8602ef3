//! All-gather over slots: each rank writes its own vector and reads those of all others.
//!
//! Vectors of up to 512 bytes are in the cache line of the flag. Longer ones are in chunks of 64 KiB (256 KiB
//! from 4 MiB on): while a rank writes one chunk it reads the previous chunks of the others. Every rank
//! writes n bytes and reads n (P - 1).

use std::ops::Range;

use ucx_sys_wrap::shm::INLINE_BYTES;

use super::turn::SlotTurn;
use crate::element::Element;
use crate::error::Result;

const CHUNK_BYTES: usize = 64 << 10;
const LONG_CHUNK_BYTES: usize = 256 << 10;
const LONG_BYTES: usize = 4 << 20;

/// Gathers vectors of equal length. `all` holds `P` vectors, this rank's at its position.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `all` is unspecified.
pub async fn all_gather<T: Element>(turn: &mut SlotTurn<'_>, all: &mut [T]) -> Result<()> {
    let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(all);
    let length = bytes.len() / places;
    if length <= INLINE_BYTES {
        inline(turn, bytes, length).await?;
        turn.finish();
        return Ok(());
    }
    let chunk = if length < LONG_BYTES { CHUNK_BYTES } else { LONG_CHUNK_BYTES }.min(length);
    let count = length.div_ceil(chunk);
    let first = turn.take_steps(count);
    let header = turn.header();
    let piece = |place: usize, index: usize| {
        place * length + index * chunk..place * length + length.min((index + 1) * chunk)
    };
    for stage in 0..=count {
        let out = (stage < count).then(|| (first.plus(stage as u64), piece(own, stage)));
        let back = stage.checked_sub(1).map(|index| (first.plus(index as u64), index));
        if let Some((step, _)) = out {
            turn.until_free(step).await?;
        }
        // The first peer's chunk is read while this rank's next chunk is written.
        let mut unwritten = out.clone();
        for place in (0..places).filter(|place| *place != own) {
            let Some((step, index)) = back else { break };
            turn.until_published(place, step).await?;
            match unwritten.take() {
                Some((to, range)) => {
                    let (bytes, into) = apart(bytes, range, piece(place, index));
                    turn.slots().exchange(
                        (to, to.place_for(chunk), bytes),
                        (place, step, step.place_for(chunk)),
                        into,
                    );
                }
                None => {
                    turn.slots().read(place, step, step.place_for(chunk), &mut bytes[piece(place, index)])
                }
            }
        }
        if let Some((step, range)) = unwritten {
            turn.slots().write(step, step.place_for(chunk), &bytes[range]);
        }
        if let Some((step, _)) = out {
            turn.slots().publish(step, header);
        }
        if let Some((step, _)) = back {
            turn.slots().acknowledge(step);
        }
    }
    turn.finish();
    Ok(())
}

/// For vectors that fit in the line of the flag.
async fn inline(turn: &mut SlotTurn<'_>, all: &mut [u8], length: usize) -> Result<()> {
    let own = turn.slots().own_place();
    let step = turn.take_steps(1);
    let header = turn.header();
    turn.until_free(step).await?;
    turn.slots().publish_inline(step, header, &all[own * length..][..length]);
    for place in (0..turn.world_size() as usize).filter(|place| *place != own) {
        turn.until_published(place, step).await?;
        turn.slots().has_come_to(place, step);
        turn.slots().read_inline(place, step, &mut all[place * length..][..length]);
    }
    turn.slots().acknowledge(step);
    Ok(())
}

/// Two disjoint ranges of one vector, the first to read and the second to write.
///
/// # Panics
/// When they overlap.
pub(super) fn apart<T>(all: &mut [T], read: Range<usize>, write: Range<usize>) -> (&[T], &mut [T]) {
    if read.end <= write.start {
        let (low, high) = all.split_at_mut(write.start);
        (&low[read], &mut high[..write.len()])
    } else {
        let (low, high) = all.split_at_mut(read.start);
        (&high[..read.len()], &mut low[write])
    }
}
