//! Reading one connection: which bytes are a header, which belong to which message, and where they go.
//!
//! Between messages bytes are read into a small staging area, so that a small message costs one read and a
//! small copy, or on a guess into the first posted receive, if that is large. Once a header has been read and
//! its receive is posted, the rest is read straight into the receiver's parts, with the staging area behind
//! them for what follows.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::QUOTA;
use super::frame::{self, Frame, HEADER_BYTES, Header};
use super::guess::{Confidence, Guess, Guessed};
use super::ledger::{Granted, Ledger};
use super::matching::{Body, Receives};
use super::reading::{Arriving, Target, keep, read_in_place, read_kept, read_remote};
use super::remote::Accesses;
use super::staging::{STAGED_PAYLOAD, Staging};
use super::wire::Wire;
use crate::{Error, Failure, Rank, Result, Statistics, Tag};

pub(super) struct Incoming {
    peer: Rank,
    world_size: u32,
    staging: Staging,
    confidence: Confidence,
    arriving: Option<Arriving>,
    /// Whether a message has come to its receive in this turn.
    has_delivered: bool,
    ledger: Ledger,
    news: VecDeque<News>,
    pub(super) accesses: Accesses,
}

/// How a turn of reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The socket has nothing more for now.
    Drained,
    /// The quota is used up.
    Stopped,
    /// The peer sends nothing more, and has said why.
    Farewell(Farewell),
    /// The connection ended without a word.
    Broken,
}

/// The last frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    Bye,
    Failed(Failure),
}

/// What the peer says about what was sent to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// The message of this offer may be sent.
    Granted(u32),
    /// The message of this offer is not wanted.
    Refused(u32),
    /// So much of what was sent without asking is received.
    Credited(u64),
}

/// What a receive that is posted now finds.
pub(super) enum Found {
    /// The message is there, whole.
    Whole(Header, Vec<u8>),
    /// The message is arriving; these bytes of it are there. The receive must be given to
    /// [`Incoming::redirect`].
    Arriving(Header, Vec<u8>),
    /// The message is offered under this number. The offer must be given to [`Incoming::answer`].
    Offered(Header, u32),
    /// Nothing yet.
    Nothing,
}

impl Incoming {
    pub(super) fn new(peer: Rank, world_size: u32, accesses: Accesses) -> Self {
        Self {
            peer,
            world_size,
            staging: Staging::new(),
            confidence: Confidence::default(),
            arriving: None,
            has_delivered: false,
            ledger: Ledger::new(peer),
            news: VecDeque::new(),
            accesses,
        }
    }

    /// Reads at most about `quota` bytes, as far as they come.
    pub(super) fn read(
        &mut self,
        wire: &mut Wire,
        receives: &mut Receives,
        quota: usize,
        statistics: &mut Statistics,
    ) -> Result<Turn> {
        let mut rest = quota;
        self.has_delivered = false;
        loop {
            if let Some(farewell) = self.digest(receives, statistics)? {
                return Ok(Turn::Farewell(farewell));
            }
            // Who waits for the message that is here does not wait for a look at what follows, nor is that
            // put on the heap before the next receive can be posted.
            let has_place = self.arriving.as_ref().is_some_and(|arriving| arriving.target != Target::Kept);
            let is_served = self.has_delivered && !has_place && quota <= QUOTA;
            if rest == 0 || is_served {
                return Ok(Turn::Stopped);
            }
            match self.read_once(wire, receives, rest, statistics) {
                Ok((_, 0)) => return Ok(Turn::Broken),
                Ok((asked, got)) => {
                    statistics.bytes_received += got as u64;
                    rest = rest.saturating_sub(got);
                    if got < asked {
                        let farewell = self.digest(receives, statistics)?;
                        return Ok(farewell.map_or(Turn::Drained, Turn::Farewell));
                    }
                }
                Err(Errno::AGAIN) => return Ok(Turn::Drained),
                Err(Errno::INTR) => {}
                Err(_) => {
                    let refuse = |what: &str| Error::Protocol { rank: self.peer, what: what.into() };
                    return wire.violation().map_or(Ok(Turn::Broken), |what| Err(refuse(what)));
                }
            }
        }
    }

    /// A frame to send to the peer for what was read.
    #[inline]
    pub(super) fn take_reply(&mut self) -> Option<Frame> {
        self.ledger.take_reply()
    }

    /// What the peer says about what was sent to it, in its order.
    #[inline]
    pub(super) fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether there is something for [`take_news`](Self::take_news) or [`take_reply`](Self::take_reply).
    #[inline]
    pub(super) fn has_more_to_say(&self) -> bool {
        !self.news.is_empty() || self.ledger.has_replies()
    }

