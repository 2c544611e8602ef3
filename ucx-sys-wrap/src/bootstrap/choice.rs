//! The transport that a job takes: a pure rule over the capabilities of all ranks.

use std::collections::HashMap;
use std::fmt;

use super::wire::cut;
use crate::boot::{Boot, MemoryOwner};
use crate::fields::Fields;
use crate::{Error, Rank, Result};

pub(super) const ENCRYPT: &str = "BREVITY_ENCRYPT";

const NO_ENCRYPTION: &str = "it can't encrypt, and BREVITY_ENCRYPT=1 asks for it: take BREVITY_TRANSPORT=tcp";

/// The transport that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// UCX where every rank has it and a network for it (a device for RDMA, or `UCX_TLS`, `UCX_NET_DEVICES`
    /// or `BREVITY_UCX_LIB` set), else TCP.
    #[default]
    Auto,
    /// TCP sockets.
    Tcp,
    /// UCX.
    Ucx,
}

/// The transport that a job takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    /// TCP sockets.
    Tcp,
    /// UCX.
    Ucx,
}

/// One rank's capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The transport that this rank was asked for; only rank 0's counts.
    pub requested: Choice,
    /// Whether UCX can be used here; else why it can't or, under "auto", should not.
    pub ucx: std::result::Result<(), String>,
    /// Whether encryption was asked for; see [`choose`].
    pub encrypt: bool,
    /// The owner of this rank's memory, where that is known.
    pub memory: Option<MemoryOwner>,
}

/// The choice for all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The transport.
    pub transport: Selected,
    /// Whether it is encrypted.
    pub encrypt: bool,
    /// Whether the ranks of each host can reach each other's memory, as far as is known.
    pub reaches_memory: bool,
}

/// Chooses a transport for all ranks, the same on each of them, from the capabilities in rank order.
///
/// Rank 0's request counts: "tcp" is always possible; "ucx" needs every rank; "auto" takes UCX when every
/// rank has it and a network for it and rank 0 does not ask for encryption, which UCX does not support, and
/// TCP otherwise.
///
/// # Errors
/// [`Error::Unavailable`] when rank 0 asks for UCX together with encryption, or when a rank has no UCX: the
/// first such rank is named, with its reason. [`Error::Disagreement`] when a rank asks for encryption and
/// rank 0 does not.
pub fn choose(capabilities: &[Capability]) -> Result<Agreed> {
    let Some(&Capability { encrypt, .. }) = capabilities.first() else {
        return Ok(Agreed { transport: Selected::Tcp, encrypt: false, reaches_memory: true });
    };
    if let Some((rank, _)) = Rank::all(u32::MAX).zip(capabilities).find(|(_, own)| own.encrypt && !encrypt) {
        let (found, expected) = ("1".into(), "0, as rank 0 has: set it for all ranks".into());
        return Err(Error::Disagreement { what: ENCRYPT, rank, found, expected });
    }
    let transport = choose_transport(capabilities, encrypt)?;
    // Whether the ranks of each host have one owner.
    let mut owners: HashMap<Boot, MemoryOwner> = HashMap::new();
    let mut known = capabilities.iter().filter_map(|own| own.memory);
    let reaches_memory = known.all(|owner| *owners.entry(owner.boot).or_insert(owner) == owner);
    Ok(Agreed { transport, encrypt, reaches_memory })
}

fn choose_transport(capabilities: &[Capability], encrypt: bool) -> Result<Selected> {
    let requested = match capabilities.first().map_or(Choice::Auto, |root| root.requested) {
        Choice::Auto if encrypt => Choice::Tcp,
        Choice::Ucx if encrypt => return Err(Error::Unavailable { name: "ucx", why: NO_ENCRYPTION.into() }),
        requested => requested,
    };
    match (requested, lacks_ucx(capabilities)) {
        (Choice::Tcp, _) | (Choice::Auto, Some(_)) => Ok(Selected::Tcp),
        (_, None) => Ok(Selected::Ucx),
        (Choice::Ucx, Some((rank, why))) => {
            Err(Error::Unavailable { name: "ucx", why: format!("rank {rank} has none: {why}") })
        }
    }
}

/// The first rank that can't use UCX, and why.
pub(super) fn lacks_ucx(capabilities: &[Capability]) -> Option<(Rank, &str)> {
    Rank::all(u32::MAX)
        .zip(capabilities)
        .find_map(|(rank, own)| Some((rank, own.ucx.as_ref().err()?.as_str())))
}

impl Choice {
    const ALL: [Self; 3] = [Self::Auto, Self::Tcp, Self::Ucx];

