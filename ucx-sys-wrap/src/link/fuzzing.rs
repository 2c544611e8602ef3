//! One link against arbitrary bytes in the peer's channel, while operations are posted, tested and canceled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::descriptor::{DESCRIPTOR_BYTES, DESCRIPTORS, offset_of};
use super::{
    DESCRIPTORS_AT, DESCRIPTORS_TAKEN_AT, EAGER_TAKEN_AT, FAST_BOX_TAKEN_AT, GUARDS_AT, Link, RING_TAKEN_AT,
};
use crate::buffer::testing::{lend_to_receive, lend_to_send};
use crate::buffer::{Buffer, RawVec};
use crate::fuzzing::Bytes;
use crate::limits::CREDIT_BYTES;
use crate::shm::{LocalGroup, OwnArea};
use crate::transport::{Posted, RecvDone, RecvParts, SendDone, SendParts};
use crate::{Envelope, Error, Mark, Rank, Signature, Statistics, Tag};

const PEER: Rank = Rank(1);

/// Some messages of the peer are longer than this, so that they are read in fragments.
const READ_BYTES: usize = 4 << 10;

/// Lent memory, and its operation until that has ended.
type Operation<Done> = (RawVec<u8>, Option<Posted<usize, Done>>);

/// A link, the channel that its peer writes, and what was posted.
struct Harness {
    link: Link,
    theirs: OwnArea,
    /// The next descriptor of a peer that keeps to the protocol.
    position: u64,
    statistics: Statistics,
    receives: Vec<Operation<RecvDone>>,
    sends: Vec<Operation<SendDone>>,
    /// The memory behind the peer's RTS.
    memory: Vec<u8>,
    _world: Vec<Arc<LocalGroup>>,
}

/// Follows a plan: a byte that says whether memory may be read, then bytes that choose the steps and what the
/// peer writes.
pub fn shared_memory(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(may_read) = bytes.byte() else { return };
    let Some(mut harness) = Harness::new(may_read % 2 == 1) else { return };
    while let Some(step) = bytes.byte() {
        if harness.step(step, &mut bytes).is_none() {
            break;
        }
    }
    harness.finish();
}

impl Harness {
    fn new(may_read: bool) -> Option<Self> {
        let world = LocalGroup::in_process(2).ok()?;
        let mut link = Link::new(&world[0], 1, may_read)?;
        link.receiver.read_bytes = READ_BYTES;
        let theirs = world[1].own_channel(0)?;
        let (receives, sends) = (Vec::new(), Vec::new());
        let (statistics, memory) = (Statistics::default(), vec![0; 3 * READ_BYTES]);
        Some(Self { link, theirs, position: 0, statistics, receives, sends, memory, _world: world })
    }

