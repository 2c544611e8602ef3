//! A link that is cut: ranks in two network namespaces with a pair of virtual interfaces between them.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use brevity_tests::faults::{Job, Kind, Wire};

use super::{FAULT, LARGE, NEAR, SLACK, SMALL};

/// Two namespaces that can reach each other; gone when this is dropped.
struct Link {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const INTERFACE: &str = "brevity0";

impl Link {
    /// `None` where namespaces can't be made; a failure where `BREVITY_REQUIRE_NAMESPACES` is 1.
    fn new() -> Option<Self> {
        let link = Self { names: [0, 1].map(|side| format!("brevity-{}-{side}", std::process::id())) };
        let made = link.names.iter().all(|name| ip(&["netns", "add", name])) && link.connect();
        if made {
            return Some(link);
        }
        let must = std::env::var_os("BREVITY_REQUIRE_NAMESPACES").is_some_and(|value| value == "1");
        assert!(!must, "no network namespaces can be made here");
        println!("skipped: no network namespaces can be made here");
        None
    }

    fn connect(&self) -> bool {
        let [a, b] = &self.names;
        ip(&["-n", a, "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", b])
            && self.names.iter().zip(ADDRESSES).all(|(name, address)| {
                ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", INTERFACE])
                    && ip(&["-n", name, "link", "set", INTERFACE, "up"])
                    && ip(&["-n", name, "link", "set", "lo", "up"])
            })
            && self.names.iter().all(|name| carries(name))
    }

    /// Nothing goes through any more, and nobody is told.
    fn cut(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "set", INTERFACE, "down"]));
    }

    /// A rank on one side.
    fn rank(&self, side: usize, rank: usize, wire: Wire, elements: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[side], FAULT, "reduce", elements]);
        command.envs(wire.environment().iter().copied());
        command.envs([
            ("BREVITY_RANK", rank.to_string().as_str()),
            ("BREVITY_WORLD_SIZE", "3"),
            ("BREVITY_MASTER", &format!("{}:4100", ADDRESSES[0])),
            ("BREVITY_KEY", "a key for three ranks on two hosts"),
            ("BREVITY_INTERFACE", INTERFACE),
            ("BREVITY_TIMEOUT", &NEAR.as_secs().to_string()),
            ("UCX_NET_DEVICES", INTERFACE),
        ]);
        command
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

/// Waits until the interface in namespace `name` has found its other end.
fn carries(name: &str) -> bool {
    (0..1000).any(|_| {
        let shown = Command::new("ip").args(["-n", name, "link", "show", INTERFACE]).output();
        let is_up = shown.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("state UP"));
        if !is_up {
            sleep(Duration::from_millis(5));
        }
        is_up
    })
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Ranks 0 and 1 on one side, rank 2 on the other.
fn cut(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    for elements in [SMALL, LARGE] {
        let Some(link) = Link::new() else { return };
        let ranks = [(0, 0), (0, 1), (1, 2)].map(|(side, rank)| link.rank(side, rank, wire, elements));
        let job = Job::of_commands(ranks.into());
        job.await_ready();
        sleep(Duration::from_millis(50));
        link.cut();
        let reports = [0, 1, 2].map(|rank| job.report(rank));
        for (rank, report) in reports.iter().enumerate() {
            let ended = report.call.unwrap();
            assert!(ended.kind == Kind::Timeout && ended.after < NEAR + SLACK, "rank {rank}: {report:?}");
            assert!(report.later.is_some_and(|later| later.after < SLACK), "rank {rank}: {report:?}");
        }
        // The names lead over the link.
        let names = reports.map(|report| report.call.unwrap().rank);
        assert!(names[..2].contains(&2) && names[2] != 2, "{names:?}");
    }
}

#[test]
fn a_link_that_is_cut_ends_calls_by_their_deadline_over_tcp() {
    cut(Wire::Tcp);
}

/// Shared memory is for ranks of one host: those of two namespaces do without.
#[test]
fn a_link_that_is_cut_ends_calls_by_their_deadline_beside_shared_memory() {
    cut(Wire::TcpShared);
}

#[test]
fn a_link_that_is_cut_ends_calls_by_their_deadline_over_ucx() {
    cut(Wire::UcxTcp);
}

#[test]
fn a_link_that_is_cut_ends_calls_by_their_deadline_over_ucx_beside_shared_memory() {
    cut(Wire::UcxNeighbours);
}
