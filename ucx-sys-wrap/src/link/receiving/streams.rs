//! Streams: messages that come through the ring, piece by piece, one after another.

use super::super::cell::{Head, Kind, MESSAGE_BYTES};
use super::super::payload::read_ring;
use super::{Granted, HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::{MAX_EAGER_BYTES, cost};
use crate::shm::LINE_BYTES;
use crate::{Result, Statistics};

/// A message that comes through the ring.
pub(super) struct Stream {
    head: Head,
    bytes: usize,
    received: usize,
    pub(super) target: Target,
    is_eager: bool,
}

impl Receiver {
    /// The header of a message that comes through the ring, and its first piece.
    pub(super) fn take_long(
        &mut self,
        at: usize,
        stamp: u64,
        first: usize,
        counts: &mut Statistics,
    ) -> Result<()> {
        let head = self.decode(at, stamp, Kind::Long)?;
        let bytes = head.bytes();
        if bytes > MAX_EAGER_BYTES || bytes <= MESSAGE_BYTES {
            let what = format!(
                "a long message of {bytes} bytes, expected {} to {MAX_EAGER_BYTES}",
                MESSAGE_BYTES + 1
            );
            return Err(self.refusal(what));
        }
        self.receive_eager(bytes)?;
        counts.bytes_received += HEADER_BYTES;
        let target = match self.matched(&head) {
            Target::Kept(_) => Target::Kept(self.receives.keep(head, Vec::new())),
            target => target,
        };
        self.streams.push_back(Stream { head, bytes, received: 0, target, is_eager: true });
        if first == 0 {
            return Ok(());
        }
        if self.streams.len() > 1 {
            return Err(self.refusal("a piece of a message before the end of another".into()));
        }
        self.feed(first.min(bytes), counts)
    }

    /// The next bytes of the first message that comes through the ring.
    pub(super) fn take_piece(&mut self, at: usize, counts: &mut Statistics) -> Result<()> {
        let bytes = self.word(at);
        match usize::try_from(bytes) {
            Ok(bytes) => self.feed(bytes, counts),
            Err(_) => Err(self.refusal(format!("a piece of {bytes} bytes"))),
        }
    }

    pub(super) fn take_data(&mut self, at: usize, counts: &mut Statistics) -> Result<()> {
        let number = self.number(at)?;
        let Some(Granted { head, receive }) = self.granted.remove(&number) else {
            return Err(self.refusal(format!("data for offer {number}, which was not granted")));
        };
        let target = receive.map_or(Target::Discarded, Target::Posted);
        let stream = Stream { head, bytes: head.bytes(), received: 0, target, is_eager: false };
        if stream.bytes == 0 {
            self.finish_stream(stream, counts);
        } else {
            self.streams.push_back(stream);
        }
        Ok(())
    }

    /// Gives the next bytes of the ring to the first message.
    fn feed(&mut self, count: usize, counts: &mut Statistics) -> Result<()> {
        let Some(stream) = self.streams.front_mut() else {
            return Err(self.refusal("a piece of no message".into()));
        };
        let left = stream.bytes - stream.received;
        if count == 0 || count > left || count > self.ring.bytes() {
            return Err(self.refusal(format!("a piece of {count} bytes, expected 1 to {left}")));
        }
        let (start, end) = (stream.received, stream.received + count);
        let (head, target) = (stream.head, stream.target);
        stream.received = end;
        match target {
            Target::Posted(key) => {
                let mut position = self.ring_taken;
                for mut place in self.receives.places(key, &head, start, end) {
                    read_ring(&self.ring, position, &mut place);
                    position += place.len() as u64;
                }
            }
            Target::Kept(number) => {
                if let Some(kept) = self.receives.kept(number) {
                    kept.resize(end, 0);
                    read_ring(&self.ring, self.ring_taken, &mut kept[start..]);
                }
            }
            Target::Discarded => {}
        }
        if target != Target::Discarded {
            count_copy(count, counts);
        }
        counts.bytes_received += count as u64;
        self.ring_taken += count.next_multiple_of(LINE_BYTES) as u64;
        if end == head.bytes()
            && let Some(stream) = self.streams.pop_front()
        {
            self.finish_stream(stream, counts);
        }
        Ok(())
    }

    /// A message that came through the ring is whole.
    fn finish_stream(&mut self, stream: Stream, counts: &mut Statistics) {
        if stream.is_eager && !matches!(stream.target, Target::Kept(_)) {
            self.eager_taken += cost(stream.bytes);
        }
        if let Target::Posted(key) = stream.target {
            counts.messages_received += 1;
            self.receives.end(key, Ok(stream.head.arrival()));
        }
    }
}