    /// `None` when the plan or the link is at its end.
    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        match step % 9 {
            0 => self.post_recv(bytes.byte()?, bytes.word()?, bytes.word()?),
            1 => self.write_eager(bytes)?,
            2 => self.write_descriptor(bytes)?,
            3 => self.write_word(bytes)?,
            4 => {
                let (at, count) = (bytes.word()? * 64, usize::from(bytes.byte()?));
                let taken = bytes.take(count);
                self.theirs.write(at % (self.theirs.bytes() - 256), taken);
            }
            5 => self.post_send(bytes.byte()?, bytes.word()? * 16),
            6 => self.cancel_recv(usize::from(bytes.byte()?)),
            7 => self.cancel_send(usize::from(bytes.byte()?)),
            _ => return self.poll(bytes.word()?),
        }
        Some(())
    }

    /// Writes the descriptor of a message that is valid except for its lengths.
    fn write_eager(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (kind, round, parts, extra) = (bytes.byte()?, bytes.byte()?, bytes.byte()?, bytes.byte()?);
        let mut lengths = [0u64; 3];
        for length in lengths.iter_mut().take(usize::from(parts % 4)) {
            *length = bytes.word()? as u64 * if kind % 3 == 0 { 1 } else { 16 };
        }
        let Envelope { tag, signature, mark } = envelope(PEER, round);
        let half = u64::from_le_bytes([signature.0[0]; 8]);
        let [a, b, c] = lengths;
        let tail = if kind % 3 == 0 { [a | b << 16 | c << 32, 1, 2] } else { lengths };
        if kind % 3 == 2 {
            let at = DESCRIPTORS_AT + offset_of(self.position) + 64;
            let [number, word, serial] = [bytes.byte()?, bytes.byte()? % 66, bytes.byte()?].map(u64::from);
            let address = self.memory.as_ptr().addr() as u64;
            let rts = [number, word, serial, (extra % 2).into(), address, address, address];
            for (word, value) in self.theirs.line(at).iter().zip(rts) {
                word.store(value, Ordering::Relaxed);
            }
        }
        if kind.is_multiple_of(7) {
            self.publish([9, 10][usize::from(extra % 2)], 1, tail[0] & 0xffff, [tag.0, 1, 2, 3, 4, 5, 6]);
            return Some(());
        }
        let kind = [1, 2, 4][usize::from(kind % 3)];
        let line = [tag.0, half, half, mark.0, tail[0], tail[1], tail[2]];
        self.publish(kind, u64::from(parts % 4), u64::from(extra), line);
        Some(())
    }

    /// Writes any descriptor: kind, extra bits, words, and which of the words are small.
    fn write_descriptor(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (kind, parts, extra, small) = (bytes.byte()?, bytes.byte()?, bytes.word()?, bytes.byte()?);
        let mut line = [0u64; 7];
        for (index, word) in line.iter_mut().enumerate() {
            *word = bytes.word()? as u64;
            if small >> index & 1 == 1 {
                *word |= (bytes.word()? as u64) << 48;
            }
        }
        self.publish(kind.into(), parts.into(), extra as u64, line);
        Some(())
    }

    fn publish(&mut self, kind: u64, parts: u64, extra: u64, line: [u64; 7]) {
        let words =
            self.theirs.line(DESCRIPTORS_AT + (self.position % DESCRIPTORS) as usize * DESCRIPTOR_BYTES);
        for (word, value) in words[1..].iter().zip(line) {
            word.store(value, Ordering::Relaxed);
        }
        self.position += 1;
        words[0].store(self.position | kind << 32 | parts << 40 | extra << 48, Ordering::Release);
    }

    /// Writes an acknowledgement or a guard word.
    fn write_word(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (which, value) = (usize::from(bytes.byte()?), bytes.word()? as u64);
        let at = match which % 4 {
            0 => DESCRIPTORS_TAKEN_AT,
            1 => RING_TAKEN_AT,
            2 => EAGER_TAKEN_AT,
            _ if which / 4 % 65 == 64 => FAST_BOX_TAKEN_AT,
            _ => GUARDS_AT + which / 4 % 65 * 8,
        };
        self.theirs.word(at).store(value, Ordering::Release);
        Some(())
    }

    fn poll(&mut self, quota: usize) -> Option<()> {
        if quota.is_multiple_of(3) {
            self.link.poll_short(2, &mut self.statistics).ok()?;
        }
        let moved = self.link.poll(quota + 1, &mut self.statistics);
        let kept = self.link.receiver.receives.kept_bytes();
        assert!(kept as u64 <= CREDIT_BYTES, "{kept} bytes are kept");
        moved.ok().map(drop)
    }

    fn post_recv(&mut self, round: u8, first: usize, second: usize) {
        let mut memory = vec![0u8; first].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        let posted = self.link.post_recv(envelope(PEER, round), parts, &mut self.statistics);
        self.receives.push((memory, Some(posted)));
        // A receive of two parts, so that messages are split.
        if second.is_multiple_of(3) {
            let mut memory = vec![0u8; second].into_raw();
            let mut none = Vec::new().into_raw();
            let mut parts = RecvParts::new();
            lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
            lend_to_receive::<Vec<u8>>(&mut none, &mut parts);
            let posted = self.link.post_recv(envelope(PEER, round), parts, &mut self.statistics);
            self.receives.push((memory, Some(posted)));
        }
    }

    fn post_send(&mut self, round: u8, length: usize) {
        let message = vec![round; length];
        let is_even = (length / 16).is_multiple_of(2);
        if is_even && self.link.send_at_once(&envelope(Rank(0), round), &message, &mut self.statistics) {
            return;
        }
        let memory = message.into_raw();
        let mut parts = SendParts::new();
        lend_to_send::<Vec<u8>>(&memory, &mut parts);
        let posted = self.link.post_send(envelope(Rank(0), round), parts, &mut self.statistics);
        self.sends.push((memory, Some(posted)));
    }

    fn cancel_recv(&mut self, number: usize) {
        if let Some((_, posted)) = self.receives.get_mut(number)
            && let Some(Posted::Pending(key)) = posted
        {
            self.link.receiver.cancel(*key, Error::Canceled);
            assert!(
                self.link.receiver.receives.take_ended(*key).is_some(),
                "a canceled receive has not ended"
            );
            *posted = None;
        }
    }

    fn cancel_send(&mut self, number: usize) {
        if let Some((_, posted)) = self.sends.get_mut(number)
            && let Some(Posted::Pending(key)) = posted
        {
            self.link.sender.cancel(*key, &Error::Canceled, &mut self.statistics);
            assert!(self.link.sender.test(*key).is_some(), "a canceled send has not ended");
            *posted = None;
        }
    }

    /// Every receive that succeeded fits its parts, and every operation ends when the link is closed.
    fn finish(mut self) {
        match self.receives.len() % 3 {
            0 => self.link.close(&Error::Closed),
            way => _ = self.link.finish(way == 1, &mut self.statistics),
        }
        for (_, posted) in &self.receives {
            if let Some(Posted::Pending(key)) = posted {
                let Some(done) = self.link.receiver.receives.take_ended(*key) else {
                    panic!("a receive has not ended")
                };
                if let Ok(arrival) = done.result {
                    assert_eq!(arrival.lengths.len(), done.parts.len());
                    assert!(
                        arrival.lengths.iter().zip(&done.parts).all(|(length, part)| *length <= part.len())
                    );
                }
            }
        }
        for (_, posted) in &self.sends {
            if let Some(Posted::Pending(key)) = posted {
                assert!(self.link.sender.test(*key).is_some(), "a send has not ended");
            }
        }
    }
}

