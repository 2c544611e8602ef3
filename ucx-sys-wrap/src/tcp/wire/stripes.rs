//! One stream of bytes over several sockets.
//!
//! The stream is cut into stretches. On the first lane, a header of 8 bytes before each says how long it is
//! and how it lies:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length in bytes, little-endian, at least 1 |
//! | 4 | 0: all of it follows on the first lane; 1: in pieces of [`PIECE_BYTES`], the first on the first lane, the next on the second, and so on, round and round |
//! | 5..8 | zero |
//!
//! Whatever is written in one call, if it is [`STRIPED_BYTES`] or more, is a stretch in pieces; anything less
//! goes over the first lane. Both ends go through the pieces in their order, so the stream keeps its order
//! whatever the network does to the lanes; what comes early waits in the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::lane::Lane;
use crate::tcp::matching::Places;
use crate::tcp::queued::FRAMES_PER_WRITE;
use crate::{MAX_PARTS, Statistics};

/// What is written in one call is spread from so many bytes on.
const STRIPED_BYTES: usize = 2 * PIECE_BYTES;

/// What one lane carries before it is the next one's turn, in bytes.
const PIECE_BYTES: usize = 128 << 10;

/// The longest stretch, in bytes: more than is ever written in one call.
const MAX_STRETCH_BYTES: usize = 1 << 30;

const HEADER_BYTES: usize = 8;

/// What is read of the first lane when it is not known yet where it belongs, in bytes.
const AHEAD_BYTES: usize = 4096 + 128;

/// How many looks for bytes find none before the other lanes are asked whether they still stand.
const LOOKS: u32 = 64;

/// A lane that has ended in good order may be ahead of the last word, which comes over another: for so long.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Slices of a stretch, and its header.
type Gathered<'a> = ArrayVec<IoSlice<'a>, { FRAMES_PER_WRITE * (1 + MAX_PARTS) + 1 }>;

pub(super) struct Stripes {
    lanes: Vec<Lane>,
    writing: Course,
    /// What is still to be written of the header of the stretch that is being written.
    header: ArrayVec<u8, HEADER_BYTES>,
    reading: Course,
    /// What was read of the first lane ahead: `ahead[start..end]`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    is_malformed: bool,
    /// Looks that have found nothing.
    idle_looks: u32,
    ended: Option<Instant>,
}

/// How far a stretch has come.
#[derive(Clone, Copy, Default)]
struct Course {
    done: usize,
    length: usize,
    in_pieces: bool,
}

impl Course {
    fn is_over(&self) -> bool {
        self.done == self.length
    }

    /// The lane of the next bytes, and how many of them go over it.
    fn next(&self, lanes: usize) -> (usize, usize) {
        let left = self.length - self.done;
        if !self.in_pieces {
            return (0, left);
        }
        (self.done / PIECE_BYTES % lanes, left.min(PIECE_BYTES - self.done % PIECE_BYTES))
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        header[4] = self.in_pieces.into();
        header
    }

    /// `None` when it is no header.
    fn decode(header: [u8; HEADER_BYTES]) -> Option<Self> {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let course = Self { done: 0, length, in_pieces: header[4] == 1 };
        (length > 0 && length <= MAX_STRETCH_BYTES && course.encode() == header).then_some(course)
    }
}

impl Stripes {
    pub(super) fn new(lanes: Vec<Lane>) -> Self {
        Self {
            lanes,
            writing: Course::default(),
            header: ArrayVec::new(),
            reading: Course::default(),
            ahead: vec![0; AHEAD_BYTES].into(),
            start: 0,
            end: 0,
            is_malformed: false,
            idle_looks: 0,
            ended: None,
        }
    }

    pub(super) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(super) fn lanes_mut(&mut self) -> &mut [Lane] {
        &mut self.lanes
    }

    pub(super) fn is_malformed(&self) -> bool {
        self.is_malformed
    }

    /// The lane that is written next.
    pub(super) fn writing_lane(&self) -> usize {
        if self.header.is_empty() { self.writing.next(self.lanes.len()).0 } else { 0 }
    }

    /// Whether something can be read without the kernel.
    pub(super) fn has_unread(&self) -> bool {
        let (lane, _) = self.reading.next(self.lanes.len());
        let wanted = if self.reading.is_over() { HEADER_BYTES } else { 1 };
        (lane == 0 && self.end - self.start >= wanted) || self.lanes[lane].has_unread()
    }

