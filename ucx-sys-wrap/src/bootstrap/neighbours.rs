//! From ranks that have met to ranks that share memory with those of their host, and see whether they live.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::descriptors;
use super::host::{Card, is_crowded, neighbours, processes, tells_finding};
use super::identity::Identity;
use super::passing::Door;
use super::rendezvous::Rendezvous;
use crate::process::PeerProcess;
use crate::shm::{Neighbourhood, Prepared};
use crate::{Error, Rank, Result};

/// How long the ranks of a host wait for each other, which have all just met.
const PATIENCE: Duration = Duration::from_secs(20);

/// Open files that sharing memory takes: of each neighbour, the block for it, its segment, its block and its
/// bell, and while it calls, its connection twice; of this rank, its segment, its bell's two ends, and a
/// call.
const OF_NEIGHBOUR: usize = 6;
const OF_NEIGHBOURHOOD: usize = 4;

/// What a rank says of its part in a neighbourhood: it is ready or has it, or else has to do without.
const YES: u8 = 1;
const NO: u8 = 0;

/// Makes the neighbourhood of this rank: `None` when no other rank is on its host, when rank 0 was told not
/// to share memory, or when a rank of this host can't (the first that can't says why, in a warning). Either
/// all ranks of a host have one, or none.
///
/// What is wrong on a host is told here, by one of its ranks.
///
/// All ranks must call it; it blocks until all have, at most until the deadline of joining.
///
/// # Errors
/// As [`Rendezvous::exchange`]; [`Error::Protocol`] when a rank sends no card.
pub fn share_memory(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Option<Arc<Neighbourhood>>> {
    meet_host(identity, rendezvous).map(|host| host.neighbourhood)
}

/// What a rank has of the other ranks of its host.
pub(super) struct Host {
    pub(super) neighbourhood: Option<Arc<Neighbourhood>>,
    /// By rank, of those that can be seen.
    pub(super) processes: Vec<Option<PeerProcess>>,
    pub(super) is_crowded: bool,
}

/// As [`share_memory`], and opens the processes of the ranks of this host, whether or not they share memory.
pub(super) fn meet_host(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Host> {
    meet_within(PATIENCE, Neighbourhood::prepare, identity, rendezvous)
}

/// Makes what a rank gives, in a neighbourhood of these.
type Prepare = fn(Rank, &[Rank]) -> Result<Prepared>;

/// As [`meet_host`]; the ranks of a host that are ready wait for each other for so long.
fn meet_within(
    patience: Duration,
    prepare: Prepare,
    identity: &Identity,
    rendezvous: &mut Rendezvous,
) -> Result<Host> {
    let mut own = Card::own(identity)?;
    let door = Door::open(&own.door);
    if let Err(error) = &door {
        tracing::warn!(%error, "this rank shares no memory");
        own.forget_host();
    }
    let cards = rendezvous.exchange(&own.encode())?;
    let cards = Rank::all(identity.world_size).zip(&cards).map(|(rank, bytes)| {
        Card::decode(bytes)
            .ok_or_else(|| Error::Protocol { rank, what: "a card of its host that is none".into() })
    });
    let cards = cards.collect::<Result<Vec<Card>>>()?;
    if let Some(what) = identity.exposed_key.as_ref().filter(|_| tells_finding(identity.rank, &cards)) {
        tracing::warn!("{what}");
    }
    let (processes, is_crowded) = (processes(identity.rank, &cards), is_crowded(identity.rank, &cards));
    let ranks = neighbours(identity.rank, &cards).unwrap_or_default();
    // Nobody waits at the door of a rank that has nothing to give.
    let prepared = door.and_then(|door| {
        let nothing = ranks.is_empty();
        if nothing {
            return Ok(None);
        }
        let others = ranks.len().saturating_sub(1);
        let action = format!("can't share memory with {others} ranks");
        descriptors::check(&action, others * OF_NEIGHBOUR + OF_NEIGHBOURHOOD)?;
        prepare(identity.rank, &ranks).map(|prepared| Some((door, prepared)))
    });
    let Some(prepared) = together(identity.rank, rendezvous, &ranks, prepared)? else {
        // All ranks of the job say all words, also those that have nothing to say.
        rendezvous.exchange(&[NO])?;
        return Ok(Host { neighbourhood: None, processes, is_crowded });
    };
    let mut meeting =
        |(door, prepared)| meet(patience, identity, rendezvous, &door, &ranks, &cards, prepared);
    let made = prepared.map(&mut meeting);
    let made = together(identity.rank, rendezvous, &ranks, made.transpose())?;
    Ok(Host { neighbourhood: made.flatten().map(Arc::new), processes, is_crowded })
}

/// What this rank has, if all ranks of its host have it; else `None`, and the first that has not says why.
fn together<T>(
    own: Rank,
    rendezvous: &mut Rendezvous,
    ranks: &[Rank],
    outcome: Result<T>,
) -> Result<Option<T>> {
    let words = rendezvous.exchange(&[if outcome.is_ok() { YES } else { NO }])?;
    let has = |rank: &&Rank| words.get(rank.index()).is_some_and(|word| *word == [YES]);
    let first_without = ranks.iter().find(|rank| !has(rank));
    if let Err(error) = &outcome
        && first_without == Some(&own)
    {
        tracing::warn!(%error, "the ranks of this host share no memory");
    }
    Ok(outcome.ok().filter(|_| first_without.is_none()))
}

/// Gives what was prepared to the other ranks of this host, and takes what they give.
fn meet(
    patience: Duration,
    identity: &Identity,
    rendezvous: &mut Rendezvous,
    door: &Door,
    ranks: &[Rank],
    cards: &[Card],
    prepared: Prepared,
) -> Result<Neighbourhood> {
    let others = ranks.iter().filter(|rank| **rank != identity.rank);
    let doors = others.filter_map(|rank| Some((*rank, cards.get(rank.index())?.door)));
    // Half of what is left, for a neighbour that does not come is no reason not to join.
    let left = rendezvous.deadline().remaining();
    let deadline = Deadline::after(patience.min(left / 2));
    let (party, doors) = (rendezvous.party().clone(), doors.collect::<Vec<_>>());
    let gifts =
        door.exchange(&party, &doors, &|rank| prepared.gift(rank), deadline, &mut || rendezvous.check())?;
    Neighbourhood::new(prepared, gifts)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::bootstrap::Master;

    /// Longer than any test takes.
    const FOREVER: Duration = Duration::from_secs(100_000);

    /// A port that is this test's for as long as the socket exists.
    fn reserved() -> (socket2::Socket, u16) {
        let holder = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        holder.set_reuse_port(true).unwrap();
        holder.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = holder.local_addr().unwrap().as_socket().unwrap().port();
        (holder, port)
    }

    /// What each of three ranks shares, when each prepares so.
    fn shared(prepare: [Prepare; 3]) -> Vec<Option<usize>> {
        let (_holder, port) = reserved();
        let ranks = (0..).zip(prepare).map(|(rank, prepare)| {
            std::thread::spawn(move || {
                let mut identity = Identity::new(Rank(rank), 3, Master { host: "127.0.0.1".into(), port });
                (identity.port_reserved, identity.join_timeout) = (true, 3 * FOREVER);
                let mut rendezvous = Rendezvous::join(&identity).unwrap();
                meet_within(FOREVER, prepare, &identity, &mut rendezvous).unwrap().neighbourhood
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().map(|all| all.ranks().len())).collect()
    }

    const NAME: &str = "bootstrap::neighbours::tests::ranks_that_can_not_see_each_other_share_memory";
    const CHILD: &str = "BREVITY_TEST_MASTER_PORT";

    /// How many ranks share memory with this one of two.
    fn joined(rank: u32, port: u16) -> Option<usize> {
        let mut identity = Identity::new(Rank(rank), 2, Master { host: "127.0.0.1".into(), port });
        identity.port_reserved = true;
        let mut rendezvous = Rendezvous::join(&identity).unwrap();
        share_memory(&identity, &mut rendezvous).unwrap().map(|all| all.ranks().len())
    }

    /// One of the two is in a process namespace of its own, as a container's process is, and can't tell the
    /// other by a number. Needs the right to make namespaces; a failure without it where
    /// `BREVITY_REQUIRE_NAMESPACES` is 1.
    #[test]
    fn ranks_that_can_not_see_each_other_share_memory() {
        if let Ok(port) = std::env::var(CHILD) {
            assert_eq!(joined(1, port.parse().unwrap()), Some(2));
            return;
        }
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            command
        };
        if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
            let must = std::env::var_os("BREVITY_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
            assert!(!must, "no process namespaces can be made here");
            println!("skipped: no process namespaces can be made here");
            return;
        }
        let (_holder, port) = reserved();
        let mut child = unshare();
        child.arg(std::env::current_exe().unwrap()).args([NAME, "--exact", "--nocapture"]);
        let child =
            child.env(CHILD, port.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(joined(0, port), Some(2));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn nobody_waits_for_a_rank_that_has_no_memory() {
        let refuse: Prepare = |_, _| Err(Error::Unavailable { name: "shared memory", why: "refused".into() });
        assert_eq!(shared([Neighbourhood::prepare; 3]), [Some(3); 3]);
        assert_eq!(shared([refuse, Neighbourhood::prepare, Neighbourhood::prepare]), [None; 3]);
        assert_eq!(shared([Neighbourhood::prepare, refuse, refuse]), [None; 3]);
    }
}
