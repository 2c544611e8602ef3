//! Where rank 0 listens.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::call::resolve;
use super::deadline::Deadline;
use super::identity::{Identity, key_needed};
use super::interface::is_here;
use super::master::Master;
use super::proof::{Party, Purpose};
use crate::{Error, Result};

/// How long a taken port is tried again: the job that had it may be ending.
const PORT_PATIENCE: Duration = Duration::from_secs(2);

const TAKEN: &str = " (does another job use the port? then set BREVITY_MASTER=host:port for all ranks)";

/// Listens where the others look for rank 0: on the first of the master's ports that is free. Returns it too.
pub(super) fn listen(
    identity: &Identity,
    party: &Arc<Party>,
    purpose: Purpose,
    deadline: &Deadline,
) -> Result<(Acceptor, Master)> {
    let mut ports = identity.other_ports.iter();
    let mut here = identity.clone();
    loop {
        let acceptor = listen_on_port(&here, party, purpose, deadline);
        match (&acceptor, ports.next()) {
            (Err(Error::System { source, .. }), Some(&port)) if source.kind() == ErrorKind::AddrInUse => {
                here.master.port = port;
            }
            _ => return acceptor.map(|acceptor| (acceptor, here.master)),
        }
    }
}

/// Listens on the master's port. Waits a while for a taken port, unless there are other ports.
fn listen_on_port(
    identity: &Identity,
    party: &Arc<Party>,
    purpose: Purpose,
    deadline: &Deadline,
) -> Result<Acceptor> {
    let addresses = match &identity.published {
        Some(published) => vec![published.listen],
        None => listen_addresses(identity, resolve(&identity.master, deadline)?)?,
    };
    let patience = if identity.other_ports.is_empty() { PORT_PATIENCE } else { Duration::ZERO };
    let patience = deadline.no_later_than(patience);
    loop {
        let error = match Acceptor::listen(party, purpose, &addresses, identity.port_reserved) {
            Ok(acceptor) => return Ok(acceptor),
            Err(error) => error,
        };
        let is_taken = error.kind() == ErrorKind::AddrInUse;
        if is_taken && !patience.passed() {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let hint = if is_taken && identity.published.is_none() { TAKEN } else { "" };
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        return Err(Error::system(
            format!("rank {} can't listen on {}{hint}", identity.rank, addresses.join(", ")),
            error,
        ));
    }
}

/// Where rank 0 listens: on every address of the master's name.
///
/// With a key, rank 0 listens on all addresses of this host where the master is a name, which may mean
/// another address on other hosts (some launchers give `localhost` to rank 0 alone), or an address that is
/// not here, which may be forwarded. Loopback *addresses* are taken as they are.
fn listen_addresses(identity: &Identity, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>> {
    let is_loopback = addresses.iter().all(|address| address.ip().is_loopback());
    let Some(first) = addresses.first().filter(|_| is_loopback || identity.key.is_some()) else {
        return Err(key_needed());
    };
    let is_name = identity.master.address().is_none();
    let is_elsewhere = !is_loopback && !addresses.iter().any(|address| is_here(address.ip()));
    let is_local = is_loopback && identity.are_all_here();
    if identity.key.is_none() || is_local || !(is_name || is_elsewhere) {
        return Ok(addresses);
    }
    // The unspecified IPv6 address includes IPv4; some hosts have no IPv6.
    let [both, four] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let all = SocketAddr::new(if is_here(both) { both } else { four }, first.port());
    tracing::info!(master = %identity.master, "rank 0 listens on all addresses of this host");
    Ok(vec![all])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;
    use crate::bootstrap::JobKey;

    #[test]
    fn rank_0_listens_on_all_addresses_of_its_name() {
        let identity = |host: &str, key: bool| {
            let mut identity = Identity::new(Rank(0), 2, Master { host: host.into(), port: 4000 });
            identity.key = key.then(|| JobKey::generate().unwrap());
            identity
        };
        let at = |addresses: &[&str]| -> Vec<SocketAddr> {
            addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 4000)).collect()
        };
        let everywhere = |found: Vec<SocketAddr>| found.len() == 1 && found[0].ip().is_unspecified();
        let (both, outside) = (at(&["127.0.0.1", "::1"]), at(&["192.0.2.7", "2001:db8::7"]));
        assert_eq!(listen_addresses(&identity("localhost", false), both.clone()).unwrap(), both);
        assert!(everywhere(listen_addresses(&identity("localhost", true), both.clone()).unwrap()));
        let mut here = identity("localhost", true);
        here.local_ranks = Some(2);
        assert_eq!(listen_addresses(&here, both.clone()).unwrap(), both, "nobody else is to come");
        assert!(everywhere(listen_addresses(&identity("node0", true), outside.clone()).unwrap()));
        assert!(
            everywhere(listen_addresses(&identity("192.0.2.7", true), at(&["192.0.2.7"])).unwrap()),
            "forwarded"
        );
        let loopback = at(&["127.0.0.1"]);
        assert_eq!(listen_addresses(&identity("127.0.0.1", true), loopback.clone()).unwrap(), loopback);
        for addresses in [outside.clone(), [both, outside].concat(), vec![]] {
            let error = listen_addresses(&identity("node0", false), addresses).unwrap_err();
            assert!(matches!(error, Error::Environment { variable: "BREVITY_KEY", .. }), "{error}");
        }
    }
}
