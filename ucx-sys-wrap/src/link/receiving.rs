//! The receiving side of a link: takes descriptors in order, and matches messages with receives.

mod ending;
mod fragments;
mod reads;
mod rendezvous;
mod short;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::descriptor::{
    DESCRIPTOR_BYTES, DESCRIPTORS, FAST_BOX_BYTES, Header, Kind, decode_stamp, is_stamped, offset_of,
};
use super::receives::Receives;
use super::sending::Sender;
use super::{
    CAN_READ_AT, DESCRIPTORS_AT, DESCRIPTORS_TAKEN_AT, EAGER_TAKEN_AT, FAST_BOX_AT, FAST_BOX_TAKEN_AT,
    RING_TAKEN_AT, Reply, STALLED_AT,
};
use crate::limits::{CREDIT_BYTES, cost};
use crate::shm::{LINE_BYTES, LocalGroup, OwnArea, PeerArea};
use crate::{Error, Mark, Rank, Result, Signature, Statistics};
use fragments::Stream;
use reads::{PeerMemory, READ_BYTES, Reading};

/// Bytes that are counted for a message besides its payload.
const HEADER_BYTES: u64 = LINE_BYTES as u64;

pub(super) struct Receiver {
    peer: Rank,
    memory: PeerMemory,
    /// The parts of the channel that the peer writes.
    descriptors: PeerArea,
    ring: PeerArea,
    fast_box: PeerArea,
    /// This rank's own channel, for acknowledgements.
    acknowledged: OwnArea,
    /// Taken so far: descriptors, bytes of ring and fast box; eager bytes that have come, and those of them
    /// acknowledged.
    position: u64,
    ring_taken: u64,
    fast_box_taken: u64,
    eager_received: u64,
    eager_taken: u64,
    /// Messages that come through the ring, the first of which is arriving.
    streams: VecDeque<Stream>,
    cleared: HashMap<u32, Cleared>,
    /// Messages that are read from the sender's memory in fragments, the first of them now.
    reads: VecDeque<Reading>,
    /// Bytes that are read in one turn, at most.
    pub(super) read_bytes: usize,
    pub(super) receives: Receives,
    /// Signature and mark of the last message that carried them; short messages repeat them.
    last: (Signature, Mark),
}

/// An RTS that was answered with a CTS.
struct Cleared {
    header: Header,
    /// `None` once its receive is canceled.
    receive: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Posted(usize),
    /// To the heap, under this number.
    Unexpected(u64),
    /// Nowhere: its receive has ended.
    Discarded,
}

impl Receiver {
    pub(super) fn new(local_group: &Arc<LocalGroup>, place: usize, may_read: bool) -> Option<Self> {
        let peer = *local_group.ranks().get(place)?;
        let (own, theirs) = (local_group.own_channel(place)?, local_group.peer_channel(place)?);
        let is_open = may_read && local_group.can_read(place);
        own.word(CAN_READ_AT).store(u64::from(is_open), Ordering::Release);
        let ring_bytes = local_group.layout().ring_bytes();
        Some(Self {
            peer,
            descriptors: theirs
                .area(DESCRIPTORS_AT..DESCRIPTORS_AT + DESCRIPTORS as usize * DESCRIPTOR_BYTES),
            ring: theirs.area(theirs.bytes() - ring_bytes..theirs.bytes()),
            fast_box: theirs.area(FAST_BOX_AT..FAST_BOX_AT + FAST_BOX_BYTES),
            memory: PeerMemory { local_group: Arc::clone(local_group), place, theirs, is_open },
            acknowledged: own,
            position: 0,
            ring_taken: 0,
            fast_box_taken: 0,
            eager_received: 0,
            eager_taken: 0,
            streams: VecDeque::new(),
            cleared: HashMap::new(),
            reads: VecDeque::new(),
            read_bytes: READ_BYTES,
            receives: Receives::new(peer),
            last: Default::default(),
        })
    }

    pub(super) fn cancel(&mut self, key: usize, error: Error) {
        for stream in &mut self.streams {
            if stream.target == Target::Posted(key) {
                stream.target = Target::Discarded;
            }
        }
        let cleared = self.cleared.values_mut().map(|cleared| &mut cleared.receive);
        let read = self.reads.iter_mut().map(|reading| &mut reading.receive);
        for receive in cleared.chain(read) {
            if *receive == Some(key) {
                *receive = None;
            }
        }
        self.receives.cancel(key, error);
    }

    /// Whether an RTS has waited for a turn, or a message is being read.
    #[inline]
    pub(super) fn has_rts(&self) -> bool {
        self.receives.has_new_rts() || !self.reads.is_empty()
    }

    #[inline]
    pub(super) fn has_descriptor(&self) -> bool {
        is_stamped(self.descriptors.load(offset_of(self.position)), self.position)
    }

