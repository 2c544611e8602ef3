//! Writing one connection: a queue of frames, written from where their parts lie, several in one system call,
//! and the rendezvous messages.

mod rendezvous;

use std::collections::VecDeque;
use std::io::IoSlice;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use slab::Slab;

use super::frame::{Frame, HEADER_BYTES, Header, encode};
use super::queued::{FRAMES_PER_WRITE, Payload, Queued, Slices};
use super::wire::Wire;
use crate::buffer::ReadLease;
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, cost};
use crate::on_end::OnEnd;
use crate::tcp::sizes::Sizes;
use crate::transport::{Posted, SendDone, SendParts, one};
use crate::{Envelope, Error, MAX_PARTS, Rank, Result, Statistics, Tag};
use rendezvous::Rendezvous;

/// The most payload of a message that is packed and sent from one place, in bytes.
const PACKED_PAYLOAD: usize = 4096;

/// The most payload of an eager message while a rendezvous message waits, in bytes. The peer would keep a
/// larger one on its heap, which costs more than a round trip.
const MAX_KEPT_BYTES: usize = 64 << 10;

pub(super) struct Outgoing {
    own: Rank,
    peer: Rank,
    pack: Box<[u8]>,
    queue: VecDeque<Queued>,
    /// Bytes of the first queued frame that are written.
    front_written: usize,
    /// Whether the wire has taken the next byte of it, though that does not count as written.
    holds_a_byte: bool,
    /// Queued frames of puts and gets.
    one_sided: usize,
    /// Whether the close frame is queued.
    is_closing: bool,
    /// Rendezvous messages by the number of their RTS.
    rendezvous: Slab<Rendezvous>,
    operations: Slab<Operation>,
    /// Sends that go on.
    pending: usize,
    /// The [`cost`] of all eager messages sent, and of those that the peer has received.
    eager_sent: u64,
    eager_received: u64,
}

/// A send, until its parts are given back.
struct Operation {
    context: u16,
    /// `None` while the send goes on.
    done: Option<SendDone>,
    on_end: OnEnd,
}

/// Of what is sent for puts and gets.
const NO_CONTEXT: u16 = u16::MAX;

/// The context of the message with this header.
fn context_of(header: &[u8; HEADER_BYTES]) -> u16 {
    let mut tag = [0; 8];
    tag.copy_from_slice(&header[8..16]);
    Tag(u64::from_le_bytes(tag)).group()
}

/// The outcome of an eager send.
enum Eager {
    /// The kernel has taken all of it.
    Sent,
    /// The rest, or all of it, must be queued behind this header.
    Queue([u8; HEADER_BYTES]),
    /// It must be announced by an RTS.
    NotAllowed,
}

impl Outgoing {
    pub(super) fn new(own: Rank, peer: Rank) -> Self {
        Self {
            own,
            peer,
            pack: vec![0; HEADER_BYTES + PACKED_PAYLOAD].into(),
            queue: VecDeque::new(),
            front_written: 0,
            holds_a_byte: false,
            one_sided: 0,
            is_closing: false,
            rendezvous: Slab::new(),
            operations: Slab::new(),
            pending: 0,
            eager_sent: 0,
            eager_received: 0,
        }
    }

    /// Sends a message eagerly, or by rendezvous if it is large or the credit is used up. What nothing else
    /// is queued before is written at once, as far as the kernel takes it.
    #[inline]
    pub(super) fn post(
        &mut self,
        wire: &mut Wire,
        header: Header,
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        match self.post_eager(wire, &header, &parts, statistics) {
            Eager::Sent => Posted::Done(SendDone { parts, result: Ok(()) }),
            Eager::Queue(header) => Posted::Pending(self.push_message(header, parts)),
            Eager::NotAllowed => self.send_rts(wire, header, parts, statistics),
        }
    }

    /// Like [`post`](Self::post) with a message of one part, but drops the lease.
    #[inline]
    pub(super) fn post_one(
        &mut self,
        wire: &mut Wire,
        envelope: &Envelope,
        part: ReadLease,
        statistics: &mut Statistics,
    ) -> Posted<usize, Result<()>> {
        let Envelope { tag, signature, mark } = *envelope;
        let header = Header { tag, signature, mark, lengths: Sizes::one(part.len()) };
        match self.post_eager(wire, &header, std::slice::from_ref(&part), statistics) {
            Eager::Sent => Posted::Done(Ok(())),
            Eager::Queue(header) => Posted::Pending(self.push_message(header, one(part))),
            Eager::NotAllowed => self.send_rts(wire, header, one(part), statistics).map(|done| done.result),
        }
    }

