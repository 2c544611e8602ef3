//! From ranks that have met to ranks that share memory with those of their host.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::environment::Identity;
use super::host::{Card, is_first_of_host, neighbours};
use super::passing::Door;
use super::rendezvous::Rendezvous;
use crate::shm::{Bell, Gift, Neighbourhood, OwnSegment};
use crate::{Error, Rank, Result};

/// How long the ranks of a host wait for each other, which have all just met.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a rank says of its part in a neighbourhood: it has made it, it could not, or it has waited for others in vain.
const MADE: u8 = 1;
const FAILED: u8 = 0;
const WAITED: u8 = 2;

/// Makes the neighbourhood of this rank: `None` when no other rank is on its host, when rank 0 was told not to share
/// memory, or when a rank of this host can't (the first that can't says why, in a warning). Either all ranks of a host have
/// one, or none.
///
/// What is wrong on a host is told here, by one of its ranks.
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
    if let Some(what) = identity.exposed_key.as_ref().filter(|_| is_first_of_host(identity.rank, &cards)) {
        tracing::warn!("{what}");
    }
    let ranks = neighbours(identity.rank, &cards).unwrap_or_default();
    if ranks.is_empty() {
        // A rank that lacks nothing says so, also when it is alone.
        return rendezvous.exchange(&[MADE]).map(|_| None);
    }
    let (verdict, made) = match door.and_then(|door| Ok((Neighbourhood::prepare(identity.rank, ranks.len())?, door))) {
        Ok((prepared, door)) => match meet(identity, rendezvous, &door, &ranks, &cards, prepared) {
            Ok(neighbourhood) => (MADE, Ok(neighbourhood)),
            Err(error) => (WAITED, Err(error)),
        },
        Err(error) => (FAILED, Err(error)),
    };
    let verdicts = rendezvous.exchange(&[verdict])?;
    let says = |rank: &Rank, word: u8| verdicts.get(rank.index()).is_some_and(|said| *said == [word]);
    match made {
        Ok(neighbourhood) if ranks.iter().all(|rank| says(rank, MADE)) => return Ok(Some(Arc::new(neighbourhood))),
        Ok(_) => {}
        Err(error) => {
            let first = [FAILED, WAITED].iter().find_map(|word| ranks.iter().find(|rank| says(rank, *word)));
            if first == Some(&identity.rank) {
                tracing::warn!(%error, "the ranks of this host share no memory");
            }
        }
    }
    Ok(None)
}

/// Gives what was prepared to the other ranks of this host, and takes what they give.
fn meet(
    identity: &Identity,
    rendezvous: &Rendezvous,
    door: &Door,
    ranks: &[Rank],
    cards: &[Card],
    prepared: (OwnSegment, Bell),
) -> Result<Neighbourhood> {
    let others = ranks.iter().filter(|rank| **rank != identity.rank);
    let doors = others.filter_map(|rank| Some((*rank, cards.get(rank.index())?.door)));
    let gift = Gift::of(&prepared.0, &prepared.1)?;
    // Half of what is left, for a neighbour that does not come is no reason not to join.
    let left = rendezvous.deadline().remaining();
    let deadline = Deadline::after(PATIENCE.min(left / 2));
    let gifts = door.exchange(rendezvous.party(), &doors.collect::<Vec<_>>(), &gift, deadline)?;
    Neighbourhood::new(identity.rank, ranks.to_vec(), prepared, gifts)
}
