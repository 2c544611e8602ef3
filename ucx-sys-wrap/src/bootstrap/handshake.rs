//! The first bytes of a connection: both ends prove that they hold the job's key.

use super::channel::Channel;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, may_begin, prove, verify};
use crate::Result;

const REFUSED: u8 = 0;
const ACCEPTED: u8 = 1;

/// One end of a connection that is proving itself.
pub(super) struct Handshake {
    pub(super) channel: Channel,
    role: Role,
    own: Opening,
    key: Vec<u8>,
    stage: Stage,
}

enum Stage {
    /// Waits for the other end's opening.
    Opening,
    /// Waits for the other end's proof.
    Proof(Opening),
}

/// How far a handshake has come.
pub(super) enum Progress {
    /// It needs more bytes.
    Pending,
    /// The other end has proven to be who this opening says.
    Proven(Opening),
    /// The other end says that this one does not hold its key.
    Refused,
    /// The other end is a stranger, or has gone.
    Stranger,
}

impl Handshake {
    /// Begins as the end that connects.
    pub(super) fn call(mut channel: Channel, party: &Party, purpose: Purpose, peer: u32) -> Result<Self> {
        let own = party.opening(purpose, Role::Caller, peer)?;
        channel.queue(own.encode().to_vec());
        Ok(Self { channel, role: Role::Caller, own, key: party.key.clone(), stage: Stage::Opening })
    }

    /// Begins as the end that has accepted.
    pub(super) fn answer(channel: Channel, party: &Party, purpose: Purpose) -> Result<Self> {
        let own = party.opening(purpose, Role::Answerer, u32::MAX)?;
        Ok(Self { channel, role: Role::Answerer, own, key: party.key.clone(), stage: Stage::Opening })
    }

    /// Goes as far as the bytes that have arrived allow.
    pub(super) fn advance(&mut self) -> Progress {
        loop {
            self.channel.pump(self.wanted());
            let before = matches!(self.stage, Stage::Opening);
            let progress = match &self.stage {
                Stage::Opening => self.take_opening(),
                Stage::Proof(_) => self.take_proof(),
            };
            match progress {
                Progress::Pending if before && matches!(self.stage, Stage::Proof(_)) => {}
                Progress::Pending if self.channel.ended() => return Progress::Stranger,
                progress => return progress,
            }
        }
    }

    fn wanted(&self) -> usize {
        match (&self.stage, self.role) {
            (Stage::Opening, _) => OPENING_BYTES,
            (Stage::Proof(_), Role::Answerer) => PROOF_BYTES,
            (Stage::Proof(_), Role::Caller) => 1 + PROOF_BYTES,
        }
    }

    fn take_opening(&mut self) -> Progress {
        if !may_begin(self.channel.arrived()) {
            return Progress::Stranger;
        }
        let Some(bytes) = self.channel.take(OPENING_BYTES) else { return Progress::Pending };
        let opening = <&[u8; OPENING_BYTES]>::try_from(&bytes[..]).ok().and_then(Opening::decode);
        let Some(opening) = opening.filter(|other| self.fits(other)) else { return Progress::Stranger };
        match self.role {
            Role::Answerer => self.channel.queue(self.own.encode().to_vec()),
            Role::Caller => {
                let proof = prove(&self.key, Role::Caller, &self.own.encode(), &bytes);
                self.channel.queue(proof.to_vec());
            }
        }
        self.stage = Stage::Proof(opening);
        Progress::Pending
    }

    fn fits(&self, other: &Opening) -> bool {
        other.role != self.role && other.purpose == self.own.purpose
    }

    fn take_proof(&mut self) -> Progress {
        let Stage::Proof(other) = &self.stage else { return Progress::Pending };
        let other = other.clone();
        match self.role {
            Role::Answerer => {
                let Some(found) = self.channel.take(PROOF_BYTES) else { return Progress::Pending };
                self.judge(other, &found)
            }
            Role::Caller => {
                if self.channel.arrived().first() == Some(&REFUSED) {
                    return Progress::Refused;
                }
                let Some(found) = self.channel.take(1 + PROOF_BYTES) else { return Progress::Pending };
                let (caller, answerer) = (self.own.encode(), other.encode());
                let proven = found[0] == ACCEPTED && verify(&self.key, Role::Answerer, &caller, &answerer, &found[1..]);
                if proven { Progress::Proven(other) } else { Progress::Stranger }
            }
        }
    }

    /// Answers the caller's proof, with a proof of one's own if it is good.
    fn judge(&mut self, other: Opening, found: &[u8]) -> Progress {
        let (caller, answerer) = (other.encode(), self.own.encode());
        if !verify(&self.key, Role::Caller, &caller, &answerer, found) {
            self.channel.queue(vec![REFUSED]);
            self.channel.pump(0);
            return Progress::Stranger;
        }
        let proof = prove(&self.key, Role::Answerer, &caller, &answerer);
        self.channel.queue([&[ACCEPTED][..], &proof].concat());
        self.channel.pump(0);
        Progress::Proven(other)
    }
}
