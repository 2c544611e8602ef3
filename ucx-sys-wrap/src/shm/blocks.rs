//! Bulk copies into and out of slots, a block at a time.
//!
//! What holds such copies up are lines that another processor has: one that it has read must be taken from it
//! before it is written here, one that it has written must be fetched. So the next block's lines are asked
//! for while this block is copied. Measured on two cores of a Sapphire Rapids server, 512 KiB read from a
//! peer, combined, and written for it: 62 us with plain copies of 4 KiB, 41 us like this.

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::copying;

/// What is copied between two requests for what comes next, in bytes: about as many lines as a processor core
/// can wait for at once.
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
        ask_to_write(own, at + done, bytes.len() - done);
        own.write_block(at + index * BLOCK_BYTES, block);
    }
}

/// Copies what is at `at` to `into`, whose lines are asked for ahead as well: 5 to 9 % of broadcasts of 2 to
/// 16 MiB.
#[inline]
pub(crate) fn read(peer: &PeerArea, at: usize, into: &mut [u8]) {
    let (bytes, start) = (into.len(), into.as_ptr());
    for (index, block) in into.chunks_mut(BLOCK_BYTES).enumerate() {
        let done = index * BLOCK_BYTES + block.len();
        ask_to_read(peer, at + done, bytes - done);
        ask_for_place(start.wrapping_add(done), bytes - done);
        peer.read_block(at + index * BLOCK_BYTES, block);
    }
}

/// As [`read`], but what is copied goes to memory at once, and pushes nothing out of the caches; nor are its
/// lines fetched only to be overwritten. It is ordered before what the caller stores next.
pub(super) fn read_past_caches(peer: &PeerArea, at: usize, into: &mut [u8]) {
    let bytes = into.len();
    let ahead = into.as_ptr().align_offset(LINE_BYTES).min(bytes);
    let (first, lines) = into.split_at_mut(ahead);
    peer.read_block(at, first);
    for (index, block) in lines.chunks_mut(BLOCK_BYTES).enumerate() {
        let done = ahead + index * BLOCK_BYTES + block.len();
        ask_to_read(peer, at + done, bytes - done);
        peer.stream_block(at + ahead + index * BLOCK_BYTES, block);
    }
    fence();
}

/// Writes and reads a block in turns, so that the waits for one hide behind those for the other.
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
            ask_to_write(own, to + done, both - done);
        }
        ask_to_read(peer, from + done, both - done);
        peer.read_block(from + start, place);
        if streams { own.stream_unfenced(to + start, out) } else { own.write_block(to + start, out) }
    }
    write(own, to + both, more, streams);
    read(peer, from + both, rest);
}

/// Orders what was written past the caches before later stores.
pub(crate) fn fence() {
    copying::fence();
}

/// Asks for the lines of the first block of a stretch that will be read. It need not exist.
#[inline]
pub(crate) fn ask_to_read(peer: &PeerArea, at: usize, bytes: usize) {
    let start = peer.address(at);
    for offset in (0..bytes.min(BLOCK_BYTES)).step_by(LINE_BYTES) {
        copying::prefetch_to_read(start.wrapping_add(offset));
    }
}

/// Asks for the lines of the first block of a stretch that will be written. It need not exist.
#[inline]
pub(crate) fn ask_to_write(own: &OwnArea, at: usize, bytes: usize) {
    ask_for_place(own.address(at), bytes);
}

/// As [`ask_to_write`], at an address.
#[inline]
fn ask_for_place(start: *const u8, bytes: usize) {
    for offset in (0..bytes.min(BLOCK_BYTES)).step_by(LINE_BYTES) {
        copying::prefetch_to_write(start.wrapping_add(offset));
    }
}
