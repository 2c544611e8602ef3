//! The encrypted form of a stream: records of a length (2 bytes, little-endian) and a sealed message.
//!
//! Written bytes are gathered up to a record, sealed, and handed to the kernel. The last byte of a record
//! counts as written only when the kernel has the whole record, so that the writer goes on until then. A read
//! opens a record straight into its place where the whole record fits, else into a buffer from which it is
//! copied.

use std::io::{IoSlice, IoSliceMut};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::{read, write};
use crate::Statistics;
use crate::noise::{Forged, MAX_OPEN_BYTES, MAX_SEALED_BYTES, Session, TAG_BYTES};

const LENGTH_BYTES: usize = 2;

const MAX_RECORD_BYTES: usize = LENGTH_BYTES + MAX_SEALED_BYTES;

/// The most that one system call reads, in bytes.
const READ_BYTES: usize = 2 * MAX_RECORD_BYTES;

/// A slice of at least this size, or the last one, is sealed without gathering, in bytes.
const LARGE: usize = 16 << 10;

/// About the most that one call seals, in bytes, so that reading gets its turn.
const WRITE_QUOTA: usize = 1 << 20;

pub(super) struct Cipher {
    session: Session,
    /// The record that is being written: `record[record_written..record_end]` is left.
    record: Box<[u8]>,
    record_written: usize,
    record_end: usize,
    /// Whether the last byte of that record does not count as written.
    pub(super) is_held: bool,
    /// Bytes from several slices, before they are sealed.
    gathered: Vec<u8>,
    /// Bytes that have come and are not opened.
    arrived: Bytes,
    /// Bytes that are opened and not read.
    open: Bytes,
    pub(super) is_forged: bool,
}