    /// Looks for the message of a receive that is posted now.
    pub(super) fn find(&mut self, tag: Tag, receives: &mut Receives) -> Found {
        match receives.take_unexpected(tag) {
            None => Found::Nothing,
            Some((header, Body::Offer(number))) => Found::Offered(header, number),
            Some((header, Body::Bytes(bytes))) => {
                let payload_bytes = header.payload_bytes();
                self.ledger.consume(payload_bytes);
                if bytes.len() == payload_bytes {
                    Found::Whole(header, bytes)
                } else {
                    Found::Arriving(header, bytes)
                }
            }
        }
    }

    /// Grants an offer to a receive, or refuses it.
    pub(super) fn answer(&mut self, number: u32, header: Header, receive: Option<usize>) {
        self.ledger.answer(number, header, receive);
    }

    /// The receives that were granted to offers, whose messages come no more.
    pub(super) fn forget_granted(&mut self) -> Vec<usize> {
        self.ledger.forget_granted()
    }

    /// Sends the rest of the arriving message to a receive that is posted now.
    pub(super) fn redirect(&mut self, receive: usize) {
        if let Some(arriving) = &mut self.arriving {
            arriving.target = Target::Posted(receive);
        }
    }

    /// Discards what comes of the arriving message.
    pub(super) fn discard(&mut self) {
        if let Some(arriving) = &mut self.arriving {
            arriving.target = Target::Discarded;
        }
    }

    /// The receive has ended early: discards what comes of its message.
    pub(super) fn divert(&mut self, receive: usize) {
        if let Some(arriving) = &mut self.arriving
            && arriving.target == Target::Posted(receive)
        {
            arriving.target = Target::Discarded;
        }
        self.ledger.divert(receive);
    }

    /// Forgets what was read and what there is, about 4 MiB at most; says whether more can come.
    pub(super) fn throw_away(&mut self, wire: &mut Wire, statistics: &mut Statistics) -> bool {
        self.staging.clear();
        wire.throw_away(statistics)
    }

    /// One read: into the parts of the arriving message and the staging area, or into the staging area alone.
    /// Gives the bytes asked for and the bytes got.
    fn read_once(
        &mut self,
        wire: &mut Wire,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        match &mut self.arriving {
            None => match self.confidence.guess(&self.staging, receives) {
                Some(guess) => self.read_guessed(&guess, wire, receives, limit, statistics),
                None => self.staging.fill(wire, statistics),
            },
            Some(arriving) => match arriving.target {
                Target::Posted(key) => {
                    read_in_place(wire, key, arriving, &mut self.staging, receives, limit, statistics)
                }
                Target::Kept => read_kept(wire, arriving, receives, limit, statistics),
                Target::Remote => {
                    read_remote(wire, arriving, &mut self.accesses, &mut self.staging, limit, statistics)
                }
                Target::Discarded => self.staging.fill(wire, statistics),
            },
        }
    }

    /// One read on a guess; begins the message if the guess was right.
    fn read_guessed(
        &mut self,
        guess: &Guess,
        wire: &mut Wire,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        let Guessed { asked, got, landed } =
            guess.read(wire, &mut self.staging, receives, limit, statistics)?;
        let Some(header) = self.staging.staged().first_chunk() else { return Ok((asked, got)) };
        let payload = got - HEADER_BYTES;
        match frame::decode(header, self.peer, self.world_size) {
            Ok(Frame::Message(header))
                if header.tag == guess.tag
                    && receives.check(guess.key, &header).is_ok()
                    && guess.is_in_place(&header.lengths, payload)
                    && self.ledger.may_be_eager(header.payload_bytes()) =>
            {
                self.staging.take_header();
                let begun = self.begin(header, receives);
                self.arriving = Some(Arriving { received: landed, ..begun });
                self.confidence.learn(true);
            }
            // What is wrong with it is found again when it is consumed.
            _ if landed > 0 => {
                guess.take_back(landed, &mut self.staging, receives, statistics);
                self.confidence.learn(false);
            }
            _ => {}
        }
        Ok((asked, got))
    }

    /// Consumes staged bytes, as far as they and the room go.
    #[inline]
    fn digest(&mut self, receives: &mut Receives, statistics: &mut Statistics) -> Result<Option<Farewell>> {
        while self.arriving.is_none() && self.deliver_small(receives, statistics) {}
        if self.arriving.is_none() && self.staging.staged().len() < HEADER_BYTES {
            return Ok(None);
        }
        self.digest_others(receives, statistics)
    }

    /// Likewise, whatever it is.
    #[inline(never)]
    fn digest_others(
        &mut self,
        receives: &mut Receives,
        statistics: &mut Statistics,
    ) -> Result<Option<Farewell>> {
        loop {
            if self.arriving.is_none() {
                if self.deliver_small(receives, statistics) {
                    continue;
                }
                let Some(header) = self.staging.take_header() else { return Ok(None) };
                if let Some(farewell) = self.take_up(&header, receives)? {
                    return Ok(Some(farewell));
                }
            }
            if self.arriving.is_some() && !self.feed(receives, statistics) {
                return Ok(None);
            }
        }
    }

