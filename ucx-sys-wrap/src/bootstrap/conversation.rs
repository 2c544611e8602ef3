//! The mutual proof over one connection, without blocking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::channel::Channel;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, may_begin, prove, verify};
use crate::Result;

/// The answerer's first byte after the caller's proof.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

/// A connection whose ends have not proven themselves yet.
pub(super) struct Conversation {
    channel: Channel,
    party: Arc<Party>,
    mine: Opening,
    theirs: Option<Opening>,
    /// Answerer: the caller's proof was valid, and this end's proof is queued.
    proven: bool,
    /// Whether a caller hangs up on an answerer of another job, before it has proven anything to it.
    is_choosy: bool,
    /// Whether an answerer says the purpose of its caller as its own.
    echoes: bool,
    pub(super) since: Instant,
}

pub(super) enum Step {
    Pending(Conversation),
    /// Both sides hold the key; the peer's opening.
    Proven(Opening, Channel),
    Failed(Fault, SocketAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection has ended or was never made.
    Gone,
    /// The other side sent something else than a fitting opening or a proof.
    Stranger,
    /// A choosy caller has reached a rank of another job.
    OtherJob,
    /// The two sides do not hold the same key.
    WrongKey,
}

impl Conversation {
    /// Begins to call `peer` at `address`; see [`Fault::OtherJob`] for `is_choosy`.
    pub(super) fn call(
        party: &Arc<Party>,
        purpose: Purpose,
        peer: u32,
        address: SocketAddr,
        is_choosy: bool,
    ) -> Result<Self> {
        let mine = party.opening(purpose, Role::Caller, peer)?;
        let action = |error| crate::Error::system(format!("can't connect to {address}"), error);
        let mut channel = Channel::connect(address).map_err(action)?;
        channel.queue(mine.encode());
        Ok(Self::new(party, mine, channel, is_choosy))
    }

    /// Answers a caller that may be answered with this purpose; with `echoes` the answer is the caller's own
    /// purpose.
    pub(super) fn answer(
        party: &Arc<Party>,
        purpose: Purpose,
        channel: Channel,
        echoes: bool,
    ) -> Result<Self> {
        let mine = party.opening(purpose, Role::Answerer, 0)?;
        Ok(Self { echoes, ..Self::new(party, mine, channel, false) })
    }

    fn new(party: &Arc<Party>, mine: Opening, channel: Channel, is_choosy: bool) -> Self {
        let (party, since) = (party.clone(), Instant::now());
        Self { channel, party, mine, theirs: None, proven: false, is_choosy, echoes: false, since }
    }

    /// Whether the peer has sent a fitting opening.
    pub(super) fn has_opening(&self) -> bool {
        self.theirs.is_some()
    }

    /// Whether somebody has accepted the connection and has not sent an opening.
    pub(super) fn is_unanswered(&self) -> bool {
        self.channel.is_connected() && !self.has_opening()
    }

    pub(super) fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Makes as much progress as is possible without blocking.
    pub(super) fn advance(mut self) -> Step {
        match self.try_advance() {
            Ok(is_done) => match self.theirs.take_if(|_| is_done) {
                Some(theirs) => Step::Proven(theirs, self.channel),
                None if self.channel.ended() => Step::Failed(Fault::Gone, self.channel.peer()),
                None => Step::Pending(self),
            },
            Err(fault) => Step::Failed(fault, self.channel.peer()),
        }
    }

    /// Whether it is done. Reads exactly the bytes of the proof: those after it belong to the new owner of
    /// the channel.
    fn try_advance(&mut self) -> std::result::Result<bool, Fault> {
        if self.theirs.is_none() {
            self.channel.pump(OPENING_BYTES);
            if !self.receive_opening()? {
                return Ok(false);
            }
        }
        match self.mine.role {
            Role::Caller => self.receive_acceptance(),
            Role::Answerer => self.receive_proof(),
        }
    }

    fn receive_opening(&mut self) -> std::result::Result<bool, Fault> {
        if !may_begin(self.channel.arrived()) {
            return Err(Fault::Stranger);
        }
        let Some(bytes) = self.channel.take(OPENING_BYTES) else { return Ok(false) };
        let opening = <&[u8; OPENING_BYTES]>::try_from(&bytes[..]).ok().and_then(Opening::decode);
        let opening = opening.filter(|opening| opening.fits(&self.mine)).ok_or(Fault::Stranger)?;
        match self.mine.role {
            Role::Caller if self.is_choosy && opening.job != self.mine.job => return Err(Fault::OtherJob),
            Role::Caller => {
                let (caller, answerer) = (self.mine.encode(), opening.encode());
                self.channel.queue(prove(&self.party.key, Role::Caller, &caller, &answerer));
            }
            Role::Answerer => {
                self.mine.peer = opening.rank;
                if self.echoes {
                    self.mine.purpose = opening.purpose;
                }
                self.channel.queue(self.mine.encode());
            }
        }
        self.theirs = Some(opening);
        Ok(true)
    }

    /// Answerer: checks the caller's proof and sends its own.
    fn receive_proof(&mut self) -> std::result::Result<bool, Fault> {
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
    fn receive_acceptance(&mut self) -> std::result::Result<bool, Fault> {
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
