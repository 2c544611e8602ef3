//! What a neighbour sends: cells in their order, matched with receives, and their payload.

mod ending;
mod offers;
mod reads;
mod short;
mod streams;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::cell::{CELL_BYTES, CELLS, Head, Kind, POCKET_BYTES, is_stamped, offset_of, read_stamp};
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
use reads::{PIECE_BYTES, PeerMemory, Reading};
use streams::Stream;

/// Bytes that a message is counted for besides its payload.
const HEADER_BYTES: u64 = LINE_BYTES as u64;

pub(super) struct Receiver {
    peer: Rank,
    memory: PeerMemory,
    /// What the neighbour writes, in its block for this rank.
    cells: PeerArea,
    ring: PeerArea,
    pocket: PeerArea,
    /// What this rank acknowledges, in its own block.
    acknowledged: OwnArea,
    /// Cells taken, bytes of the ring and of the pocket taken, and bytes of payload that came without asking,
    /// so far.
    position: u64,
    ring_taken: u64,
    pocket_taken: u64,
    eager_received: u64,
    eager_taken: u64,
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
        let is_open = may_read && neighbourhood.can_read(place);
        own.word(CAN_READ_AT).store(u64::from(is_open), Ordering::Release);
        let ring_bytes = neighbourhood.layout().ring_bytes();
        Self {
            peer,
            cells: theirs.area(CELLS_AT..CELLS_AT + CELLS as usize * CELL_BYTES),
            ring: theirs.area(theirs.bytes() - ring_bytes..theirs.bytes()),
            pocket: theirs.area(POCKET_AT..POCKET_AT + POCKET_BYTES),
            memory: PeerMemory {
                neighbourhood: Arc::clone(neighbourhood),
                place,
                theirs: theirs.clone(),
                is_open,
            },
            acknowledged: own,
            position: 0,
            ring_taken: 0,
            pocket_taken: 0,
            eager_received: 0,
            eager_taken: 0,
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
            self.take_cell(at, stamp, sender, counts)?;
            self.end_cell();
            if counts.bytes_received - before >= quota as u64 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Looks up to `spins` times for a cell, and takes it if it is a short message. Says whether it has taken
    /// one.
    #[inline]
    pub(super) fn look_for_small(&mut self, spins: u32, counts: &mut Statistics) -> Result<bool> {
        let at = offset_of(self.position);
        for _ in 0..spins {
            let stamp = self.cells.load(at);
            if is_stamped(stamp, self.position) {
                let (kind, extra) = read_stamp(stamp).map_err(|what| self.refusal(what))?;
                if kind == Kind::Short {
                    self.take_short(at, usize::from(extra), counts)?;
                    self.end_cell();
                }
                return Ok(kind == Kind::Short);
            }
        }
        Ok(false)
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
        if self.memory.theirs.load(STARVING_AT) != 0 {
            self.memory.neighbourhood.wake(self.memory.place);
        }
    }

    /// Takes the cell that begins with `stamp`, by its kind.
    #[inline]
    fn take_cell(
        &mut self,
        at: usize,
        stamp: u64,
        sender: &mut Sender,
        counts: &mut Statistics,
    ) -> Result<()> {
        let (kind, extra) = read_stamp(stamp).map_err(|what| self.refusal(what))?;
        let extra = usize::from(extra);
        match kind {
            Kind::Short => self.take_short(at, extra, counts),
            Kind::Middling => self.take_middling(at, extra, counts),
            Kind::Message => self.take_message(at, stamp, counts),
            Kind::Long => self.take_long(at, stamp, extra * LINE_BYTES, counts),
            Kind::Piece => self.take_piece(at, counts),
            Kind::Offer => self.take_offer(at, stamp, sender, counts),
            Kind::Data => self.take_data(at, counts),
            // No quota stops these: there are at most two for each offer.
            Kind::Grant => sender.hear(News::Granted(self.number(at)?), counts),
            Kind::Read => sender.hear(News::Read(self.number(at)?), counts),
            Kind::Refusal => sender.hear(News::Refused(self.number(at)?), counts),
        }
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

    /// What a cell of this kind says of its message.
    #[inline]
    fn decode(&mut self, at: usize, stamp: u64, kind: Kind) -> Result<Head> {
        let mut line = self.cells.line(at);
        line[0] = stamp;
        let head = Head::decode(&line, kind, self.peer).map_err(|what| self.refusal(what))?;
        self.last = (head.signature, head.mark);
        Ok(head)
    }

    /// The word of a cell that has a number of bytes, or of an offer.
    fn word(&self, at: usize) -> u64 {
        self.cells.load(at + 8)
    }

    /// The number of the offer that a cell is about.
    fn number(&self, at: usize) -> Result<u32> {
        let word = self.word(at);
        u32::try_from(word).map_err(|_| self.refusal(format!("offer {word}, expected at most {}", u32::MAX)))
    }

    #[cold]
    fn refusal(&self, what: String) -> Error {
        Error::Protocol { rank: self.peer, what }
    }
}

#[inline]
fn count_copy(bytes: usize, counts: &mut Statistics) {
    counts.copies += u64::from(bytes > 0);
    counts.bytes_copied += bytes as u64;
}
