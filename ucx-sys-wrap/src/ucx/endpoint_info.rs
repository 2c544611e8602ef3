//! What a rank tells all others about itself when the world is made.
//!
//! Little-endian: the letters `brvu`; the version of this wire format, UCX's major and minor version, process
//! and descriptor of the failure flag, 4 bytes each; the token, 16; the boot id of the kernel, 16, zeros if
//! unknown; the control address: 16 bytes of IPv6 (or IPv4 mapped to it) and 4 of port; the length of the
//! settings, 4; whether the rank has RDMA hardware, 4; the settings that ranks must have alike; then UCX's
//! worker address to the end.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::failure_flag::Token;
use crate::boot::Boot;
use crate::{Error, Rank, Result};

/// The version of this transport's wire format; ranks compare it when they join.
pub const WIRE_VERSION: u32 = 10;

/// More than any worker address has.
const MAX_ADDRESS_BYTES: usize = 64 << 10;

const MAGIC: [u8; 4] = *b"brvu";
pub(super) const VERSION_AT: usize = MAGIC.len();
const FIXED_BYTES: usize = 84;

/// Longer settings are cut.
const MAX_SETTINGS_BYTES: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointInfo {
    /// Only the same version understands the worker address.
    pub(super) ucx_version: (u32, u32),
    pub(super) process: u32,
    /// The descriptor of the failure flag in its process.
    pub(super) failure_flag: u32,
    pub(super) token: Token,
    pub(super) boot: Option<Boot>,
    pub(super) control: SocketAddr,
    /// Whether hardware reaches its memory from other hosts.
    pub(super) has_rdma: bool,
    /// What all ranks must have alike; see [`Tuning`](super::tuning::Tuning).
    pub(super) settings: String,
    pub(super) worker: Vec<u8>,
}

