//! Bulk copies into and out of shared memory, a block at a time.
//!
//! Such copies wait for cache lines that another processor has: a line that it has read must be taken from it
//! before it is written here, one that it has written must be fetched. So the next block's lines are
//! prefetched while a block is copied.

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::copying;

pub(crate) use super::copying::fence;

/// Bytes that are copied between two prefetches: about as many lines as a processor core can wait for at
/// once.
pub(super) const BLOCK_BYTES: usize = 512;

/// Copies `bytes` to `at`; with `streams` past the caches, and then [`fence`] must follow before they are
/// published.
#[inline]
pub(crate) fn write(own: &OwnArea, at: usize, bytes: &[u8], streams: bool) {
    if streams {
        own.stream_unfenced(at, bytes);
        return;
    }
    for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let done = index * BLOCK_BYTES + block.len();
        prefetch_to_write(own, at + done, bytes.len() - done);
        own.write_block(at + index * BLOCK_BYTES, block);
    }
}

/// Copies the bytes at `at` to `into`, whose lines are prefetched too.
#[inline]
pub(crate) fn read(peer: &PeerArea, at: usize, into: &mut [u8]) {
    let (bytes, start) = (into.len(), into.as_ptr());
    for (index, block) in into.chunks_mut(BLOCK_BYTES).enumerate() {
        let done = index * BLOCK_BYTES + block.len();
        prefetch_to_read(peer, at + done, bytes - done);
        prefetch_address(start.wrapping_add(done), bytes - done);
        peer.read_block(at + index * BLOCK_BYTES, block);
    }
}

/// Like [`read`], but stores past the caches: `into` is not fetched before it is overwritten, and pushes
/// nothing out of the caches. Ordered before later stores.
pub(super) fn read_past_caches(peer: &PeerArea, at: usize, into: &mut [u8]) {
    let bytes = into.len();
    let ahead = into.as_ptr().align_offset(LINE_BYTES).min(bytes);
    let (first, lines) = into.split_at_mut(ahead);
    peer.read_block(at, first);
    for (index, block) in lines.chunks_mut(BLOCK_BYTES).enumerate() {
        let done = ahead + index * BLOCK_BYTES + block.len();
        prefetch_to_read(peer, at + done, bytes - done);
        peer.stream_block(at + ahead + index * BLOCK_BYTES, block);
    }
    fence();
}

/// Writes and reads blocks in turns, so that the waits for one overlap with those for the other.
pub(super) fn exchange(
    (own, to, bytes): (&OwnArea, usize, &[u8]),
    (peer, from, into): (&PeerArea, usize, &mut [u8]),
    streams: bool,
) {
    let both = bytes.len().min(into.len());
    let (bytes, more) = bytes.split_at(both);
    let (into, rest) = into.split_at_mut(both);
    let blocks = bytes.chunks(BLOCK_BYTES).zip(into.chunks_mut(BLOCK_BYTES));
    for (index, (out, place)) in blocks.enumerate() {
        let start = index * BLOCK_BYTES;
        let done = start + out.len();
        if !streams {
            prefetch_to_write(own, to + done, both - done);
        }
        prefetch_to_read(peer, from + done, both - done);
        peer.read_block(from + start, place);
        if streams { own.stream_unfenced(to + start, out) } else { own.write_block(to + start, out) }
    }
    write(own, to + both, more, streams);
    read(peer, from + both, rest);
}

/// Prefetches the first block of what will be read. It need not exist.
#[inline]
pub(crate) fn prefetch_to_read(peer: &PeerArea, at: usize, bytes: usize) {
    let start = peer.address(at);
    for offset in (0..bytes.min(BLOCK_BYTES)).step_by(LINE_BYTES) {
        copying::prefetch_to_read(start.wrapping_add(offset));
    }
}

/// Prefetches the first block of what will be written. It need not exist.
#[inline]
pub(crate) fn prefetch_to_write(own: &OwnArea, at: usize, bytes: usize) {
    prefetch_address(own.address(at), bytes);
}

#[inline]
fn prefetch_address(start: *const u8, bytes: usize) {
    for offset in (0..bytes.min(BLOCK_BYTES)).step_by(LINE_BYTES) {
        copying::prefetch_to_write(start.wrapping_add(offset));
    }
}