/// The bytes `start..end` of a buffer.
struct Bytes {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Bytes {
    fn new(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity].into(), start: 0, end: 0 }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl Cipher {
    pub(super) fn new(session: Session) -> Self {
        Self {
            session,
            record: vec![0; MAX_RECORD_BYTES].into(),
            record_written: 0,
            record_end: 0,
            is_held: false,
            gathered: Vec::new(),
            arrived: Bytes::new(READ_BYTES),
            open: Bytes::new(MAX_SEALED_BYTES),
            is_forged: false,
        }
    }

    /// See [`Wire::write`](super::Wire::write).
    pub(super) fn write(
        &mut self,
        socket: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        self.flush(socket)?;
        // These start with the byte that was held back.
        let mut sealed = usize::from(std::mem::take(&mut self.is_held));
        while sealed < WRITE_QUOTA {
            let count = self.seal_next(slices, sealed, statistics)?;
            if count == 0 {
                return Ok(sealed);
            }
            sealed += count;
            match self.flush(socket) {
                Ok(()) => {}
                Err(Errno::AGAIN) => {
                    self.is_held = true;
                    return Ok(sealed - 1);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sealed)
    }

    /// See [`Wire::read`](super::Wire::read).
    pub(super) fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        mut places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        let mut got = 0;
        let mut is_drained = false;
        IoSliceMut::advance_slices(&mut places, 0);
        loop {
            got += self.hand_out(&mut places, statistics);
            let Some(place) = places.first_mut() else { return Ok(got) };
            if let Some(sealed) = self.next_record()? {
                let count = self.open_next(sealed, place)?;
                got += count;
                IoSliceMut::advance_slices(&mut places, count);
                continue;
            }
            if is_drained {
                return if got > 0 { Ok(got) } else { Err(Errno::AGAIN) };
            }
            match self.fetch(socket) {
                Ok((_, 0)) => return Ok(got),
                Ok((asked, fetched)) => is_drained = fetched < asked,
                Err(_) if got > 0 => return Ok(got),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a read gives bytes without a system call.
    pub(super) fn has_unread(&self) -> bool {
        !self.open.get().is_empty()
            || self.record_length().is_some_and(|length| self.arrived.get().len() >= LENGTH_BYTES + length)
    }

    /// Writes the rest of the record.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        while self.record_written < self.record_end {
            let rest = &self.record[self.record_written..self.record_end];
            match write(socket, &[IoSlice::new(rest)]) {
                Ok(count) => self.record_written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Seals the next record behind the first `skip` bytes; gives the bytes that it carries.
    fn seal_next(
        &mut self,
        slices: &[IoSlice<'_>],
        mut skip: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        self.gathered.clear();
        let mut large: &[u8] = &[];
        for (number, slice) in (1..).zip(slices) {
            let Some(rest) = slice.get(skip..).filter(|rest| !rest.is_empty()) else {
                skip -= slice.len();
                continue;
            };
            skip = 0;
            if self.gathered.is_empty() && (rest.len() >= LARGE || number == slices.len()) {
                large = &rest[..rest.len().min(MAX_OPEN_BYTES)];
                break;
            }
            let room = MAX_OPEN_BYTES - self.gathered.len();
            // A copy: a record is sealed from one place.
            self.gathered.extend_from_slice(&rest[..rest.len().min(room)]);
            statistics.copies += 1;
            if self.gathered.len() == MAX_OPEN_BYTES {
                break;
            }
        }
        statistics.bytes_copied += self.gathered.len() as u64;
        let open = if large.is_empty() { &self.gathered[..] } else { large };
        if open.is_empty() {
            return Ok(0);
        }
        // Fails only after 2^64 records.
        let sealed =
            self.session.seal(open, &mut self.record[LENGTH_BYTES..]).map_err(|_| Errno::CONNABORTED)?;
        self.record[..LENGTH_BYTES].copy_from_slice(&(sealed as u16).to_le_bytes());
        (self.record_written, self.record_end) = (0, LENGTH_BYTES + sealed);
        Ok(open.len())
    }

    /// Copies opened bytes to the places.
    fn hand_out(&mut self, places: &mut &mut [IoSliceMut<'_>], statistics: &mut Statistics) -> usize {
        let mut copied = 0;
        while let Some(place) = places.first_mut() {
            let count = place.len().min(self.open.end - self.open.start);
            if count == 0 {
                break;
            }
            // A copy: the record did not fit into the place of its bytes.
            place[..count].copy_from_slice(&self.open.get()[..count]);
            self.open.start += count;
            statistics.copies += 1;
            copied += count;
            IoSliceMut::advance_slices(places, count);
        }
        statistics.bytes_copied += copied as u64;
        copied
    }

    /// The length of the next record, once it has come.
    fn record_length(&self) -> Option<usize> {
        self.arrived.get().first_chunk().map(|length| usize::from(u16::from_le_bytes(*length)))
    }

    /// The range of the next record in `arrived`, once all of it has come.
    fn next_record(&mut self) -> rustix::io::Result<Option<(usize, usize)>> {
        let Some(length) = self.record_length() else { return Ok(None) };
        if length <= TAG_BYTES {
            return Err(self.refuse(Forged));
        }
        let start = self.arrived.start + LENGTH_BYTES;
        Ok((start + length <= self.arrived.end).then_some((start, start + length)))
    }

    /// Opens a record into `place` if it fits there, else into the buffer; gives the bytes in `place`.
    fn open_next(&mut self, (start, end): (usize, usize), place: &mut [u8]) -> rustix::io::Result<usize> {
        let sealed = &self.arrived.bytes[start..end];
        let in_place = place.len() >= sealed.len();
        let room = if in_place { &mut place[..sealed.len()] } else { &mut self.open.bytes[..sealed.len()] };
        let count = match self.session.open(sealed, room) {
            Ok(count) => count,
            Err(forged) => return Err(self.refuse(forged)),
        };
        self.arrived.start = end;
        if in_place {
            return Ok(count);
        }
        (self.open.start, self.open.end) = (0, count);
        Ok(0)
    }

    /// Reads from the socket; gives the bytes asked for and the bytes got.
    fn fetch(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<(usize, usize)> {
        let Bytes { bytes, start, end } = &mut self.arrived;
        bytes.copy_within(*start..*end, 0);
        (*start, *end) = (0, *end - *start);
        let room = &mut bytes[*end..];
        let asked = room.len();
        let got = read(socket, &mut [IoSliceMut::new(room)])?;
        *end += got;
        Ok((asked, got))
    }

    fn refuse(&mut self, _: Forged) -> Errno {
        self.is_forged = true;
        Errno::BADMSG
    }
}
