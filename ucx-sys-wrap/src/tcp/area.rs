//! Memory for one frame, whose payload begins with a page.

use std::ops::{Deref, DerefMut};

use super::frame::HEADER_BYTES;

/// What a page is taken for, in bytes. Where pages are larger, the payload begins with a part of one.
const PAGE_BYTES: usize = 4096;

/// A header and so much payload behind it.
///
/// Buffers of pools begin with a page, and so do large ones of most allocators, or nearly. Between addresses that are equal
/// modulo a page the processor never takes a load for one that has to wait for a store before it, and lines are whole.
pub(super) struct Area {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Area {
    /// Zeroes.
    pub(super) fn new(payload_bytes: usize) -> Self {
        let len = HEADER_BYTES + payload_bytes;
        let bytes = vec![0; len + PAGE_BYTES];
        let payload = bytes.as_ptr() as usize + HEADER_BYTES;
        Self { bytes, start: payload.next_multiple_of(PAGE_BYTES) - payload, len }
    }
}

impl From<Vec<u8>> for Area {
    /// These bytes, where they are.
    fn from(bytes: Vec<u8>) -> Self {
        Self { start: 0, len: bytes.len(), bytes }
    }
}

impl Deref for Area {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Area {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_begins_with_a_page() {
        for payload_bytes in [0, 1, 4096, 8192] {
            let area = Area::new(payload_bytes);
            assert_eq!(area.len(), HEADER_BYTES + payload_bytes);
            assert_eq!((area.as_ptr() as usize + HEADER_BYTES) % PAGE_BYTES, 0);
        }
        assert_eq!(&Area::from(vec![1, 2, 3])[..], [1, 2, 3]);
    }
}
