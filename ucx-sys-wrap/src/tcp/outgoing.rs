//! Writing one connection: a queue of frames, written from where their parts lie, several in one system call.

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use slab::Slab;

use super::frame::HEADER_BYTES;
use crate::transport::{Posted, SendDone, SendParts};
use crate::{Error, MAX_PARTS, Result, Statistics};

/// Frames that go into one system call at most.
const FRAMES_PER_WRITE: usize = 16;

/// A closed connection is an error, never a signal.
const FLAGS: SendFlags = SendFlags::NOSIGNAL;

type Slices<'a> = ArrayVec<IoSlice<'a>, { FRAMES_PER_WRITE * (1 + MAX_PARTS) }>;

/// A message up to this many bytes, header included, is packed and sent from one place.
const PACKED_FRAME: usize = HEADER_BYTES + 4096;

pub(super) struct Outgoing {
    pack: Box<[u8; PACKED_FRAME]>,
    queue: VecDeque<Queued>,
    /// Bytes of the first queued frame that are written.
    front_written: usize,
    /// `None` while the send goes on.
    operations: Slab<Option<SendDone>>,
}

/// A frame that is not written yet, or not to its end.
struct Queued {
    header: [u8; HEADER_BYTES],
    payload: Payload,
    frame_bytes: usize,
    /// The send that ends when this frame is written.
    operation: Option<usize>,
}

enum Payload {
    Leased(SendParts),
    /// The rest of a message whose send has ended early.
    Copied(Vec<u8>),
}

