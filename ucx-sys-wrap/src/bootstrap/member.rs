//! A rank of a rendezvous other than rank 0.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use super::channel::{Channel, Malformed, wait_for};
use super::deadline::Deadline;
use super::handshake::{Handshake, Progress};
use super::proof::{Party, Purpose};
use super::wire::Frame;
use crate::{Error, Rank, Result};

/// Rank 0 may need this much longer to say who is missing.
const VERDICT_PATIENCE: Duration = Duration::from_secs(3);

/// The pause between two attempts to connect: short at first, since ranks start together.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A rank and its connection to rank 0.
pub(super) struct Member {
    party: Party,
    master: String,
    channel: Channel,
    timeout: Duration,
}

impl Member {
    /// Connects to rank 0, as often as it takes, and waits until all ranks have joined.
    pub(super) fn join(
        party: Party,
        master: String,
        addresses: impl Fn() -> Result<Vec<SocketAddr>>,
        timeout: Duration,
    ) -> Result<Self> {
        let deadline = Deadline::after(timeout);
        let absent = || Error::MissingRanks { missing: vec![Rank(0)], deadline: timeout, master: master.clone() };
        let mut pause = FIRST_PAUSE;
        let channel = 'connected: loop {
            for address in addresses()? {
                if let Some(channel) = greet(&party, address, &master, deadline)? {
                    break 'connected channel;
                }
            }
            if deadline.remaining() <= pause {
                return Err(absent());
            }
            sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        };
        let mut member = Self { party, master, channel, timeout };
        member.channel.queue(Frame::Patience(deadline.remaining()).encode());
        match member.next_frame(deadline)? {
            Frame::Joined => Ok(member),
            frame => Err(member.unexpected(&frame)),
        }
    }

    /// Hands in a blob and gets those of all ranks.
    pub(super) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let deadline = Deadline::after(self.timeout);
        self.channel.queue(Frame::Blob(deadline.remaining(), mine.to_vec()).encode());
        (0..self.party.world_size)
            .map(|_| match self.next_frame(deadline)? {
                Frame::Gathered(blob) => Ok(blob),
                frame => Err(self.unexpected(&frame)),
            })
            .collect()
    }

    /// This end's address of the connection to rank 0.
    pub(super) fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.channel.local_address()
    }

    /// The next frame of rank 0; a verdict is the error that it stands for.
    fn next_frame(&mut self, deadline: Deadline) -> Result<Frame> {
        let max_body = Frame::max_body_bytes(self.party.world_size);
        let deadline_with_verdict = Deadline::after(deadline.remaining() + VERDICT_PATIENCE);
        loop {
            self.channel.pump_frames(max_body);
            match self.channel.take_frame(max_body) {
                Ok(Some(Frame::Verdict(verdict))) => return Err(verdict.into_error(self.master.clone())),
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) if self.channel.ended() => return Err(Error::PeerLost { rank: Rank(0) }),
                Ok(None) if deadline_with_verdict.passed() => {
                    let missing = vec![Rank(0)];
                    return Err(Error::MissingRanks { missing, deadline: self.timeout, master: self.master.clone() });
                }
                Ok(None) => {
                    wait_for(None, std::iter::once(&mut self.channel), deadline_with_verdict.remaining());
                }
                Err(Malformed) => {
                    return Err(Error::Protocol { rank: Rank(0), what: "a frame that is none".into() });
                }
            }
        }
    }

    fn unexpected(&self, frame: &Frame) -> Error {
        Error::Protocol { rank: Rank(0), what: format!("a frame out of turn ({:?})", std::mem::discriminant(frame)) }
    }
}

/// One attempt to reach rank 0; nothing when nobody is there or somebody else is.
fn greet(party: &Party, address: SocketAddr, master: &str, deadline: Deadline) -> Result<Option<Channel>> {
    let Ok(channel) = Channel::connect(address) else { return Ok(None) };
    let mut handshake = Handshake::call(channel, party, Purpose::Rendezvous, 0)?;
    loop {
        match handshake.advance() {
            Progress::Proven(opening) if opening.rank == 0 => return Ok(Some(handshake.channel)),
            Progress::Refused => return Err(Error::Unauthenticated { who: format!("this rank ({master} says so)") }),
            Progress::Proven(_) | Progress::Stranger => return Ok(None),
            Progress::Pending if deadline.passed() => return Ok(None),
            Progress::Pending => {
                wait_for(None, std::iter::once(&mut handshake.channel), deadline.remaining());
            }
        }
    }
}