    /// Parses a [`name`](Self::name).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == text)
    }

    /// The name in the environment.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Ucx => "ucx",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Capability {
    const MAX_REASON_BYTES: usize = 1024;

    /// The request, whether there is UCX, whether to encrypt (1 byte each), the owner of the memory, the
    /// reason.
    pub(super) fn encode(&self) -> Vec<u8> {
        let fixed = [self.requested as u8, self.ucx.is_ok().into(), self.encrypt.into()];
        let reason = cut(self.ucx.as_ref().err().map_or("", String::as_str), Self::MAX_REASON_BYTES);
        [&fixed[..], &MemoryOwner::encode(self.memory), reason.as_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [requested, ucx, encrypt] = fields.array()?;
        let memory = MemoryOwner::decode(&fields.array()?);
        let requested = Choice::ALL.into_iter().find(|&choice| choice as u8 == requested)?;
        let reason = fields.0.get(..Self::MAX_REASON_BYTES).unwrap_or(fields.0);
        let reason = std::str::from_utf8(reason).ok()?;
        let ucx = match ucx {
            0 => Err(reason.to_owned()),
            1 => Ok(()),
            _ => return None,
        };
        (encrypt <= 1).then_some(Self { requested, ucx, encrypt: encrypt == 1, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranks(requested: Choice, usable: &[bool]) -> Vec<Capability> {
        let ucx = |&usable: &bool| if usable { Ok(()) } else { Err("no libucp.so.0".to_owned()) };
        usable
            .iter()
            .map(|usable| Capability { requested, ucx: ucx(usable), encrypt: false, memory: None })
            .collect()
    }

    #[test]
    fn the_table_of_choices() {
        let (all, some, none) = ([true; 3], [true, true, false], [false; 3]);
        for usable in [&all, &some, &none] {
            assert_eq!(transport(&ranks(Choice::Tcp, usable)).unwrap(), Selected::Tcp);
        }
        assert_eq!(transport(&ranks(Choice::Auto, &all)).unwrap(), Selected::Ucx);
        assert_eq!(transport(&ranks(Choice::Auto, &some)).unwrap(), Selected::Tcp);
        assert_eq!(transport(&ranks(Choice::Auto, &none)).unwrap(), Selected::Tcp);
        assert_eq!(transport(&ranks(Choice::Ucx, &all)).unwrap(), Selected::Ucx);
        let error = transport(&ranks(Choice::Ucx, &some)).unwrap_err().to_string();
        assert_eq!(error, "transport \"ucx\" can't be used: rank 2 has none: no libucp.so.0");
    }

    #[test]
    fn rank_0_decides() {
        let mut mixed = ranks(Choice::Auto, &[true, true]);
        mixed[1].requested = Choice::Tcp;
        assert_eq!(transport(&mixed).unwrap(), Selected::Ucx);
        mixed[0].requested = Choice::Tcp;
        mixed[1].requested = Choice::Ucx;
        assert_eq!(transport(&mixed).unwrap(), Selected::Tcp);
    }

    #[test]
    fn encryption_is_rank_0s() {
        let mut capabilities = ranks(Choice::Auto, &[true; 3]);
        capabilities[0].encrypt = true;
        let tcp = Agreed { transport: Selected::Tcp, encrypt: true, reaches_memory: true };
        assert_eq!(choose(&capabilities).unwrap(), tcp, "UCX can't encrypt");
        capabilities[0].requested = Choice::Ucx;
        let error = choose(&capabilities).unwrap_err().to_string();
        assert!(error.starts_with("transport \"ucx\" can't be used: it can't encrypt"), "{error}");
        for requested in [Choice::Auto, Choice::Tcp, Choice::Ucx] {
            let mut capabilities = ranks(requested, &[true; 3]);
            capabilities[2].encrypt = true;
            let error = choose(&capabilities).unwrap_err().to_string();
            assert_eq!(
                error,
                "BREVITY_ENCRYPT: rank 2 has 1, expected 0, as rank 0 has: set it for all ranks"
            );
        }
    }

    #[test]
    fn memory_is_reached_where_the_ranks_of_each_host_have_one_owner() {
        let reaches = |owners: &[(u8, u64, u32)]| {
            let mut capabilities = ranks(Choice::Ucx, &vec![true; owners.len() + 1]);
            for (capability, &(boot, namespace, user)) in capabilities.iter_mut().zip(owners) {
                capability.memory = Some(MemoryOwner::sample(boot, namespace, user));
            }
            choose(&capabilities).unwrap().reaches_memory
        };
        assert!(reaches(&[]) && reaches(&[(1, 7, 0), (1, 7, 0)]) && reaches(&[(1, 7, 0), (2, 8, 5)]));
        assert!(!reaches(&[(1, 7, 0), (2, 7, 0), (1, 8, 0)]), "user namespaces");
        assert!(!reaches(&[(1, 7, 0), (2, 7, 0), (2, 7, 5)]), "users");
    }

    fn transport(capabilities: &[Capability]) -> Result<Selected> {
        choose(capabilities).map(|agreed| agreed.transport)
    }

    proptest! {
        #[test]
        fn capabilities_come_back(
            requested in 0usize..3,
            reason in proptest::option::of(".{0,100}"),
            encrypt: bool,
            owner in proptest::option::of((1u8..9, any::<u64>(), any::<u32>())),
        ) {
            let requested = [Choice::Auto, Choice::Tcp, Choice::Ucx][requested];
            let memory = owner.map(|(boot, namespace, user)| MemoryOwner::sample(boot, namespace, user));
            let capability = Capability { requested, ucx: reason.map_or(Ok(()), Err), encrypt, memory };
            prop_assert_eq!(Capability::decode(&capability.encode()), Some(capability));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = Capability::decode(&bytes);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let ucx = Err("é".repeat(600).replacen('é', "e", 1));
        let capability = Capability { requested: Choice::Auto, ucx, encrypt: false, memory: None };
        let reason = Capability::decode(&capability.encode()).unwrap().ucx.unwrap_err();
        assert_eq!(reason.len(), 1023);
    }
}