/// How a turn of writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// All that was queued, or all that the quota or the kernel took.
    Bytes(usize),
    /// The connection takes nothing more, ever.
    Broken,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self { pack: Box::new([0; PACKED_FRAME]), queue: VecDeque::new(), front_written: 0, operations: Slab::new() }
    }

    /// Writes a message if nothing is before it, as far as the kernel takes it; queues the rest.
    pub(super) fn post(
        &mut self,
        socket: BorrowedFd<'_>,
        header: [u8; HEADER_BYTES],
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let frame_bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        if self.queue.is_empty() {
            // An error is found again, and judged, when the queue is written.
            let written = self.write_now(socket, &header, &parts, frame_bytes, statistics).unwrap_or(0);
            statistics.bytes_sent += written as u64;
            if written == frame_bytes {
                return Posted::Done(SendDone { parts, result: Ok(()) });
            }
            self.front_written = written;
        }
        let key = self.operations.insert(None);
        self.queue.push_back(Queued { header, payload: Payload::Leased(parts), frame_bytes, operation: Some(key) });
        Posted::Pending(key)
    }

    /// Queues a frame without payload that nobody waits for.
    pub(super) fn push_control(&mut self, header: [u8; HEADER_BYTES]) {
        let payload = Payload::Leased(SendParts::new());
        self.queue.push_back(Queued { header, payload, frame_bytes: HEADER_BYTES, operation: None });
    }

    /// Whether something waits to be written.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes what is queued, about `quota` bytes at most.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>, quota: usize, statistics: &mut Statistics) -> Written {
        let mut written = 0;
        while !self.queue.is_empty() && written < quota {
            let result = sendmsg(socket, &self.slices(), &mut SendAncillaryBuffer::default(), FLAGS);
            match result {
                Ok(count) => {
                    written += count;
                    statistics.bytes_sent += count as u64;
                    self.advance(count);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return Written::Broken,
            }
        }
        Written::Bytes(written)
    }

    /// Takes a send that has ended.
    pub(super) fn take_ended(&mut self, key: usize) -> Option<SendDone> {
        self.operations.get(key)?.as_ref()?;
        self.operations.remove(key)
    }

    /// Ends a send early: a message of which nothing is written is withdrawn, the rest of another is copied.
    pub(super) fn cancel(&mut self, key: usize, error: Error, statistics: &mut Statistics) {
        let Some(position) = self.queue.iter().position(|frame| frame.operation == Some(key)) else { return };
        let withdrawn = position > 0 || self.front_written == 0;
        let frame = if withdrawn { self.queue.remove(position) } else { self.detach_front(statistics) };
        if let Some(frame) = frame {
            self.end(frame, Err(error));
        }
    }

    /// Ends all sends early, as [`cancel`](Self::cancel) does; a half-written frame stays queued, and nothing else.
    pub(super) fn cancel_all(&mut self, error: &Error, statistics: &mut Statistics) {
        let keep = usize::from(self.front_written > 0);
        for frame in self.queue.split_off(keep.min(self.queue.len())) {
            self.end(frame, Err(error.clone()));
        }
        if let Some(frame) = self.detach_front(statistics) {
            self.end(frame, Err(error.clone()));
        }
    }

    /// Ends all sends and forgets what was queued, for a connection that is closed.
    pub(super) fn drop_all(&mut self, error: &Error) {
        self.front_written = 0;
        for frame in std::mem::take(&mut self.queue) {
            self.end(frame, Err(error.clone()));
        }
    }

    /// One system call for a whole message; gives the bytes that the kernel took.
    fn write_now(
        &mut self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        parts: &SendParts,
        frame_bytes: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<usize> {
        if frame_bytes > PACKED_FRAME {
            let mut slices = ArrayVec::<_, { 1 + MAX_PARTS }>::new();
            slices.push(IoSlice::new(header));
            slices.extend(parts.iter().map(|part| IoSlice::new(part.bytes())));
            return sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), FLAGS);
        }
        self.pack[..HEADER_BYTES].copy_from_slice(header);
        let mut end = HEADER_BYTES;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            // A copy: the kernel takes a small message faster from one place than gathered from several.
            self.pack[end..end + part.len()].copy_from_slice(part.bytes());
            end += part.len();
            statistics.copies += 1;
        }
        statistics.bytes_copied += (end - HEADER_BYTES) as u64;
        send(socket, &self.pack[..end], FLAGS)
    }

    /// What is to be written next.
    fn slices(&self) -> Slices<'_> {
        let mut slices = Slices::new();
        let mut skip = self.front_written;
        for frame in self.queue.iter().take(FRAMES_PER_WRITE) {
            frame.slices(skip, &mut slices);
            skip = 0;
        }
        slices
    }

    /// Takes note that `count` more bytes are written.
    fn advance(&mut self, count: usize) {
        self.front_written += count;
        while let Some(front) = self.queue.front()
            && front.frame_bytes <= self.front_written
        {
            self.front_written -= front.frame_bytes;
            if let Some(frame) = self.queue.pop_front() {
                self.end(frame, Ok(()));
            }
        }
    }

    /// Replaces the half-written front frame by a copy of its rest that nobody waits for; gives the original.
    fn detach_front(&mut self, statistics: &mut Statistics) -> Option<Queued> {
        let front = self.queue.front_mut()?;
        let mut rest = Slices::new();
        front.slices(self.front_written.max(HEADER_BYTES), &mut rest);
        // A copy: the send has ended, its memory goes back, and the peer must still get the whole message.
        let copy: Vec<u8> = rest.iter().map(|slice| &slice[..]).collect::<Vec<_>>().concat();
        statistics.copies += rest.len() as u64;
        statistics.bytes_copied += copy.len() as u64;
        drop(rest);
        self.front_written = self.front_written.min(HEADER_BYTES);
        let frame_bytes = HEADER_BYTES + copy.len();
        let detached = Queued { header: front.header, payload: Payload::Copied(copy), frame_bytes, operation: None };
        Some(std::mem::replace(front, detached))
    }

    /// Gives the parts of a frame back to its send.
    fn end(&mut self, frame: Queued, result: Result<()>) {
        if let Some(slot) = frame.operation.and_then(|key| self.operations.get_mut(key)) {
            *slot = Some(SendDone { parts: frame.into_parts(), result });
        }
    }
}

impl Queued {
    /// Adds what follows the first `skip` bytes of the frame, without empty slices.
    fn slices<'a, const N: usize>(&'a self, mut skip: usize, slices: &mut ArrayVec<IoSlice<'a>, N>) {
        let mut add = |bytes: &'a [u8]| {
            let start = skip.min(bytes.len());
            skip -= start;
            if start < bytes.len() {
                slices.push(IoSlice::new(&bytes[start..]));
            }
        };
        add(&self.header);
        match &self.payload {
            Payload::Leased(parts) => parts.iter().for_each(|part| add(part.bytes())),
            Payload::Copied(rest) => add(rest),
        }
    }

    fn into_parts(self) -> SendParts {
        match self.payload {
            Payload::Leased(parts) => parts,
            Payload::Copied(_) => SendParts::new(),
        }
    }
}
