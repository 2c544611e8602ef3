//! Rank 0, as the rendezvous sees it: a connection to every other rank.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::channel::{Channel, farewell, wait_for};
use super::deadline::Deadline;
use super::descriptors;
use super::doors;
use super::identity::Identity;
use super::interface::LOOPBACK;
use super::lobby::Lobby;
use super::proof::{Opening, Party};
use super::terms::disagreement;
use super::wire::{Frame, Subject, Verdict};
use crate::{Error, Result};

/// Once the job has failed, how long it is kept open to tell those who have not called yet.
const LINGER: Duration = Duration::from_secs(2);

/// How long the others get to read the last words.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long rank 0 waits on loopback before it says so, if no other rank comes meanwhile: ranks of one host
/// are started at about the same time.
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(5);

/// Ranks of other hosts don't reach rank 0 there.
const LOOPBACK_ALONE: &str = "rank 0 listens on loopback alone, where no other host can reach it";

/// What listens while the ranks call, besides their connections.
const LISTENERS: usize = 2;

/// The connections to all other ranks; seat 0 stays empty.
pub(super) struct Root {
    seats: Vec<Option<Channel>>,
    master: String,
}

/// Rank 0 while the others are still coming.
struct Assembly {
    lobby: Lobby,
    party: Arc<Party>,
    root: Root,
    deadline: Deadline,
    /// Why the job has failed, and until when the others are still told.
    verdict: Option<(Verdict, Deadline)>,
    /// Ranks that called and differ: they know already.
    differing: BTreeSet<u32>,
    /// Second processes of a rank, until they have heard so.
    turned_away: Vec<Channel>,
    /// Whether ranks may be missing because they are on other hosts.
    is_hidden: bool,
    /// When that is to be said.
    warning: Option<Deadline>,
}

impl Root {
    /// Listens until all other ranks have joined. Gives the deadline back, as early as that of the most
    /// impatient rank.
    pub(super) fn join(
        identity: &Identity,
        party: &Arc<Party>,
        deadline: Deadline,
    ) -> Result<(Self, Deadline)> {
        let others = identity.world_size.saturating_sub(1);
        descriptors::check(&format!("can't be called by {others} ranks"), others as usize + LISTENERS)?;
        let (lobby, master) = doors::listen(identity, party, &deadline)?;
        let seats = (0..identity.world_size).map(|_| None).collect();
        let root = Self { seats, master: master.to_string() };
        let party = party.clone();
        let (verdict, differing, turned_away) = (None, BTreeSet::new(), Vec::new());
        let is_hidden = lobby.is_loopback() && !identity.are_all_here();
        // A launcher that counts the ranks of this host knows that there are others.
        let patience = if identity.local_ranks.is_some() { Duration::ZERO } else { LOOPBACK_PATIENCE };
        let warning = is_hidden.then(|| Deadline::after(patience));
        Assembly { lobby, party, root, deadline, verdict, differing, turned_away, is_hidden, warning }
            .assemble()
    }

    /// Collects everybody's blob and sends all of them to everybody.
    pub(super) fn gather(&mut self, mine: &[u8], mut deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut blobs: Vec<Option<Vec<u8>>> = self.seats.iter().map(|_| None).collect();
        blobs[0] = Some(mine.to_vec());
        loop {
            self.collect(&mut blobs, &mut deadline).map_err(|verdict| self.fail(verdict))?;
            let missing = absent(&blobs);
            if missing.is_empty() {
                break;
            }
            if deadline.passed() {
                return Err(self.fail(Verdict::Missing { ranks: missing, waited: deadline.given() }));
            }
            wait_for(&[], self.seats.iter_mut().flatten(), deadline.remaining());
        }
        let blobs: Vec<Vec<u8>> = blobs.into_iter().flatten().collect();
        let frames: Vec<u8> =
            blobs.iter().flat_map(|blob| Frame::Gathered(blob.clone()).encode().to_vec()).collect();
        self.broadcast(frames.into());
        self.flush(&deadline)?;
        Ok(blobs)
    }

    /// Whether all others are still there; else tells those who are. What they have sent is kept for the next
    /// exchange.
    pub(super) fn check(&mut self) -> Result<()> {
        let max_body = Frame::max_body_bytes(self.seats.len() as u32);
        for (rank, seat) in (0..).zip(&mut self.seats).skip(1) {
            let is_there = seat.as_mut().is_some_and(|channel| {
                channel.pump_frames(max_body);
                !channel.ended()
            });
            if !is_there {
                return Err(self.fail(Verdict::Lost { rank }));
            }
        }
        Ok(())
    }

    pub(super) fn channels(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.seats.iter_mut().flatten()
    }

