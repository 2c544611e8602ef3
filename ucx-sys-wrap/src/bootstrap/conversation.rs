//! The proof, spoken over one connection without waiting.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::channel::Channel;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, may_begin, prove, verify};
use crate::Result;

/// The answerer's first byte after the caller's proof.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

/// A connection on its way to be proven.
pub(super) struct Conversation {
    channel: Channel,
    party: Arc<Party>,
    mine: Opening,
    theirs: Option<Opening>,
    /// The caller's proof has been sent, or the answerer's; what is left is to hear or to flush.
    proven: bool,
    /// Whether a caller hangs up on an answerer of another job, before it has proven anything to it.
    is_choosy: bool,
    since: Instant,
}

/// Where a conversation stands.
pub(super) enum Step {
    /// It goes on.
    Pending(Conversation),
    /// Both sides hold the key, and the peer has said this about itself.
    Proven(Opening, Channel),
    /// It is over.
    Failed(Fault, SocketAddr),
}

/// Why a conversation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is gone, or was never there.
    Gone,
    /// The other side says something else than an opening or a proof.
    Stranger,
    /// A choosy caller has reached a rank of another job.
    OtherJob,
    /// One of the two does not hold the other's key.
    WrongKey,
}

impl Conversation {
    /// Begins to call `peer` at `address`.
    pub(super) fn call(party: &Arc<Party>, purpose: Purpose, peer: u32, address: SocketAddr) -> Result<Self> {
        let mine = party.opening(purpose, Role::Caller, peer)?;
        let action = |error| crate::Error::system(format!("can't connect to {address}"), error);
        let mut channel = Channel::connect(address).map_err(action)?;
        channel.queue(mine.encode());
        Ok(Self::new(party, mine, channel))
    }

    /// Has a caller hang up on an answerer of another job.
    pub(super) fn choosy(self, is_choosy: bool) -> Self {
        Self { is_choosy, ..self }
    }

    /// Begins to answer whoever has connected.
    pub(super) fn answer(party: &Arc<Party>, purpose: Purpose, channel: Channel) -> Result<Self> {
        let mine = party.opening(purpose, Role::Answerer, 0)?;
        Ok(Self::new(party, mine, channel))
    }

    fn new(party: &Arc<Party>, mine: Opening, channel: Channel) -> Self {
        let (party, since) = (party.clone(), Instant::now());
        Self { channel, party, mine, theirs: None, proven: false, is_choosy: false, since }
    }

    /// When it began.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Whether the peer has said anything that makes sense.
    pub(super) fn has_opening(&self) -> bool {
        self.theirs.is_some()
    }

    /// Whether somebody has taken the connection and has not said who it is.
    pub(super) fn is_unanswered(&self) -> bool {
        self.channel.is_connected() && !self.has_opening()
    }

    pub(super) fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Goes on as far as is possible without waiting.
    pub(super) fn advance(mut self) -> Step {
        match self.try_advance() {
            Ok(true) => match self.theirs {
                Some(theirs) => Step::Proven(theirs, self.channel),
                None => Step::Failed(Fault::Stranger, self.channel.peer()),
            },
            Ok(false) if self.channel.ended() => Step::Failed(Fault::Gone, self.channel.peer()),
            Ok(false) => Step::Pending(self),
            Err(fault) => Step::Failed(fault, self.channel.peer()),
        }
    }

    /// Says whether it is done. Reads exactly what belongs to it: the bytes after it are for whoever takes
    /// the channel.
    fn try_advance(&mut self) -> std::result::Result<bool, Fault> {
        if self.theirs.is_none() {
            self.channel.pump(OPENING_BYTES);
            if !self.hear_opening()? {
                return Ok(false);
            }
        }
        match self.mine.role {
            Role::Caller => self.hear_acceptance(),
            Role::Answerer => self.hear_proof(),
        }
    }

    fn hear_opening(&mut self) -> std::result::Result<bool, Fault> {
        if !may_begin(self.channel.arrived()) {
            return Err(Fault::Stranger);
        }
        let Some(bytes) = self.channel.take(OPENING_BYTES) else { return Ok(false) };
        let opening = <&[u8; OPENING_BYTES]>::try_from(&bytes[..]).ok().and_then(Opening::decode);
        let opening = opening.ok_or(Fault::Stranger)?;
        let expected = opening.purpose == self.mine.purpose && opening.role != self.mine.role;
        match self.mine.role {
            _ if !expected || opening.peer != self.mine.rank => return Err(Fault::Stranger),
            Role::Caller if opening.rank != self.mine.peer => {
                return Err(Fault::Stranger);
            }
            Role::Caller if self.is_choosy && opening.job != self.mine.job => return Err(Fault::OtherJob),
            Role::Caller => self.send_proof(&opening),
            Role::Answerer => {
                self.mine.peer = opening.rank;
                self.channel.queue(self.mine.encode());
            }
        }
        self.theirs = Some(opening);
        Ok(true)
    }

    fn send_proof(&mut self, answerer: &Opening) {
        let proof = prove(&self.party.key, Role::Caller, &self.mine.encode(), &answerer.encode());
        self.channel.queue(proof);
        self.proven = true;
    }

    /// Answerer: checks the caller's proof and sends its own.
    fn hear_proof(&mut self) -> std::result::Result<bool, Fault> {
        if !self.proven {
            self.channel.pump(PROOF_BYTES);
            let (Some(theirs), Some(proof)) = (&self.theirs, self.channel.take(PROOF_BYTES)) else {
                return Ok(false);
            };
            let (caller, answerer) = (theirs.encode(), self.mine.encode());
            if !verify(&self.party.key, Role::Caller, &caller, &answerer, &proof) {
                self.channel.queue([REFUSED]);
                self.channel.pump(0);
                return Err(Fault::WrongKey);
            }
            let own = prove(&self.party.key, Role::Answerer, &caller, &answerer);
            self.channel.queue([&[ACCEPTED], &own[..]].concat());
            self.proven = true;
        }
        self.channel.pump(0);
        Ok(self.channel.flushed())
    }

    /// Caller: checks the answerer's answer and proof.
    fn hear_acceptance(&mut self) -> std::result::Result<bool, Fault> {
        self.channel.pump(1 + PROOF_BYTES);
        match self.channel.arrived().first() {
            Some(&REFUSED) => return Err(Fault::WrongKey),
            Some(&ACCEPTED) | None => {}
            Some(_) => return Err(Fault::Stranger),
        }
        let (Some(theirs), Some(answer)) = (&self.theirs, self.channel.take(1 + PROOF_BYTES)) else {
            return Ok(false);
        };
        let (caller, answerer) = (self.mine.encode(), theirs.encode());
        let valid = verify(&self.party.key, Role::Answerer, &caller, &answerer, &answer[1..]);
        if valid { Ok(true) } else { Err(Fault::WrongKey) }
    }
}
