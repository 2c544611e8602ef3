//! Replaces `ucx` in builds without the feature `ucx`: UCX is unavailable, and all ranks use TCP. The items
//! are documented there.
#![allow(missing_docs, clippy::missing_errors_doc)]

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::bootstrap::Ports;
use crate::tcp::Tcp;
use crate::{Error, Rank, Result};

pub const CREDIT_BYTES: u64 = 0;

/// The longest payload that is sent before its receiver asks for it, in bytes: none is.
pub const MAX_EAGER_BYTES: usize = 0;

const LEFT_OUT: &str = "built without the feature `ucx`: build it with that, or take BREVITY_TRANSPORT=tcp";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub version: (u32, u32, u32),
    pub path: PathBuf,
}

pub fn available() -> std::result::Result<Report, String> {
    Err(LEFT_OUT.into())
}

/// None that this program can use.
#[must_use]
pub fn rdma_devices() -> Vec<String> {
    Vec::new()
}

pub trait Meeting {
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
    fn check(&mut self) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct Options {
    pub interface: IpAddr,
    pub ports: Ports,
    pub settings: Vec<(String, String)>,
    pub join_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let (interface, settings) = (Ipv4Addr::LOCALHOST.into(), Vec::new());
        Self { interface, ports: Ports::default(), settings, join_timeout: Duration::ZERO }
    }
}

/// Never exists.
pub struct Prepared(Infallible);

impl Prepared {
    pub fn new(_: Rank, _: u32, _: &[(String, String)]) -> Result<Self> {
        Err(Error::Unavailable { name: "ucx", why: LEFT_OUT.into() })
    }

    pub fn connect(self, _: &mut dyn Meeting, _: &Options) -> Result<Tcp> {
        match self.0 {}
    }
}
