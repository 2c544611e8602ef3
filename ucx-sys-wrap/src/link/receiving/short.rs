//! Short messages: they lie in their cells, and say of themselves only what differs from the one before.

use super::super::cell::{Head, INLINE_BYTES, SHORT_FIRST_BYTES};
use super::super::receives::Delivery;
use super::{HEADER_BYTES, Receiver, count_copy};
use crate::limits::cost;
use crate::shm::{LINE_BYTES, PeerArea, load_words};
use crate::{Error, Result, Statistics, Tag};

impl Receiver {
    /// A short message of so many bytes, by its word.
    #[inline]
    pub(super) fn take_short(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        let tag = Tag(self.cells.load(at + 8));
        if tag.source() != self.peer || bytes > INLINE_BYTES {
            return Err(self.short_refusal(tag, bytes));
        }
        self.receive_eager(bytes)?;
        let (signature, mark) = self.last;
        let fill = |place: &mut [u8]| read_short(&self.cells, at, place);
        let delivery = self.receives.deliver((tag, signature, mark), bytes, fill);
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        match delivery {
            Delivery::Delivered => {
                count_copy(bytes, counts);
                counts.messages_received += 1;
            }
            Delivery::Refused => {}
            Delivery::Unexpected => {
                self.keep_short(Head { tag, signature, mark, parts: 1, lengths: [bytes, 0, 0] }, at, counts);
                return Ok(());
            }
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    /// Keeps a message whose receive is not posted yet.
    #[cold]
    fn keep_short(&mut self, head: Head, at: usize, counts: &mut Statistics) {
        let bytes = head.bytes().min(INLINE_BYTES);
        let mut kept = [0; INLINE_BYTES];
        read_short(&self.cells, at, &mut kept[..bytes]);
        count_copy(bytes, counts);
        self.receives.keep(head, kept[..bytes].to_vec());
    }

    #[cold]
    fn short_refusal(&self, tag: Tag, bytes: usize) -> Error {
        let source = tag.source();
        self.refusal(format!("a short message of {bytes} bytes with the tag of rank {source}"))
    }
}

/// Copies the payload of a short message's cell.
#[inline]
fn read_short(cells: &PeerArea, at: usize, into: &mut [u8]) {
    let (now, later) = into.split_at_mut(into.len().min(SHORT_FIRST_BYTES));
    load_words(&cells.line(at)[2..], now);
    if !later.is_empty() {
        cells.read_block(at + LINE_BYTES, later);
    }
}
