//! Opens the transport of an identity.

use std::ffi::OsString;
use std::sync::Arc;

use super::WIRE_VERSION;
use super::choice::{Agreed, Capability, Choice, Selected, choose, lacks_ucx};
use super::deadline::Deadline;
use super::host::outnumber_processors;
use super::identity::{Identity, Introduction};
use super::introduction::introduce;
use super::local_peers::{Host, meet_host};
use super::mesh::connect_mesh;
use super::rendezvous::Rendezvous;
use crate::boot::MemoryOwner;
use crate::shm::LocalGroup;
use crate::tcp::Tcp;
use crate::transport::Transport;
use crate::ucx::{Options, Prepared, rdma_devices};
use crate::{Error, Rank, Result, local};

/// The setting that disables UCX's shared memory: where ranks can't reach each other's memory, UCX would fail
/// to connect.
const NO_SHARED_MEMORY: [&str; 2] = ["TLS", "^sm"];

/// Variables that ask for UCX when set.
const WISHES: [&str; 3] = ["UCX_TLS", "UCX_NET_DEVICES", "BREVITY_UCX_LIB"];

/// The reason why "auto" does not take UCX.
const NO_RDMA: &str = "no device for RDMA, and over TCP Brevity's own sockets are faster than UCX's (to take \
                                  UCX all the same, set BREVITY_TRANSPORT=ucx for all ranks)";

/// The result of joining a job.
pub struct Opened {
    /// The same transport on all ranks.
    pub transport: Box<dyn Transport>,
    /// The local group of this host, if its ranks share memory.
    pub local_group: Option<Arc<LocalGroup>>,
    /// Whether the ranks of this host outnumber their processors.
    pub is_crowded: bool,
    /// Whether what ranks send through sockets is encrypted.
    pub is_encrypted: bool,
    /// The number of each rank's host, from 0 on in the order of their first ranks.
    pub hosts: Arc<[u32]>,
    /// The [greeting](Identity::greeting) of rank 0.
    pub greeting: Vec<u8>,
    /// Who this process is, in a job that it has joined.
    pub identity: Option<Box<Identity>>,
}

impl Opened {
    /// A rank of a world whose ranks are threads of this process. On a simulated network each is a host of
    /// its own.
    #[must_use]
    pub fn in_process(transport: Box<dyn Transport>, local_group: Option<Arc<LocalGroup>>) -> Self {
        let (ranks, is_simulated) = (transport.world_size(), transport.is_simulated());
        let is_crowded = outnumber_processors(ranks as usize, []);
        let hosts = (0..ranks).map(|rank| if is_simulated { rank } else { 0 }).collect();
        let (is_encrypted, greeting, identity) = Default::default();
        Self { transport, local_group, is_crowded, is_encrypted, hosts, greeting, identity }
    }

    /// The same with ranks on these hosts, by rank: as algorithms are to see them. Equal on all ranks.
    ///
    /// # Panics
    /// Unless there is a host for each rank.
    #[must_use]
    pub fn with_hosts(self, hosts: &[u32]) -> Self {
        assert_eq!(hosts.len(), self.transport.world_size() as usize, "a host for each rank");
        Self { hosts: hosts.into(), ..self }
    }
}

/// Joins the job and opens its transport; blocks until all ranks have, at most [`Identity::join_timeout`] for
/// all steps together and a second or two for the report of missing ranks.
///
/// # Errors
/// As [`introduce`], [`Rendezvous::join`], [`connect_mesh`], [`share_memory`](super::share_memory) and
/// [`choose`].
pub fn open(identity: &Identity) -> Result<Opened> {
    if identity.world_size <= 1 {
        if let Introduction::Id(id) = &identity.introduction {
            id.forget();
        }
        let alone = local::world(1).into_iter().next();
        let alone = alone.unwrap_or_else(|| unreachable!("a world of one has one rank"));
        return Ok(Opened::in_process(Box::new(alone), None));
    }
    let deadline = Deadline::after(identity.join_timeout);
    let (identity, claim) = match &identity.introduction {
        Introduction::Id(id) => id.introduce(identity)?,
        _ => (introduce(identity)?, None),
    };
    let opened = open_by(&identity, deadline)?;
    let opened = Opened { identity: Some(Box::new(identity)), ..opened };
    if let Some(claim) = claim {
        claim.redeem();
    }
    Ok(opened)
}