    /// As [`Lane::write`].
    pub(super) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut written = 0;
        while written < total {
            if self.writing.is_over() {
                self.begin((total - written).min(MAX_STRETCH_BYTES));
            }
            let (lane, room) = self.writing.next(self.lanes.len());
            let header = if lane == 0 { self.header.len() } else { 0 };
            let mut gathered = Gathered::new();
            if header > 0 {
                gathered.push(IoSlice::new(&self.header));
            }
            let asked = header + gather(slices, written, room, &mut gathered);
            let count = match self.lanes[lane].write(&gathered, statistics) {
                Ok(count) => count,
                Err(Errno::AGAIN) if written > 0 => break,
                Err(error) => return Err(error),
            };
            drop(gathered);
            self.header.drain(..count.min(header));
            let carried = count.saturating_sub(header);
            self.writing.done += carried;
            written += carried;
            if count < asked {
                break;
            }
        }
        // Nothing but some of a header is nothing for now.
        if written == 0 && total > 0 { Err(Errno::AGAIN) } else { Ok(written) }
    }

    /// As [`Lane::read`].
    pub(super) fn read(
        &mut self,
        mut places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        let mut got = 0;
        IoSliceMut::advance_slices(&mut places, 0);
        while !places.is_empty() {
            let step = if self.reading.is_over() {
                self.take_header(statistics).map(|()| (0, 0))
            } else {
                self.read_piece(places, statistics)
            };
            match step {
                Ok((asked, count)) => {
                    got += count;
                    IoSliceMut::advance_slices(&mut places, count);
                    if count < asked {
                        break;
                    }
                }
                Err(_) if got > 0 => break,
                Err(Errno::AGAIN) => return self.look_at_others().and(Err(Errno::AGAIN)),
                Err(error) => return Err(error),
            }
        }
        if got > 0 {
            self.idle_looks = 0;
        }
        Ok(got)
    }

    fn begin(&mut self, length: usize) {
        self.writing = Course { done: 0, length, in_pieces: length >= STRIPED_BYTES };
        self.header = self.writing.encode().into();
    }

    /// Takes the header of the next stretch, reading more of the first lane than it where there is more.
    fn take_header(&mut self, statistics: &mut Statistics) -> rustix::io::Result<()> {
        if self.end - self.start < HEADER_BYTES {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let place = IoSliceMut::new(&mut self.ahead[self.end..]);
            self.end += some(self.lanes[0].read(&mut [place], statistics)?)?;
        }
        let Some(header) = self.ahead[self.start..self.end].first_chunk() else { return Err(Errno::AGAIN) };
        let Some(course) = Course::decode(*header) else {
            self.is_malformed = true;
            return Err(Errno::BADMSG);
        };
        self.reading = course;
        self.start += HEADER_BYTES;
        Ok(())
    }

    /// Reads some of the piece whose turn it is; gives the bytes asked for and the bytes got.
    fn read_piece(
        &mut self,
        places: &mut [IoSliceMut<'_>],
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        let (lane, room) = self.reading.next(self.lanes.len());
        let mut within = Places::new();
        let mut asked = 0;
        for place in places.iter_mut() {
            if asked == room {
                break;
            }
            let count = place.len().min(room - asked);
            within.push(IoSliceMut::new(&mut place[..count]));
            asked += count;
        }
        let ahead = &self.ahead[self.start..self.end];
        let got = if lane == 0 && !ahead.is_empty() {
            // A copy: these bytes came with the header.
            let count = scatter(ahead, &mut within, statistics);
            self.start += count;
            // There may be more in the kernel.
            asked = count;
            count
        } else {
            some(self.lanes[lane].read(&mut within, statistics)?)?
        };
        self.reading.done += got;
        Ok((asked, got))
    }

    /// Now and then makes sure that no lane has ended of those from which nothing is wanted now.
    fn look_at_others(&mut self) -> rustix::io::Result<()> {
        self.idle_looks += 1;
        if !self.idle_looks.is_multiple_of(LOOKS) {
            return Ok(());
        }
        let mut has_ended = false;
        for lane in &self.lanes {
            has_ended |= lane.has_ended()?;
        }
        if !has_ended {
            return Ok(());
        }
        let since = self.ended.get_or_insert_with(Instant::now);
        if since.elapsed() < LAST_WORD { Ok(()) } else { Err(Errno::CONNRESET) }
    }
}

/// The end of a lane is the end of all.
fn some(count: usize) -> rustix::io::Result<usize> {
    if count == 0 { Err(Errno::CONNRESET) } else { Ok(count) }
}

/// Adds what follows the first `skip` bytes, `room` bytes of it at most; gives how many.
fn gather<'a>(slices: &'a [IoSlice<'_>], mut skip: usize, room: usize, gathered: &mut Gathered<'a>) -> usize {
    let mut count = 0;
    for slice in slices {
        let from = skip.min(slice.len());
        let to = (from + room - count).min(slice.len());
        skip -= from;
        if to > from {
            gathered.push(IoSlice::new(&slice[from..to]));
            count += to - from;
        }
        if count == room {
            break;
        }
    }
    count
}

/// Copies bytes to places as far as they go; gives how many.
fn scatter(bytes: &[u8], places: &mut [IoSliceMut<'_>], statistics: &mut Statistics) -> usize {
    let mut copied = 0;
    for place in places {
        let count = place.len().min(bytes.len() - copied);
        place[..count].copy_from_slice(&bytes[copied..copied + count]);
        copied += count;
        statistics.copies += u64::from(count > 0);
    }
    statistics.bytes_copied += copied as u64;
    copied
}
