//! Bytes in and out of an encrypted socket, in records: length (2 bytes, little-endian), then a sealed
//! message.
//!
//! What is written is gathered up to a record, sealed, and handed to the kernel. The last byte of a record
//! counts as written only when the kernel has all of the record, so that who waits for a message to be
//! written sees to the rest. What is read is opened straight into its place where a whole record fits, else
//! kept and copied.

use std::io::{IoSlice, IoSliceMut};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

use super::socket;
use crate::Statistics;
use crate::noise::{Forged, MAX_OPEN_BYTES, MAX_SEALED_BYTES, Session, TAG_BYTES};

const LENGTH_BYTES: usize = 2;

const MAX_RECORD_BYTES: usize = LENGTH_BYTES + MAX_SEALED_BYTES;

/// What is read at once, in bytes.
const READ_BYTES: usize = 2 * MAX_RECORD_BYTES;

/// From so many bytes on, or where it is all there is, a slice is sealed from where it lies.
const LARGE: usize = 16 << 10;

/// How much is sealed in one call, about, in bytes: what comes must have its turn.
const WRITE_QUOTA: usize = 1 << 20;

pub(super) struct Cipher {
    session: Session,
    /// The record on its way out.
    record: Box<[u8]>,
    record_written: usize,
    record_end: usize,
    /// Whether the last byte of that record has not been counted as written.
    is_held: bool,
    /// Bytes that lie in several places, before they are sealed.
    gathered: Vec<u8>,
    /// What has come and is not opened.
    arrived: Bytes,
    /// What is opened and not read.
    open: Bytes,
    is_forged: bool,
}

/// A buffer of which `start..end` counts.
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

    /// As [`Wire::write`](super::Wire::write).
    pub(super) fn write(
        &mut self,
        socket: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        self.flush(socket)?;
        // The byte that was held back is the first of these.
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

    /// As [`Wire::read`](super::Wire::read).
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

    /// Whether something can be read without the kernel.
    pub(super) fn has_unread(&self) -> bool {
        !self.open.get().is_empty()
            || matches!(self.record_length(), Some(length) if self.arrived.get().len() >= LENGTH_BYTES + length)
    }

    /// Whether the first byte that does not count as written lies in a record of which the kernel may have
    /// some.
    pub(super) fn holds_a_byte(&self) -> bool {
        self.is_held
    }

    pub(super) fn is_forged(&self) -> bool {
        self.is_forged
    }

    /// Hands the record to the kernel, all of it.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        while self.record_written < self.record_end {
            let rest = &self.record[self.record_written..self.record_end];
            match socket::write(socket, &[IoSlice::new(rest)]) {
                Ok(count) => self.record_written += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Seals the next record of what follows the first `skip` bytes; gives how many bytes it carries.
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
        // Fails only where the session is used up, which takes 2^64 records.
        let sealed =
            self.session.seal(open, &mut self.record[LENGTH_BYTES..]).map_err(|_| Errno::CONNABORTED)?;
        self.record[..LENGTH_BYTES].copy_from_slice(&(sealed as u16).to_le_bytes());
        (self.record_written, self.record_end) = (0, LENGTH_BYTES + sealed);
        Ok(open.len())
    }

    /// Copies what is open to where it is wanted.
    fn hand_out(&mut self, places: &mut &mut [IoSliceMut<'_>], statistics: &mut Statistics) -> usize {
        let mut copied = 0;
        while let Some(place) = places.first_mut() {
            let count = place.len().min(self.open.end - self.open.start);
            if count == 0 {
                break;
            }
            // A copy: the record did not fit where its bytes belong.
            place[..count].copy_from_slice(&self.open.get()[..count]);
            self.open.start += count;
            statistics.copies += 1;
            copied += count;
            IoSliceMut::advance_slices(places, count);
        }
        statistics.bytes_copied += copied as u64;
        copied
    }

    /// The sealed bytes of the next record, once its length is there.
    fn record_length(&self) -> Option<usize> {
        self.arrived.get().first_chunk().map(|length| usize::from(u16::from_le_bytes(*length)))
    }

    /// Where the next record lies in what has arrived, once all of it has.
    fn next_record(&mut self) -> rustix::io::Result<Option<(usize, usize)>> {
        let Some(length) = self.record_length() else { return Ok(None) };
        if length <= TAG_BYTES {
            return Err(self.refuse(Forged));
        }
        let start = self.arrived.start + LENGTH_BYTES;
        Ok((start + length <= self.arrived.end).then_some((start, start + length)))
    }

    /// Opens a record into `place` if it fits there, else into the buffer; gives the bytes that are in
    /// `place`.
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

    /// Takes from the kernel what there is; gives the bytes asked for and the bytes got.
    fn fetch(&mut self, socket: BorrowedFd<'_>) -> rustix::io::Result<(usize, usize)> {
        let Bytes { bytes, start, end } = &mut self.arrived;
        bytes.copy_within(*start..*end, 0);
        (*start, *end) = (0, *end - *start);
        let room = &mut bytes[*end..];
        let asked = room.len();
        let got = socket::read(socket, &mut [IoSliceMut::new(room)])?;
        *end += got;
        Ok((asked, got))
    }

    fn refuse(&mut self, _: Forged) -> Errno {
        self.is_forged = true;
        Errno::BADMSG
    }
}
