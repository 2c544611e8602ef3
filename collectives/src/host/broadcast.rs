//! Broadcast over slots: the root writes, everybody else reads.
//!
//! Up to 512 bytes go in the line of the flag; more in chunks, so that the others read one while the root writes the next, and may be up
//! to four ahead of the slowest. The root writes every byte once, however many ranks there are. From 1 to 8 MiB it writes none, but lends
//! its memory to up to three others where the system allows it and that is faster, from the second such broadcast of a root on: the first
//! tells it how. What is longer than caches goes past them to its place: its lines are not fetched to be overwritten.

use std::ops::RangeInclusive;
use std::time::Instant;

use ucx_sys_wrap::shm::{DEPTH, INLINE_BYTES, LENT_DEPTH, PIPED_BYTES, Step};

use super::call::HostCall;
use crate::element::Element;
use crate::error::Result;

const CHUNK_BYTES: usize = 64 << 10;

/// What is lent, where the system allows it. Measured on two cores between ordinary pages, beside 64 KiB chunks that are copied: 512 KiB as
/// fast, 1 MiB in 0.8, 2 and 4 MiB in 0.5 of the time; 16 MiB up to 1.4 times as long.
const LENT_BYTES: RangeInclusive<usize> = 1 << 20..=8 << 20;

/// The most ranks that are lent to: the root looks pages up for each of them. Measured with 2 to 4 on two cores.
const LENT_RANKS: u32 = 4;

/// From here on caches do not hold what is received until somebody reads it.
const LONG_BYTES: usize = 32 << 20;

/// Copies `data` of `root` to all ranks. All ranks pass equal lengths and the same root, which is one of them.
///
/// The root may return before the others have the data, unless it has lent it.
///
/// # Errors
/// When a rank is lost, aborts, calls something else or does not come in time: `data` is then unspecified.
pub async fn broadcast<T: Element>(call: &mut HostCall<'_>, data: &mut [T], root: u32) -> Result<()> {
    let root = root as usize;
    let is_root = call.slots().own_place() == root;
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
    let may_be_lent = LENT_BYTES.contains(&bytes.len()) && call.world_size() <= LENT_RANKS;
    let chunk = if may_be_lent { PIPED_BYTES } else { CHUNK_BYTES };
    let count = bytes.len().div_ceil(chunk).max(1);
    let first = call.take_steps(count);
    match (is_root, bytes.len() <= INLINE_BYTES) {
        (true, true) => publish_short(call, first, bytes).await?,
        (true, false) => publish(call, first, bytes, (chunk, may_be_lent)).await?,
        (false, true) => receive_short(call, (root, first), bytes).await?,
        (false, false) => receive(call, (root, first), bytes, (chunk, may_be_lent)).await?,
    }
    call.finish();
    Ok(())
}

async fn publish_short(call: &mut HostCall<'_>, step: Step, bytes: &[u8]) -> Result<()> {
    call.until_free(step).await?;
    let header = call.header();
    call.slots().publish_inline(step, header, bytes);
    call.slots().acknowledge(step);
    Ok(())
}

async fn receive_short(call: &mut HostCall<'_>, (root, step): (usize, Step), bytes: &mut [u8]) -> Result<()> {
    call.until_published(root, step).await?;
    call.slots().read_inline(root, step, bytes);
    call.slots().acknowledge(step);
    Ok(())
}

/// Publishes pieces of `chunk` bytes from step `first` on: lent, if they may be and that is possible and fast, else in slots.
async fn publish(
    call: &mut HostCall<'_>,
    first: Step,
    bytes: &[u8],
    (chunk, may_be_lent): (usize, bool),
) -> Result<()> {
    let header = call.header();
    let mut is_lent = may_be_lent && call.slots().prefers_lending();
    let (mut step, mut others_read_since) = (first, None);
    for (index, piece) in bytes.chunks(chunk).enumerate() {
        let depth = if is_lent { LENT_DEPTH } else { DEPTH };
        call.until_free(step.plus(DEPTH - depth)).await?;
        if may_be_lent && index as u64 == depth {
            others_read_since = Some(Instant::now());
        }
        is_lent = is_lent && call.slots().lend(step, piece);
        if is_lent {
            call.slots().publish_lent(step, header);
        } else {
            call.slots().write(step, 0, piece);
            call.slots().publish(step, header);
        }
        call.slots().acknowledge(step);
        step = step.plus(1);
    }
    if call.slots().is_lending() {
        call.until_free(step.plus(DEPTH - 1)).await?;
        call.slots().end_loan();
    }
    if let Some(since) = others_read_since
        && is_lent == call.slots().prefers_lending()
    {
        // The first piece was read before; of what lies in slots the last may be read later, as many as were.
        let other = if is_lent { chunk } else { DEPTH as usize * chunk };
        call.slots().learn(bytes.len() - other, since.elapsed());
    }
    Ok(())
}

/// Reads such pieces.
async fn receive(
    call: &mut HostCall<'_>,
    (root, first): (usize, Step),
    bytes: &mut [u8],
    (chunk, may_be_lent): (usize, bool),
) -> Result<()> {
    let is_long = bytes.len() >= LONG_BYTES;
    for (index, piece) in bytes.chunks_mut(chunk).enumerate() {
        let step = first.plus(index as u64);
        call.until_published(root, step).await?;
        if may_be_lent && call.slots().is_lent(root, step) {
            call.read_lent(root, step, piece).await?;
        } else if is_long {
            call.slots().read_past_caches(root, step, 0, piece);
        } else {
            call.slots().read(root, step, 0, piece);
        }
        call.slots().acknowledge(step);
    }
    if may_be_lent {
        call.slots().invite(root);
    }
    Ok(())
}
