//! What a neighbour sends: cells in their order, matched with receives, and their payload.

mod ending;
mod offers;
mod reads;
mod short;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::cell::{
    CELL_BYTES, CELLS, FIRST_BYTES, Head, INLINE_BYTES, Kind, Line, POCKET_BYTES, is_stamped, offset_of,
    read_stamp,
};
use super::receives::Receives;
use super::sending::Sender;
use super::{
    CAN_READ_AT, CELLS_AT, CELLS_TAKEN_AT, EAGER_TAKEN_AT, News, POCKET_AT, POCKET_TAKEN_AT, RING_TAKEN_AT,
    STARVING_AT,
};
use crate::limits::{CREDIT_BYTES, cost};
use crate::shm::{LINE_BYTES, Neighbourhood, OwnArea, PeerArea};
use crate::transport::RecvDone;
use crate::{Arrival, Error, Mark, Rank, Result, Signature, Statistics};
use reads::{PIECE_BYTES, Reading};
use streams::Stream;

/// Bytes that a message is counted for besides its payload.
const HEADER_BYTES: u64 = LINE_BYTES as u64;

pub(super) struct Receiver {
    peer: Rank,
    place: usize,
    neighbourhood: Arc<Neighbourhood>,
    /// What the neighbour writes: its block for this rank.
    theirs: PeerArea,
    cells: PeerArea,
    ring: PeerArea,
    pocket: PeerArea,
    /// What this rank acknowledges, in its own block.
    acknowledged: OwnArea,
    may_read: bool,
    /// Cells taken, bytes of the ring and of the pocket taken, and bytes of payload that came without asking,
    /// so far.
    position: u64,
    ring_taken: u64,
    pocket_taken: u64,
    eager_received: u64,
    eager_taken: u64,
    /// Bytes on the heap that were read from the sender's memory.
    fetched: usize,
    /// Long messages, the first of which is arriving.
    streams: VecDeque<Stream>,
    granted: HashMap<u32, Granted>,
    /// Messages that are read from the sender's memory piece by piece, the first of them now.
    reads: VecDeque<Reading>,
    /// What is read in one turn, at most, in bytes.
    pub(super) piece_bytes: usize,
    receives: Receives,
    /// Signature and mark of the last message that said them, which a short one has too.
    last: (Signature, Mark),
}

/// An offer whose bytes were asked for, through the ring.
struct Granted {
    head: Head,
    /// `None` once its receive has been canceled.
    receive: Option<usize>,
}

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Posted(usize),
    /// To the heap, under this number.
    Kept(u64),
    /// Nowhere: its receive has ended.
    Discarded,
}

impl Receiver {
    pub(super) fn new(
        neighbourhood: &Arc<Neighbourhood>,
        place: usize,
        peer: Rank,
        own: OwnArea,
        theirs: &PeerArea,
        may_read: bool,
    ) -> Self {
        let may_read = may_read && neighbourhood.can_read(place);
        own.word(CAN_READ_AT).store(u64::from(may_read), Ordering::Release);
        let ring_bytes = neighbourhood.layout().ring_bytes();
        Self {
            peer,
            place,
            neighbourhood: Arc::clone(neighbourhood),
            cells: theirs.area(CELLS_AT..CELLS_AT + CELLS as usize * CELL_BYTES),
            ring: theirs.area(theirs.bytes() - ring_bytes..theirs.bytes()),
            pocket: theirs.area(POCKET_AT..POCKET_AT + POCKET_BYTES),
            theirs: theirs.clone(),
            acknowledged: own,
            may_read,
            position: 0,
            ring_taken: 0,
            pocket_taken: 0,
            eager_received: 0,
            eager_taken: 0,
            fetched: 0,
            streams: VecDeque::new(),
            granted: HashMap::new(),
            reads: VecDeque::new(),
            piece_bytes: PIECE_BYTES,
            receives: Receives::new(peer),
            last: Default::default(),
        }
    }

    pub(super) fn test(&mut self, key: usize) -> Option<RecvDone> {
        self.receives.take_ended(key)
    }

    #[inline]
    pub(super) fn outcome(&mut self, key: usize) -> Option<Result<Arrival>> {
        self.receives.take_outcome(key)
    }

