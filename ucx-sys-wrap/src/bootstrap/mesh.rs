//! A TCP connection between every two ranks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::call::Call;
use super::channel::Channel;
use super::deadline::Deadline;
use super::descriptors;
use super::identity::Identity;
use super::proof::{Opening, Party, Purpose};
use super::rendezvous::Rendezvous;
use super::secrecy::encrypt;
use crate::tcp::Wire;
use crate::ucx::Meeting;
use crate::{Error, Rank, Result};

/// The most unreachable ranks that one rank reports, so that its report fits in a blob.
const MAX_REPORTED: usize = 1024;

/// Open files of a mesh beside its connections: the listener, and what polls the connections.
const BESIDE_CONNECTIONS: usize = 2;

/// Connects every two ranks: one connection to each, none to this rank itself, encrypted if
/// [`Identity::encrypt`] is set, which must be the same on all ranks.
///
/// Rank i calls all ranks below it and is called by those above. Both ends of every connection have proven to
/// hold the job's key and have named themselves. The sockets are non-blocking, with `TCP_NODELAY`, and
/// nothing was read ahead. All ranks must call it; it blocks until all connections are made, at most until
/// the deadline of joining.
///
/// # Errors
/// When any rank lacks a connection, on all ranks: [`Error::MissingRanks`] names the unreachable ranks. As
/// [`Rendezvous::exchange`]. [`Error::Environment`] for encryption without a key.
pub fn connect_mesh(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Vec<Option<Wire>>> {
    if identity.encrypt && identity.key.is_none() && identity.world_size > 1 {
        let expected = "the same key of at least 16 bytes on all ranks, because BREVITY_ENCRYPT=1 makes \
            its secrets of it";
        return Err(Error::Environment { variable: "BREVITY_KEY", found: "not set".into(), expected });
    }
    let party = rendezvous.party.clone();
    let others = identity.world_size.saturating_sub(1) as usize;
    let acceptor =
        descriptors::check(&format!("can't connect to {others} ranks"), others + BESIDE_CONNECTIONS)
            .and_then(|()| rendezvous.own_address(identity))
            .and_then(|address| listen(identity, address, rendezvous));
    let mine = acceptor.as_ref().map_or(&[][..], |(_, addresses)| addresses);
    let mine: Vec<String> = mine.iter().map(SocketAddr::to_string).collect();
    let addresses = rendezvous.exchange(mine.join(",").as_bytes())?;
    let addresses = addresses.iter().zip(Rank::all(identity.world_size));
    let addresses = addresses
        .map(|(text, rank)| parse_addresses(rank, text, rendezvous.deadline))
        .collect::<Result<Vec<_>>>();
    let connected = acceptor.and_then(|(acceptor, _)| {
        let deadline = rendezvous.deadline.before_report();
        let (addresses, channels) = (addresses?, Vec::from_iter((0..=others).map(|_| None)));
        let below = (0..party.rank).zip(addresses);
        let calls = below.map(|(to, at)| Call::new(&party, Purpose::Mesh, to, at)).collect();
        let mesh = Mesh { party: party.clone(), acceptor, calls, channels };
        let channels = mesh.connect(rendezvous, deadline)?;
        if identity.encrypt {
            return encrypt(&party, channels, deadline);
        }
        Ok(channels.into_iter().map(|channel| Some(Wire::from(channel?.into_stream()))).collect())
    });
    agree(identity, rendezvous, connected)
}

struct Mesh {
    party: Arc<Party>,
    acceptor: Acceptor,
    calls: Vec<Call>,
    /// By rank.
    channels: Vec<Option<Channel>>,
}

impl Mesh {
    /// Waits until all connections are made. Fails at once, before the deadline, when a rank leaves.
    fn connect(mut self, rendezvous: &mut Rendezvous, deadline: Deadline) -> Result<Vec<Option<Channel>>> {
        loop {
            self.turn()?;
            let places = Rank::all(self.channels.len() as u32).zip(&self.channels);
            let missing = places.filter(|(rank, place)| rank.0 != self.party.rank && place.is_none());
            let missing: Vec<Rank> = missing.map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                return Ok(self.channels);
            }
            if deadline.passed() {
                return Err(deadline.unreached(missing));
            }
            let patience = self.calls.iter().map(Call::patience).min().unwrap_or(Duration::MAX);
            rendezvous.check()?;
            let called = self.calls.iter_mut().filter_map(Call::channel_mut);
            self.acceptor.wait_with(called.chain(rendezvous.channels()), deadline.remaining().min(patience));
        }
    }

    fn turn(&mut self) -> Result<()> {
        for mut call in std::mem::take(&mut self.calls) {
            match call.turn()? {
                Some((opening, channel)) => self.take(&opening, channel),
                None => self.calls.push(call),
            }
        }
        for (opening, channel) in self.acceptor.turn() {
            if opening.rank > self.party.rank {
                self.take(&opening, channel);
            }
        }
        Ok(())
    }

    /// Keeps a connection; it replaces an earlier one of the same rank, which has given that up.
    fn take(&mut self, opening: &Opening, channel: Channel) {
        let rank = opening.rank;
        match self.channels.get_mut(rank as usize).filter(|_| rank != self.party.rank) {
            Some(place) if self.party.difference(opening).is_none() => *place = Some(channel),
            _ => tracing::warn!(peer = %channel.peer(), rank, "turned away a rank of another job"),
        }
    }
}

