//! One receive, from the wait for its message to the arrival of its last part.

use arrayvec::ArrayVec;

use super::header::{Header, INLINE_BYTES};
use super::ucp_request::UcpRequest;
use crate::transport::{RecvParts, Statistics};
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
}

enum Stage {
    Waiting,
    /// The message has come; parts of it are on the way.
    Fetching(Fetch),
    /// A plain message of so many bytes lies in its place.
    Plain(usize),
    Ended(Ended),
}

/// Parts on the way.
struct Fetch {
    arrival: Arrival,
    /// What UCX writes to the parts, each with the bytes that are expected.
    requests: Fetches,
    /// Parts that UCX has not been asked for yet.
    missing: usize,
    is_fetched: bool,
}

/// UcpRequests, each with the bytes that are expected.
pub(super) type Fetches = ArrayVec<(UcpRequest, usize), MAX_PARTS>;

/// How a receive ended.
pub(super) struct Ended {
    pub(super) from: Rank,
    pub(super) result: Result<Arrival>,
    /// Whether parts were fetched from the sender's memory.
    pub(super) is_fetched: bool,
}

/// A receive that is given back, with how it ended.
pub(super) type Finished = (RecvParts, Ended);

impl Incoming {
    #[inline]
    pub(super) fn new(from: Rank, envelope: &Envelope, parts: RecvParts, posted_in: u32) -> Self {
        let Envelope { tag, signature, .. } = *envelope;
        Self { from, tag, signature, parts, stage: Stage::Waiting, posted_in }
    }

