//! The encryption handshake of every connection of a mesh, after the proof: see [`crate::noise`].

use std::sync::Arc;

use super::channel::{Channel, wait_for};
use super::deadline::Deadline;
use super::proof::Party;
use crate::noise::{Forged, GREETING_BYTES, Handshake, Session, Terms};
use crate::tcp::Wire;
use crate::{Error, Rank, Result};

struct Greeting {
    peer: u32,
    channel: Channel,
    /// `None` once the other end's message has arrived.
    handshake: Option<Handshake>,
    session: Option<Session>,
}

/// Makes the handshake over every channel; both lists are by rank.
///
/// # Errors
/// [`Error::Unauthenticated`] when a rank's message is not valid under the job's key; [`Error::PeerLost`]
/// when a rank has gone; [`Error::MissingRanks`] names those without an answer at the deadline.
pub(super) fn encrypt(
    party: &Arc<Party>,
    channels: Vec<Option<Channel>>,
    deadline: Deadline,
) -> Result<Vec<Option<Wire>>> {
    let mut wires: Vec<Option<Wire>> = channels.iter().map(|_| None).collect();
    let numbered = (0..).zip(channels).filter_map(|(peer, channel)| Some((peer, channel?)));
    let mut greetings =
        numbered.map(|(peer, channel)| Greeting::begin(party, peer, channel)).collect::<Result<Vec<_>>>()?;
    loop {
        greetings.iter_mut().try_for_each(Greeting::advance)?;
        let waiting = greetings.iter().filter(|greeting| !greeting.is_done());
        let missing: Vec<Rank> = waiting.map(|greeting| Rank(greeting.peer)).collect();
        if missing.is_empty() {
            break;
        }
        if deadline.passed() {
            return Err(deadline.unreached(missing));
        }
        wait_for(&[], greetings.iter_mut().map(|greeting| &mut greeting.channel), deadline.remaining());
    }
    for greeting in greetings {
        let Greeting { peer, channel, session, .. } = greeting;
        wires[peer as usize] = session.map(|session| Wire::encrypted(channel.into_stream(), session));
    }
    Ok(wires)
}

impl Greeting {
    fn begin(party: &Party, peer: u32, mut channel: Channel) -> Result<Self> {
        // The higher rank has called.
        let (caller, answerer) = (party.rank.max(peer), party.rank.min(peer));
        let terms = Terms { wire_version: party.wire_version, job: &party.job, caller, answerer };
        let handshake = if party.rank == caller {
            let (handshake, greeting) = Handshake::call(&party.key, terms)?;
            channel.queue(greeting);
            handshake
        } else {
            Handshake::await_call(&party.key, terms)?
        };
        Ok(Self { peer, channel, handshake: Some(handshake), session: None })
    }

    /// Makes as much progress as is possible without blocking.
    fn advance(&mut self) -> Result<()> {
        self.channel.pump(if self.handshake.is_some() { GREETING_BYTES } else { 0 });
        if self.handshake.is_some()
            && let Some(greeting) = self.channel.take(GREETING_BYTES)
            && let Some(handshake) = self.handshake.take()
        {
            let heard = <[u8; GREETING_BYTES]>::try_from(greeting).map_err(|_| Forged);
            let (session, answer) =
                heard.and_then(|greeting| handshake.hear(&greeting)).map_err(|Forged| {
                    Error::Unauthenticated { who: format!("rank {} at {}", self.peer, self.channel.peer()) }
                })?;
            self.session = Some(session);
            if let Some(answer) = answer {
                self.channel.queue(answer);
                self.channel.pump(0);
            }
        }
        if self.channel.ended() && !self.is_done() {
            return Err(Error::PeerLost { rank: Rank(self.peer) });
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.session.is_some() && self.channel.flushed()
    }
}
