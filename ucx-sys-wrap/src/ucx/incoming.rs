//! One receive, from its posting to the arrival of its last part.

use arrayvec::ArrayVec;

use super::header::{Header, INLINE_BYTES};
use super::ucp_request::UcpRequest;
use crate::on_end::OnEnd;
use crate::transport::{RecvParts, Statistics, count_copy};
use crate::{Arrival, Envelope, Error, Lengths, MAX_PARTS, Mark, Rank, Result, Signature, Tag};

/// A receive that is not tested yet.
///
/// Invariants: `parts` stay here until the requests of `Stage::Fetching` are reaped.
pub(super) struct Incoming {
    from: Rank,
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) parts: RecvParts,
    stage: Stage,
    posted_in: u32,
    on_end: OnEnd,
}

enum Stage {
    Waiting,
    Fetching(Fetch),
    /// A plain message of so many bytes is in its place.
    Plain(usize),
    Ended(Ended),
}

struct Fetch {
    arrival: Arrival,
    requests: Fetches,
    /// Parts that UCX has not been asked for yet.
    missing: usize,
    is_fetched: bool,
    /// Set when it is ended early.
    error: Option<Error>,
    /// Whether UCX has failed to fetch a part: the loss of the peer ends it.
    has_failed: bool,
}

/// Requests that write to the parts, each with the expected bytes.
pub(super) type Fetches = ArrayVec<(UcpRequest, usize), MAX_PARTS>;

/// The outcome of a receive.
pub(super) struct Ended {
    pub(super) from: Rank,
    pub(super) result: Result<Arrival>,
    /// Whether parts were fetched from the sender's memory.
    pub(super) is_fetched: bool,
}

pub(super) type Finished = (RecvParts, Ended);

impl Fetch {
    fn is_over(&self) -> bool {
        self.missing == 0 && !self.has_failed && self.requests.iter().all(|(request, _)| request.is_over())
    }

    fn result(&self) -> Result<Arrival> {
        self.error.clone().map_or_else(|| Ok(self.arrival.clone()), Err)
    }
}

impl Incoming {
    #[inline]
    pub(super) fn new(from: Rank, envelope: &Envelope, parts: RecvParts, posted_in: u32) -> Self {
        let Envelope { tag, signature, .. } = *envelope;
        let (stage, on_end) = (Stage::Waiting, OnEnd::default());
        Self { from, tag, signature, parts, stage, posted_in, on_end }
    }