    /// Takes the payload of a message that is not fragmented, which ends the receive. The message was checked.
    #[inline]
    pub(super) fn unpack(&mut self, header: &Header, mut payload: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, payload.len());
        for (place, length) in self.parts.iter_mut().zip(&header.lengths) {
            let (bytes, rest) = payload.split_at(*length);
            // A copy: UCX has received it before anybody knew where it belongs.
            place.bytes_mut()[..*length].copy_from_slice(bytes);
            payload = rest;
        }
        self.ended(Ok(header.arrival()), false);
    }

    /// Takes the payload of a plain message, which ends the receive. Its only part has room.
    #[inline(always)]
    pub(super) fn take_one(&mut self, payload: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, payload.len());
        // A copy: UCX has received it before anybody knew where it belongs.
        self.parts[0].bytes_mut()[..payload.len()].copy_from_slice(payload);
        self.stage = Stage::Plain(payload.len());
    }

    /// The payload of a plain message, of so many bytes, is still to come.
    pub(super) fn fetch_one(&mut self, bytes: usize) {
        self.fetch(plain(bytes), 1, true);
    }

    /// Takes the parts that travelled in the header of a fragmented message. The message was checked.
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

    /// Takes one whole part.
    pub(super) fn unpack_part(&mut self, part: usize, bytes: &[u8], statistics: &mut Statistics) {
        count_copy(statistics, bytes.len());
        if let Some(place) =
            self.parts.get_mut(part).and_then(|place| place.bytes_mut().get_mut(..bytes.len()))
        {
            // A copy: as above.
            place.copy_from_slice(bytes);
        }
    }

    /// `missing` parts of the message that arrives are still to come.
    pub(super) fn fetch(&mut self, arrival: Arrival, missing: usize, is_fetched: bool) {
        match missing {
            0 => self.ended(Ok(arrival), is_fetched),
            _ => {
                self.stage = Stage::Fetching(Fetch { arrival, requests: Fetches::new(), missing, is_fetched })
            }
        }
    }

    /// One of the missing parts is there, or UCX brings it now.
    pub(super) fn comes(&mut self, by: Option<(UcpRequest, usize)>) {
        let Stage::Fetching(fetch) = &mut self.stage else { return };
        fetch.missing = fetch.missing.saturating_sub(1);
        fetch.is_fetched |= by.is_some();
        if let Some(request) = by {
            fetch.requests.push(request);
        } else if fetch.missing == 0 && fetch.requests.is_empty() {
            let (arrival, is_fetched) = (fetch.arrival.clone(), fetch.is_fetched);
            self.ended(Ok(arrival), is_fetched);
        }
    }

    /// The bytes of a part that UCX is asked for, if it still is on the way.
    pub(super) fn place(&mut self, part: usize, bytes: usize) -> Option<&mut [u8]> {
        match self.stage {
            Stage::Fetching(_) => self.parts.get_mut(part)?.bytes_mut().get_mut(..bytes),
            _ => None,
        }
    }

    /// The requests, once all have landed; they must then be reaped, and [`complete`](Self::complete) called.
    pub(super) fn completed_fetches(&mut self) -> Option<Fetches> {
        match &mut self.stage {
            Stage::Fetching(fetch)
                if fetch.missing == 0 && fetch.requests.iter().all(|(request, _)| request.is_over()) =>
            {
                Some(std::mem::take(&mut fetch.requests))
            }
            _ => None,
        }
    }

    /// The requests, landed or not, when UCX is torn down.
    pub(super) fn take_fetches(&mut self) -> Option<Fetches> {
        match &mut self.stage {
            Stage::Fetching(fetch) => Some(std::mem::take(&mut fetch.requests)),
            _ => None,
        }
    }

    /// All parts are there, or `error` has come of one.
    pub(super) fn complete(&mut self, error: Option<Error>) {
        let Stage::Fetching(fetch) = &self.stage else { return };
        let (arrival, is_fetched) = (fetch.arrival.clone(), fetch.is_fetched);
        self.ended(error.map_or(Ok(arrival), Err), is_fetched);
    }

    /// No parts come any more but those that UCX brings already.
    pub(super) fn expect_no_more(&mut self) {
        if let Stage::Fetching(fetch) = &mut self.stage {
            fetch.missing = 0;
        }
    }

    #[inline]
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Plain(_) | Stage::Ended(_))
    }

    /// What has arrived, if that is a plain message that lies in its place.
    #[inline]
    pub(super) fn plain(&self) -> Option<Arrival> {
        match self.stage {
            Stage::Plain(bytes) => Some(plain(bytes)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// Whether nobody has to do anything for it any more.
    pub(super) fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Waiting => false,
            Stage::Fetching(fetch) => {
                fetch.missing == 0 && fetch.requests.iter().all(|(request, _)| request.is_over())
            }
            Stage::Plain(_) | Stage::Ended(_) => true,
        }
    }

    /// The peer that it waits for, and the round that it was posted in.
    pub(super) fn wait(&self) -> (Rank, u32) {
        (self.from, self.posted_in)
    }

    /// Ends it; UCX must be done with it.
    pub(super) fn end(&mut self, error: Error) {
        self.ended(Err(error), false);
    }

    #[inline]
    fn ended(&mut self, result: Result<Arrival>, is_fetched: bool) {
        self.stage = Stage::Ended(Ended { from: self.from, result, is_fetched });
    }

    /// What is given back of a receive that has ended.
    #[inline]
    pub(super) fn finished(self) -> Finished {
        let ended = match self.stage {
            Stage::Ended(ended) => ended,
            Stage::Plain(bytes) => Ended { from: self.from, result: Ok(plain(bytes)), is_fetched: false },
            _ => Ended { from: self.from, result: Err(Error::Canceled), is_fetched: false },
        };
        (self.parts, ended)
    }
}

/// What arrives of a plain message.
#[inline]
fn plain(bytes: usize) -> Arrival {
    let mut lengths = Lengths::new();
    lengths.push(bytes);
    Arrival { mark: Mark::NONE, lengths }
}

/// Counts one copy of payload, unless there is none.
#[inline]
pub(super) fn count_copy(statistics: &mut Statistics, bytes: usize) {
    statistics.copies += u64::from(bytes > 0);
    statistics.bytes_copied += bytes as u64;
}