/// Joins at a place that is known.
fn open_by(identity: &Identity, deadline: Deadline) -> Result<Opened> {
    let mut rendezvous = Rendezvous::join_by(identity, WIRE_VERSION, deadline)?;
    let mut prepared = prepare_ucx(identity, true);
    let agreed = agree(identity, prepared.as_ref().err(), &mut rendezvous)?;
    if agreed.transport == Selected::Ucx && !agreed.reaches_memory && std::env::var_os("UCX_TLS").is_none() {
        if identity.rank == Rank(0) {
            tracing::info!("UCX leaves out its shared memory: ranks of one host have different owners");
        }
        drop(prepared);
        prepared = prepare_ucx(identity, false);
    }
    let identity = &Identity { encrypt: agreed.encrypt, ..identity.clone() };
    let Host { local_group, processes, is_crowded, hosts } = meet_host(identity, &mut rendezvous)?;
    let greeting = rendezvous.exchange(&identity.greeting)?.into_iter().next().unwrap_or_default();
    let transport: Box<dyn Transport> = match (agreed.transport, prepared) {
        (Selected::Ucx, Ok(prepared)) => {
            let interface = rendezvous.own_address(identity)?;
            let join_timeout = rendezvous.deadline.remaining();
            let options = Options { interface, ports: identity.ports, join_timeout, ..Options::default() };
            let mut ucx = prepared.connect(&mut rendezvous, &options)?;
            // No rank leaves the rendezvous before all are connected: a rank that is gone there has died.
            rendezvous.exchange(&[])?;
            ucx.watch_processes(processes);
            if let Some(local_group) = &local_group {
                ucx.share_memory(local_group, true)?;
            }
            Box::new(ucx)
        }
        // UCX is chosen only if every rank has prepared it.
        (Selected::Ucx, Err(why)) => return Err(Error::Unavailable { name: "ucx", why }),
        (Selected::Tcp, prepared) => {
            drop(prepared);
            let wires = connect_mesh(identity, &mut rendezvous)?;
            let mut tcp = Tcp::over(identity.rank, identity.world_size, wires)?;
            tcp.watch_processes(processes);
            if let Some(local_group) = &local_group {
                tcp.share_memory(local_group, true)?;
            }
            Box::new(tcp)
        }
    };
    // Only tcp can.
    let is_encrypted = agreed.encrypt;
    let hosts = hosts.into();
    Ok(Opened { transport, local_group, is_crowded, is_encrypted, hosts, greeting, identity: None })
}

/// This rank's UCX worker, or why it has none.
///
/// UCX is loaded only where it may be chosen, since loading it changes the process. The worker is made before
/// the ranks choose, because it can fail: it needs shared memory and descriptors.
fn prepare_ucx(identity: &Identity, shares_memory: bool) -> std::result::Result<Prepared, String> {
    match identity.transport {
        Choice::Tcp => Err("BREVITY_TRANSPORT=tcp there".into()),
        _ if identity.encrypt => Err("BREVITY_ENCRYPT=1 there".into()),
        _ if identity.announce.is_some() => Err("BREVITY_ANNOUNCE there".into()),
        Choice::Auto if !is_for_ucx() => Err(NO_RDMA.into()),
        Choice::Auto | Choice::Ucx => {
            let settings = ucx_settings(identity, shares_memory);
            Prepared::new(identity.rank, identity.world_size, &settings).map_err(|error| match error {
                Error::Unavailable { why, .. } => why,
                error => error.to_string(),
            })
        }
    }
}

/// UCX's own listeners use the same range of ports, unless UCX's variable is set.
fn ucx_settings(identity: &Identity, shares_memory: bool) -> Vec<(String, String)> {
    let is_set = std::env::var_os("UCX_TCP_PORT_RANGE").is_some();
    let ports = Some(identity.ports).filter(|ports| ports.are_limited() && !is_set);
    let ports = ports.map(|ports| ("TCP_PORT_RANGE".into(), ports.to_string()));
    let wires = (!shares_memory).then(|| NO_SHARED_MEMORY.map(String::from).into());
    ports.into_iter().chain(wires).collect()
}

/// Exchanges capabilities and chooses. Rank 0 logs why "auto" does not choose UCX.
fn agree(identity: &Identity, no_ucx: Option<&String>, rendezvous: &mut Rendezvous) -> Result<Agreed> {
    let Identity { transport: requested, encrypt, .. } = *identity;
    let ucx = no_ucx.map_or(Ok(()), |why| Err(why.clone()));
    let own = Capability { requested, ucx, encrypt, memory: MemoryOwner::own() };
    let capabilities = rendezvous.exchange(&own.encode())?;
    let capabilities = Rank::all(identity.world_size)
        .zip(&capabilities)
        .map(|(rank, bytes)| {
            let what = || Error::Protocol { rank, what: "invalid capabilities".into() };
            Capability::decode(bytes).ok_or_else(what)
        })
        .collect::<Result<Vec<_>>>()?;
    let agreed = choose(&capabilities)?;
    if identity.rank == Rank(0)
        && !encrypt
        && let (Choice::Auto, Some((rank, why))) = (requested, lacks_ucx(&capabilities))
    {
        match why {
            NO_RDMA => tracing::info!("using transport \"tcp\": rank {rank} has {why}"),
            _ => tracing::warn!("using transport \"tcp\", because rank {rank} has no UCX: {why}"),
        }
    }
    Ok(agreed)
}

/// Whether "auto" takes UCX where it can be loaded.
fn is_for_ucx() -> bool {
    is_wished(|name| std::env::var_os(name)) || !rdma_devices().is_empty()
}

fn is_wished(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    WISHES.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_ucx_speaks_for_it() {
        let set = |set: &'static str, value: &'static str| {
            move |name: &str| (name == set).then(|| OsString::from(value))
        };
        assert!(is_wished(set("UCX_TLS", "rc")) && is_wished(set("BREVITY_UCX_LIB", "/opt/libucp.so.0")));
        assert!(!is_wished(set("UCX_TLS", "")) && !is_wished(set("UCX_LOG_LEVEL", "info")));
    }
}
