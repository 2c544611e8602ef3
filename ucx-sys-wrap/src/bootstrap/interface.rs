//! The address of a network interface.

use std::net::IpAddr;

use crate::{Error, Result};

/// The address of the interface called `name` (or `name` itself, if it is an address of this host), of the same family
/// as `like` where there is one.
pub(super) fn address_of(name: &str, like: IpAddr) -> Result<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().map_err(|error| Error::system("can't list network interfaces", error))?;
    let wanted: Option<IpAddr> = name.parse().ok();
    let mut found: Vec<IpAddr> = interfaces
        .iter()
        .filter(|interface| interface.name == name || wanted == Some(interface.ip()))
        .map(if_addrs::Interface::ip)
        .collect();
    found.sort_by_key(|address| (address.is_ipv4() != like.is_ipv4(), is_link_local(*address)));
    found.first().copied().ok_or_else(|| Error::Environment {
        variable: "BREVITY_INTERFACE",
        found: format!("{name:?}"),
        expected: "the name or an address of a network interface of this host (see `ip address`)",
    })
}

/// Such addresses need the interface beside them and are taken last.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_address_and_nonsense_is_named() {
        let loopback: IpAddr = [127, 0, 0, 1].into();
        assert_eq!(address_of("lo", loopback).unwrap(), loopback);
        assert_eq!(address_of("127.0.0.1", loopback).unwrap(), loopback);
        let error = address_of("no-such-interface", loopback).unwrap_err().to_string();
        assert!(error.contains("BREVITY_INTERFACE") && error.contains("no-such-interface"), "{error}");
    }
}