    /// This host's address on the way to the others: one that another host has used, if anybody came from
    /// outside.
    ///
    /// A rank of this same host may have come over any of its addresses, also one that nobody else can reach.
    pub(super) fn local_address(&self) -> IpAddr {
        let ends = self.seats.iter().flatten().filter_map(|channel| {
            Some((channel.local_address().ok()?.ip(), channel.peer().ip().to_canonical()))
        });
        let ranked = ends.min_by_key(|&(own, peer)| (own.is_loopback(), own == peer));
        ranked.map_or(LOOPBACK, |(own, _)| own)
    }

    /// Takes the blobs that have arrived.
    fn collect(
        &mut self,
        blobs: &mut [Option<Vec<u8>>],
        deadline: &mut Deadline,
    ) -> std::result::Result<(), Verdict> {
        let max_body = Frame::max_body_bytes(self.seats.len() as u32);
        for ((rank, seat), blob) in (0..).zip(&mut self.seats).zip(blobs).skip(1) {
            let channel = seat.as_mut().ok_or(Verdict::Lost { rank })?;
            channel.pump_frames(max_body);
            while blob.is_none() {
                match channel.take_frame(max_body) {
                    Ok(Some(Frame::Blob(remaining, found))) => {
                        *deadline = deadline.no_later_than(remaining);
                        *blob = Some(found);
                    }
                    // The last rank to join was welcome before it had said how long it would wait.
                    Ok(Some(Frame::Patience(_))) => {}
                    Ok(None) => break,
                    Ok(Some(_)) | Err(_) => return Err(Verdict::Lost { rank }),
                }
            }
            if channel.ended() {
                return Err(Verdict::Lost { rank });
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, bytes: Arc<[u8]>) {
        for channel in self.seats.iter_mut().flatten() {
            channel.queue(bytes.clone());
        }
    }

    /// Waits until the system has taken what was queued.
    fn flush(&mut self, deadline: &Deadline) -> Result<()> {
        loop {
            self.seats.iter_mut().flatten().for_each(|channel| channel.pump(0));
            let waiting =
                |seat: &Option<Channel>| seat.as_ref().is_some_and(|seat| !seat.flushed() && !seat.ended());
            let slow: Vec<u32> =
                (0..).zip(&self.seats).filter(|(_, seat)| waiting(seat)).map(|(rank, _)| rank).collect();
            if slow.is_empty() {
                return Ok(());
            }
            if deadline.passed() {
                return Err(self.fail(Verdict::Missing { ranks: slow, waited: deadline.given() }));
            }
            let slow = self.seats.iter_mut().flatten().filter(|channel| !channel.flushed());
            wait_for(&[], slow, deadline.remaining());
        }
    }

    /// Tells everybody why the job has failed, and returns it as an error.
    fn fail(&mut self, verdict: Verdict) -> Error {
        self.broadcast(Frame::Verdict(verdict.clone()).encode());
        farewell(std::mem::take(&mut self.seats).into_iter().flatten().collect(), FAREWELL);
        let error = verdict.into_error(self.master.clone());
        tracing::info!(%error, "the job can't come together");
        error
    }
}

impl Assembly {
    fn assemble(mut self) -> Result<(Root, Deadline)> {
        loop {
            for (opening, channel) in self.lobby.turn() {
                self.seat(&opening, channel);
            }
            self.hear();
            let warning = self.warning.take_if(|warning| warning.passed());
            let missing: Vec<u32> = absent(&self.root.seats).into_iter().skip(1).collect();
            let all_called = missing.iter().all(|rank| self.differing.contains(rank));
            match self.verdict.take() {
                Some((verdict, linger)) if all_called || linger.passed() || self.deadline.passed() => {
                    return Err(self.fail(verdict));
                }
                Some(verdict) => self.verdict = Some(verdict),
                None if missing.is_empty() => return self.welcome(),
                None if self.deadline.passed() => {
                    let waited = self.deadline.given();
                    self.root.master += &self.lobby.hint();
                    if self.is_hidden {
                        self.root.master += &format!(" ({LOOPBACK_ALONE})");
                    }
                    return Err(self.fail(Verdict::Missing { ranks: missing, waited }));
                }
                None if warning.is_some() => {
                    tracing::warn!(master = self.root.master, ?missing, "{LOOPBACK_ALONE}");
                }
                None => {}
            }
            let linger = self.verdict.as_ref().map_or(Duration::MAX, |(_, linger)| linger.remaining());
            let warning = self.warning.as_ref().map_or(Duration::MAX, Deadline::remaining);
            let others = self.root.seats.iter_mut().flatten().chain(&mut self.turned_away);
            self.lobby.wait_with(others, self.deadline.remaining().min(linger).min(warning));
        }
    }

    /// Gives the caller its rank's seat, or turns it away.
    fn seat(&mut self, opening: &Opening, mut channel: Channel) {
        let (rank, peer) = (opening.rank, channel.peer());
        let expected: &Party = &self.party;
        match disagreement(rank, opening.into(), expected.into()) {
            // Somebody else's rank: theirs is the mistake.
            Some(Verdict::Disagreement { subject: Subject::Job, found, .. }) => {
                tracing::warn!(%peer, rank, found, "turned away a rank of another job");
                return;
            }
            Some(verdict) => {
                self.differing.insert(rank);
                self.verdict.get_or_insert((verdict, Deadline::after(LINGER)));
                return;
            }
            None => {}
        }
        let Some(seat) = self.root.seats.get_mut(rank as usize).filter(|_| rank != 0) else {
            tracing::warn!(%peer, rank, "turned away a rank that this world does not have");
            return;
        };
        if let Some(first) = seat {
            first.pump_frames(Frame::max_body_bytes(expected.world_size));
        }
        if let Some(first) = seat.as_ref().filter(|first| !first.ended()) {
            tracing::warn!(%peer, first = %first.peer(), rank, "turned away a second process of a rank");
            let (found, expected) = (format!("{} and {peer}", first.peer()), "one process".into());
            let verdict = Verdict::Disagreement { subject: Subject::Processes, rank, found, expected };
            channel.queue(Frame::Verdict(verdict).encode());
            self.turned_away.push(channel);
            return;
        }
        *seat = Some(channel);
        if let Some(warning) = &mut self.warning {
            *warning = Deadline::after(LOOPBACK_PATIENCE);
        }
    }

    /// Reads how long the joined ranks are willing to wait; frees the seats of those that have gone again.
    fn hear(&mut self) {
        let max_body = Frame::max_body_bytes(self.party.world_size);
        for (rank, seat) in (0..).zip(&mut self.root.seats) {
            let Some(channel) = seat else { continue };
            channel.pump_frames(max_body);
            match channel.take_frame(max_body) {
                Ok(Some(Frame::Patience(remaining))) => {
                    self.deadline = self.deadline.no_later_than(remaining)
                }
                Ok(None) if !channel.ended() => {}
                _ => {
                    tracing::warn!(rank, "a rank has left while the others were joining");
                    *seat = None;
                }
            }
        }
        for channel in &mut self.turned_away {
            channel.pump_frames(max_body);
            channel.discard();
        }
        self.turned_away.retain(|channel| !channel.ended());
    }

    fn welcome(mut self) -> Result<(Root, Deadline)> {
        let joined = Frame::Joined(self.deadline.remaining(), self.root.local_address());
        self.root.broadcast(joined.encode());
        self.root.flush(&self.deadline)?;
        farewell(self.turned_away, FAREWELL.min(self.deadline.remaining()));
        Ok((self.root, self.deadline))
    }

    fn fail(mut self, verdict: Verdict) -> Error {
        let error = self.root.fail(verdict);
        farewell(self.turned_away, FAREWELL);
        error
    }
}

/// The ranks whose place is empty.
fn absent<T>(places: &[Option<T>]) -> Vec<u32> {
    (0..).zip(places).filter(|(_, place)| place.is_none()).map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::Rank;
    use crate::bootstrap::call::Call;
    use crate::bootstrap::proof::Purpose;
    use crate::bootstrap::{Master, Rendezvous};

    #[test]
    fn a_rank_that_leaves_while_the_others_join_may_come_again() {
        let holder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        holder.set_reuse_port(true).unwrap();
        holder.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = holder.local_addr().unwrap().as_socket().unwrap();
        let join = |rank| {
            let mut identity =
                Identity::new(Rank(rank), 3, Master { host: "127.0.0.1".into(), port: address.port() });
            identity.port_reserved = true;
            std::thread::spawn(move || Rendezvous::join(&identity).map(|_| ()))
        };
        let mut ranks = vec![join(0)];
        let wire_version = crate::bootstrap::WIRE_VERSION;
        let party = Arc::new(Party { key: vec![], job: String::new(), rank: 1, world_size: 3, wire_version });
        for _ in 0..3 {
            let mut call = Call::new(&party, Purpose::Rendezvous, 0, vec![address]);
            while call.turn().unwrap().is_none() {
                wait_for(&[], call.channel_mut().into_iter(), Duration::from_millis(10));
            }
        }
        ranks.extend([1, 2].map(join));
        for rank in ranks {
            rank.join().unwrap().unwrap();
        }
    }
}