    /// Sends a message eagerly, if that is allowed.
    #[inline]
    fn post_eager(
        &mut self,
        wire: &mut Wire,
        header: &Header,
        parts: &[ReadLease],
        statistics: &mut Statistics,
    ) -> Eager {
        let payload_bytes = header.payload_bytes();
        let has_credit = self.eager_sent - self.eager_received + cost(payload_bytes) <= CREDIT_BYTES;
        // A message behind a rendezvous message of its tag comes before it can be received.
        let is_behind = payload_bytes > MAX_KEPT_BYTES && !self.rendezvous.is_empty();
        if payload_bytes > MAX_EAGER_BYTES || !has_credit || is_behind {
            return Eager::NotAllowed;
        }
        self.eager_sent += cost(payload_bytes);
        let header = header.encode();
        let frame_bytes = HEADER_BYTES + payload_bytes;
        if self.queue.is_empty() && self.write_first(wire, &header, parts, frame_bytes, statistics) {
            return Eager::Sent;
        }
        Eager::Queue(header)
    }

    /// Queues an eager message of which nothing, or the beginning, is written.
    #[cold]
    fn push_message(&mut self, header: [u8; HEADER_BYTES], parts: SendParts) -> usize {
        let operation = self.begin(context_of(&header));
        let (credit, payload) = (cost(parts.iter().map(|part| part.len()).sum()), Payload::Leased(parts));
        self.queue.push_back(Queued { credit, operation: Some(operation), ..Queued::new(header, payload) });
        operation
    }