    /// Gives a whole staged message to the receive that was posted first, if it is for that and nothing is
    /// wrong.
    #[inline]
    fn deliver_small(&mut self, receives: &mut Receives, statistics: &mut Statistics) -> bool {
        let Some((header, rest)) = self.staging.staged().split_first_chunk() else { return false };
        let Some(header) = frame::decode_small(header, self.peer, STAGED_PAYLOAD as u64) else {
            return false;
        };
        let payload_bytes = header.payload_bytes();
        let Some(payload) = rest.get(..payload_bytes) else { return false };
        if !self.ledger.may_be_eager(payload_bytes) || !receives.deliver_first(&header, payload, statistics) {
            return false;
        }
        self.ledger.receive(payload_bytes);
        self.ledger.consume(payload_bytes);
        self.staging.consumed(payload_bytes);
        self.has_delivered = true;
        true
    }

    /// Takes up a frame; gives the last one.
    fn take_up(&mut self, header: &[u8; HEADER_BYTES], receives: &mut Receives) -> Result<Option<Farewell>> {
        match frame::decode(header, self.peer, self.world_size)? {
            Frame::Message(header) => {
                self.ledger.check(&header)?;
                self.arriving = Some(self.begin(header, receives));
            }
            Frame::Offer(number, header) => {
                self.ledger.offered(number)?;
                match self.matched(&header, receives) {
                    Target::Kept => receives.keep(header, Body::Offer(number)),
                    Target::Posted(key) => self.ledger.answer(number, header, Some(key)),
                    Target::Remote | Target::Discarded => self.ledger.answer(number, header, None),
                }
            }
            Frame::Data(number, bytes) => {
                let Granted { header, receive, received } = self.ledger.take_granted(number, bytes)?;
                let target = receive.map_or(Target::Discarded, Target::Posted);
                let end = received + bytes as usize;
                self.arriving = Some(Arriving { header, end, received, target, offer: Some(number) });
            }
            Frame::Grant(number) => self.news.push_back(News::Granted(number)),
            Frame::Refusal(number) => self.news.push_back(News::Refused(number)),
            Frame::Credit(total) => self.news.push_back(News::Credited(total)),
            Frame::Remote(frame) => {
                if let Some(payload_bytes) = self.accesses.take_up(frame)? {
                    self.arriving = Some(Arriving::remote(payload_bytes));
                }
            }
            Frame::Bye => return Ok(Some(Farewell::Bye)),
            Frame::Failed(cause) => return Ok(Some(Farewell::Failed(cause))),
        }
        Ok(None)
    }

    /// Begins a message that was sent without asking.
    fn begin(&mut self, header: Header, receives: &mut Receives) -> Arriving {
        let payload_bytes = header.payload_bytes();
        let target = self.matched(&header, receives);
        self.ledger.receive(payload_bytes);
        if target == Target::Kept {
            receives.keep(header, Body::Bytes(Vec::new()));
        } else {
            self.ledger.consume(payload_bytes);
        }
        Arriving { header, end: payload_bytes, received: 0, target, offer: None }
    }

    /// Finds out where a message goes whose header has just been read.
    fn matched(&self, header: &Header, receives: &mut Receives) -> Target {
        let Some(key) = receives.take_waiting(header.tag) else { return Target::Kept };
        match receives.check(key, header) {
            Ok(()) => Target::Posted(key),
            Err(error) => {
                receives.end(key, Err(error));
                Target::Discarded
            }
        }
    }

    /// Gives staged bytes to the arriving message; says whether it is complete.
    fn feed(&mut self, receives: &mut Receives, statistics: &mut Statistics) -> bool {
        let Some(arriving) = &mut self.arriving else { return false };
        let bytes = self.staging.take(arriving.end - arriving.received);
        match arriving.target {
            Target::Posted(key) => {
                receives.scatter(key, &arriving.header, arriving.received, bytes, statistics)
            }
            Target::Kept => keep(bytes, receives, statistics),
            Target::Remote => self.accesses.deposit(arriving.received, bytes, statistics),
            Target::Discarded => {}
        }
        arriving.received += bytes.len();
        if arriving.received < arriving.end {
            return false;
        }
        match self.arriving.take() {
            Some(Arriving { header, target, received, offer: Some(number), .. })
                if received < header.payload_bytes() =>
            {
                let receive = if let Target::Posted(key) = target { Some(key) } else { None };
                self.ledger.put_back(number, Granted { header, receive, received });
            }
            Some(Arriving { header, target: Target::Posted(key), .. }) => {
                statistics.messages_received += 1;
                receives.end(key, Ok((header.mark, header.lengths)));
                self.has_delivered = true;
            }
            Some(Arriving { target: Target::Remote, .. }) => self.accesses.landed(),
            _ => {}
        }
        true
    }
}
