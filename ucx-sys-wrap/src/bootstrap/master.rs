//! The address where the ranks of a job meet.

use std::fmt;
use std::net::IpAddr;

/// The expected form, for messages.
pub(super) const MASTER: &str = "host:port where rank 0 waits for the others";

/// Where rank 0 listens for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Master {
    /// Whether it is a loopback address or `localhost`; asks no name service.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address().map_or(self.host == "localhost", |address| address.is_loopback())
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Parses `host:port`, with an IPv6 address in brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (text, port) = text.rsplit_once(':')?;
        let host = without_brackets(text);
        let valid = !host.is_empty()
            && !host.contains(char::is_whitespace)
            && (host.len() < text.len() || !host.contains(':'));
        let port = port.parse().ok().filter(|&port| port != 0)?;
        valid.then(|| Self { host: host.into(), port })
    }

    /// Parses `host:port`, or a host alone with port 0.
    #[must_use]
    pub fn parse_announced(text: &str) -> Option<Self> {
        let is_address = text.parse::<IpAddr>().is_ok();
        let whole = if is_address { None } else { Self::parse(text) };
        whole.or_else(|| {
            let host = without_brackets(text);
            let is_other = |sign: char| sign.is_whitespace() || ":[]".contains(sign);
            let is_name = !host.is_empty() && !host.contains(is_other);
            (host.parse::<IpAddr>().is_ok() || is_name).then(|| Self { host: host.into(), port: 0 })
        })
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced() {
        for (text, host, port) in [
            ("203.0.113.7", "203.0.113.7", 0),
            ("203.0.113.7:4000", "203.0.113.7", 4000),
            ("gateway", "gateway", 0),
            ("gateway:4000", "gateway", 4000),
            ("fd00::7", "fd00::7", 0),
            ("[fd00::7]", "fd00::7", 0),
            ("[fd00::7]:4000", "fd00::7", 4000),
        ] {
            assert_eq!(Master::parse_announced(text), Some(Master { host: host.into(), port }), "{text}");
        }
        for text in ["", ":4000", "gateway:0", "gateway:x", "gate way", "a:b:1", "[gateway", "gateway:70000"]
        {
            assert_eq!(Master::parse_announced(text), None, "{text}");
        }
    }
}
