//! Sets up shared memory between the ranks of a host, and opens their processes to see when they end.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::Deadline;
use super::descriptors;
use super::fd_exchange::FdExchange;
use super::host::{HostInfo, is_crowded, local_peers, numbers, processes, reports_finding};
use super::identity::Identity;
use super::rendezvous::Rendezvous;
use crate::process::PeerProcess;
use crate::shm::{LocalGroup, Prepared};
use crate::ucx::Meeting;
use crate::{Error, Rank, Result};

const PATIENCE: Duration = Duration::from_secs(20);

/// Open files that sharing memory takes. For each local peer: the channel to it, its segment, its channel,
/// its wake sender, and its connection twice while it calls. For this rank: its segment, both ends of its
/// wake receiver, and a call.
const FOR_PEER: usize = 6;
const FOR_RANK: usize = 4;

/// Sets up this rank's local group: `None` when no other rank is on its host, when rank 0 was told not to
/// share memory, or when a rank of this host can't (the first that can't warns why). Either all ranks of a
/// host have one, or none.
///
/// One rank of each host warns of what is wrong there.
///
/// All ranks must call it; it blocks until all have, at most until the deadline of joining.
///
/// # Errors
/// As [`Rendezvous::exchange`]; [`Error::Protocol`] when a rank sends invalid bytes.
pub fn share_memory(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Option<Arc<LocalGroup>>> {
    meet_host(identity, rendezvous).map(|host| host.local_group)
}

/// A rank's view of the other ranks of its host.
pub(super) struct Host {
    pub(super) local_group: Option<Arc<LocalGroup>>,
    /// By rank, of those that are visible.
    pub(super) processes: Vec<Option<PeerProcess>>,
    pub(super) is_crowded: bool,
    /// The number of each rank's host.
    pub(super) hosts: Vec<u32>,
}

/// As [`share_memory`], and opens the processes of the ranks of this host, whether or not they share memory.
pub(super) fn meet_host(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Host> {
    meet_within(PATIENCE, LocalGroup::prepare, identity, rendezvous)
}

/// Makes a rank's part of a local group of these ranks.
type Prepare = fn(Rank, &[Rank]) -> Result<Prepared>;

/// As [`meet_host`]; the ranks of a host wait for each other for at most `patience`.
fn meet_within(
    patience: Duration,
    prepare: Prepare,
    identity: &Identity,
    rendezvous: &mut Rendezvous,
) -> Result<Host> {
    let mut own = HostInfo::own(identity)?;
    let socket = FdExchange::open(&own.socket_name);
    if let Err(error) = &socket {
        tracing::warn!(%error, "this rank shares no memory");
        own.host = None;
    }
    let hosts = rendezvous.exchange(&own.encode())?;
    let hosts = Rank::all(identity.world_size).zip(&hosts).map(|(rank, bytes)| {
        HostInfo::decode(bytes)
            .ok_or_else(|| Error::Protocol { rank, what: "an invalid description of its host".into() })
    });
    let hosts = hosts.collect::<Result<Vec<HostInfo>>>()?;
    if let Some(what) = identity.exposed_key.as_ref().filter(|_| reports_finding(identity.rank, &hosts)) {
        tracing::warn!("{what}");
    }
    let (processes, is_crowded) = (processes(identity.rank, &hosts), is_crowded(identity.rank, &hosts));
    let numbers = numbers(&hosts);
    let ranks = local_peers(identity.rank, &hosts).unwrap_or_default();
    let prepared = socket.and_then(|socket| {
        if ranks.is_empty() {
            return Ok(None);
        }
        let others = ranks.len() - 1;
        let action = format!("can't share memory with {others} ranks");
        descriptors::check(&action, others * FOR_PEER + FOR_RANK)?;
        prepare(identity.rank, &ranks).map(|prepared| Some((socket, prepared)))
    });
    let Some(prepared) = together(identity.rank, rendezvous, &ranks, prepared)? else {
        // All ranks of the job must take part in all exchanges.
        rendezvous.exchange(&[u8::from(false)])?;
        return Ok(Host { local_group: None, processes, is_crowded, hosts: numbers });
    };
    let connect = |(socket, prepared)| connect(patience, rendezvous, &socket, &ranks, &hosts, prepared);
    let made = prepared.map(connect).transpose();
    let made = together(identity.rank, rendezvous, &ranks, made)?;
    Ok(Host { local_group: made.flatten().map(Arc::new), processes, is_crowded, hosts: numbers })
}

/// The outcome, if all ranks of the host have succeeded; else `None`, and the first that has failed warns
/// why.
fn together<T>(
    own: Rank,
    rendezvous: &mut Rendezvous,
    ranks: &[Rank],
    outcome: Result<T>,
) -> Result<Option<T>> {
    let reports = rendezvous.exchange(&[outcome.is_ok().into()])?;
    let has_succeeded =
        |rank: &&Rank| reports.get(rank.index()).is_some_and(|report| *report == [u8::from(true)]);
    let first_failed = ranks.iter().find(|rank| !has_succeeded(rank));
    if let Err(error) = &outcome
        && first_failed == Some(&own)
    {
        tracing::warn!(%error, "the ranks of this host share no memory");
    }
    Ok(outcome.ok().filter(|_| first_failed.is_none()))
}

/// Exchanges the descriptors of what was prepared with the other ranks of this host.
fn connect(
    patience: Duration,
    rendezvous: &mut Rendezvous,
    socket: &FdExchange,
    ranks: &[Rank],
    hosts: &[HostInfo],
    prepared: Prepared,
) -> Result<LocalGroup> {
    let party = rendezvous.party.clone();
    let others = ranks.iter().filter(|rank| rank.0 != party.rank);
    let others = others.filter_map(|rank| Some((*rank, hosts.get(rank.index())?.socket_name)));
    let others: Vec<_> = others.collect();
    // At most half of the time left: the rank can join without shared memory.
    let deadline = Deadline::after(patience.min(rendezvous.deadline.remaining() / 2));
    let give = |rank| prepared.passed(rank);
    let received = socket.exchange(&party, &others, &give, deadline, &mut || rendezvous.check())?;
    LocalGroup::new(prepared, received)
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
                meet_within(FOREVER, prepare, &identity, &mut rendezvous).unwrap().local_group
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap().map(|all| all.ranks().len())).collect()
    }

    const NAME: &str = "bootstrap::local_peers::tests::ranks_that_can_not_see_each_other_share_memory";
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
        assert_eq!(shared([LocalGroup::prepare; 3]), [Some(3); 3]);
        assert_eq!(shared([refuse, LocalGroup::prepare, LocalGroup::prepare]), [None; 3]);
        assert_eq!(shared([LocalGroup::prepare, refuse, refuse]), [None; 3]);
    }
}