    /// Sends a frame of a put or get. Gives the send that ends when the parts are no longer needed, if they
    /// still are.
    pub(super) fn post_one_sided(
        &mut self,
        wire: &mut Wire,
        header: [u8; HEADER_BYTES],
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Option<usize> {
        let frame_bytes = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        if self.queue.is_empty() && self.write_first(wire, &header, &parts, frame_bytes, statistics) {
            return None;
        }
        let operation = (frame_bytes > HEADER_BYTES).then(|| self.begin(NO_CONTEXT));
        self.push_one_sided(Queued { operation, ..Queued::new(header, Payload::Leased(parts)) });
        operation
    }

    /// Sends a frame of a get with a payload that no send waits for.
    pub(super) fn post_one_sided_copy(
        &mut self,
        wire: &mut Wire,
        header: [u8; HEADER_BYTES],
        payload: Vec<u8>,
        statistics: &mut Statistics,
    ) {
        let is_first = self.queue.is_empty();
        self.push_one_sided(Queued::new(header, Payload::Copied(payload)));
        if is_first {
            // The next turn finds and handles an error.
            self.flush(wire, 1, statistics);
        }
    }

    fn push_one_sided(&mut self, frame: Queued) {
        self.queue.push_back(Queued { is_one_sided: true, ..frame });
        self.one_sided += 1;
    }

    /// The number of queued frames of puts and gets.
    pub(super) fn one_sided_queued(&self) -> usize {
        self.one_sided
    }

    pub(super) fn push_control(&mut self, frame: &Frame) {
        self.queue.push_back(Queued::new(encode(frame, self.own), Payload::Leased(SendParts::new())));
    }

    /// Queues the close frame.
    pub(super) fn push_last(&mut self, frame: &Frame) {
        self.is_closing = true;
        self.push_control(frame);
    }

    /// The peer has received eager messages of this [`cost`] in total.
    pub(super) fn handle_credit(&mut self, total: u64) -> Result<()> {
        if total < self.eager_received || total > self.eager_sent {
            let what = format!("a credit of {total} bytes, of {} sent", self.eager_sent);
            return Err(Error::Protocol { rank: self.peer, what });
        }
        self.eager_received = total;
        Ok(())
    }

    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes what is queued, about `quota` bytes at most; says whether the connection takes more, now or
    /// later.
    pub(super) fn flush(&mut self, wire: &mut Wire, quota: usize, statistics: &mut Statistics) -> bool {
        let mut written = 0;
        while !self.queue.is_empty() && written < quota {
            let result = wire.write(&self.slices(), statistics);
            self.holds_a_byte = wire.holds_a_byte();
            match result {
                Ok(count) => {
                    written += count;
                    statistics.bytes_sent += count as u64;
                    self.advance(count);
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The place for the waker of the task that waits for a send.
    pub(super) fn on_end(&mut self, key: usize) -> Option<&mut OnEnd> {
        Some(&mut self.operations.get_mut(key)?.on_end)
    }

    pub(super) fn take_ended(&mut self, key: usize) -> Option<SendDone> {
        self.operations.get(key)?.done.as_ref()?;
        self.operations.remove(key).done
    }

    /// Ends a send early: withdraws a message of which nothing is written, and copies the rest of another.
    pub(super) fn cancel(&mut self, key: usize, error: Error, statistics: &mut Statistics) {
        if let Some(position) = self.queue.iter().position(|frame| frame.operation == Some(key)) {
            // Data whose CTS has come must be sent: the peer waits for it.
            let is_withdrawn = self.is_unwritten(position) && self.queue[position].credit > 0;
            let frame = if is_withdrawn {
                self.queue.remove(position)
            } else {
                self.detach(position, false, statistics)
            };
            if let Some(frame) = frame {
                self.eager_sent -= if is_withdrawn { frame.credit } else { 0 };
                self.end(frame, Err(error));
            }
        } else {
            self.cancel_rendezvous(key, error, statistics);
        }
    }

    /// Ends all sends and empties the queue, for a connection that is closed.
    pub(super) fn drop_all(&mut self, error: &Error) {
        (self.front_written, self.holds_a_byte, self.one_sided) = (0, false, 0);
        for frame in std::mem::take(&mut self.queue) {
            self.end(frame, Err(error.clone()));
        }
        self.drop_rendezvous(error);
    }

    fn is_unwritten(&self, position: usize) -> bool {
        position > 0 || self.front_written == 0 && !self.holds_a_byte
    }

    fn begin(&mut self, context: u16) -> usize {
        self.pending += 1;
        self.operations.insert(Operation { context, done: None, on_end: OnEnd::default() })
    }

    /// The sends of a context that have not ended.
    pub(super) fn of_context(&self, context: u16) -> Vec<usize> {
        let is_meant = |(_, send): &(usize, &Operation)| send.context == context && send.done.is_none();
        self.operations.iter().filter(is_meant).map(|(key, _)| key).collect()
    }

    /// Writes a frame to an idle connection in one system call; says whether the kernel has taken all of it.
    /// Otherwise the caller must queue it.
    #[inline]
    fn write_first(
        &mut self,
        wire: &mut Wire,
        header: &[u8; HEADER_BYTES],
        parts: &[ReadLease],
        frame_bytes: usize,
        statistics: &mut Statistics,
    ) -> bool {
        let result = if frame_bytes > HEADER_BYTES + PACKED_PAYLOAD {
            let mut slices = ArrayVec::<_, { 1 + MAX_PARTS }>::new();
            slices.push(IoSlice::new(header));
            slices.extend(parts.iter().map(|part| IoSlice::new(part.bytes())));
            wire.write(&slices, statistics)
        } else {
            let end = self.pack(header, parts, statistics);
            wire.write(&[IoSlice::new(&self.pack[..end])], statistics)
        };
        // The next turn finds and handles an error.
        let written = result.unwrap_or(0);
        statistics.bytes_sent += written as u64;
        if written == frame_bytes {
            return true;
        }
        (self.front_written, self.holds_a_byte) = (written, wire.holds_a_byte());
        false
    }

    /// Copies a small frame to one place; gives its length.
    #[inline]
    fn pack(
        &mut self,
        header: &[u8; HEADER_BYTES],
        parts: &[ReadLease],
        statistics: &mut Statistics,
    ) -> usize {
        self.pack[..HEADER_BYTES].copy_from_slice(header);
        let mut end = HEADER_BYTES;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            // A copy: the kernel takes a small message faster from one place than gathered from several.
            self.pack[end..end + part.len()].copy_from_slice(part.bytes());
            end += part.len();
            statistics.copies += 1;
        }
        statistics.bytes_copied += (end - HEADER_BYTES) as u64;
        end
    }

    fn slices(&self) -> Slices<'_> {
        let mut slices = Slices::new();
        let mut skip = self.front_written;
        for frame in self.queue.iter().take(FRAMES_PER_WRITE) {
            frame.slices(skip, &mut slices);
            skip = 0;
            if self.is_closing && frame.has_more() {
                // Its next fragment comes before the close frame.
                break;
            }
        }
        slices
    }

    fn advance(&mut self, count: usize) {
        self.front_written += count;
        while let Some(front) = self.queue.front()
            && front.frame_bytes() <= self.front_written
        {
            self.front_written -= front.frame_bytes();
            if let Some(mut frame) = self.queue.pop_front() {
                if frame.has_more() {
                    frame.start = frame.end;
                    self.queue_next_fragment(frame);
                    continue;
                }
                self.one_sided -= usize::from(frame.is_one_sided);
                self.written(&frame);
                self.end(frame, Ok(()));
            }
        }
    }

    /// Replaces a queued frame by a copy that no send waits for; gives the original. The copy holds what is
    /// left of all its payload, or of this frame alone if that is the last.
    fn detach(&mut self, position: usize, is_last: bool, statistics: &mut Statistics) -> Option<Queued> {
        let frame = self.queue.get_mut(position)?;
        if position > 0 {
            return Some(frame.detach(HEADER_BYTES, is_last, statistics));
        }
        let original = frame.detach(self.front_written.max(HEADER_BYTES), is_last, statistics);
        self.front_written = self.front_written.min(HEADER_BYTES);
        Some(original)
    }

    /// Gives the parts of a frame back to its send.
    fn end(&mut self, frame: Queued, result: Result<()>) {
        if let Some(slot) = frame.operation.and_then(|key| self.operations.get_mut(key)) {
            slot.done = Some(SendDone { parts: frame.into_parts(), result });
            slot.on_end.tell();
            self.pending -= 1;
        }
    }
}
