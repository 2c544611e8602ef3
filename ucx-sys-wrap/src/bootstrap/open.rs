//! From an identity to a transport.

use std::sync::Arc;

use super::choice::{Agreed, Capability, Choice, Selected, choose, lacks_ucx};
use super::deadline::Deadline;
use super::host::outnumber_processors;
use super::identity::Identity;
use super::introduction::introduce;
use super::mesh::connect_mesh;
use super::neighbours::{Host, meet_host};
use super::network::{NO_RDMA, is_for_ucx};
use super::rendezvous::Rendezvous;
use crate::boot::MemoryOwner;
use crate::shm::Neighbourhood;
use crate::tcp::Tcp;
use crate::transport::Transport;
use crate::ucx::{Options, Prepared};
use crate::{Error, Rank, Result, local};

/// The setting by which UCX takes everything but shared memory: it finds out only when it connects that the
/// system keeps ranks from each other's memory, and then fails.
const NO_SHARED_MEMORY: [&str; 2] = ["TLS", "^sm"];

/// What a rank has when it has joined its job.
pub struct Opened {
    /// The transport that all ranks take.
    pub transport: Box<dyn Transport>,
    /// What this rank shares with the others of its host, where it does.
    pub neighbourhood: Option<Arc<Neighbourhood>>,
    /// Whether the ranks of this host outnumber the processors that they may use.
    pub is_crowded: bool,
}

impl Opened {
    /// A rank in a world whose ranks are all threads of this process.
    #[must_use]
    pub fn in_process(transport: Box<dyn Transport>, neighbourhood: Option<Arc<Neighbourhood>>) -> Self {
        let is_crowded = outnumber_processors(transport.world_size() as usize, []);
        Self { transport, neighbourhood, is_crowded }
    }
}

/// Joins the job and opens the transport that all its ranks take; blocks until all ranks have, at most
/// [`Identity::join_timeout`] for all steps together and a second or two to tell the others who is missing.
///
/// # Errors
/// As [`introduce`], [`Rendezvous::join`], [`connect_mesh`], [`share_memory`](super::share_memory) and
/// [`choose`].
pub fn open(identity: &Identity) -> Result<Opened> {
    if identity.world_size <= 1 {
        let alone = local::world(1).into_iter().next();
        let alone = alone.unwrap_or_else(|| unreachable!("a world of one has one rank"));
        return Ok(Opened::in_process(Box::new(alone), None));
    }
    let deadline = Deadline::after(identity.join_timeout);
    let identity = &introduce(identity)?;
    let mut rendezvous = Rendezvous::join_by(identity, deadline)?;
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
    let Host { neighbourhood, processes, is_crowded } = meet_host(identity, &mut rendezvous)?;
    let transport: Box<dyn Transport> = match (agreed.transport, prepared) {
        (Selected::Ucx, Ok(prepared)) => {
            let interface = rendezvous.own_address(identity)?;
            let join_timeout = rendezvous.deadline().remaining();
            let options = Options { interface, ports: identity.ports, join_timeout, ..Options::default() };
            let mut ucx = prepared.connect(&mut rendezvous, &options)?;
            // Nobody leaves the rendezvous before all are connected: who is gone there has died.
            rendezvous.exchange(&[])?;
            ucx.watch_processes(processes);
            if let Some(neighbourhood) = &neighbourhood {
                ucx.share_memory(neighbourhood, true)?;
            }
            Box::new(ucx)
        }
        // UCX is taken only where every rank has said that it has prepared it.
        (Selected::Ucx, Err(why)) => return Err(Error::Unavailable { name: "ucx", why }),
        (Selected::Tcp, prepared) => {
            drop(prepared);
            let wires = connect_mesh(identity, &mut rendezvous)?;
            let mut tcp = Tcp::over(identity.rank, identity.world_size, wires)?;
            tcp.watch_processes(processes);
            if let Some(neighbourhood) = &neighbourhood {
                tcp.share_memory(neighbourhood, true)?;
            }
            Box::new(tcp)
        }
    };
    Ok(Opened { transport, neighbourhood, is_crowded })
}

/// What this rank would take part in UCX with, or why it can't.
///
/// UCX is loaded only where it may be taken: that alone changes the process. That it can be loaded does not
/// say that it works: its worker may lack shared memory or descriptors. So it is made before all ranks agree.
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

/// UCX's own listeners keep to the ports of ours, unless its variables say which ones they have.
/// It takes no shared memory where ranks can't share any.
fn ucx_settings(identity: &Identity, shares_memory: bool) -> Vec<(String, String)> {
    let is_set = std::env::var_os("UCX_TCP_PORT_RANGE").is_some();
    let ports = Some(identity.ports).filter(|ports| ports.are_limited() && !is_set);
    let ports = ports.map(|ports| ("TCP_PORT_RANGE".into(), ports.to_string()));
    let wires = (!shares_memory).then(|| NO_SHARED_MEMORY.map(String::from).into());
    ports.into_iter().chain(wires).collect()
}

/// What all ranks take, by what each can do. Rank 0 says so where "auto" means TCP for want of UCX or a
/// network for it.
fn agree(identity: &Identity, no_ucx: Option<&String>, rendezvous: &mut Rendezvous) -> Result<Agreed> {
    let Identity { transport: requested, encrypt, .. } = *identity;
    let ucx = no_ucx.map_or(Ok(()), |why| Err(why.clone()));
    let own = Capability { requested, ucx, encrypt, memory: MemoryOwner::own() };
    let capabilities = rendezvous.exchange(&own.encode())?;
    let capabilities = Rank::all(identity.world_size)
        .zip(&capabilities)
        .map(|(rank, bytes)| {
            let what = || Error::Protocol { rank, what: "capabilities that are none".into() };
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
