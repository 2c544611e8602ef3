//! Whether UCX has a faster network than TCP on this host.

use std::ffi::OsString;

use crate::ucx::rdma_devices;

/// Variables that ask for UCX when set.
const WISHES: [&str; 3] = ["UCX_TLS", "UCX_NET_DEVICES", "BREVITY_UCX_LIB"];

/// The reason why "auto" does not take UCX.
pub(super) const NO_RDMA: &str = "no device for RDMA, and over TCP Brevity's own sockets are faster than UCX's (to take \
                                  UCX all the same, set BREVITY_TRANSPORT=ucx for all ranks)";

/// Whether "auto" takes UCX where it can be loaded.
pub(super) fn is_for_ucx() -> bool {
    is_wished(|name| std::env::var_os(name)) || !rdma_devices().is_empty()
}

fn is_wished(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    WISHES.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_ucx_speaks_for_it() {
        let set = |set: &'static str, value: &'static str| {
            move |name: &str| (name == set).then(|| OsString::from(value))
        };
        assert!(is_wished(set("UCX_TLS", "rc")) && is_wished(set("BREVITY_UCX_LIB", "/opt/libucp.so.0")));
        assert!(!is_wished(set("UCX_TLS", "")) && !is_wished(set("UCX_LOG_LEVEL", "info")));
    }
}
