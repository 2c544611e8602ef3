//! Reading one connection: tells headers from payload, and sends the payload where it belongs.
//!
//! Between messages bytes are read into a small staging area, so that a small message costs one read and a
//! small copy, or speculatively into the first posted receive, if that is large. Once a header is read and
//! its receive is posted, the rest is read straight into the receiver's parts, with the staging area behind
//! them.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::QUOTA;
use super::flow_control::{FlowControl, Transfer};
use super::frame::{self, Frame, HEADER_BYTES, Header};
use super::matching::{Body, Receives};
use super::reading::{Arriving, Confidence, Guess, Target, read_in_place, read_kept};
use super::remote::Accesses;
use super::staging::{STAGED_PAYLOAD, Staging};
use super::wire::Wire;
use crate::transport::{Notice, Which};
use crate::{Error, Rank, Result, Signature, Statistics, Tag};

pub(super) struct Incoming {
    peer: Rank,
    world_size: u32,
    pub(super) receives: Receives,
    staging: Staging,
    confidence: Confidence,
    arriving: Option<Arriving>,
    /// Whether a receive has completed in this turn.
    has_delivered: bool,
    pub(super) flow_control: FlowControl,
    /// What the peer says about messages of this rank, in its order.
    pub(super) responses: VecDeque<Response>,
    /// The contexts that the peer has closed.
    pub(super) notices: Vec<Notice>,
    pub(super) accesses: Accesses,
}

/// The outcome of a turn of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The socket has nothing more for now.
    Drained,
    /// The quota is used up.
    Stopped,
    /// The peer has sent its close frame.
    Closed,
    /// The connection ended without a close frame.
    Broken,
}

/// What the peer says about messages of this rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Response {
    Cts(u32),
    Nack(u32),
    Credit(u64),
}

impl Incoming {
    pub(super) fn new(peer: Rank, world_size: u32, accesses: Accesses) -> Self {
        Self {
            peer,
            world_size,
            receives: Receives::new(peer),
            staging: Staging::new(),
            confidence: Confidence::default(),
            arriving: None,
            has_delivered: false,
            flow_control: FlowControl::new(peer),
            responses: VecDeque::new(),
            notices: Vec::new(),
            accesses,
        }
    }

    pub(super) fn read(
        &mut self,
        wire: &mut Wire,
        quota: usize,
        statistics: &mut Statistics,
    ) -> Result<ReadOutcome> {
        let mut rest = quota;
        self.has_delivered = false;
        loop {
            if self.process_staged(statistics)? {
                return Ok(ReadOutcome::Closed);
            }
            // A completed receive is reported before more is read, and the next one may be posted before its
            // message goes to the heap.
            let has_place = self.arriving.as_ref().is_some_and(|arriving| arriving.target != Target::Kept);
            let is_served = self.has_delivered && !has_place && quota <= QUOTA;
            if rest == 0 || is_served {
                return Ok(ReadOutcome::Stopped);
            }
            match self.read_once(wire, rest, statistics) {
                Ok((_, 0)) => return Ok(ReadOutcome::Broken),
                Ok((asked, got)) => {
                    statistics.bytes_received += got as u64;
                    rest = rest.saturating_sub(got);
                    if got < asked {
                        let is_closed = self.process_staged(statistics)?;
                        return Ok(if is_closed { ReadOutcome::Closed } else { ReadOutcome::Drained });
                    }
                }
                Err(Errno::AGAIN) => return Ok(ReadOutcome::Drained),
                Err(Errno::INTR) => {}
                Err(_) => {
                    let Some(what) = wire.violation() else { return Ok(ReadOutcome::Broken) };
                    return Err(Error::Protocol { rank: self.peer, what: what.into() });
                }
            }
        }
    }

