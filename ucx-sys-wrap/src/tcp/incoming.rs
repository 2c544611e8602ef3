//! Reading one connection: which bytes are a header, which belong to which message, and where they go.
//!
//! Between messages bytes are read into a small staging area, so that a small message costs one read and a small copy,
//! or on a guess into the first posted receive, if that is large.
//! Once a header has been read and its receive is posted, the rest is read straight into the receiver's parts, with
//! the staging area behind them for what follows.

use std::io::IoSliceMut;

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, recv};

use super::frame::{self, Frame, HEADER_BYTES, Header};
use super::guess::{Confidence, Guess, Guessed};
use super::matching::Receives;
use super::staging::Staging;
use crate::{Failure, Rank, Result, Statistics, Tag};

/// How much is asked for at once for a message that is kept, in bytes: memory grows as bytes come, not as announced.
const KEEP_STEP: usize = 128 << 10;

pub(super) struct Incoming {
    peer: Rank,
    world_size: u32,
    staging: Staging,
    confidence: Confidence,
    arriving: Option<Arriving>,
    unlimited: bool,
}

/// A message of which the header and `received` bytes of payload are there.
struct Arriving {
    header: Header,
    payload_bytes: usize,
    received: usize,
    target: Target,
}

/// Where the payload of the arriving message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Into the parts of this receive.
    Posted(usize),
    /// To the heap: the last of the unexpected messages.
    Kept,
    /// Nowhere: its receive has ended.
    Discarded,
    /// Nowhere yet: there is no receive and no room, and nothing more is read.
    Held,
}

/// How a turn of reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The socket has nothing more for now.
    Drained,
    /// The quota is used up, or there is no room.
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

/// What a receive that is posted now finds.
pub(super) enum Found {
    /// The message is there, whole.
    Whole(Header, Vec<u8>),
    /// The message is arriving; these bytes of it are there. The receive must be given to [`Incoming::redirect`].
    Arriving(Header, Vec<u8>),
    /// Nothing yet.
    Nothing,
}

impl Incoming {
    pub(super) fn new(peer: Rank, world_size: u32) -> Self {
        Self {
            peer,
            world_size,
            staging: Staging::new(),
            confidence: Confidence::default(),
            arriving: None,
            unlimited: false,
        }
    }

