//! The sending side of a link: a queue for what finds no room, fragments, and messages that wait for a reply.

mod flow_control;
mod fragments;
mod rendezvous;
mod short;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slab::Slab;

use super::descriptor::{
    DESCRIPTOR_BYTES, DESCRIPTORS, FAST_BOX_BYTES, Header, INLINE_AT, INLINE_BYTES, Kind, Rts, offset_of,
    stamp,
};
use super::payload::{Payload, RingWriter, write_ring_block};
use super::{DESCRIPTORS_AT, FAST_BOX_AT, Reply, STALLED_AT};
use crate::limits::{MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::on_end::OnEnd;
use crate::shm::{LINE_BYTES, LocalGroup, OwnArea, PeerArea};
use crate::transport::{Posted, SendDone, SendParts};
use crate::{Envelope, Error, Mark, Rank, Result, Signature, Statistics};

pub(super) struct Sender {
    peer: Rank,
    place: usize,
    local_group: Arc<LocalGroup>,
    channel: OwnArea,
    descriptors: OwnArea,
    ring: RingWriter,
    fast_box: OwnArea,
    /// The channel that the peer writes: its acknowledgements.
    theirs: PeerArea,
    /// Descriptors, bytes of ring and fast box, and bytes sent eagerly: written, and acknowledged by the
    /// peer.
    position: u64,
    descriptors_taken: u64,
    ring_written: u64,
    ring_taken: u64,
    fast_box_written: u64,
    fast_box_taken: u64,
    /// The fast box is taken to be full up to this descriptor.
    fast_box_full_until: u64,
    /// From this descriptor on, a waiting fragment goes before messages.
    fragment_due: u64,
    eager_sent: u64,
    eager_taken: u64,
    /// Descriptors that wait for room, in the order of posting.
    queue: VecDeque<Queued>,
    /// Messages whose header is written and whose payload goes through the ring, one after another.
    streams: VecDeque<Stream>,
    rendezvous: Slab<Rendezvous>,
    /// The guard words in use, one bit each.
    guards: u64,
    serial: u64,
    operations: Slab<Operation>,
    pending: usize,
    is_stalled: bool,
    has_published: bool,
    /// Signature and mark of the last message that carried them.
    last: (Signature, Mark),
}

/// A send, until its parts are given back.
struct Operation {
    context: u16,
    /// `None` while the send is in progress.
    done: Option<SendDone>,
    on_end: OnEnd,
}

/// A descriptor that waits for room.
enum Queued {
    /// A reply to an RTS of the peer.
    Reply(Reply),
    Eager(Header, Stream),
    Rts(Header, u32),
    /// The message of this RTS, for which the CTS has come.
    Data(u32, Stream),
}

/// A message of which `sent` bytes are written.
struct Stream {
    payload: Payload,
    bytes: usize,
    sent: usize,
    operation: Option<usize>,
}

struct Rendezvous {
    message: Stream,
    /// Its guard word, and the serial number there.
    guard: Option<(usize, u64)>,
    is_written: bool,
    /// Whether it takes credit.
    takes_credit: bool,
}

impl Sender {
    pub(super) fn new(local_group: &Arc<LocalGroup>, place: usize) -> Option<Self> {
        let peer = *local_group.ranks().get(place)?;
        let (channel, theirs) = (local_group.own_channel(place)?, local_group.peer_channel(place)?);
        let ring_bytes = local_group.layout().ring_bytes();
        Some(Self {
            peer,
            place,
            local_group: Arc::clone(local_group),
            descriptors: channel
                .area(DESCRIPTORS_AT..DESCRIPTORS_AT + DESCRIPTORS as usize * DESCRIPTOR_BYTES),
            ring: RingWriter::new(channel.area(channel.bytes() - ring_bytes..channel.bytes())),
            fast_box: channel.area(FAST_BOX_AT..FAST_BOX_AT + FAST_BOX_BYTES),
            channel,
            theirs,
            position: 0,
            descriptors_taken: 0,
            ring_written: 0,
            ring_taken: 0,
            fast_box_written: 0,
            fast_box_taken: 0,
            fast_box_full_until: 0,
            fragment_due: 0,
            eager_sent: 0,
            eager_taken: 0,
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            rendezvous: Slab::new(),
            guards: 0,
            serial: 0,
            operations: Slab::new(),
            pending: 0,
            is_stalled: false,
            has_published: false,
            last: Default::default(),
        })
    }

    /// Sends a message eagerly or by RTS. What finds room is written at once.
    #[inline]
    pub(super) fn post(
        &mut self,
        envelope: Envelope,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        if matches!(&parts[..], [part] if self.send_short(&envelope, part.bytes(), counts)) {
            return Posted::Done(SendDone { parts, result: Ok(()) });
        }
        self.post_with_header(envelope, parts, counts)
    }

    /// Sends a message whose header must be written.
    fn post_with_header(
        &mut self,
        envelope: Envelope,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let header = Header::new(envelope, parts.iter().map(|part| part.len()));
        let bytes = header.bytes();
        if self.may_bypass_queue()
            && self.fits_eagerly(bytes)
            && self.has_credit(bytes)
            && self.has_descriptor()
        {
            self.eager_sent += cost(bytes);
            let payload = Payload::Leased(parts);
            self.write_eager(&header, &payload, counts);
            self.wake();
            return Posted::Done(SendDone { parts: payload.into_parts(), result: Ok(()) });
        }
        self.post_or_queue(header, parts, counts)
    }

    /// Whether a reply would be written at once. A rank that has received its message may take no more turns.
    pub(super) fn can_reply(&mut self) -> bool {
        self.queue.is_empty() && self.has_descriptor()
    }

    /// Replies to an RTS, now or when there is a descriptor.
    ///
    /// Only a NACK may be late for a peer whose rank takes no more turns: a FIN is sent where
    /// [`can_reply`](Self::can_reply), and after a CTS this rank waits for the bytes. A rank that sends a
    /// NACK has closed a context, which ends the peer's send as well, or drops what was sent to an earlier
    /// one.
    pub(super) fn reply(&mut self, reply: Reply, counts: &mut Statistics) {
        self.queue.push_back(Queued::Reply(reply));
        if self.has_descriptor() {
            self.flush(counts);
            self.wake();
        }
    }

    /// Writes what there is room for; returns whether anything was written, or room was found again.
    pub(super) fn pump(&mut self, counts: &mut Statistics) -> Result<bool> {
        self.read_acknowledgements()?;
        let before = self.position;
        self.flush(counts);
        // A deferred reply is not in the queue.
        let has_found_room =
            self.is_stalled && self.is_idle() && self.position - self.descriptors_taken < DESCRIPTORS;
        if has_found_room {
            self.is_stalled = false;
            self.channel.word(STALLED_AT).store(0, Ordering::Release);
        }
        self.wake();
        Ok(self.position != before || has_found_room)
    }

    /// Announces that this rank is about to sleep: the peer wakes it when it makes room for what is queued,
    /// or for a deferred reply.
    pub(super) fn begin_sleep(&mut self, is_reply_deferred: bool) {
        if (!self.is_idle() || is_reply_deferred) && !self.is_stalled {
            self.is_stalled = true;
            self.channel.word(STALLED_AT).store(1, Ordering::SeqCst);
        }
    }

    /// Whether the peer was told that this rank finds no room.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.streams.is_empty()
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// The place for the waker of the task that waits for a send.
    pub(super) fn on_end(&mut self, key: usize) -> Option<&mut OnEnd> {
        Some(&mut self.operations.get_mut(key)?.on_end)
    }

    #[inline]
    pub(super) fn test(&mut self, key: usize) -> Option<SendDone> {
        self.operations.get(key)?.done.as_ref()?;
        self.operations.try_remove(key)?.done
    }

    /// The sends of a context that are in progress.
    pub(super) fn of_context(&self, context: u16) -> Vec<usize> {
        let is_meant = |(_, send): &(usize, &Operation)| send.context == context && send.done.is_none();
        self.operations.iter().filter(is_meant).map(|(key, _)| key).collect()
    }

    /// Sends a message that can't be written as a whole at once.
    fn post_or_queue(
        &mut self,
        header: Header,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let bytes = header.bytes();
        self.pending += 1;
        let context = header.tag.group();
        let operation = self.operations.insert(Operation { context, done: None, on_end: OnEnd::default() });
        let message = Stream { payload: Payload::Leased(parts), bytes, sent: 0, operation: Some(operation) };
        if self.should_send_eagerly(bytes) {
            self.eager_sent += cost(bytes);
            self.queue.push_back(Queued::Eager(header, message));
        } else if self.rendezvous.len() >= MAX_OFFERS {
            let why = format!("rank {} has not received {MAX_OFFERS} messages: let it catch up", self.peer);
            self.end(message, Err(Error::Unavailable { name: "shared memory", why }));
        } else {
            let guard = self.is_readable(bytes).then(|| self.take_guard());
            let takes_credit = guard.is_some() && bytes <= MAX_EAGER_BYTES && self.has_credit(bytes);
            self.eager_sent += if takes_credit { cost(bytes) } else { 0 };
            let number =
                self.rendezvous.insert(Rendezvous { message, guard, is_written: false, takes_credit }) as u32;
            self.queue.push_back(Queued::Rts(header, number));
        }
        self.flush(counts);
        // The next turn reports a false acknowledgement.
        if !self.is_idle() && self.read_acknowledgements().is_ok() {
            self.flush(counts);
        }
        self.wake();
        match self.test(operation) {
            Some(done) => Posted::Done(done),
            None => Posted::Pending(operation),
        }
    }

    /// Writes what finds room by the acknowledgements read so far.
    fn flush(&mut self, counts: &mut Statistics) {
        while self.position - self.descriptors_taken < DESCRIPTORS {
            if self.is_fragment_due() && self.write_fragment(counts) {
                continue;
            }
            let Some(queued) = self.queue.pop_front() else { break };
            self.write_queued(queued, counts);
        }
        while self.has_descriptor_for_fragment() && self.write_fragment(counts) {}
    }

    fn write_queued(&mut self, queued: Queued, counts: &mut Statistics) {
        match queued {
            Queued::Reply(reply) => {
                let (kind, number) = match reply {
                    Reply::Cts(number) => (Kind::Cts, number),
                    Reply::Fin(number) => (Kind::Fin, number),
                    Reply::Nack(number) => (Kind::Nack, number),
                };
                counts.bytes_sent += LINE_BYTES as u64;
                self.publish(kind, 0, 0, [u64::from(number)]);
            }
            Queued::Data(number, message) => {
                counts.bytes_sent += LINE_BYTES as u64;
                self.publish(Kind::Data, 0, 0, [u64::from(number)]);
                if message.bytes == 0 {
                    self.end(message, Ok(()));
                } else {
                    self.streams.push_back(message);
                }
            }
            Queued::Eager(header, message) if self.fits_eagerly(message.bytes) => {
                self.write_eager(&header, &message.payload, counts);
                self.end(message, Ok(()));
            }
            Queued::Eager(header, message) => self.write_first(&header, message, counts),
            Queued::Rts(header, number) => self.write_rts(&header, number, counts),
        }
    }

    /// Writes a whole message into a descriptor or the fast box, which has room.
    fn write_eager(&mut self, header: &Header, payload: &Payload, counts: &mut Statistics) {
        let bytes = header.bytes();
        let at = offset_of(self.position) + INLINE_AT;
        let mut start = 0;
        payload.for_each_slice(0, bytes, |slice| {
            // A copy: through the descriptor or the fast box.
            if bytes <= INLINE_BYTES {
                self.descriptors.write_block(at + start, slice);
            } else {
                write_ring_block(&self.fast_box, self.fast_box_written + start as u64, slice);
            }
            start += slice.len();
        });
        if bytes > INLINE_BYTES {
            self.fast_box_written += bytes.next_multiple_of(LINE_BYTES) as u64;
        }
        counts.copies += u64::from(bytes > 0);
        counts.bytes_copied += bytes as u64;
        counts.bytes_sent += (LINE_BYTES + bytes) as u64;
        self.publish_header(Kind::Eager, header, 0, header.eager_words());
    }

    fn write_rts(&mut self, header: &Header, number: u32, counts: &mut Statistics) {
        let Some(rendezvous) = self.rendezvous.get_mut(number as usize) else { return };
        rendezvous.is_written = true;
        let (guard, serial) = rendezvous.guard.unwrap_or((Rts::NO_GUARD, 0));
        let mut addresses = [0; 3];
        if let Payload::Leased(parts) = &rendezvous.message.payload {
            for (address, part) in addresses.iter_mut().zip(parts) {
                *address = part.bytes().as_ptr().addr();
            }
        }
        let rts =
            Rts { header: *header, number, guard, serial, takes_credit: rendezvous.takes_credit, addresses };
        counts.bytes_sent += LINE_BYTES as u64;
        let at = offset_of(self.position);
        for (word, value) in self.descriptors.line(at + LINE_BYTES).iter().zip(rts.line()) {
            word.store(value, Ordering::Relaxed);
        }
        self.publish_header(Kind::Rts, header, 0, header.wide_words());
    }

    #[inline]
    fn publish_header<const N: usize>(&mut self, kind: Kind, header: &Header, extra: u16, words: [u64; N]) {
        self.last = (header.signature, header.mark);
        self.publish(kind, header.parts, extra, words);
    }

    /// Writes these words into the next descriptor's first line, and the stamp before them last.
    #[inline]
    fn publish<const N: usize>(&mut self, kind: Kind, parts: usize, extra: u16, words: [u64; N]) {
        let line = self.descriptors.line(offset_of(self.position));
        for (word, value) in line[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        line[0].store(stamp(self.position, kind, parts, extra), Ordering::Release);
        self.position += 1;
        self.has_published = true;
    }

    /// Wakes the peer if it sleeps and anything was written.
    #[inline]
    fn wake(&mut self) {
        if std::mem::take(&mut self.has_published) {
            self.local_group.wake(self.place);
        }
    }

    fn end(&mut self, message: Stream, result: Result<()>) {
        if let Some(key) = message.operation {
            self.finish(key, message.payload.into_parts(), result);
        }
    }

    fn finish(&mut self, key: usize, parts: SendParts, result: Result<()>) {
        if let Some(slot) = self.operations.get_mut(key) {
            slot.done = Some(SendDone { parts, result });
            slot.on_end.tell();
            self.pending -= 1;
        }
    }

    #[cold]
    fn protocol_error(&self, what: String) -> Error {
        Error::Protocol { rank: self.peer, what }
    }
}
