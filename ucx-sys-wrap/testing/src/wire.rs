//! The wires under test: the one list that tests go through.

use ucx_sys_wrap::bootstrap::Choice;
use ucx_sys_wrap::local;
use ucx_sys_wrap::{Transport, ucx};

use crate::is_required;
use crate::worlds::{self, boxed, joined, local_peers, over_sockets, over_ucx, sharing};

/// What the bytes between ranks travel on.
///
/// The simulated network is none of these: its ranks are futures of one thread, in virtual time. It has tests
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Memory of one process.
    Local,
    /// The tcp transport over sockets alone.
    Tcp,
    /// The same, encrypted.
    TcpEncrypted,
    /// The tcp transport, with shared memory between ranks of one host.
    TcpShared,
    /// The same where the system does not let ranks read each other's memory.
    TcpRings,
    /// UCX over its own shared memory.
    UcxShared,
    /// UCX over its own tcp.
    UcxTcp,
    /// UCX over its own tcp, with shared memory of ours between ranks of one host. In a world of threads, the
    /// upper half are as if on other hosts.
    UcxLocalPeers,
    /// UCX as users have it who set nothing: all that it has, with shared memory of ours between ranks of one
    /// host.
    Ucx,
}

/// Variables and their values.
type Environment = &'static [(&'static str, &'static str)];

impl Wire {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Local,
        Self::Tcp,
        Self::TcpEncrypted,
        Self::TcpShared,
        Self::TcpRings,
        Self::UcxShared,
        Self::UcxTcp,
        Self::UcxLocalPeers,
        Self::Ucx,
    ];

    /// Whether it can be tested here: UCX may be missing, but not where `BREVITY_REQUIRE_UCX` is 1.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.choice() != Choice::Ucx || ucx_is_here()
    }

    /// The transport that it is of; for [`Self::Local`], which nobody can choose, any.
    #[must_use]
    pub fn choice(self) -> Choice {
        match self {
            Self::Local => Choice::Auto,
            Self::Tcp | Self::TcpEncrypted | Self::TcpShared | Self::TcpRings => Choice::Tcp,
            Self::UcxShared | Self::UcxTcp | Self::UcxLocalPeers | Self::Ucx => Choice::Ucx,
        }
    }

    /// What chooses it between processes.
    ///
    /// # Panics
    /// For wires that are only between threads: no process can choose these.
    #[must_use]
    pub fn environment(self) -> Environment {
        match self {
            Self::Local | Self::TcpRings => panic!("{self:?} is only between threads"),
            Self::Tcp => &[("BREVITY_TRANSPORT", "tcp"), ("BREVITY_SHARED_MEMORY", "off")],
            Self::TcpEncrypted => {
                &[("BREVITY_TRANSPORT", "tcp"), ("BREVITY_SHARED_MEMORY", "off"), ("BREVITY_ENCRYPT", "1")]
            }
            Self::TcpShared => &[("BREVITY_TRANSPORT", "tcp"), ("BREVITY_SHARED_MEMORY", "on")],
            Self::UcxShared => &[("BREVITY_TRANSPORT", "ucx"), ("BREVITY_SHARED_MEMORY", "off")],
            Self::UcxTcp => {
                &[("BREVITY_TRANSPORT", "ucx"), ("BREVITY_SHARED_MEMORY", "off"), ("UCX_TLS", "tcp,self")]
            }
            Self::UcxLocalPeers => {
                &[("BREVITY_TRANSPORT", "ucx"), ("BREVITY_SHARED_MEMORY", "on"), ("UCX_TLS", "tcp,self")]
            }
            Self::Ucx => &[("BREVITY_TRANSPORT", "ucx"), ("BREVITY_SHARED_MEMORY", "on")],
        }
    }

    /// A world of ranks that are threads of this process, in their order.
    ///
    /// # Panics
    /// When it can't be made: without a UCX that works, for one.
    #[must_use]
    pub fn world(self, world_size: u32) -> Vec<Box<dyn Transport>> {
        match self {
            Self::Local => boxed(local::world(world_size)),
            Self::Tcp => boxed(over_sockets(world_size)),
            Self::TcpEncrypted => boxed(joined(world_size, true)),
            Self::TcpShared => boxed(local_peers(world_size, true)),
            Self::TcpRings => boxed(local_peers(world_size, false)),
            Self::UcxShared => boxed(over_ucx(world_size, &worlds::lanes("all"))),
            Self::UcxTcp => boxed(over_ucx(world_size, &worlds::lanes("tcp,self"))),
            Self::UcxLocalPeers => {
                let near = world_size.div_ceil(2).max(2).min(world_size);
                boxed(sharing(over_ucx(world_size, &worlds::lanes("tcp,self")), near))
            }
            Self::Ucx => boxed(sharing(over_ucx(world_size, &ucx::Options::default()), world_size)),
        }
    }
}

/// Whether UCX can be tested; where `BREVITY_REQUIRE_UCX=1` says that it must, a missing one is a failure.
///
/// # Panics
/// When it is missing and must not be.
#[must_use]
pub fn ucx_is_here() -> bool {
    let missing = ucx::available().err();
    if let Some(why) = &missing {
        assert!(!is_required("BREVITY_REQUIRE_UCX"), "{why}");
        println!("skipped: no UCX ({why})");
    }
    missing.is_none()
}