/// Listens for the ranks above this one; returns the addresses where they reach it.
fn listen(
    identity: &Identity,
    address: IpAddr,
    rendezvous: &Rendezvous,
) -> Result<(Acceptor, Vec<SocketAddr>)> {
    let failed = |error| Error::system(format!("can't listen on {address}"), error);
    let party = &rendezvous.party;
    let (acceptor, own) = match &identity.published {
        // A port range has this port already, and it is the one that is forwarded if any is.
        Some(published) if identity.rank == Rank(0) && identity.ports.are_limited() => {
            let own = SocketAddr::new(address, published.listen.port());
            (Acceptor::listen(party, Purpose::Mesh, &[own], true).map_err(failed)?, own)
        }
        _ => Acceptor::listen_within(party, Purpose::Mesh, address, identity.ports).map_err(failed)?,
    };
    Ok((acceptor, identity.reached_at(own, &rendezvous.deadline)?))
}

fn parse_addresses(rank: Rank, text: &[u8], deadline: Deadline) -> Result<Vec<SocketAddr>> {
    if text.is_empty() {
        // The rank can't listen, and reports why itself.
        return Err(deadline.unreached(vec![rank]));
    }
    let text = String::from_utf8_lossy(text);
    let addresses = text.split(',').map(|address| address.parse().ok()).collect::<Option<_>>();
    addresses.ok_or_else(|| Error::Protocol { rank, what: format!("the address {text:?}") })
}

/// Reports the ranks that this one could not reach to all ranks: either all ranks have all connections, or
/// all have an error.
fn agree<T>(identity: &Identity, rendezvous: &mut Rendezvous, connected: Result<T>) -> Result<T> {
    let own = [identity.rank];
    let unreached: &[Rank] = match &connected {
        Ok(_) => &[],
        Err(Error::MissingRanks { missing, .. }) => &missing[..missing.len().min(MAX_REPORTED)],
        Err(_) => &own,
    };
    let report: Vec<u8> = unreached.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
    // Ranks with all connections report at once, the others when only the time for the report is left.
    let reports = rendezvous.exchange(&report);
    let connected = connected?;
    let mut missing: Vec<Rank> = Vec::new();
    for report in reports? {
        missing.extend(report.as_chunks().0.iter().map(|word| Rank(u32::from_le_bytes(*word))));
    }
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() { Ok(connected) } else { Err(rendezvous.deadline.unreached(missing)) }
}
