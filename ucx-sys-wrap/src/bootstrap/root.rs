//! Rank 0 in the rendezvous: a connection to every other rank.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::channel::{Channel, close, wait_for};
use super::deadline::{Deadline, is_given_up};
use super::descriptors;
use super::identity::Identity;
use super::interface::LOOPBACK;
use super::proof::{Opening, Party, Purpose};
use super::root_listener;
use super::wire::{Frame, Subject, Verdict};
use crate::{Error, Result};

/// How long a failed job goes on listening, to tell the ranks that have not called yet.
const LINGER: Duration = Duration::from_secs(2);

/// How long the others have to read the last frames.
const CLOSING: Duration = Duration::from_secs(1);

/// How long rank 0 waits on loopback before it warns, if no other rank comes meanwhile: ranks of one host
/// are started at about the same time.
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(5);

const LOOPBACK_ALONE: &str = "rank 0 listens on loopback alone, where no other host can reach it";

/// Open files beside the connections while the ranks call.
const LISTENERS: usize = 2;

/// The connections to all other ranks; seat 0 stays empty.
pub(super) struct Root {
    seats: Vec<Option<Channel>>,
    max_body: usize,
    master: String,
}

struct Assembly {
    acceptor: Acceptor,
    party: Arc<Party>,
    root: Root,
    deadline: Deadline,
    /// Why the job has failed, and the end of lingering.
    verdict: Option<(Verdict, Deadline)>,
    /// Ranks that called and differ: they know already.
    differing: BTreeSet<u32>,
    /// Ranks that had joined and have left.
    left: BTreeSet<u32>,
    /// Second processes of a rank, until they have read their verdict.
    turned_away: Vec<Channel>,
    /// Whether ranks may be missing because they are on other hosts.
    is_hidden: bool,
    /// When to warn of that.
    warning: Option<Deadline>,
}

impl Root {
    /// Listens until all other ranks have joined; returns the earliest deadline of all ranks too.
    pub(super) fn join(
        identity: &Identity,
        party: &Arc<Party>,
        deadline: Deadline,
    ) -> Result<(Self, Deadline)> {
        let others = identity.world_size.saturating_sub(1);
        descriptors::check(&format!("can't be called by {others} ranks"), others as usize + LISTENERS)?;
        let (acceptor, master) = root_listener::listen(identity, party, Purpose::Rendezvous, &deadline)?;
        let seats = (0..identity.world_size).map(|_| None).collect();
        let max_body = Frame::max_body_bytes(identity.world_size);
        let root = Self { seats, max_body, master: master.to_string() };
        let party = party.clone();
        let (verdict, differing, left, turned_away) = Default::default();
        let is_hidden = acceptor.is_loopback() && !identity.are_all_here();
        // With a launcher that counts the ranks of this host, the others are known to be elsewhere.
        let patience = if identity.local_ranks.is_some() { Duration::ZERO } else { LOOPBACK_PATIENCE };
        let warning = is_hidden.then(|| Deadline::after(patience));
        Assembly {
            acceptor,
            party,
            root,
            deadline,
            verdict,
            differing,
            left,
            turned_away,
            is_hidden,
            warning,
        }
        .assemble()
    }

    /// Collects the blobs of all ranks and sends all of them to every rank.
    pub(super) fn gather(&mut self, mine: &[u8], mut deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut blobs: Vec<Option<Vec<u8>>> = self.seats.iter().map(|_| None).collect();
        blobs[0] = Some(mine.to_vec());
        loop {
            self.collect(&mut blobs, &mut deadline).map_err(|verdict| self.fail(verdict))?;
            let missing = absent(&blobs);
            if missing.is_empty() {
                break;
            }
            self.wait(missing, |_| true, &deadline)?;
        }
        let blobs: Vec<Vec<u8>> = blobs.into_iter().flatten().collect();
        let frames: Vec<u8> =
            blobs.iter().flat_map(|blob| Frame::Gathered(blob.clone()).encode().to_vec()).collect();
        self.broadcast(frames.into(), &deadline)?;
        Ok(blobs)
    }