    /// Whether there is a response to handle or a reply to send.
    #[inline]
    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty() || !self.flow_control.replies.is_empty()
    }

    /// Takes the first unexpected message of `tag` and of the epoch of `signature`; drops those of other
    /// epochs before it. The caller must [`redirect`](Self::redirect) the rest if it is still arriving, and
    /// answer it if it is an RTS.
    pub(super) fn take_unexpected(&mut self, tag: Tag, signature: Signature) -> Option<(Header, Body)> {
        loop {
            let (header, body) = self.receives.take_unexpected(tag)?;
            if header.signature.epoch() != signature.epoch() {
                self.drop_unexpected(header, body);
                continue;
            }
            if let Body::Bytes(_) = body {
                self.flow_control.consume(header.payload_bytes());
            }
            return Some((header, body));
        }
    }

    /// Drops some unexpected messages of a context, as if received.
    pub(super) fn discard(&mut self, context: u16, which: Which) -> usize {
        let is_meant = |(header, _): &mut (Header, Body)| {
            header.tag.group() == context && which.includes(header.tag, header.signature)
        };
        let (unexpected, mut position) = (&mut self.receives.unexpected, 0);
        let mut dropped = Vec::new();
        while position < unexpected.len() {
            if is_meant(&mut unexpected[position]) {
                dropped.extend(unexpected.remove(position));
            } else {
                position += 1;
            }
        }
        let count = dropped.len();
        dropped.into_iter().for_each(|(header, body)| self.drop_unexpected(header, body));
        count
    }

    /// Drops a message that was taken out of the queue.
    fn drop_unexpected(&mut self, header: Header, body: Body) {
        match body {
            Body::Rts(number) => self.flow_control.answer(number, header, None),
            Body::Bytes(bytes) => {
                if bytes.len() < header.payload_bytes() {
                    self.redirect(Target::Discarded);
                }
                self.flow_control.consume(header.payload_bytes());
            }
        }
    }

    /// Sends the rest of the arriving message elsewhere.
    pub(super) fn redirect(&mut self, target: Target) {
        if let Some(arriving) = &mut self.arriving {
            arriving.target = target;
        }
    }

    /// Discards what comes for a receive that has ended early.
    pub(super) fn divert(&mut self, receive: usize) {
        if let Some(arriving) = &mut self.arriving
            && arriving.target == Target::Posted(receive)
        {
            arriving.target = Target::Discarded;
        }
        self.flow_control.divert(receive);
    }

    /// Discards what is staged and what has come, about 4 MiB at most; says whether more can come.
    pub(super) fn discard_input(&mut self, wire: &mut Wire, statistics: &mut Statistics) -> bool {
        self.staging.clear();
        wire.discard_input(statistics)
    }

    /// One read, into the parts of the arriving message and the staging area. Gives the bytes asked for and
    /// the bytes got.
    fn read_once(
        &mut self,
        wire: &mut Wire,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        match &mut self.arriving {
            None => match self.confidence.guess(&self.staging, &self.receives) {
                Some(guess) => self.read_guessed(&guess, wire, limit, statistics),
                None => self.staging.fill(wire, statistics),
            },
            Some(arriving) => match arriving.target {
                Target::Posted(key) => read_in_place(
                    wire,
                    key,
                    arriving,
                    &mut self.staging,
                    &mut self.receives,
                    limit,
                    statistics,
                ),
                Target::Kept => read_kept(wire, arriving, &mut self.receives, limit, statistics),
                Target::Remote => {
                    let asked = (arriving.end - arriving.received).min(limit);
                    match self.accesses.read(wire, arriving.received, asked, statistics) {
                        None => self.staging.fill(wire, statistics),
                        Some(got) => {
                            let got = got?;
                            arriving.received += got;
                            Ok((asked, got))
                        }
                    }
                }
                Target::Discarded => self.staging.fill(wire, statistics),
            },
        }
    }

    /// One speculative read; begins the message if the guess was right.
    fn read_guessed(
        &mut self,
        guess: &Guess,
        wire: &mut Wire,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        let (asked, got, in_place) =
            guess.read(wire, &mut self.staging, &mut self.receives, limit, statistics)?;
        let Some(header) = self.staging.staged().first_chunk() else { return Ok((asked, got)) };
        let payload = got - HEADER_BYTES;
        match frame::decode(header, self.peer, self.world_size) {
            Ok(Frame::Message(header))
                if header.tag == guess.tag
                    && self.receives.check(guess.key, &header).is_ok()
                    && guess.is_in_place(&header.lengths, payload)
                    && self.flow_control.may_be_eager(header.payload_bytes()) =>
            {
                self.staging.take_header();
                let begun = self.begin(header);
                self.arriving = Some(Arriving { received: in_place, ..begun });
                self.confidence.learn(true);
            }
            // What is wrong with the frame is found when it is processed.
            _ if in_place > 0 => {
                guess.take_back(in_place, &mut self.staging, &mut self.receives, statistics);
                self.confidence.learn(false);
            }
            _ => {}
        }
        Ok((asked, got))
    }

    /// Processes staged bytes, up to an incomplete frame or the close frame; says whether that has come.
    #[inline]
    fn process_staged(&mut self, statistics: &mut Statistics) -> Result<bool> {
        while self.arriving.is_none() && self.deliver_small(statistics) {}
        if self.arriving.is_none() && self.staging.staged().len() < HEADER_BYTES {
            return Ok(false);
        }
        self.process_any(statistics)
    }

    /// Like [`process_staged`](Self::process_staged), for all kinds of frames.
    #[inline(never)]
    fn process_any(&mut self, statistics: &mut Statistics) -> Result<bool> {
        loop {
            if self.arriving.is_none() {
                if self.deliver_small(statistics) {
                    continue;
                }
                let Some(header) = self.staging.take_header() else { return Ok(false) };
                if self.handle_frame(&header)? {
                    return Ok(true);
                }
            }
            if self.arriving.is_some() && !self.place_staged(statistics) {
                return Ok(false);
            }
        }
    }

    /// Delivers a whole staged message to the receive that was posted first, if it matches and nothing is
    /// wrong with it.
    #[inline]
    fn deliver_small(&mut self, statistics: &mut Statistics) -> bool {
        let Some((header, rest)) = self.staging.staged().split_first_chunk() else { return false };
        let Some(header) = frame::decode_small(header, self.peer, STAGED_PAYLOAD as u64) else {
            return false;
        };
        let payload_bytes = header.payload_bytes();
        let Some(payload) = rest.get(..payload_bytes) else { return false };
        if !self.flow_control.may_be_eager(payload_bytes)
            || !self.receives.deliver_first(&header, payload, statistics)
        {
            return false;
        }
        self.flow_control.receive(payload_bytes);
        self.flow_control.consume(payload_bytes);
        self.staging.consumed(payload_bytes);
        self.has_delivered = true;
        true
    }

    /// Handles a frame; says whether it is the close frame.
    fn handle_frame(&mut self, header: &[u8; HEADER_BYTES]) -> Result<bool> {
        match frame::decode(header, self.peer, self.world_size)? {
            Frame::Message(header) => {
                let bytes = header.payload_bytes();
                if !self.flow_control.may_be_eager(bytes) {
                    return self.flow_control.violated(format!("a message of {bytes} bytes without credit"));
                }
                self.arriving = Some(self.begin(header));
            }
            Frame::Rts(number, header) => {
                self.flow_control.announce(number)?;
                match self.matched(&header) {
                    Target::Kept => self.receives.unexpected.push_back((header, Body::Rts(number))),
                    Target::Posted(key) => self.flow_control.answer(number, header, Some(key)),
                    Target::Remote | Target::Discarded => self.flow_control.answer(number, header, None),
                }
            }
            Frame::Data(number, bytes) => {
                let Transfer { header, receive, received } =
                    self.flow_control.take_transfer(number, bytes)?;
                let target = receive.map_or(Target::Discarded, Target::Posted);
                let end = received + bytes as usize;
                self.arriving = Some(Arriving { header, end, received, target, rts: Some(number) });
            }
            Frame::Cts(number) => self.responses.push_back(Response::Cts(number)),
            Frame::Nack(number) => self.responses.push_back(Response::Nack(number)),
            Frame::Credit(total) => self.responses.push_back(Response::Credit(total)),
            Frame::Remote(frame) => {
                if let Some(payload_bytes) = self.accesses.take_up(frame)? {
                    self.arriving = Some(Arriving::remote(payload_bytes));
                }
            }
            Frame::Notice(notice) => self.notices.push(notice),
            Frame::Bye => return Ok(true),
        }
        Ok(false)
    }

    fn begin(&mut self, header: Header) -> Arriving {
        let payload_bytes = header.payload_bytes();
        let target = self.matched(&header);
        self.flow_control.receive(payload_bytes);
        if target == Target::Kept {
            self.receives.unexpected.push_back((header, Body::Bytes(Vec::new())));
        } else {
            self.flow_control.consume(payload_bytes);
        }
        Arriving { header, end: payload_bytes, received: 0, target, rts: None }
    }

    /// Matches a message whose header has just been read.
    fn matched(&mut self, header: &Header) -> Target {
        let Some(key) = self.receives.take_waiting(header.tag) else { return Target::Kept };
        match self.receives.check(key, header) {
            Ok(()) => Target::Posted(key),
            // It is of an earlier context of this number: the receive goes on waiting.
            Err(Error::Mismatch { expected, found, .. }) if expected.epoch() != found.epoch() => {
                self.receives.waiting.push_front((header.tag, key));
                Target::Discarded
            }
            Err(error) => {
                self.receives.end(key, Err(error));
                Target::Discarded
            }
        }
    }

    /// Moves staged bytes to where the arriving message belongs; says whether the frame is complete.
    fn place_staged(&mut self, statistics: &mut Statistics) -> bool {
        let Some(arriving) = &mut self.arriving else { return false };
        let bytes = self.staging.take(arriving.end - arriving.received);
        match arriving.target {
            Target::Posted(key) => {
                self.receives.scatter(key, &arriving.header, arriving.received, bytes, statistics)
            }
            Target::Kept => {
                if let Some(kept) = self.receives.arriving_bytes() {
                    // A copy: the staging area is needed for what follows.
                    kept.extend_from_slice(bytes);
                    statistics.copies += u64::from(!bytes.is_empty());
                    statistics.bytes_copied += bytes.len() as u64;
                }
            }
            Target::Remote => self.accesses.deposit(arriving.received, bytes, statistics),
            Target::Discarded => {}
        }
        arriving.received += bytes.len();
        if arriving.received < arriving.end {
            return false;
        }
        match self.arriving.take() {
            Some(Arriving { header, target, received, rts: Some(number), .. })
                if received < header.payload_bytes() =>
            {
                let receive = if let Target::Posted(key) = target { Some(key) } else { None };
                self.flow_control.transfers.insert(number, Some(Transfer { header, receive, received }));
            }
            Some(Arriving { header, target: Target::Posted(key), .. }) => {
                statistics.messages_received += 1;
                self.receives.end(key, Ok((header.mark, header.lengths)));
                self.has_delivered = true;
            }
            Some(Arriving { target: Target::Remote, .. }) => self.accesses.landed(),
            _ => {}
        }
        true
    }
}
