//! Which of this host's addresses a rank listens on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::identity::{Identity, key_needed};
use crate::{Error, Result};

/// The address on which this rank serves its peers: that of the interface that the user names, else
/// `towards`, which leads to the other ranks.
///
/// Loopback is taken only on purpose: many an `/etc/hosts` maps the host's own name to it.
pub(super) fn serving_address(identity: &Identity, towards: IpAddr) -> Result<IpAddr> {
    let serves_others = identity.key.is_some();
    let address = match &identity.interface {
        Some(name) => address_of(name, towards)?,
        None if !towards.is_loopback() || identity.master.is_loopback() || !serves_others => towards,
        None => outside_addresses()?.into_iter().next().unwrap_or(towards),
    };
    if address.is_loopback() || serves_others { Ok(address) } else { Err(key_needed()) }
}

/// The address of an interface, by its name or by the address itself; of several, one of the family of
/// `like`.
pub(super) fn address_of(name: &str, like: IpAddr) -> Result<IpAddr> {
    let all = all_addresses()?;
    let known = |(interface, address): &&(String, IpAddr)| interface == name || address.to_string() == name;
    let found = all.iter().filter(known).map(|&(_, address)| address);
    found.min_by_key(|address| address.is_ipv6() != like.is_ipv6()).ok_or_else(|| {
        let names = names_of(all.iter().map(|(interface, _)| interface.as_str()));
        Error::Environment {
            variable: "BREVITY_INTERFACE",
            found: format!("{name:?}, and this host has {names}"),
            expected: "the name or address of a network interface that is up",
        }
    })
}

/// Each name once, in the order of first occurrence.
fn names_of<'a>(interfaces: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in interfaces {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// This host's addresses that are not loopback; those with a route to other networks first.
pub(super) fn outside_addresses() -> Result<Vec<IpAddr>> {
    let routed = [
        source(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        source(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    ];
    let mut all: Vec<IpAddr> = all_addresses()?.into_iter().map(|(_, address)| address).collect();
    all.retain(|address| !address.is_loopback());
    all.sort_by_key(|&address| !routed.contains(&Some(address)));
    Ok(all)
}

pub(super) fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The source address towards another; sends no packet.
fn source(any: IpAddr, other: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Interface names and addresses, IPv4 first, without link-local ones.
fn all_addresses() -> Result<Vec<(String, IpAddr)>> {
    let mut all: Vec<(String, IpAddr)> = if_addrs::get_if_addrs()
        .map_err(|error| Error::system("can't list the network interfaces", error))?
        .into_iter()
        .map(|interface| (interface.name.clone(), interface.ip()))
        .filter(|(_, address)| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    all.sort_by_key(|(_, address)| address.is_ipv6());
    Ok(all)
}

pub(super) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use crate::bootstrap::{JobKey, Master};

    fn identity(host: &str, key: bool, interface: Option<&str>) -> Identity {
        let mut identity = Identity::new(Rank(1), 2, Master { host: host.into(), port: 4000 });
        identity.key = key.then(|| JobKey::generate().unwrap());
        identity.interface = interface.map(str::to_owned);
        identity
    }

    const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    #[test]
    fn the_interface_that_leads_to_the_master() {
        assert_eq!(serving_address(&identity("node0", true, None), OUTSIDE).unwrap(), OUTSIDE);
        assert_eq!(serving_address(&identity("127.0.0.1", true, None), LOOPBACK).unwrap(), LOOPBACK);
        assert_eq!(serving_address(&identity("localhost", false, None), LOOPBACK).unwrap(), LOOPBACK);
    }

    #[test]
    fn loopback_is_not_served_by_accident() {
        let address = serving_address(&identity("node0", true, None), LOOPBACK).unwrap();
        assert_eq!(address.is_loopback(), outside_addresses().unwrap().is_empty());
    }

    #[test]
    fn addresses_of_other_hosts_are_not_here() {
        assert!(is_here(LOOPBACK) && !is_here(OUTSIDE));
    }

    #[test]
    fn only_loopback_is_served_without_a_key() {
        let error = serving_address(&identity("node0", false, None), OUTSIDE).unwrap_err();
        assert!(matches!(error, Error::Environment { variable: "BREVITY_KEY", .. }));
    }

    #[test]
    fn an_interface_with_both_families_serves_the_one_that_leads_to_the_others() {
        let both = |name: &str, family: fn(&IpAddr) -> bool| {
            all_addresses().unwrap().iter().any(|(interface, address)| interface == name && family(address))
        };
        for like in [LOOPBACK, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let family = if like.is_ipv4() { IpAddr::is_ipv4 } else { IpAddr::is_ipv6 };
            if both("lo", family) {
                assert_eq!(address_of("lo", like).unwrap().is_ipv4(), like.is_ipv4());
            }
        }
    }

    #[test]
    fn interfaces_with_several_addresses_are_named_once() {
        // All of IPv4 come before those of IPv6.
        assert_eq!(names_of(["lo", "eth0", "lo", "eth0"].into_iter()), "lo, eth0");
        assert_eq!(names_of([].into_iter()), "");
    }

    #[test]
    fn a_named_interface_wins() {
        let (name, address) =
            all_addresses().unwrap().into_iter().find(|(_, address)| address.is_loopback()).unwrap();
        assert_eq!(serving_address(&identity("node0", true, Some(&name)), OUTSIDE).unwrap(), address);
        let by_address = identity("node0", true, Some(&address.to_string()));
        assert_eq!(serving_address(&by_address, OUTSIDE).unwrap(), address);
        let error = serving_address(&identity("node0", true, Some("nowhere0")), OUTSIDE).unwrap_err();
        assert!(error.to_string().contains("BREVITY_INTERFACE is \"nowhere0\""), "{error}");
    }
}
