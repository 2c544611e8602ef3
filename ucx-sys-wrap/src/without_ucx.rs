//! Takes the place of `ucx` in builds without the feature `ucx`: there is no UCX, and all ranks take TCP.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::bootstrap::Ports;
use crate::tcp::Tcp;
use crate::{Error, Rank, Result};

/// Bytes that a rank keeps of each peer before they are received: none.
pub const CREDIT_BYTES: u64 = 0;

/// The longest payload that is sent before its receiver asks for it, in bytes: none is.
pub const MAX_EAGER_BYTES: usize = 0;

const LEFT_OUT: &str = "built without the feature `ucx`: build it with that, or take BREVITY_TRANSPORT=tcp";

/// The UCX library in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its major, minor and release number.
    pub version: (u32, u32, u32),
    /// The file that was loaded.
    pub path: PathBuf,
}

/// Says why there is no UCX.
///
/// # Errors
/// Always: it is left out of this program.
pub fn available() -> std::result::Result<Report, String> {
    Err(LEFT_OUT.into())
}

/// How ranks reach each other before they are connected.
pub trait Meeting {
    /// Hands this rank's bytes to all ranks and returns those of all, in the order of ranks.
    ///
    /// # Errors
    /// When that fails.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Whether all ranks are still there.
    ///
    /// # Errors
    /// Names the rank that is not.
    fn check(&mut self) -> Result<()>;
}

/// What can be chosen when a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface that peers reach this rank by.
    pub interface: IpAddr,
    /// The ports that it listens at.
    pub ports: Ports,
    /// UCX settings.
    pub settings: Vec<(String, String)>,
    /// How long connecting may take.
    pub join_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let (interface, settings) = (Ipv4Addr::LOCALHOST.into(), Vec::new());
        Self { interface, ports: Ports::default(), settings, join_timeout: Duration::ZERO }
    }
}

/// A rank that could take part in UCX: there is none.
pub struct Prepared(Infallible);

impl Prepared {
    /// Says why there is no UCX.
    ///
    /// # Errors
    /// [`Error::Unavailable`], always.
    pub fn new(_: Rank, _: u32, _: &[(String, String)]) -> Result<Self> {
        Err(Error::Unavailable { name: "ucx", why: LEFT_OUT.into() })
    }

    /// Is never called.
    ///
    /// # Errors
    /// None.
    pub fn connect(self, _: &mut dyn Meeting, _: &Options) -> Result<Tcp> {
        match self.0 {}
    }
}

/// No library's destructors run at exit that a thread could be inside of.
pub(crate) mod exiting {
    use std::sync::Arc;

    use crate::buffer::Port;

    pub(crate) struct Inside;

    pub(crate) fn enter() -> Option<Inside> {
        Some(Inside)
    }

    pub(crate) fn keep(_: &Arc<Port>) {}
}
