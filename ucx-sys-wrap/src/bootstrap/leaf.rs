//! Every rank but 0 in the rendezvous: one connection to rank 0.

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
use super::wire::{Frame, Verdict};
use crate::{Error, Rank, Result};

const ROOT: Rank = Rank(0);

/// The delay between the first calls of rank 0's possible ports: usually it has the first.
const STAGGER: Duration = Duration::from_millis(100);

/// How much longer than its own deadline a rank waits for rank 0's verdict.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct Leaf {
    pub(super) channel: Channel,
    max_body: usize,
    world_size: u32,
    master: String,
    /// Rank 0's address: one on which another host has reached it, if any has.
    root_address: IpAddr,
}

impl Leaf {
    /// Calls rank 0 until all ranks have joined; returns the earliest deadline of all ranks too.
    pub(super) fn join(
        identity: &Identity,
        party: &Arc<Party>,
        deadline: Deadline,
    ) -> Result<(Self, Deadline)> {
        let (opening, channel, master) = reach(identity, party, Purpose::Rendezvous, deadline)?;
        if let Some((subject, found, expected)) = party.difference(&opening) {
            let verdict = Verdict::Disagreement { subject, rank: party.rank, found, expected };
            return Err(verdict.into_error(master));
        }
        let (world_size, max_body) = (identity.world_size, Frame::max_body_bytes(identity.world_size));
        let mut leaf = Self { channel, max_body, world_size, master, root_address: LOOPBACK };
        leaf.channel.queue(Frame::Patience(deadline.told()).encode());
        match leaf.receive(deadline)? {
            Frame::Joined(remaining, address) => {
                leaf.root_address = address;
                Ok((leaf, deadline.no_later_than(remaining)))
            }
            _ => Err(unexpected()),
        }
    }

    /// Sends this rank's blob and waits for the blobs of all ranks.
    pub(super) fn exchange(&mut self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        self.channel.queue(Frame::Blob(deadline.told(), mine.to_vec()).encode());
        let blobs = (0..self.world_size).map(|_| match self.receive(deadline)? {
            Frame::Gathered(blob) => Ok(blob),
            _ => Err(unexpected()),
        });
        blobs.collect()
    }

    /// Checks that rank 0 knows of no lost rank. Between two exchanges it sends nothing but a verdict.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.try_receive()? {
            None => Ok(()),
            Some(_) => Err(unexpected()),
        }
    }

    /// This host's address on the way to the others.
    ///
    /// On the host of rank 0 the connection may use any of its addresses, also one that other hosts can't
    /// reach, so rank 0's address is taken. A port that is forwarded to another host looks the same, but
    /// there rank 0's address is not one of this host.
    pub(super) fn local_address(&self) -> IpAddr {
        let own = self.channel.local_address().map_or(LOOPBACK, |address| address.ip());
        let is_beside_root = own == self.channel.peer().ip().to_canonical() && is_here(self.root_address);
        if is_beside_root { self.root_address } else { own }
    }

    /// Waits for the next frame.
    fn receive(&mut self, deadline: Deadline) -> Result<Frame> {
        let patience = deadline.with_grace(GRACE);
        loop {
            match self.try_receive()? {
                Some(frame) => return Ok(frame),
                None if patience.passed() => return Err(root_missing(deadline, self.master.clone())),
                None => wait_for(&[], [&mut self.channel].into_iter(), patience.remaining()),
            };
        }
    }

    /// The next frame, if it has arrived; a verdict is an error.
    fn try_receive(&mut self) -> Result<Option<Frame>> {
        self.channel.pump_frames(self.max_body);
        match self.channel.take_frame(self.max_body) {
            Ok(Some(Frame::Verdict(verdict))) => Err(verdict.into_error(self.master.clone())),
            Ok(None) if self.channel.ended() => Err(Error::PeerLost { rank: ROOT }),
            Ok(frame) => Ok(frame),
            Err(_) => Err(unexpected()),
        }
    }
}

/// The next frame of a channel; `None` if it ends, if it is malformed, or at the deadline.
pub(super) fn next_frame(channel: &mut Channel, max_body: usize, deadline: &Deadline) -> Option<Frame> {
    loop {
        channel.pump_frames(max_body);
        match channel.take_frame(max_body) {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) if !channel.ended() && !deadline.passed() => {
                wait_for(&[], [&mut *channel].into_iter(), deadline.remaining());
            }
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Calls all places where rank 0, or whoever listens there for this purpose, may be until it has proven
/// itself; returns its place too.
pub(super) fn reach(
    identity: &Identity,
    party: &Arc<Party>,
    purpose: Purpose,
    deadline: Deadline,
) -> Result<(Opening, Channel, String)> {
    let addresses = match &identity.published {
        Some(published) => published.addresses.clone(),
        None => resolve(&identity.master, &deadline)?,
    };
    if identity.key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
        return Err(key_needed());
    }
    let call = |(number, master): (u32, Master)| {
        let at_port = |address: &SocketAddr| match &identity.published {
            Some(_) => *address,
            None => SocketAddr::new(address.ip(), master.port),
        };
        let call = Call::new(party, purpose, ROOT.0, addresses.iter().map(at_port).collect());
        let several = !identity.other_ports.is_empty();
        (if several { call.one_of_several(STAGGER * number) } else { call }, master)
    };
    let mut calls: Vec<(Call, Master)> = (0..).zip(identity.masters()).map(call).collect();
    loop {
        for (call, master) in &mut calls {
            if let Some((opening, channel)) = call.turn()? {
                return Ok((opening, channel, master.to_string()));
            }
        }
        if deadline.passed() {
            if let Some(refusal) = calls.iter_mut().find_map(|(call, _)| call.refusal()) {
                return Err(refusal);
            }
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
    Error::MissingRanks { missing: vec![ROOT], deadline: deadline.given, master }
}

fn unexpected() -> Error {
    Error::Protocol { rank: ROOT, what: "a frame that was not expected while joining".into() }
}
