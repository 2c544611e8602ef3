//! What this host's kernel offers to ranks, and the cost of each missing feature.

use brevity::transport::buffer::HugePages;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create, statvfs};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use serde::Serialize;

/// Open files that a rank needs at most for each rank of its host: memory, wake receiver, process and
/// connections.
const FILES_A_LOCAL_PEER: u64 = 8;

/// Open files that a rank needs besides.
const FILES_A_RANK: u64 = 64;

/// The largest number of ranks of one host that share memory.
const MOST_LOCAL_PEERS: u64 = 256;

/// The default size of `/dev/shm` in containers.
const SMALL_SHM_BYTES: u64 = 64 << 20;

/// A feature of the host that ranks use.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub name: &'static str,
    /// Whether the host has it.
    pub available: bool,
    /// Its purpose; if it is missing, the cost and the remedy.
    pub note: String,
}

/// The features of this host that ranks use.
pub fn findings() -> Vec<Finding> {
    vec![processes(), memory(), huge_pages(), shared_folder(), open_files(), kernel()]
}

fn finding(name: &'static str, available: bool, good_for: &str, cost: &str) -> Finding {
    Finding { name, available, note: if available { good_for } else { cost }.into() }
}

fn processes() -> Finding {
    finding(
        "pidfd",
        pidfd_open(getpid(), PidfdFlags::empty()).is_ok(),
        "a rank that dies is noticed at once, also if its children live on",
        "brevity run, perf and train can't watch ranks: use Linux 5.3 or later, and a container that allows \
         pidfd_open",
    )
}

fn memory() -> Finding {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("brevity-info", flags);
    let sealed = memory.and_then(|memory| fcntl_add_seals(memory, SealFlags::FUTURE_WRITE));
    finding(
        "memfd",
        sealed.is_ok(),
        "ranks of one host share memory",
        "ranks of one host talk over sockets, which take several times as long: use Linux 5.1 or later",
    )
}

fn huge_pages() -> Finding {
    let pages = HugePages::find();
    let good_for = match pages {
        HugePages::Reserved(free) => {
            format!("large buffers of a Pool lie on them; {free} are reserved and free")
        }
        _ => "large buffers of a Pool lie on transparent ones".into(),
    };
    finding(
        "huge pages",
        pages != HugePages::None,
        &good_for,
        "large messages take longer to send: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
}

fn shared_folder() -> Finding {
    let bytes = statvfs("/dev/shm").map_or(0, |folder| folder.f_bavail.saturating_mul(folder.f_frsize));
    let mib = bytes >> 20;
    finding(
        "/dev/shm",
        bytes > SMALL_SHM_BYTES,
        &format!("{mib} MiB are free, for the shared memory of UCX alone"),
        &format!("{mib} MiB are free, with which UCX may fail to start: docker run --shm-size=1g"),
    )
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let ranks = (limit.saturating_sub(FILES_A_RANK) / FILES_A_LOCAL_PEER).min(MOST_LOCAL_PEERS);
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let enough = format!("{limit} are allowed, enough for about {ranks} ranks on this host");
    finding(
        "open files",
        ranks >= processors.min(MOST_LOCAL_PEERS),
        &enough,
        &format!("{enough}, which has {processors} processors: raise the limit with ulimit -n"),
    )
}

fn kernel() -> Finding {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    finding(
        "kernel",
        !release.is_empty(),
        &format!("Linux {release}"),
        "ranks of one host can't tell that they are: mount /proc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_it_costs() {
        let found = finding("a", true, "good", "cost: remedy");
        let missing = finding("a", false, "good", "cost: remedy");
        assert_eq!((found.note.as_str(), missing.note.as_str()), ("good", "cost: remedy"));
        for Finding { name, note, .. } in findings() {
            assert!(!note.is_empty() && !note.contains('\n'), "{name}: {note}");
        }
    }
}