    /// Bytes of memory that kept messages hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_bytes(&self) -> usize {
        self.receives.kept_bytes()
    }

    /// Offers that are kept.
    #[cfg(test)]
    pub(super) fn kept_offers(&self) -> usize {
        self.receives.offers()
    }

    pub(super) fn cancel(&mut self, key: usize) {
        for stream in &mut self.streams {
            if stream.target == Target::Posted(key) {
                stream.target = Target::Discarded;
            }
        }
        let granted = self.granted.values_mut().map(|granted| &mut granted.receive);
        let read = self.reads.iter_mut().map(|reading| &mut reading.receive);
        for receive in granted.chain(read) {
            if *receive == Some(key) {
                *receive = None;
            }
        }
        self.receives.cancel(key);
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.receives.has_operations()
    }

    /// Whether offers are here that have waited for a turn, or that are being read.
    #[inline]
    pub(super) fn has_offers(&self) -> bool {
        self.receives.has_new_offers() || !self.reads.is_empty()
    }

    /// Whether a cell is there to be taken.
    #[inline]
    pub(super) fn has_cell(&self) -> bool {
        is_stamped(self.cells.load(offset_of(self.position)), self.position)
    }

    /// Takes cells, about `quota` bytes of payload; `sender` answers.
    #[inline]
    pub(super) fn take(&mut self, quota: usize, sender: &mut Sender, counts: &mut Statistics) -> Result<()> {
        let before = counts.bytes_received;
        // No more than there can be: a neighbour that goes on writing keeps nobody here.
        for _ in 0..CELLS {
            let at = offset_of(self.position);
            let stamp = self.cells.load(at);
            if !is_stamped(stamp, self.position) {
                return Ok(());
            }
            if let Some(said) = self.take_small(at, stamp, counts)? {
                let mut line = self.cells.line(at);
                line[0] = stamp;
                self.take_cell(said, at, &line, sender, counts)?;
                self.end_cell();
            }
            if counts.bytes_received - before >= quota as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks up to `spins` times for a cell, and takes it if it is a plain message. Says whether it has taken
    /// one.
    #[inline]
    pub(super) fn look_for_small(&mut self, spins: u32, counts: &mut Statistics) -> Result<bool> {
        let at = offset_of(self.position);
        for _ in 0..spins {
            let stamp = self.cells.load(at);
            if is_stamped(stamp, self.position) {
                return self.take_small(at, stamp, counts).map(|left| left.is_none());
            }
        }
        Ok(false)
    }

    /// Takes a cell if it is a short message, or one in the pocket; else gives its kind and the extra bits.
    #[inline]
    fn take_small(&mut self, at: usize, stamp: u64, counts: &mut Statistics) -> Result<Option<(Kind, u16)>> {
        let (kind, extra) = read_stamp(stamp).map_err(|what| self.refusal(what))?;
        match kind {
            Kind::Short => self.take_short(at, usize::from(extra), counts)?,
            Kind::Pocketed => self.take_pocketed(at, usize::from(extra), counts)?,
            _ => return Ok(Some((kind, extra))),
        }
        self.end_cell();
        Ok(None)
    }

    /// The next cell was taken.
    #[inline]
    fn end_cell(&mut self) {
        self.position += 1;
        self.acknowledge();
    }

    /// Tells the neighbour what was taken, and wakes it now and then if it sleeps because it finds no room.
    #[inline]
    fn acknowledge(&self) {
        self.acknowledged.word(EAGER_TAKEN_AT).store(self.eager_taken, Ordering::Release);
        self.acknowledged.word(RING_TAKEN_AT).store(self.ring_taken, Ordering::Release);
        self.acknowledged.word(POCKET_TAKEN_AT).store(self.pocket_taken, Ordering::Release);
        self.acknowledged.word(CELLS_TAKEN_AT).store(self.position, Ordering::Release);
        // Who finds no room has filled all cells or most of the ring: such a number comes before they are
        // empty.
        if self.position.is_multiple_of(8) {
            self.wake_who_starves();
        }
    }

    /// Wakes the neighbour if it sleeps because it finds no room.
    fn wake_who_starves(&self) {
        fence(Ordering::SeqCst);
        if self.theirs.load(STARVING_AT) != 0 {
            self.neighbourhood.wake(self.place);
        }
    }

    fn take_cell(
        &mut self,
        (kind, extra): (Kind, u16),
        at: usize,
        line: &Line,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        match kind {
            Kind::Message => self.take_message(at, line, counts),
            Kind::Short => self.take_short(at, usize::from(extra), counts),
            Kind::Pocketed => self.take_pocketed(at, usize::from(extra), counts),
            Kind::Middling => self.take_middling(at, usize::from(extra), counts),
            Kind::Long => self.take_long(line, usize::from(extra) * LINE_BYTES, counts),
            Kind::Piece => self.take_piece(line[1], counts),
            Kind::Offer => self.take_offer(at, line, sender, counts),
            Kind::ShortOffer => self.take_short_offer(line, sender, counts),
            Kind::Data => self.take_data(line[1], counts),
            // No quota stops these: there are at most two for each offer.
            Kind::Grant => sender.hear(News::Granted(self.number(line[1])?), counts),
            Kind::Read => sender.hear(News::Read(self.number(line[1])?), counts),
            Kind::Refusal => sender.hear(News::Refused(self.number(line[1])?), counts),
        }
    }

    /// A message that lies in its cell.
    fn take_message(&mut self, at: usize, line: &Line, counts: &mut Statistics) -> Result<()> {
        let head = self.decode(line, Kind::Message)?;
        let bytes = head.bytes();
        self.receive_eager(bytes)?;
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        let mut first = [0; FIRST_BYTES];
        first[..8].copy_from_slice(&line[6].to_le_bytes());
        first[8..].copy_from_slice(&line[7].to_le_bytes());
        let target = self.matched(&head);
        match target {
            Target::Posted(key) => {
                let mut start = 0;
                for mut place in self.receives.places(key, &head, 0, bytes) {
                    read_inline(&self.cells, at, &first, start, &mut place);
                    start += place.len();
                }
                count_copy(bytes, counts);
                counts.messages_received += 1;
                self.receives.end(key, Ok(head.arrival()));
            }
            Target::Kept(_) => {
                let mut kept = [0; INLINE_BYTES];
                let kept = &mut kept[..bytes.min(INLINE_BYTES)];
                read_inline(&self.cells, at, &first, 0, kept);
                count_copy(bytes, counts);
                self.receives.keep(head, kept.to_vec());
                return Ok(());
            }
            Target::Discarded => {}
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    /// Finds out where a message goes.
    #[inline]
    fn matched(&mut self, head: &Head) -> Target {
        let Some(key) = self.receives.take_waiting(head.tag) else { return Target::Kept(0) };
        match self.receives.check(key, head) {
            Ok(()) => Target::Posted(key),
            Err(error) => {
                self.receives.end(key, Err(error));
                Target::Discarded
            }
        }
    }

    /// Takes note of a message that came without asking.
    #[inline]
    fn receive_eager(&mut self, bytes: usize) -> Result<()> {
        if self.eager_received - self.eager_taken + cost(bytes) > CREDIT_BYTES {
            return Err(self.refusal(format!("a message of {bytes} bytes without credit")));
        }
        self.eager_received += cost(bytes);
        Ok(())
    }

    #[inline]
    fn decode(&mut self, line: &Line, kind: Kind) -> Result<Head> {
        let head = Head::decode(line, kind, self.peer).map_err(|what| self.refusal(what))?;
        self.last = (head.signature, head.mark);
        Ok(head)
    }

    fn number(&self, word: u64) -> Result<u32> {
        u32::try_from(word).map_err(|_| self.refusal(format!("offer {word}, expected at most {}", u32::MAX)))
    }

    #[cold]
    fn refusal(&self, what: String) -> Error {
        Error::Protocol { rank: self.peer, what }
    }
}

/// Copies the payload of a cell from byte `start` on.
#[inline]
fn read_inline(cells: &PeerArea, at: usize, first: &[u8; FIRST_BYTES], start: usize, into: &mut [u8]) {
    let early = into.len().min(FIRST_BYTES.saturating_sub(start));
    let (now, later) = into.split_at_mut(early);
    now.copy_from_slice(&first[start.min(FIRST_BYTES)..][..early]);
    if !later.is_empty() {
        cells.read_block(at + LINE_BYTES + start.max(FIRST_BYTES) - FIRST_BYTES, later);
    }
}

#[inline]
fn count_copy(bytes: usize, counts: &mut Statistics) {
    counts.copies += u64::from(bytes > 0);
    counts.bytes_copied += bytes as u64;
}
