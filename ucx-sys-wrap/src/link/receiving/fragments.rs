//! Messages that come through the ring in fragments, one after another.

use super::super::descriptor::{Header, INLINE_BYTES, Kind};
use super::super::payload::read_ring;
use super::{Cleared, HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::{MAX_EAGER_BYTES, cost};
use crate::shm::LINE_BYTES;
use crate::{Result, Statistics};

pub(super) struct Stream {
    header: Header,
    bytes: usize,
    received: usize,
    pub(super) target: Target,
    is_eager: bool,
}

impl Receiver {
    /// Takes the header of a message that comes through the ring, and its first fragment of `first` bytes.
    pub(super) fn take_first(
        &mut self,
        at: usize,
        stamp: u64,
        first: usize,
        counts: &mut Statistics,
    ) -> Result<()> {
        let header = self.decode(at, stamp, Kind::First)?;
        let bytes = header.bytes();
        if bytes > MAX_EAGER_BYTES || bytes <= INLINE_BYTES {
            let what = format!(
                "a message of {bytes} bytes in fragments, expected {} to {MAX_EAGER_BYTES}",
                INLINE_BYTES + 1
            );
            return Err(self.protocol_error(what));
        }
        self.take_credit(bytes)?;
        counts.bytes_received += HEADER_BYTES;
        let target = match self.match_receive(&header) {
            Target::Unexpected(_) => Target::Unexpected(self.receives.keep(header, Vec::new())),
            target => target,
        };
        self.streams.push_back(Stream { header, bytes, received: 0, target, is_eager: true });
        if first == 0 {
            return Ok(());
        }
        if self.streams.len() > 1 {
            return Err(self.protocol_error("a fragment of a message before the end of another".into()));
        }
        self.receive_fragment(first.min(bytes), counts)
    }

    pub(super) fn take_fragment(&mut self, at: usize, counts: &mut Statistics) -> Result<()> {
        let bytes = self.word(at);
        match usize::try_from(bytes) {
            Ok(bytes) => self.receive_fragment(bytes, counts),
            Err(_) => Err(self.protocol_error(format!("a fragment of {bytes} bytes"))),
        }
    }

    pub(super) fn take_data(&mut self, at: usize, counts: &mut Statistics) -> Result<()> {
        let number = self.number(at)?;
        let Some(Cleared { header, receive }) = self.cleared.remove(&number) else {
            return Err(self.protocol_error(format!("data for RTS {number}, which got no CTS")));
        };
        let target = receive.map_or(Target::Discarded, Target::Posted);
        let stream = Stream { header, bytes: header.bytes(), received: 0, target, is_eager: false };
        if stream.bytes == 0 {
            self.finish_stream(stream, counts);
        } else {
            self.streams.push_back(stream);
        }
        Ok(())
    }

    /// Takes the next bytes of the ring for the first message.
    fn receive_fragment(&mut self, count: usize, counts: &mut Statistics) -> Result<()> {
        let Some(stream) = self.streams.front_mut() else {
            return Err(self.protocol_error("a fragment of no message".into()));
        };
        let left = stream.bytes - stream.received;
        if count == 0 || count > left || count > self.ring.bytes() {
            return Err(self.protocol_error(format!("a fragment of {count} bytes, expected 1 to {left}")));
        }
        let (start, end) = (stream.received, stream.received + count);
        let (header, target) = (stream.header, stream.target);
        stream.received = end;
        match target {
            Target::Posted(key) => {
                let mut position = self.ring_taken;
                for mut slice in self.receives.slices(key, &header, start, end) {
                    read_ring(&self.ring, position, &mut slice);
                    position += slice.len() as u64;
                }
            }
            Target::Unexpected(number) => {
                if let Some(bytes) = self.receives.arriving(number) {
                    bytes.resize(end, 0);
                    read_ring(&self.ring, self.ring_taken, &mut bytes[start..]);
                }
            }
            Target::Discarded => {}
        }
        if target != Target::Discarded {
            count_copy(count, counts);
        }
        counts.bytes_received += count as u64;
        self.ring_taken += count.next_multiple_of(LINE_BYTES) as u64;
        if end == header.bytes()
            && let Some(stream) = self.streams.pop_front()
        {
            self.finish_stream(stream, counts);
        }
        Ok(())
    }

    fn finish_stream(&mut self, stream: Stream, counts: &mut Statistics) {
        if stream.is_eager && !matches!(stream.target, Target::Unexpected(_)) {
            self.eager_taken += cost(stream.bytes);
        }
        if let Target::Posted(key) = stream.target {
            counts.messages_received += 1;
            self.receives.end(key, Ok(stream.header.arrival()));
        }
    }
}
