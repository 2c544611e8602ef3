//! What is sent to a neighbour: cells and pieces as there is room, and messages that wait for an answer.

mod offers;
mod pieces;
mod room;
mod short;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slab::Slab;

use super::cell::{
    CELL_BYTES, CELLS, Head, Kind, MESSAGE_AT, MESSAGE_BYTES, POCKET_BYTES, Place, offset_of, stamp,
};
use super::payload::{Payload, RingWriter, write_round};
use super::{CAN_READ_AT, CELLS_AT, News, POCKET_AT, STARVING_AT};
use crate::limits::{MAX_EAGER_BYTES, MAX_OFFERS, cost};
use crate::shm::{LINE_BYTES, Neighbourhood, OwnArea, PeerArea};
use crate::transport::{Posted, SendDone, SendParts};
use crate::{Envelope, Error, Mark, Rank, Result, Signature, Statistics};

pub(super) struct Sender {
    peer: Rank,
    place: usize,
    neighbourhood: Arc<Neighbourhood>,
    block: OwnArea,
    cells: OwnArea,
    ring: RingWriter,
    pocket: OwnArea,
    /// What the neighbour writes: its acknowledgements.
    theirs: PeerArea,
    /// Cells written, bytes of the ring written, bytes sent without asking; and what of it is acknowledged.
    position: u64,
    cells_taken: u64,
    ring_written: u64,
    ring_taken: u64,
    pocket_written: u64,
    pocket_taken: u64,
    /// Up to this cell the pocket is taken to be full, if it was.
    pocket_full_until: u64,
    /// From this cell on a piece that waits comes before messages.
    piece_due: u64,
    eager_sent: u64,
    eager_taken: u64,
    /// Cells that wait for room, in the order of posting.
    queue: VecDeque<Queued>,
    /// Messages whose header is written and whose payload goes through the ring, one after another.
    streams: VecDeque<Stream>,
    offers: Slab<Offer>,
    /// Which words say that a message may be read, one bit each.
    open: u64,
    serial: u64,
    /// `None` while the send goes on.
    operations: Slab<Option<SendDone>>,
    pending: usize,
    is_starving: bool,
    has_published: bool,
    /// Signature and mark of the last message that said them; a message with the same need not.
    last: (Signature, Mark),
}

/// A cell that waits for room.
enum Queued {
    /// An answer to an offer of the neighbour.
    Answer(News),
    Message(Head, Stream),
    Offer(Head, u32),
    /// What this offer was for, which is granted.
    Data(u32, Stream),
}

/// A message on its way, of which `sent` bytes are gone.
struct Stream {
    payload: Payload,
    bytes: usize,
    sent: usize,
    operation: Option<usize>,
}

struct Offer {
    message: Stream,
    /// The word that says that it may be read, and what it holds then.
    word: Option<(usize, u64)>,
    is_written: bool,
    /// Whether it has taken credit.
    is_paid: bool,
}

impl Sender {
    pub(super) fn new(
        neighbourhood: &Arc<Neighbourhood>,
        place: usize,
        peer: Rank,
        block: OwnArea,
        theirs: PeerArea,
    ) -> Self {
        let ring_bytes = neighbourhood.layout().ring_bytes();
        Self {
            peer,
            place,
            neighbourhood: Arc::clone(neighbourhood),
            cells: block.area(CELLS_AT..CELLS_AT + CELLS as usize * CELL_BYTES),
            ring: RingWriter::new(block.area(block.bytes() - ring_bytes..block.bytes())),
            pocket: block.area(POCKET_AT..POCKET_AT + POCKET_BYTES),
            block,
            theirs,
            position: 0,
            cells_taken: 0,
            ring_written: 0,
            ring_taken: 0,
            pocket_written: 0,
            pocket_taken: 0,
            pocket_full_until: 0,
            piece_due: 0,
            eager_sent: 0,
            eager_taken: 0,
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            offers: Slab::new(),
            open: 0,
            serial: 0,
            operations: Slab::new(),
            pending: 0,
            is_starving: false,
            has_published: false,
            last: Default::default(),
        }
    }

