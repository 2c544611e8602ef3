//! From an identity to a transport.

use std::sync::Arc;

use super::choice::{Agreed, Capability, Choice, Selected, choose};
use super::environment::Identity;
use super::introduction::introduce;
use super::mesh::connect_mesh;
use super::neighbours::share_memory;
use super::rendezvous::Rendezvous;
use crate::shm::Neighbourhood;
use crate::tcp::Tcp;
use crate::transport::Transport;
use crate::ucx::{self, Options, Ucx};
use crate::{Error, Rank, Result, local};

/// What a rank has when it has joined its job.
pub struct Opened {
    /// The transport that all ranks take.
    pub transport: Box<dyn Transport>,
    /// What this rank shares with the others of its host, where it does.
    pub neighbourhood: Option<Arc<Neighbourhood>>,
}

/// Joins the job and opens the transport that all its ranks take; blocks until all ranks have.
///
/// # Errors
/// As [`introduce`], [`Rendezvous::join`], [`connect_mesh`], [`share_memory`] and [`choose`].
pub fn open(identity: &Identity) -> Result<Opened> {
    if identity.world_size <= 1 {
        let alone = local::world(1).into_iter().next();
        let alone = alone.unwrap_or_else(|| unreachable!("a world of one has one rank"));
        return Ok(Opened { transport: Box::new(alone), neighbourhood: None });
    }
    // Holds rank 0's port until all have joined.
    let introduced = introduce(identity)?;
    let identity = introduced.identity();
    let mut rendezvous = Rendezvous::join(identity)?;
    let agreed = agree(identity, &mut rendezvous)?;
    let identity = &Identity { encrypt: agreed.encrypt, streams: agreed.streams, ..identity.clone() };
    let neighbourhood = share_memory(identity, &mut rendezvous)?;
    let transport: Box<dyn Transport> = match agreed.transport {
        Selected::Tcp => {
            let lanes = connect_mesh(identity, &mut rendezvous)?;
            let mut tcp = Tcp::over(identity.rank, identity.world_size, lanes)?;
            if let Some(neighbourhood) = &neighbourhood {
                tcp.share_memory(neighbourhood, true)?;
            }
            Box::new(tcp)
        }
        Selected::Ucx => {
            let interface = rendezvous.own_address(identity)?;
            let options = Options { interface, ..Options::default() };
            let mut exchange = |card: &[u8]| rendezvous.exchange(card);
            Box::new(Ucx::connect(identity.rank, identity.world_size, &mut exchange, &options)?)
        }
    };
    Ok(Opened { transport, neighbourhood })
}

/// What all ranks take, by what each can do.
fn agree(identity: &Identity, rendezvous: &mut Rendezvous) -> Result<Agreed> {
    // UCX is loaded only where it may be taken: that alone changes the process.
    let ucx = match identity.transport {
        Choice::Tcp => Err("BREVITY_TRANSPORT=tcp there".into()),
        _ if identity.encrypt => Err("BREVITY_ENCRYPT=1 there".into()),
        Choice::Auto | Choice::Ucx => ucx::available().map(drop),
    };
    let Identity { transport: requested, encrypt, streams, .. } = *identity;
    let own = Capability { requested, ucx, encrypt, streams };
    let capabilities = rendezvous.exchange(&own.encode())?;
    let capabilities = Rank::all(identity.world_size)
        .zip(&capabilities)
        .map(|(rank, bytes)| {
            let what = || Error::Protocol { rank, what: "capabilities that are none".into() };
            Capability::decode(bytes).ok_or_else(what)
        })
        .collect::<Result<Vec<_>>>()?;
    choose(&capabilities)
}