impl EndpointInfo {
    /// Whether both run under one kernel. `BREVITY_HOST_ID` does not count: UCX fetches from any memory it
    /// can reach.
    pub(super) fn shares_host_with(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [WIRE_VERSION, self.ucx_version.0, self.ucx_version.1, self.process, self.failure_flag]
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.token);
        bytes.extend_from_slice(&self.boot.unwrap_or_default());
        let ip = match self.control.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes.extend_from_slice(&ip.octets());
        bytes.extend_from_slice(&u32::from(self.control.port()).to_le_bytes());
        let settings = self.settings.get(..self.settings.len().min(MAX_SETTINGS_BYTES)).unwrap_or_default();
        bytes.extend_from_slice(&(settings.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.has_rdma).to_le_bytes());
        bytes.extend_from_slice(settings.as_bytes());
        bytes.extend_from_slice(&self.worker);
        bytes
    }

    /// Reads the endpoint info of `rank`, which must run the same versions as this rank.
    ///
    /// # Errors
    /// [`Error::Protocol`] for malformed bytes; [`Error::Disagreement`] for another version.
    pub(super) fn decode(bytes: &[u8], rank: Rank, ucx_version: (u32, u32)) -> Result<Self> {
        let refused = || {
            let what = format!("{} bytes that are no UCX address of this library", bytes.len());
            Error::Protocol { rank, what }
        };
        let split = bytes.split_first_chunk::<FIXED_BYTES>();
        let (fixed, rest) = split.filter(|(fixed, _)| fixed[..4] == MAGIC).ok_or_else(refused)?;
        let number =
            |at: usize| fixed[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        if number(VERSION_AT) != WIRE_VERSION {
            let (found, expected) = (number(VERSION_AT).to_string(), WIRE_VERSION.to_string());
            return Err(Error::Disagreement { what: "wire version of ucx", rank, found, expected });
        }
        let (major, minor) = (number(8), number(12));
        if (major, minor) != ucx_version {
            let (found, expected) =
                (format!("{major}.{minor}"), format!("{}.{}", ucx_version.0, ucx_version.1));
            return Err(Error::Disagreement { what: "UCX version", rank, found, expected });
        }
        let length = number(76) as usize;
        let split = rest.split_at_checked(length).filter(|_| length <= MAX_SETTINGS_BYTES);
        let (settings, worker) = split.ok_or_else(refused)?;
        let settings = std::str::from_utf8(settings).map_err(|_| refused())?;
        if number(80) > 1 || worker.is_empty() || worker.len() > MAX_ADDRESS_BYTES {
            return Err(refused());
        }
        let field = |at: usize| -> [u8; 16] { std::array::from_fn(|place| fixed[at + place]) };
        let Ok(port) = u16::try_from(number(72)) else {
            return Err(Error::Protocol { rank, what: format!("a control port of {}", number(72)) });
        };
        let control = SocketAddr::new(Ipv6Addr::from(field(56)).to_canonical(), port);
        Ok(Self {
            ucx_version,
            process: number(16),
            failure_flag: number(20),
            token: field(24),
            boot: Some(field(40)).filter(|boot| *boot != Boot::default()),
            control,
            has_rdma: number(80) == 1,
            settings: settings.to_owned(),
            worker: worker.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(control: &str) -> EndpointInfo {
        EndpointInfo {
            ucx_version: (1, 13),
            process: 77,
            failure_flag: 5,
            token: *b"0123456789abcdef",
            boot: Some([8; 16]),
            control: control.parse().unwrap(),
            has_rdma: false,
            settings: "UCX_TLS=all".into(),
            worker: vec![1, 2, 3],
        }
    }

    #[test]
    fn endpoint_infos_round_trip() {
        for control in ["127.0.0.1:4000", "[::1]:65535"] {
            for (boot, has_rdma) in [(Some([8; 16]), false), (None, true)] {
                let info = EndpointInfo { boot, has_rdma, ..info(control) };
                assert_eq!(EndpointInfo::decode(&info.encode(), Rank(1), (1, 13)).unwrap(), info);
            }
        }
    }

    #[test]
    fn hosts_are_known_by_their_kernels() {
        let [one, other, unknown] =
            [Some([8; 16]), Some([9; 16]), None].map(|boot| EndpointInfo { boot, ..info("127.0.0.1:4000") });
        assert!(one.shares_host_with(&one) && !one.shares_host_with(&other));
        assert!(
            !unknown.shares_host_with(&unknown)
                && !unknown.shares_host_with(&one)
                && !one.shares_host_with(&unknown)
        );
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let refusal = |change: fn(&mut Vec<u8>)| {
            let mut bytes = info("127.0.0.1:4000").encode();
            change(&mut bytes);
            EndpointInfo::decode(&bytes, Rank(1), (1, 13)).expect_err("bytes that are wrong").to_string()
        };
        assert!(refusal(|bytes| bytes.truncate(76)).contains("76 bytes that are no UCX address"));
        assert!(
            refusal(|bytes| bytes.truncate(84 + 11)).contains("no UCX address"),
            "settings, and nothing more"
        );
        assert!(
            refusal(|bytes| bytes[76] = 200).contains("no UCX address"),
            "settings longer than the bytes"
        );
        assert!(refusal(|bytes| bytes[79] = 200).contains("no UCX address"));
        assert!(refusal(|bytes| bytes[80] = 2).contains("no UCX address"), "neither yes nor no");
        assert!(refusal(|bytes| bytes[90] = 0xff).contains("no UCX address"), "no text");
        assert!(refusal(|bytes| bytes.resize(70 << 10, 0)).contains("no UCX address"));
        assert!(refusal(|bytes| bytes[0] = 0).contains("no UCX address"));
        let other = format!("wire version of ucx: rank 1 has 99, expected {WIRE_VERSION}");
        assert!(refusal(|bytes| bytes[4] = 99).contains(&other));
        assert!(refusal(|bytes| bytes[12] = 20).contains("UCX version: rank 1 has 1.20, expected 1.13"));
        assert!(refusal(|bytes| bytes[74] = 1).contains("a control port of"));
    }
}