    /// Sends a message, or offers it. What finds room is written at once.
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
        self.post_other(envelope, parts, counts)
    }

    /// Sends a message that is not short.
    fn post_other(
        &mut self,
        envelope: Envelope,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let head = Head::new(envelope, parts.iter().map(|part| part.len()));
        let bytes = head.bytes();
        if self.may_go_now() && self.has_place(bytes) && self.has_credit(bytes) && self.has_cell() {
            self.eager_sent += cost(bytes);
            let payload = Payload::Leased(parts);
            self.write_message(&head, &payload, counts);
            self.wake();
            return Posted::Done(SendDone { parts: payload.into_parts(), result: Ok(()) });
        }
        self.post_long(head, parts, counts)
    }

    /// Whether an answer would be written at once: whoever gives it may take no more turns.
    pub(super) fn can_answer(&mut self) -> bool {
        self.queue.is_empty() && self.has_cell()
    }

    /// Answers an offer, now or when there is a cell.
    ///
    /// Only a refusal may be late for a neighbour whose rank takes no more turns: what was read is answered
    /// where [`can_answer`](Self::can_answer), and who has granted waits for the bytes. A rank that has
    /// refused a message has an error in its hands: it leaves or closes the transport, and either ends the
    /// neighbour's send.
    pub(super) fn answer(&mut self, news: News, counts: &mut Statistics) {
        self.queue.push_back(Queued::Answer(news));
        // By a new look where no cell is known to be free.
        if self.has_cell() {
            self.flush(counts);
            self.wake();
        }
    }

    /// Writes what there is room for; says whether that was anything, or whether there is room again.
    pub(super) fn pump(&mut self, counts: &mut Statistics) -> Result<bool> {
        self.read_acknowledgements()?;
        let before = self.position;
        self.flush(counts);
        // An answer may be put off, which is not queued here.
        let has_found_room = self.is_starving && self.is_idle() && self.position - self.cells_taken < CELLS;
        if has_found_room {
            self.is_starving = false;
            self.block.word(STARVING_AT).store(0, Ordering::Release);
        }
        self.wake();
        Ok(self.position != before || has_found_room)
    }

    /// Says that this rank is about to sleep: who takes something from here wakes it if that makes room for
    /// what is queued, or for an answer that is put off.
    pub(super) fn begin_sleep(&mut self, is_answer_put_off: bool) {
        if (!self.is_idle() || is_answer_put_off) && !self.is_starving {
            self.is_starving = true;
            self.block.word(STARVING_AT).store(1, Ordering::SeqCst);
        }
    }

    /// Whether the neighbour was told that this rank finds no room.
    pub(super) fn is_starving(&self) -> bool {
        self.is_starving
    }

    /// Whether nothing waits for room.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.streams.is_empty()
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    #[inline]
    pub(super) fn test(&mut self, key: usize) -> Option<SendDone> {
        self.operations.get(key)?.as_ref()?;
        self.operations.try_remove(key)?
    }

    /// Sends a message that is too long for the pocket, or that finds no room.
    fn post_long(
        &mut self,
        head: Head,
        parts: SendParts,
        counts: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let bytes = head.bytes();
        let operation = self.begin();
        let message = Stream { payload: Payload::Leased(parts), bytes, sent: 0, operation: Some(operation) };
        if self.may_be_eager(bytes) {
            self.eager_sent += cost(bytes);
            self.queue.push_back(Queued::Message(head, message));
        } else if self.offers.len() >= MAX_OFFERS {
            let why = format!("rank {} has not received {MAX_OFFERS} messages: let it catch up", self.peer);
            self.end(message, Err(Error::Unavailable { name: "shared memory", why }));
        } else {
            let word = self.may_be_open(bytes).then(|| self.open_word());
            let is_paid = word.is_some() && bytes <= MAX_EAGER_BYTES && self.has_credit(bytes);
            self.eager_sent += if is_paid { cost(bytes) } else { 0 };
            let number = self.offers.insert(Offer { message, word, is_written: false, is_paid }) as u32;
            self.queue.push_back(Queued::Offer(head, number));
        }
        self.flush(counts);
        // A false acknowledgement is found again in the next turn, and judged there.
        if !self.is_idle() && self.read_acknowledgements().is_ok() {
            self.flush(counts);
        }
        self.wake();
        match self.test(operation) {
            Some(done) => Posted::Done(done),
            None => Posted::Pending(operation),
        }
    }

    /// Writes what finds room, without looking for more of it.
    fn flush(&mut self, counts: &mut Statistics) {
        while self.position - self.cells_taken < CELLS {
            if self.is_piece_due() && self.write_piece(counts) {
                continue;
            }
            let Some(queued) = self.queue.pop_front() else { break };
            self.write_queued(queued, counts);
        }
        while self.has_cell_for_piece() && self.write_piece(counts) {}
    }

    fn write_queued(&mut self, queued: Queued, counts: &mut Statistics) {
        match queued {
            Queued::Answer(news) => {
                let (kind, number) = match news {
                    News::Granted(number) => (Kind::Grant, number),
                    News::Read(number) => (Kind::Read, number),
                    News::Refused(number) => (Kind::Refusal, number),
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
            Queued::Message(head, message) if self.has_place(message.bytes) => {
                self.write_message(&head, &message.payload, counts);
                self.end(message, Ok(()));
            }
            Queued::Message(head, message) => self.write_long(&head, message, counts),
            Queued::Offer(head, number) => self.write_offer(&head, number, counts),
        }
    }

    /// A whole message in a cell, or in the pocket, where it has room.
    fn write_message(&mut self, head: &Head, payload: &Payload, counts: &mut Statistics) {
        let bytes = head.bytes();
        let at = offset_of(self.position) + MESSAGE_AT;
        let mut start = 0;
        payload.stretches(0, bytes, |stretch| {
            // A copy: the message goes to the neighbour through the cell or the pocket.
            if bytes <= MESSAGE_BYTES {
                self.cells.write_block(at + start, stretch);
            } else {
                write_round(&self.pocket, self.pocket_written + start as u64, stretch);
            }
            start += stretch.len();
        });
        if bytes > MESSAGE_BYTES {
            self.pocket_written += bytes.next_multiple_of(LINE_BYTES) as u64;
        }
        counts.copies += u64::from(bytes > 0);
        counts.bytes_copied += bytes as u64;
        counts.bytes_sent += (LINE_BYTES + bytes) as u64;
        self.publish_head(Kind::Message, head, 0, head.message_words());
    }

    fn write_offer(&mut self, head: &Head, number: u32, counts: &mut Statistics) {
        let Some(offer) = self.offers.get_mut(number as usize) else { return };
        offer.is_written = true;
        let (word, serial) = offer.word.unwrap_or((Place::NO_WORD, 0));
        let mut addresses = [0; 3];
        if let Payload::Leased(parts) = &offer.message.payload {
            for (address, part) in addresses.iter_mut().zip(parts) {
                *address = part.bytes().as_ptr().addr();
            }
        }
        let place = Place { number, word, serial, is_paid: offer.is_paid, addresses };
        counts.bytes_sent += LINE_BYTES as u64;
        let at = offset_of(self.position);
        for (word, value) in self.cells.line(at + LINE_BYTES).iter().zip(place.line()) {
            word.store(value, Ordering::Relaxed);
        }
        self.publish_head(Kind::Offer, head, 0, head.long_words());
    }

    /// Writes the first line of a cell that has a head.
    #[inline]
    fn publish_head<const N: usize>(&mut self, kind: Kind, head: &Head, extra: u16, words: [u64; N]) {
        self.last = (head.signature, head.mark);
        self.publish(kind, head.parts, extra, words);
    }

    /// Writes these words into the first line of the next cell, and the stamp before them last.
    #[inline]
    fn publish<const N: usize>(&mut self, kind: Kind, parts: usize, extra: u16, words: [u64; N]) {
        let line = self.cells.line(offset_of(self.position));
        for (word, value) in line[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        line[0].store(stamp(self.position, kind, parts, extra), Ordering::Release);
        self.position += 1;
        self.has_published = true;
    }

    /// Wakes the neighbour, if it sleeps, for what was written.
    #[inline]
    fn wake(&mut self) {
        if std::mem::take(&mut self.has_published) {
            self.neighbourhood.wake(self.place);
        }
    }

    /// Whether the neighbour can read this rank's memory.
    fn may_be_read(&self) -> bool {
        self.theirs.load(CAN_READ_AT) != 0
    }

    fn begin(&mut self) -> usize {
        self.pending += 1;
        self.operations.insert(None)
    }

    /// Gives the parts of a message back to its send.
    fn end(&mut self, message: Stream, result: Result<()>) {
        if let Some(key) = message.operation {
            self.finish(key, message.payload.into_parts(), result);
        }
    }

    fn finish(&mut self, key: usize, parts: SendParts, result: Result<()>) {
        if let Some(slot) = self.operations.get_mut(key) {
            *slot = Some(SendDone { parts, result });
            self.pending -= 1;
        }
    }

    #[cold]
    fn refusal(&self, what: String) -> Error {
        Error::Protocol { rank: self.peer, what }
    }
}
