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
use super::root::left_while_joining;
use super::wire::{Frame, Verdict};
use crate::{Error, Rank, Result};

const ROOT: Rank = Rank(0);

/// The delay between the first calls of rank 0's possible ports: usually it has the first.
const STAGGER: Duration = Duration::from_millis(100);

/// The pause of a rank that has lost rank 0.
const PAUSE: Duration = Duration::from_millis(50);

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
    /// Calls rank 0 until all ranks have joined, also if it goes meanwhile and comes again; returns the
    /// earliest deadline of all ranks too.
    pub(super) fn join(
        identity: &Identity,
        party: &Arc<Party>,
        deadline: Deadline,
    ) -> Result<(Self, Deadline)> {
        let mut has_left = false;
        loop {
            match Self::join_once(identity, party, deadline) {
                Err(Error::PeerLost { rank: ROOT }) if !deadline.passed() => {
                    if !std::mem::replace(&mut has_left, true) {
                        tracing::warn!(
                            "rank 0 has left while the others were joining: waiting {:.0} s for it to come \
                             again",
                            deadline.remaining().as_secs_f64()
                        );
                    }
                    std::thread::sleep(PAUSE.min(deadline.remaining()));
                }
                Err(Error::MissingRanks { missing, deadline, master }) if has_left => {
                    let numbers: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
                    let left = left_while_joining(&[ROOT.0].into(), &numbers);
                    return Err(Error::MissingRanks { missing, deadline, master: master + &left });
                }
                joined => return joined,
            }
        }
    }

    fn join_once(identity: &Identity, party: &Arc<Party>, deadline: Deadline) -> Result<(Self, Deadline)> {
        let mut search = Search::new(&[identity], party, Purpose::Rendezvous, &deadline)?;
        let Some((opening, channel, master)) = search.until(&deadline)? else {
            return Err(search.missing(&deadline));
        };
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

/// Calls of all places where rank 0, or whoever listens there for this purpose, may be.
pub(super) struct Search {
    calls: Vec<(Call, Master)>,
    /// The places, for an error.
    places: String,
}

impl Search {
    /// Begins to call the masters of these identities of one job. Asks for their addresses until `deadline`.
    pub(super) fn new(
        identities: &[&Identity],
        party: &Arc<Party>,
        purpose: Purpose,
        deadline: &Deadline,
    ) -> Result<Self> {
        let (mut places, mut calls) = (Vec::new(), Vec::new());
        let several = identities.len() > 1 || identities.iter().any(|one| !one.other_ports.is_empty());
        for identity in identities {
            let addresses = match &identity.published {
                Some(published) => published.addresses.clone(),
                None => resolve(&identity.master, deadline)?,
            };
            if identity.key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
                return Err(key_needed());
            }
            for (number, master) in (0..).zip(identity.masters()) {
                let at_port = |address: &SocketAddr| match &identity.published {
                    Some(_) => *address,
                    None => SocketAddr::new(address.ip(), master.port),
                };
                let call = Call::new(party, purpose, ROOT.0, addresses.iter().map(at_port).collect());
                calls.push((if several { call.one_of_several(STAGGER * number) } else { call }, master));
            }
            let last = identity.other_ports.last();
            let others = last.map_or_else(String::new, |last| format!(" or another port up to {last}"));
            places.push(format!("{}{others}", identity.master));
        }
        Ok(Self { calls, places: places.join(" or ") })
    }

    /// Calls until one has proven itself, or until then; returns its place too.
    pub(super) fn until(&mut self, deadline: &Deadline) -> Result<Option<(Opening, Channel, String)>> {
        loop {
            for (call, master) in &mut self.calls {
                if let Some((opening, channel)) = call.turn()? {
                    return Ok(Some((opening, channel, master.to_string())));
                }
            }
            if deadline.passed() {
                return Ok(None);
            }
            let longest = self.calls.iter().map(|(call, _)| call.patience()).min().unwrap_or_default();
            let channels = self.calls.iter_mut().filter_map(|(call, _)| call.channel_mut());
            wait_for(&[], channels, longest.min(deadline.remaining()));
        }
    }

    /// The error if nobody was found by the deadline.
    pub(super) fn missing(mut self, deadline: &Deadline) -> Error {
        if let Some(refusal) = self.calls.iter_mut().find_map(|(call, _)| call.refusal()) {
            return refusal;
        }
        let hint = self.calls.iter().map(|(call, _)| call.hint()).find(|hint| !hint.is_empty());
        root_missing(*deadline, self.places + hint.unwrap_or_default())
    }
}

fn root_missing(deadline: Deadline, master: String) -> Error {
    Error::MissingRanks { missing: vec![ROOT], deadline: deadline.given, master }
}

fn unexpected() -> Error {
    Error::Protocol { rank: ROOT, what: "a frame that was not expected while joining".into() }
}
