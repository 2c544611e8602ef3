//! Broadcast over slots: the root writes, everybody else reads.
//!
//! Up to 512 bytes go in the line of the flag; more in chunks of 64 KiB, so that the others read one while the root writes
//! the next. What is longer than caches goes past them to its place: its lines are not fetched to be overwritten. The root writes every byte once, however many ranks there are, and may be up to four
//! chunks ahead of the slowest.

use ucx_sys_wrap::shm::INLINE_BYTES;

use super::call::HostCall;
use crate::element::Element;
use crate::error::Result;

const CHUNK_BYTES: usize = 64 << 10;

/// From here on caches do not hold what is received until somebody reads it.
const LONG_BYTES: usize = 32 << 20;

/// Copies `data` of `root` to all ranks. All ranks pass equal lengths and the same root, which is one of them.
///
/// The root may return before the others have the data.
///
/// # Errors
/// When a rank is lost, aborts, calls something else or does not come in time: `data` is then unspecified.
pub async fn broadcast<T: Element>(call: &mut HostCall<'_>, data: &mut [T], root: u32) -> Result<()> {
    let root = root as usize;
    let is_root = call.slots().own_place() == root;
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
    let (is_short, is_long) = (bytes.len() <= INLINE_BYTES, bytes.len() >= LONG_BYTES);
    let count = bytes.len().div_ceil(CHUNK_BYTES).max(1);
    let first = call.take_steps(count);
    let header = call.header();
    for index in 0..count {
        let step = first.plus(index as u64);
        let end = bytes.len().min((index + 1) * CHUNK_BYTES);
        let piece = &mut bytes[index * CHUNK_BYTES..end];
        if !is_root {
            call.until_published(root, step).await?;
            if is_short {
                call.slots().read_inline(root, step, piece);
            } else if is_long {
                call.slots().read_past_caches(root, step, 0, piece);
            } else {
                call.slots().read(root, step, 0, piece);
            }
        } else {
            call.until_free(step).await?;
            if is_short {
                call.slots().publish_inline(step, header, piece);
            } else {
                call.slots().write(step, 0, piece);
                call.slots().publish(step, header);
            }
        }
        call.slots().acknowledge(step);
    }
    call.finish();
    Ok(())
}