    /// Takes descriptors, about `quota` bytes of payload; `sender` sends the replies.
    #[inline]
    pub(super) fn take(&mut self, quota: usize, sender: &mut Sender, counts: &mut Statistics) -> Result<()> {
        let before = counts.bytes_received;
        // At most as many as there are: a peer that writes on and on does not hold this rank here.
        for _ in 0..DESCRIPTORS {
            let at = offset_of(self.position);
            let stamp = self.descriptors.load(at);
            if !is_stamped(stamp, self.position) {
                return Ok(());
            }
            self.take_descriptor(at, stamp, sender, counts)?;
            self.end_descriptor();
            if counts.bytes_received - before >= quota as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks up to `spins` times for a descriptor, and takes it if it is an EagerShort. Returns whether it
    /// took one.
    #[inline]
    pub(super) fn poll_short(&mut self, spins: u32, counts: &mut Statistics) -> Result<bool> {
        let at = offset_of(self.position);
        for _ in 0..spins {
            let stamp = self.descriptors.load(at);
            if is_stamped(stamp, self.position) {
                let (kind, extra) = decode_stamp(stamp).map_err(|what| self.protocol_error(what))?;
                if kind == Kind::EagerShort {
                    self.take_short(at, usize::from(extra), counts)?;
                    self.end_descriptor();
                }
                return Ok(kind == Kind::EagerShort);
            }
        }
        Ok(false)
    }

    #[inline]
    fn end_descriptor(&mut self) {
        self.position += 1;
        self.acknowledge();
    }

    /// Acknowledges what was taken, and now and then wakes the peer if it sleeps for want of room.
    #[inline]
    fn acknowledge(&self) {
        self.acknowledged.word(EAGER_TAKEN_AT).store(self.eager_taken, Ordering::Release);
        self.acknowledged.word(RING_TAKEN_AT).store(self.ring_taken, Ordering::Release);
        self.acknowledged.word(FAST_BOX_TAKEN_AT).store(self.fast_box_taken, Ordering::Release);
        self.acknowledged.word(DESCRIPTORS_TAKEN_AT).store(self.position, Ordering::Release);
        // A sender without room has filled all descriptors or most of the ring, so such a position comes
        // before they are empty.
        if self.position.is_multiple_of(8) {
            self.wake_if_stalled();
        }
    }

    /// Wakes the peer if it sleeps because it finds no room.
    fn wake_if_stalled(&self) {
        fence(Ordering::SeqCst);
        if self.memory.theirs.load(STALLED_AT) != 0 {
            self.memory.local_group.wake(self.memory.place);
        }
    }

    /// Takes the descriptor that begins with `stamp`.
    #[inline]
    fn take_descriptor(
        &mut self,
        at: usize,
        stamp: u64,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        let (kind, extra) = decode_stamp(stamp).map_err(|what| self.protocol_error(what))?;
        let extra = usize::from(extra);
        match kind {
            Kind::EagerShort => self.take_short(at, extra, counts),
            Kind::EagerInRing => self.take_in_ring(at, extra, counts),
            Kind::Eager => self.take_eager(at, stamp, counts),
            Kind::First => self.take_first(at, stamp, extra * LINE_BYTES, counts),
            Kind::Fragment => self.take_fragment(at, counts),
            Kind::Rts => self.take_rts(at, stamp, sender, counts),
            Kind::Data => self.take_data(at, counts),
            // No quota limits these: there are at most two for each RTS.
            Kind::Cts => sender.handle_reply(Reply::Cts(self.number(at)?), counts),
            Kind::Fin => sender.handle_reply(Reply::Fin(self.number(at)?), counts),
            Kind::Nack => sender.handle_reply(Reply::Nack(self.number(at)?), counts),
        }
    }

    #[inline]
    fn match_receive(&mut self, header: &Header) -> Target {
        let Some(key) = self.receives.take_waiting(header.tag) else { return Target::Unexpected(0) };
        match self.receives.check(key, header) {
            Ok(()) => Target::Posted(key),
            // It is of an earlier context of this number.
            Err(Error::Mismatch { expected, found, .. }) if expected.epoch() != found.epoch() => {
                self.receives.wait_on(header.tag, key);
                Target::Discarded
            }
            Err(error) => {
                self.receives.end(key, Err(error));
                Target::Discarded
            }
        }
    }

    /// Counts an eager message against the peer's credit.
    #[inline]
    fn take_credit(&mut self, bytes: usize) -> Result<()> {
        if self.eager_received - self.eager_taken + cost(bytes) > CREDIT_BYTES {
            return Err(self.protocol_error(format!("a message of {bytes} bytes without credit")));
        }
        self.eager_received += cost(bytes);
        Ok(())
    }

    #[inline]
    fn decode(&mut self, at: usize, stamp: u64, kind: Kind) -> Result<Header> {
        let mut line = self.descriptors.line(at);
        line[0] = stamp;
        let header = Header::decode(&line, kind, self.peer).map_err(|what| self.protocol_error(what))?;
        self.last = (header.signature, header.mark);
        Ok(header)
    }

    /// The descriptor's number of bytes, or of an RTS.
    fn word(&self, at: usize) -> u64 {
        self.descriptors.load(at + 8)
    }

    fn number(&self, at: usize) -> Result<u32> {
        let word = self.word(at);
        u32::try_from(word)
            .map_err(|_| self.protocol_error(format!("RTS {word}, expected at most {}", u32::MAX)))
    }

    #[cold]
    fn protocol_error(&self, what: String) -> Error {
        Error::Protocol { rank: self.peer, what }
    }
}

#[inline]
fn count_copy(bytes: usize, counts: &mut Statistics) {
    counts.copies += u64::from(bytes > 0);
    counts.bytes_copied += bytes as u64;
}
