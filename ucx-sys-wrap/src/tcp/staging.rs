//! A small buffer for bytes that are read before it is known where they belong.

use std::io::IoSliceMut;

use super::frame::HEADER_BYTES;
use super::wire::Wire;
use crate::Statistics;

/// The most payload in the staging area, in bytes, except after a wrong guess.
pub(super) const STAGED_PAYLOAD: usize = 4096;

const STAGING_BYTES: usize = HEADER_BYTES + STAGED_PAYLOAD;

/// Bytes that are read and not processed: `bytes[start..end]`.
pub(super) struct Staging {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Staging {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; STAGING_BYTES], start: 0, end: 0 }
    }

    /// Reads into the free room; gives the bytes asked for and the bytes got.
    pub(super) fn fill(
        &mut self,
        wire: &mut Wire,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        let room = self.room();
        let asked = room.len();
        let got = wire.read(&mut [IoSliceMut::new(room)], statistics)?;
        self.end += got;
        Ok((asked, got))
    }

    /// The free room. Moves the staged bytes to the front first: they are less than a header, because all
    /// else is processed.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() > STAGING_BYTES && self.end < STAGING_BYTES {
            self.bytes.truncate(STAGING_BYTES);
            self.bytes.shrink_to_fit();
        }
        &mut self.bytes[self.end..]
    }

    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
    }

    pub(super) fn replace(&mut self, mut bytes: Vec<u8>) {
        (self.start, self.end) = (0, bytes.len());
        bytes.resize(bytes.len().max(STAGING_BYTES), 0);
        self.bytes = bytes;
    }

    pub(super) fn staged(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes a whole message with this payload.
    #[inline]
    pub(super) fn consumed(&mut self, payload_bytes: usize) {
        self.start += HEADER_BYTES + payload_bytes;
    }

    /// Takes a header, if all of it is there.
    pub(super) fn take_header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = *self.staged().first_chunk()?;
        self.start += HEADER_BYTES;
        Some(header)
    }

    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        let start = self.start;
        self.start += count.min(self.end - start);
        &self.bytes[start..self.start]
    }

    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}