    /// Takes the payload of a checked message that is not fragmented; ends the receive.
    #[inline]
    pub(super) fn unpack(&mut self, header: &Header, mut payload: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, payload.len());
        for (place, length) in self.parts.iter_mut().zip(&header.lengths) {
            let (bytes, rest) = payload.split_at(*length);
            // A copy: UCX received it before its place was known.
            place.bytes_mut()[..*length].copy_from_slice(bytes);
            payload = rest;
        }
        self.ended(Ok(header.arrival()), false);
    }

    /// Takes the payload of a plain message, for which there is room; ends the receive.
    #[inline(always)]
    pub(super) fn take_one(&mut self, payload: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, payload.len());
        // A copy: as above.
        self.parts[0].bytes_mut()[..payload.len()].copy_from_slice(payload);
        self.stage = Stage::Plain(payload.len());
        self.on_end.tell();
    }

    /// Takes the inline parts of a checked fragmented message.
    pub(super) fn unpack_inline(&mut self, header: &Header, mut inline: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, inline.len());
        let is_inline = |(_, length): &(_, &usize)| **length <= INLINE_BYTES;
        for (place, length) in self.parts.iter_mut().zip(&header.lengths).filter(is_inline) {
            let (bytes, rest) = inline.split_at(*length);
            // A copy: as above.
            place.bytes_mut()[..*length].copy_from_slice(bytes);
            inline = rest;
        }
    }

    pub(super) fn unpack_part(&mut self, part: usize, bytes: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, bytes.len());
        if let Some(place) =
            self.parts.get_mut(part).and_then(|place| place.bytes_mut().get_mut(..bytes.len()))
        {
            // A copy: as above.
            place.copy_from_slice(bytes);
        }
    }

    /// `missing` parts of the message are still to come.
    pub(super) fn fetch(&mut self, arrival: Arrival, missing: usize, is_fetched: bool) {
        match missing {
            0 => self.ended(Ok(arrival), is_fetched),
            _ => {
                let (requests, error, has_failed) = (Fetches::new(), None, false);
                let fetch = Fetch { arrival, requests, missing, is_fetched, error, has_failed };
                self.stage = Stage::Fetching(fetch);
                self.on_end.tell();
            }
        }
    }

    /// One of the missing parts has come, or UCX is fetching it.
    pub(super) fn comes(&mut self, by: Option<(UcpRequest, usize)>) {
        let Stage::Fetching(fetch) = &mut self.stage else { return };
        fetch.missing = fetch.missing.saturating_sub(1);
        fetch.is_fetched |= by.is_some();
        if let Some(request) = by {
            fetch.requests.push(request);
        } else if fetch.missing == 0 && fetch.requests.is_empty() {
            let (result, is_fetched) = (fetch.result(), fetch.is_fetched);
            self.ended(result, is_fetched);
        }
    }

    /// The bytes of a part to be fetched, if it is still awaited.
    pub(super) fn place(&mut self, part: usize, bytes: usize) -> Option<&mut [u8]> {
        match self.stage {
            Stage::Fetching(_) => self.parts.get_mut(part)?.bytes_mut().get_mut(..bytes),
            _ => None,
        }
    }

    /// The requests, once all are over; the caller reaps them and calls [`complete`](Self::complete).
    pub(super) fn completed_fetches(&mut self) -> Option<Fetches> {
        match &mut self.stage {
            Stage::Fetching(fetch) if fetch.is_over() => Some(std::mem::take(&mut fetch.requests)),
            _ => None,
        }
    }

    /// The requests, over or not, after the tear-down.
    pub(super) fn take_fetches(&mut self) -> Option<Fetches> {
        match &mut self.stage {
            Stage::Fetching(fetch) => Some(std::mem::take(&mut fetch.requests)),
            _ => None,
        }
    }

    /// UCX has fetched all parts, or `has_failed`; then it waits for the loss of its peer unless it is ended
    /// early.
    pub(super) fn complete(&mut self, has_failed: bool) {
        let Stage::Fetching(fetch) = &mut self.stage else { return };
        if has_failed && fetch.error.is_none() {
            fetch.has_failed = true;
            return;
        }
        let (result, is_fetched) = (fetch.result(), fetch.is_fetched);
        self.ended(result, is_fetched);
    }

    /// Ends it with `error`: at once if its message has not come, otherwise when its parts have. Returns
    /// whether its message had not come.
    pub(super) fn end_early(&mut self, error: &Error) -> bool {
        let is_waiting = self.is_waiting();
        match &mut self.stage {
            Stage::Waiting | Stage::Fetching(Fetch { has_failed: true, .. }) => self.end(error.clone()),
            Stage::Fetching(fetch) => drop(fetch.error.get_or_insert_with(|| error.clone())),
            Stage::Plain(_) | Stage::Ended(_) => {}
        }
        is_waiting
    }

    /// Like [`end_early`](Self::end_early), where no parts come any more.
    pub(super) fn cut(&mut self, error: &Error) -> bool {
        let is_waiting = self.end_early(error);
        self.expect_no_more();
        if matches!(&self.stage, Stage::Fetching(fetch) if fetch.requests.is_empty()) {
            self.end(error.clone());
        }
        is_waiting
    }

    /// Only the parts that UCX is fetching still come.
    pub(super) fn expect_no_more(&mut self) {
        if let Stage::Fetching(fetch) = &mut self.stage {
            fetch.missing = 0;
        }
    }

    #[inline]
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Plain(_) | Stage::Ended(_))
    }

    /// The arrival of a plain message.
    #[inline]
    pub(super) fn plain(&self) -> Option<Arrival> {
        match self.stage {
            Stage::Plain(bytes) => Some(plain_arrival(bytes)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// The place for the waker of the task that waits for its message.
    pub(super) fn on_end(&mut self) -> Option<&mut OnEnd> {
        self.is_waiting().then_some(&mut self.on_end)
    }

    /// Whether it waits for nothing any more.
    pub(super) fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Waiting => false,
            Stage::Fetching(fetch) => fetch.is_over(),
            Stage::Plain(_) | Stage::Ended(_) => true,
        }
    }

    /// The peer that it waits for, and the round of its posting.
    pub(super) fn wait(&self) -> (Rank, u32) {
        (self.from, self.posted_in)
    }

    /// The sender and the bytes of a message that UCX fetches although the receive was ended.
    pub(super) fn held(&self) -> Option<(Rank, usize)> {
        match &self.stage {
            Stage::Fetching(fetch) if fetch.error.is_some() => {
                Some((self.from, fetch.arrival.lengths.iter().sum()))
            }
            _ => None,
        }
    }

    /// Ends it; UCX must be done with it.
    pub(super) fn end(&mut self, error: Error) {
        self.ended(Err(error), false);
    }

    #[inline]
    fn ended(&mut self, result: Result<Arrival>, is_fetched: bool) {
        self.stage = Stage::Ended(Ended { from: self.from, result, is_fetched });
        self.on_end.tell();
    }

    #[inline]
    pub(super) fn finished(self) -> Finished {
        let ended = match self.stage {
            Stage::Ended(ended) => ended,
            Stage::Plain(bytes) => {
                Ended { from: self.from, result: Ok(plain_arrival(bytes)), is_fetched: false }
            }
            _ => Ended { from: self.from, result: Err(Error::Canceled), is_fetched: false },
        };
        (self.parts, ended)
    }
}

#[inline]
pub(super) fn plain_arrival(bytes: usize) -> Arrival {
    let mut lengths = Lengths::new();
    lengths.push(bytes);
    Arrival { mark: Mark::NONE, lengths }
}
