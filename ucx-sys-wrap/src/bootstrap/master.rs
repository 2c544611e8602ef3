//! Where the ranks of a job meet.

use std::fmt;
use std::net::IpAddr;

/// What a variable that names a master must be.
pub(super) const MASTER: &str = "host:port where rank 0 waits for the others";

/// Where rank 0 waits for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Master {
    /// Whether it is sure, without asking any name service, that only this host can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address().map_or(self.host == "localhost", |address| address.is_loopback())
    }

    /// The host as an address, if it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Reads `host:port`; an IPv6 address stands in brackets.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let plain = !host.is_empty() && !host.contains(char::is_whitespace);
        let valid = plain && (bracketed.is_some() || !host.contains(':'));
        let port = port.parse().ok().filter(|&port| port != 0)?;
        valid.then(|| Self { host: host.into(), port })
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