    /// Checks that all others are still there, and tells the rest if one is not. Keeps what has arrived for
    /// the next exchange.
    pub(super) fn check(&mut self) -> Result<()> {
        for (rank, seat) in (0..).zip(&mut self.seats).skip(1) {
            let is_there = seat.as_mut().is_some_and(|channel| {
                channel.pump_frames(self.max_body);
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

    /// This host's address on the way to the others: one that another host has used, if any has.
    ///
    /// A rank of this host may have used an address that other hosts can't reach.
    pub(super) fn local_address(&self) -> IpAddr {
        let ends = self.seats.iter().flatten().filter_map(|channel| {
            Some((channel.local_address().ok()?.ip(), channel.peer().ip().to_canonical()))
        });
        let ranked = ends.min_by_key(|&(own, peer)| (own.is_loopback(), own == peer));
        ranked.map_or(LOOPBACK, |(own, _)| own)
    }

    fn collect(
        &mut self,
        blobs: &mut [Option<Vec<u8>>],
        deadline: &mut Deadline,
    ) -> std::result::Result<(), Verdict> {
        for ((rank, seat), blob) in (0..).zip(&mut self.seats).zip(blobs).skip(1) {
            let channel = seat.as_mut().ok_or(Verdict::Lost { rank })?;
            channel.pump_frames(self.max_body);
            while blob.is_none() {
                match channel.take_frame(self.max_body) {
                    Ok(Some(Frame::Blob(remaining, found))) => {
                        *deadline = deadline.no_later_than(remaining);
                        *blob = Some(found);
                    }
                    // The last rank to join may have been seated before its patience arrived.
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

    /// Sends `bytes` to all; waits until the system has taken them.
    fn broadcast(&mut self, bytes: Arc<[u8]>, deadline: &Deadline) -> Result<()> {
        self.queue(bytes);
        loop {
            self.channels().for_each(|channel| channel.pump(0));
            let waiting =
                |seat: &Option<Channel>| seat.as_ref().is_some_and(|seat| !seat.flushed() && !seat.ended());
            let slow: Vec<u32> =
                (0..).zip(&self.seats).filter(|(_, seat)| waiting(seat)).map(|(rank, _)| rank).collect();
            if slow.is_empty() {
                return Ok(());
            }
            self.wait(slow, |channel| !channel.flushed(), deadline)?;
        }
    }

    fn queue(&mut self, bytes: Arc<[u8]>) {
        self.channels().for_each(|channel| channel.queue(bytes.clone()));
    }

    /// Sleeps until one of these channels is ready; at the deadline it fails, with `ranks` missing.
    fn wait(&mut self, ranks: Vec<u32>, is_awaited: fn(&Channel) -> bool, deadline: &Deadline) -> Result<()> {
        if deadline.passed() {
            return Err(self.fail(Verdict::Missing { ranks, waited: deadline.given }));
        }
        wait_for(&[], self.channels().filter(|channel| is_awaited(channel)), deadline.remaining());
        Ok(())
    }

    /// Tells all ranks why the job has failed, and returns it as an error. A join that was given up tells
    /// nothing: no rank is to blame.
    fn fail(&mut self, verdict: Verdict) -> Error {
        let seats = std::mem::take(&mut self.seats).into_iter().flatten();
        if !is_given_up() {
            let mut seats: Vec<Channel> = seats.collect();
            let told = Frame::Verdict(verdict.clone()).encode();
            seats.iter_mut().for_each(|channel| channel.queue(told.clone()));
            close(seats, CLOSING);
        }
        let error = verdict.into_error(self.master.clone());
        tracing::info!(%error, "the job can't come together");
        error
    }
}

impl Assembly {
    fn assemble(mut self) -> Result<(Root, Deadline)> {
        loop {
            for (opening, channel) in self.acceptor.turn() {
                self.seat(&opening, channel);
            }
            self.receive();
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
                    let waited = self.deadline.given;
                    self.root.master += &self.acceptor.hint();
                    self.root.master += &left_while_joining(&self.left, &missing);
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
            self.acceptor.wait_with(others, self.deadline.remaining().min(linger).min(warning));
        }
    }

    /// Seats the caller, or turns it away.
    fn seat(&mut self, opening: &Opening, mut channel: Channel) {
        let (rank, peer) = (opening.rank, channel.peer());
        match self.party.difference(opening) {
            // A rank of another job is no failure of this one.
            Some((Subject::Job, _, found)) => {
                tracing::warn!(%peer, rank, found, "turned away a rank of another job");
                return;
            }
            Some((subject, expected, found)) => {
                self.differing.insert(rank);
                let verdict = Verdict::Disagreement { subject, rank, found, expected };
                self.verdict.get_or_insert((verdict, Deadline::after(LINGER)));
                return;
            }
            None => {}
        }
        if opening.purpose == Purpose::Return {
            // It knows by the answer that the job has not begun, and calls again like the others.
            return;
        }
        let Some(seat) = self.root.seats.get_mut(rank as usize).filter(|_| rank != 0) else {
            tracing::warn!(%peer, rank, "turned away a rank that this world does not have");
            return;
        };
        if let Some(first) = seat {
            first.pump_frames(self.root.max_body);
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

    /// Reads the patience of the joined ranks; frees the seats of ranks that have left.
    fn receive(&mut self) {
        let max_body = self.root.max_body;
        for (rank, seat) in (0..).zip(&mut self.root.seats) {
            let Some(channel) = seat else { continue };
            channel.pump_frames(max_body);
            match channel.take_frame(max_body) {
                Ok(Some(Frame::Patience(remaining))) => {
                    self.deadline = self.deadline.no_later_than(remaining)
                }
                Ok(None) if !channel.ended() => {}
                _ => {
                    let waits = self.deadline.remaining().as_secs_f64();
                    tracing::warn!(
                        rank,
                        "a rank has left while the others were joining: waiting {waits:.0} s for it to \
                         come again"
                    );
                    self.left.insert(rank);
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
        let joined = Frame::Joined(self.deadline.told(), self.root.local_address());
        self.root.broadcast(joined.encode(), &self.deadline)?;
        close(self.turned_away, CLOSING.min(self.deadline.remaining()));
        Ok((self.root, self.deadline))
    }

    fn fail(mut self, verdict: Verdict) -> Error {
        let error = self.root.fail(verdict);
        close(self.turned_away, CLOSING);
        error
    }
}

/// Says which of the missing ranks had been there.
pub(super) fn left_while_joining(left: &BTreeSet<u32>, missing: &[u32]) -> String {
    let left: Vec<String> = missing.iter().filter(|rank| left.contains(rank)).map(u32::to_string).collect();
    if left.is_empty() { String::new() } else { format!(" (joined and left again: {})", left.join(", ")) }
}

fn absent<T>(places: &[Option<T>]) -> Vec<u32> {
    (0..).zip(places).filter(|(_, place)| place.is_none()).map(|(rank, _)| rank).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::Rank;
    use crate::bootstrap::call::Call;
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
    /// Whoever reads that a rank is missing looks for one that never came, unless told.
    #[test]
    fn a_missing_rank_that_had_joined_is_told_from_others() {
        let left = [2, 4].into();
        assert_eq!(left_while_joining(&left, &[1, 2, 4]), " (joined and left again: 2, 4)");
        assert_eq!(left_while_joining(&left, &[1]), "");
    }
}
