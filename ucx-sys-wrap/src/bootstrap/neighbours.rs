//! From ranks that have met to ranks that share memory with those of their host.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::environment::Identity;
use super::host::{Card, neighbours};
use super::passing::Door;
use super::rendezvous::Rendezvous;
use crate::shm::{Gift, Neighbourhood};
use crate::{Error, Rank, Result};

/// How long the ranks of a host wait for each other, which have all just met.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the neighbourhood of this rank: `None` when no other rank is on its host, when rank 0 was told not to share
/// memory, or when a rank of this host can't (a warning says why). Either all ranks of a host have one, or none.
///
/// All ranks must call it; it blocks until all have, at most until the deadline of joining.
///
/// # Errors
/// As [`Rendezvous::exchange`]; [`Error::Protocol`] when a rank sends no card.
pub fn share_memory(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Option<Arc<Neighbourhood>>> {
    let mut own = Card::own(identity)?;
    let door = Door::open(&own.door);
    if let Err(error) = &door {
        tracing::warn!(%error, "this rank shares no memory");
        own.forget_host();
    }
    let cards = rendezvous.exchange(&own.encode())?;
    let cards = Rank::all(identity.world_size).zip(&cards).map(|(rank, bytes)| {
        Card::decode(bytes).ok_or_else(|| Error::Protocol { rank, what: "a card of its host that is none".into() })
    });
    let cards = cards.collect::<Result<Vec<Card>>>()?;
    let ranks = neighbours(identity.rank, &cards);
    let made = ranks.as_ref().map(|ranks| door.and_then(|door| make(identity, rendezvous, &door, ranks, &cards)));
    if let Some(Err(error)) = &made {
        tracing::warn!(%error, "the ranks of this host share no memory");
    }
    // A rank that lacks nothing says so, also when it is alone.
    let verdicts = rendezvous.exchange(&[u8::from(!matches!(made, Some(Err(_))))])?;
    let has_all = |ranks: &[Rank]| ranks.iter().all(|rank| verdicts.get(rank.index()).is_some_and(|word| *word == [1]));
    match (ranks, made) {
        (Some(ranks), Some(Ok(neighbourhood))) if has_all(&ranks) => Ok(Some(Arc::new(neighbourhood))),
        _ => Ok(None),
    }
}

fn make(
    identity: &Identity,
    rendezvous: &Rendezvous,
    door: &Door,
    ranks: &[Rank],
    cards: &[Card],
) -> Result<Neighbourhood> {
    let prepared = Neighbourhood::prepare(identity.rank, ranks.len())?;
    let others = ranks.iter().filter(|rank| **rank != identity.rank);
    let doors = others.filter_map(|rank| Some((*rank, cards.get(rank.index())?.door)));
    let gift = Gift::of(&prepared.0, &prepared.1)?;
    // Half of what is left, for a neighbour that does not come is no reason not to join.
    let left = rendezvous.deadline().remaining();
    let deadline = Deadline::after(PATIENCE.min(left / 2));
    let gifts = door.exchange(rendezvous.party(), &doors.collect::<Vec<_>>(), &gift, deadline)?;
    Neighbourhood::new(identity.rank, ranks.to_vec(), prepared, gifts)
}