fn envelope(source: Rank, round: u8) -> Envelope {
    let tag = Tag::new(source, 0, 0, u32::from(round % 4));
    Envelope { tag, signature: Signature([round % 2; 16]), mark: Mark::NONE }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use super::super::descriptor::{Header, Kind, Rts};
    use super::*;
    use crate::limits::{MAX_EAGER_BYTES, cost};

    impl Harness {
        /// Writes an RTS for a message of one part, with the first guard word.
        fn write_rts(&mut self, length: usize, rts: Rts) {
            self.theirs.word(GUARDS_AT).store(rts.serial, Ordering::Release);
            let second = self.theirs.line(DESCRIPTORS_AT + offset_of(self.position) + 64);
            for (word, value) in second.iter().zip(rts.line()) {
                word.store(value, Ordering::Relaxed);
            }
            let tag = envelope(PEER, 0).tag.0;
            self.publish(Kind::Rts as u64, 1, 0, [tag, 0, 0, 0, length as u64, 0, 0]);
        }
    }

    #[test]
    fn nothing_is_taken_after_a_false_reply() {
        for kind in [Kind::Cts, Kind::Fin, Kind::Nack] {
            let mut harness = Harness::new(true).unwrap();
            for _ in 0..DESCRIPTORS {
                harness.publish(kind as u64, 0, 0, [0; 7]);
            }
            let result = harness.link.poll(1, &mut harness.statistics);
            assert!(matches!(result, Err(Error::Protocol { rank: PEER, .. })), "{result:?}");
            let taken = harness._world[1].peer_channel(0).unwrap().load(DESCRIPTORS_TAKEN_AT);
            assert!(taken <= 1, "{taken} descriptors were taken");
        }
    }

    /// A message is read to the heap only if its RTS took credit.
    #[test]
    fn only_messages_with_credit_are_read_to_the_heap() {
        let memory = vec![1u8; MAX_EAGER_BYTES + 1];
        for (length, takes_credit, is_kept) in [
            (1, false, false),
            (1, true, true),
            (MAX_EAGER_BYTES, false, false),
            (MAX_EAGER_BYTES, true, true),
        ] {
            let mut harness = Harness::new(true).unwrap();
            harness.link.receiver.read_bytes = MAX_EAGER_BYTES;
            let addresses = [memory.as_ptr().addr(), 0, 0];
            let span = [(addresses[0], 1), (0, 0), (0, 0)];
            let peer_can_read = harness._world[0].read_memory(1, span, &mut [IoSliceMut::new(&mut [0])]);
            let header = Header::new(envelope(PEER, 0), std::iter::once(length));
            let rts = Rts { header, number: 0, guard: 0, serial: 7, takes_credit, addresses };
            harness.write_rts(length, rts);
            for _ in 0..3 {
                harness.link.poll(1 << 20, &mut harness.statistics).unwrap();
            }
            let is_kept = is_kept && peer_can_read;
            assert_eq!(harness.link.receiver.receives.kept_bytes(), if is_kept { length } else { 0 });
            assert_eq!(harness.link.receiver.receives.rts_count(), usize::from(!is_kept), "{length} bytes");
            let over = if takes_credit { (CREDIT_BYTES - cost(length)) / cost(MAX_EAGER_BYTES) } else { 0 };
            for _ in 0..over {
                harness.write_rts(MAX_EAGER_BYTES, rts);
                harness.link.poll(1 << 20, &mut harness.statistics).unwrap();
            }
            // Without credit, or too long for it.
            harness
                .write_rts(MAX_EAGER_BYTES + usize::from(!takes_credit), Rts { takes_credit: true, ..rts });
            let refused = harness.link.poll(1 << 20, &mut harness.statistics);
            assert!(matches!(refused, Err(Error::Protocol { rank: PEER, .. })), "{refused:?}");
        }
    }
}