    /// Reads at most about `quota` bytes, as far as they come and there is room.
    pub(super) fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        receives: &mut Receives,
        quota: usize,
        statistics: &mut Statistics,
    ) -> Result<Turn> {
        let mut rest = quota;
        loop {
            if let Some(farewell) = self.digest(receives, statistics)? {
                return Ok(Turn::Farewell(farewell));
            }
            if self.is_held() || rest == 0 {
                return Ok(Turn::Stopped);
            }
            match self.read_once(socket, receives, rest, statistics) {
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
                Err(_) => return Ok(Turn::Broken),
            }
        }
    }

    /// Whether nothing is read because there is no room.
    pub(super) fn is_held(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| arriving.target == Target::Held)
    }

    /// Whether a message is arriving for a posted receive.
    pub(super) fn is_receiving(&self) -> bool {
        self.arriving.as_ref().is_some_and(|arriving| matches!(arriving.target, Target::Posted(_)))
    }

    /// Lifts the bound on kept messages: the peer has closed its side, so what comes is bounded by what the kernel has.
    pub(super) fn lift_bound(&mut self) {
        self.unlimited = true;
    }

    /// Looks for the message of a receive that is posted now.
    pub(super) fn find(&mut self, tag: Tag, receives: &mut Receives) -> Found {
        if let Some((header, bytes)) = receives.take_unexpected(tag) {
            let is_whole = bytes.len() == header.payload_bytes();
            return if is_whole { Found::Whole(header, bytes) } else { Found::Arriving(header, bytes) };
        }
        match &self.arriving {
            Some(arriving) if arriving.target == Target::Held && arriving.header.tag == tag => {
                Found::Arriving(arriving.header.clone(), Vec::new())
            }
            _ => Found::Nothing,
        }
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
    }

    /// Forgets what was read and what there is, about 4 MiB at most; says whether more can come.
    pub(super) fn throw_away(&mut self, socket: BorrowedFd<'_>, statistics: &mut Statistics) -> bool {
        self.staging.throw_away(socket, statistics)
    }

    /// One read: into the parts of the arriving message and the staging area, or into the staging area alone.
    /// Gives the bytes asked for and the bytes got.
    fn read_once(
        &mut self,
        socket: BorrowedFd<'_>,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        match &mut self.arriving {
            None => match self.confidence.guess(&self.staging, receives) {
                Some(guess) => self.read_guessed(&guess, socket, receives, limit, statistics),
                None => self.staging.fill(socket),
            },
            Some(arriving) if arriving.is_large() => match arriving.target {
                Target::Posted(key) => read_in_place(socket, key, arriving, &mut self.staging, receives, limit),
                Target::Kept => read_kept(socket, arriving, receives, limit),
                Target::Discarded | Target::Held => self.staging.fill(socket),
            },
            Some(_) => self.staging.fill(socket),
        }
    }

    /// One read on a guess; begins the message if the guess was right.
    fn read_guessed(
        &mut self,
        guess: &Guess,
        socket: BorrowedFd<'_>,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize)> {
        let Guessed { asked, got, landed } = guess.read(socket, &mut self.staging, receives, limit)?;
        let Some(header) = self.staging.staged().first_chunk() else { return Ok((asked, got)) };
        let payload = got - HEADER_BYTES;
        match frame::decode(header, self.peer, self.world_size) {
            Ok(Frame::Message(header))
                if header.tag == guess.tag
                    && receives.check(guess.key, &header).is_ok()
                    && guess.is_in_place(&header.lengths, payload) =>
            {
                self.staging.take_header();
                self.arriving = Some(Arriving { received: landed, ..begin(header, receives) });
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
    fn digest(&mut self, receives: &mut Receives, statistics: &mut Statistics) -> Result<Option<Farewell>> {
        loop {
            if self.arriving.is_none() {
                let Some(header) = self.staging.take_header() else { return Ok(None) };
                match frame::decode(&header, self.peer, self.world_size)? {
                    Frame::Message(header) => self.arriving = Some(begin(header, receives)),
                    Frame::Bye => return Ok(Some(Farewell::Bye)),
                    Frame::Failed(cause) => return Ok(Some(Farewell::Failed(cause))),
                }
            }
            if !self.feed(receives, statistics) {
                return Ok(None);
            }
        }
    }

    /// Gives staged bytes to the arriving message; says whether it is complete.
    fn feed(&mut self, receives: &mut Receives, statistics: &mut Statistics) -> bool {
        let Some(arriving) = &mut self.arriving else { return false };
        if arriving.target == Target::Held && !arriving.admit(self.unlimited, receives) {
            return false;
        }
        let bytes = self.staging.take(arriving.payload_bytes - arriving.received);
        match arriving.target {
            Target::Posted(key) => receives.scatter(key, &arriving.header, arriving.received, bytes, statistics),
            Target::Kept => keep(bytes, receives, statistics),
            Target::Discarded | Target::Held => {}
        }
        arriving.received += bytes.len();
        if arriving.received < arriving.payload_bytes {
            return false;
        }
        if let Some(Arriving { header, target: Target::Posted(key), .. }) = self.arriving.take() {
            statistics.messages_received += 1;
            receives.end(key, Ok(header.arrival()));
        }
        true
    }
}

/// Finds out where a message goes whose header has just been read.
fn begin(header: Header, receives: &mut Receives) -> Arriving {
    let target = match receives.take_waiting(header.tag) {
        Some(key) => match receives.check(key, &header) {
            Ok(()) => Target::Posted(key),
            Err(error) => {
                receives.end(key, Err(error));
                Target::Discarded
            }
        },
        None => Target::Held,
    };
    Arriving { payload_bytes: header.payload_bytes(), header, received: 0, target }
}

impl Arriving {
    /// Keeps a held message if there is room now.
    fn admit(&mut self, unlimited: bool, receives: &mut Receives) -> bool {
        if !unlimited && !receives.has_room(self.payload_bytes) {
            return false;
        }
        receives.open_unexpected(self.header.clone());
        self.target = Target::Kept;
        true
    }

    /// Whether so much is missing that it is worth reading it without the staging area.
    fn is_large(&self) -> bool {
        self.payload_bytes - self.received > HEADER_BYTES
    }
}

/// Reads the rest of a message into the parts of its receive, and what follows into the staging area.
fn read_in_place(
    socket: BorrowedFd<'_>,
    key: usize,
    arriving: &mut Arriving,
    staging: &mut Staging,
    receives: &mut Receives,
    limit: usize,
) -> rustix::io::Result<(usize, usize)> {
    let missing = arriving.payload_bytes - arriving.received;
    let mut places = receives.places(key, &arriving.header.lengths, arriving.received, limit);
    if missing <= limit {
        places.push(IoSliceMut::new(staging.room()));
    }
    let asked = places.iter().map(|place| place.len()).sum();
    let got = readv(socket, &mut places)?;
    drop(places);
    let in_place = got.min(missing);
    arriving.received += in_place;
    staging.filled(got - in_place);
    Ok((asked, got))
}

/// Reads some of a message that is kept.
fn read_kept(
    socket: BorrowedFd<'_>,
    arriving: &mut Arriving,
    receives: &mut Receives,
    limit: usize,
) -> rustix::io::Result<(usize, usize)> {
    let asked = (arriving.payload_bytes - arriving.received).min(KEEP_STEP).min(limit);
    let Some(bytes) = receives.arriving_bytes() else { return Ok((0, 0)) };
    let kept = bytes.len();
    if bytes.capacity() - kept < asked {
        bytes.reserve_exact((arriving.payload_bytes - kept).min(kept.max(KEEP_STEP)));
    }
    bytes.resize(kept + asked, 0);
    let result = recv(socket, &mut bytes[kept..], RecvFlags::empty()).map(|(got, _)| got);
    let got = result.unwrap_or(0);
    bytes.truncate(kept + got);
    arriving.received += got;
    result.map(|got| (asked, got))
}

/// Copies staged bytes to the message that is kept.
fn keep(bytes: &[u8], receives: &mut Receives, statistics: &mut Statistics) {
    if bytes.is_empty() {
        return;
    }
    if let Some(kept) = receives.arriving_bytes() {
        // A copy: the staging area is needed for what comes next.
        kept.extend_from_slice(bytes);
        statistics.copies += 1;
        statistics.bytes_copied += bytes.len() as u64;
    }
}
