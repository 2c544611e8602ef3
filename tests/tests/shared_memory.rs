//! Ranks that share memory: which of it has a name that others can find, what remains when they are killed,
//! and strangers that connect to the sockets of the fd exchange.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::Duration;

use brevity::transport::Rank;
use brevity::transport::bootstrap::{Identity, JobKey, Master, Rendezvous, share_memory};
use brevity_testing::worlds::reserved_port;
use brevity_testing::{Process, Wire};
use brevity_tests::faults::Job;

const FAULT: &str = env!("CARGO_BIN_EXE_fault");

fn launch(wire: Wire) -> Job {
    Job::launch(FAULT, &["reduce", "100"], 3, wire, &[("BREVITY_TIMEOUT", "50")])
}

/// The targets of a process's descriptors.
fn links(process: Process) -> Vec<String> {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", process.0)) else { return Vec::new() };
    entries
        .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect()
}

/// The files that a process has mapped.
fn mapped(process: Process) -> HashSet<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.0)).unwrap_or_default();
    maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned())).collect()
}

/// The Unix sockets with a name at which a process listens.
fn doors(process: Process) -> Vec<String> {
    let own: HashSet<_> = links(process)
        .into_iter()
        .filter_map(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok())
        .collect();
    let table = fs::read_to_string("/proc/self/net/unix").unwrap();
    let door = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_own = own.contains(&words.get(6)?.parse().ok()?) && *words.get(3)? == "00010000";
        is_own.then(|| words.get(7).map(|name| (*name).to_owned()))?
    };
    table.lines().skip(1).filter_map(door).collect()
}

/// The shared memory has no name, so nothing can be left behind: it exists through descriptors alone, and the
/// listening sockets are closed.
#[test]
fn what_ranks_share_has_no_name() {
    let inherited = links(Process::own());
    let job = launch(Wire::TcpShared);
    job.await_ready();
    for rank in job.ranks() {
        let links = links(*rank);
        assert!(links.iter().any(|link| link.starts_with("/memfd:brevity")), "{links:?}");
        let is_its_own = |link: &&String| !inherited.contains(*link);
        let named = links
            .iter()
            .filter(is_its_own)
            .find(|link| link.starts_with("/dev/shm") || link.starts_with("/tmp"));
        assert_eq!(named, None, "{links:?}");
        let mapped = mapped(*rank);
        assert!(mapped.iter().any(|file| file.starts_with("/memfd:brevity")), "{mapped:?}");
        assert!(
            mapped.iter().all(|file| !file.starts_with("/dev/shm") && !file.starts_with("/SYSV")),
            "{mapped:?}"
        );
        assert_eq!(doors(*rank), [""; 0]);
    }
}

/// UCX's memory has names; they are gone with the processes, however these end.
#[test]
fn ranks_over_ucx_leave_nothing_when_they_are_killed() {
    if !Wire::UcxShared.is_here() {
        return;
    }
    let job = launch(Wire::UcxShared);
    job.await_ready();
    let files: HashSet<_> = job.ranks().iter().flat_map(|rank| mapped(*rank)).collect();
    let shared: Vec<_> =
        files.iter().filter(|file| file.starts_with("/dev/shm") || file.starts_with("/SYSV")).collect();
    job.ranks().iter().for_each(|rank| rank.signal("KILL"));
    job.until("a killed rank lives", || job.ranks().iter().all(|rank| !rank.is_running()));
    for file in shared {
        let is_gone = || file.ends_with("(deleted)") || !Path::new(file).exists();
        job.until(&format!("{file} is left"), is_gone);
    }
}

/// Whatever a process of the same user sends to the listening sockets while they are open, it gets no answer,
/// and the ranks share their memory. The sockets of two ranks are open until the third continues.
#[test]
fn strangers_at_the_doors_get_nothing_and_stop_nobody() {
    let (_reserved, port) = reserved_port();
    let join = |rank: u32| {
        let mut identity = Identity::new(Rank(rank), 3, Master { host: "127.0.0.1".into(), port });
        (identity.key, identity.port_reserved) = (JobKey::parse("correct horse battery"), true);
        (Rendezvous::join(&identity).unwrap(), identity)
    };
    let share = |(mut rendezvous, identity): (Rendezvous, Identity)| {
        share_memory(&identity, &mut rendezvous).unwrap()
    };
    let before = doors(Process::own());
    let shared = scope(|threads| {
        let mut ranks: Vec<_> = (0..2).map(|rank| threads.spawn(move || share(join(rank)))).collect();
        let last = join(2);
        let open = loop {
            let open: Vec<_> =
                doors(Process::own()).into_iter().filter(|door| !before.contains(door)).collect();
            if open.len() == 2 {
                break open;
            }
            sleep(Duration::from_millis(1));
        };
        let call = |words: &[u8]| {
            let call = |door: &String| {
                let address = SocketAddr::from_abstract_name(door.trim_start_matches('@')).unwrap();
                let mut stranger = UnixStream::connect_addr(&address).ok()?;
                // It may have been refused already.
                let _ = stranger.write_all(words);
                Some(stranger)
            };
            open.iter().filter_map(call).collect::<Vec<_>>()
        };
        let words = [&[][..], &[7; 500], b"BREVITY\x01"];
        let mut strangers: Vec<_> = words.iter().flat_map(|words| call(words)).collect();
        assert_eq!(strangers.len(), 6, "a door did not open");
        ranks.push(threads.spawn(move || share(last)));
        // Others come meanwhile.
        for words in words.iter().cycle() {
            if ranks.iter().all(ScopedJoinHandle::is_finished) {
                break;
            }
            strangers.extend(call(words));
            sleep(Duration::from_millis(1));
        }
        for mut stranger in strangers {
            let mut answer = [0; 1];
            assert!(!matches!(stranger.read(&mut answer), Ok(1..)), "a stranger is answered");
        }
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for local_group in shared {
        assert_eq!(local_group.map(|all| all.ranks().len()), Some(3));
    }
}
