//! The RDMA devices of this host.

use std::path::Path;

/// Where Linux lists devices for RDMA: InfiniBand, RoCE, iWARP, EFA.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_sorted_and_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(entries(&folder.path().join("missing")).is_empty() && entries(folder.path()).is_empty());
        for name in ["mlx5_1", "mlx5_0"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(entries(folder.path()), ["mlx5_0", "mlx5_1"]);
    }
}
