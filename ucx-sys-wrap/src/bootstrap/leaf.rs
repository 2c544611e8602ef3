//! Every rank but 0, as the rendezvous sees it: one connection to rank 0.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, resolve};
use super::channel::{Channel, wait_for};
use super::deadline::Deadline;
use super::identity::{Identity, key_needed};
use super::interface::{LOOPBACK, is_here};
use super::master::Master;
use super::proof::{Opening, Party, Purpose};
use super::terms::disagreement;
use super::wire::Frame;
use crate::{Error, Rank, Result};

const ROOT: Rank = Rank(0);

/// Where rank 0 may have one of several ports, each is first called so much later than the one before it:
/// most often the first is the one.
const STAGGER: Duration = Duration::from_millis(100);

/// The connection to rank 0.
pub(super) struct Leaf {
    channel: Channel,
    world_size: u32,
    master: String,
    /// Rank 0's address: one on which another host has reached it, if any has.
    root_address: IpAddr,
}

impl Leaf {
    /// Calls rank 0 until it answers and has heard from everybody.
    ///
    /// Gives the deadline back, as early as that of the most impatient rank.
    pub(super) fn join(
        identity: &Identity,
        party: &Arc<Party>,
        deadline: Deadline,
        grace: Duration,
    ) -> Result<(Self, Deadline)> {
        let (opening, channel, master) = reach_root(identity, party, deadline)?;
        if let Some(verdict) = disagreement(party.rank, (&**party).into(), (&opening).into()) {
            return Err(verdict.into_error(master));
        }
        let mut leaf = Self { channel, world_size: identity.world_size, master, root_address: LOOPBACK };
        leaf.send(&Frame::Patience(deadline.remaining()));
        match leaf.hear(deadline, grace)? {
            Frame::Joined(remaining, address) => {
                leaf.root_address = address;
                Ok((leaf, deadline.no_later_than(remaining)))
            }
            _ => Err(unexpected()),
        }
    }

    /// Sends this rank's blob and waits for everybody's.
    pub(super) fn exchange(
        &mut self,
        mine: &[u8],
        deadline: Deadline,
        grace: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        self.send(&Frame::Blob(deadline.remaining(), mine.to_vec()));
        let mut blobs = Vec::new();
        for _ in 0..self.world_size {
            match self.hear(deadline, grace)? {
                Frame::Gathered(blob) => blobs.push(blob),
                _ => return Err(unexpected()),
            }
        }
        Ok(blobs)
    }

    /// Whether the others are still there, as far as rank 0 knows. It says nothing between two exchanges, but
    /// a verdict.
    pub(super) fn check(&mut self) -> Result<()> {
        let max_body = Frame::max_body_bytes(self.world_size);
        self.channel.pump_frames(max_body);
        match self.channel.take_frame(max_body) {
            Ok(Some(Frame::Verdict(verdict))) => Err(verdict.into_error(self.master.clone())),
            Ok(None) if self.channel.ended() => Err(Error::PeerLost { rank: ROOT }),
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(unexpected()),
        }
    }

    pub(super) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// This host's address on the way to the others.
    ///
    /// On the host of rank 0 any of its addresses leads there, also one that nobody else can reach: then it
    /// is rank 0's. A port that is forwarded to another host looks the same, but there rank 0's address is
    /// none of this host's.
    pub(super) fn local_address(&self) -> IpAddr {
        let own = self.channel.local_address().map_or(LOOPBACK, |address| address.ip());
        let is_beside_root = own == self.channel.peer().ip().to_canonical() && is_here(self.root_address);
        if is_beside_root { self.root_address } else { own }
    }

    fn send(&mut self, frame: &Frame) {
        self.channel.queue(frame.encode());
    }

    /// The next frame of rank 0; its verdict as an error.
    fn hear(&mut self, deadline: Deadline, grace: Duration) -> Result<Frame> {
        let max_body = Frame::max_body_bytes(self.world_size);
        let patience = deadline.with_grace(grace);
        loop {
            self.channel.pump_frames(max_body);
            match self.channel.take_frame(max_body) {
                Ok(Some(Frame::Verdict(verdict))) => return Err(verdict.into_error(self.master.clone())),
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) if self.channel.ended() => return Err(Error::PeerLost { rank: ROOT }),
                Ok(None) if patience.passed() => return Err(root_missing(deadline, self.master.clone())),
                Ok(None) => {}
                Err(_) => return Err(unexpected()),
            }
            wait_for(&[], [&mut self.channel].into_iter(), patience.remaining());
        }
    }
}

/// Calls rank 0, wherever it may wait, until it has answered and proven itself; says where it was.
fn reach_root(
    identity: &Identity,
    party: &Arc<Party>,
    deadline: Deadline,
) -> Result<(Opening, Channel, String)> {
    let addresses = match &identity.published {
        Some(published) => published.addresses.clone(),
        None => resolve(&identity.master, &deadline)?,
    };
    if identity.key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(key_needed());
    }
    let mut calls: Vec<(Call, Master)> = Vec::new();
    for master in identity.masters() {
        let at_port = |address: &SocketAddr| match &identity.published {
            Some(_) => *address,
            None => SocketAddr::new(address.ip(), master.port),
        };
        let addresses = addresses.iter().map(at_port).collect();
        let call = Call::new(party, Purpose::Rendezvous, ROOT.0, addresses);
        let several = !identity.other_ports.is_empty();
        let call = if several { call.one_of_several(STAGGER * calls.len() as u32) } else { call };
        calls.push((call, master));
    }
    loop {
        for (call, master) in &mut calls {
            if let Some((opening, channel)) = call.turn()? {
                return Ok((opening, channel, master.to_string()));
            }
        }
        if deadline.passed() {
            let hint = calls.iter().map(|(call, _)| call.hint()).find(|hint| !hint.is_empty());
            let last = identity.other_ports.last();
            let others = last.map_or_else(String::new, |last| format!(" or another port up to {last}"));
            let hint = hint.unwrap_or_default();
            return Err(root_missing(deadline, format!("{}{others}{hint}", identity.master)));
        }
        let longest = calls.iter().map(|(call, _)| call.patience()).min().unwrap_or_default();
        let channels = calls.iter_mut().filter_map(|(call, _)| call.channel_mut());
        wait_for(&[], channels, longest.min(deadline.remaining()));
    }
}

fn root_missing(deadline: Deadline, master: String) -> Error {
    Error::MissingRanks { missing: vec![ROOT], deadline: deadline.given(), master }
}

fn unexpected() -> Error {
    Error::Protocol { rank: ROOT, what: "a frame that was not expected while joining".into() }
}
