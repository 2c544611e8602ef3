//! Whether UCX has a better network here than TCP.

use std::ffi::OsString;
use std::path::Path;

/// Where Linux lists devices for RDMA: InfiniBand, RoCE, iWARP, EFA.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// Who sets one of these has UCX in mind, and knows its networks better than we do.
const WISHES: [&str; 3] = ["UCX_TLS", "UCX_NET_DEVICES", "BREVITY_UCX_LIB"];

/// Why "auto" does not take UCX.
pub(super) const NO_RDMA: &str = "no device for RDMA, and over TCP Brevity's own sockets are faster than UCX's (to take \
                                  UCX all the same, set BREVITY_TRANSPORT=ucx for all ranks)";

/// Whether "auto" takes UCX where it can be loaded.
pub(super) fn is_for_ucx() -> bool {
    is_wished(|name| std::env::var_os(name)) || !rdma_devices().is_empty()
}

/// The names of this host's devices for RDMA, sorted.
#[must_use]
pub fn rdma_devices() -> Vec<String> {
    entries(Path::new(RDMA_DEVICES))
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn is_wished(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    WISHES.iter().any(|name| variable(name).is_some_and(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_or_a_variable_of_ucx_speaks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(entries(&folder.path().join("missing")).is_empty() && entries(folder.path()).is_empty());
        for name in ["mlx5_1", "mlx5_0"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(entries(folder.path()), ["mlx5_0", "mlx5_1"]);
        let set = |set: &'static str, value: &'static str| {
            move |name: &str| (name == set).then(|| OsString::from(value))
        };
        assert!(is_wished(set("UCX_TLS", "rc")) && is_wished(set("BREVITY_UCX_LIB", "/opt/libucp.so.0")));
        assert!(!is_wished(set("UCX_TLS", "")) && !is_wished(set("UCX_LOG_LEVEL", "info")));
    }
}
