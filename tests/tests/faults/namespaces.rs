//! A link that is cut: ranks in two network namespaces connected by a pair of virtual interfaces.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use brevity_testing::Wire;
use brevity_tests::faults::{Job, Kind};
use brevity_tests::network::{LINK, Network};

use super::{FAULT, LARGE, NEAR, SLACK, SMALL};

/// A rank on one of the hosts.
fn rank(network: &Network, (host, rank): (usize, usize), wire: Wire, elements: &str) -> Command {
    let mut command = network.command(host, FAULT);
    command.args(["reduce", elements]).envs(wire.environment().iter().copied());
    command.envs([
        ("BREVITY_RANK", rank.to_string().as_str()),
        ("BREVITY_WORLD_SIZE", "3"),
        ("BREVITY_MASTER", &network.master(4)),
        ("BREVITY_KEY", "a key for three ranks on two hosts"),
        ("BREVITY_INTERFACE", LINK),
        ("BREVITY_TIMEOUT", &NEAR.as_secs().to_string()),
        ("UCX_NET_DEVICES", LINK),
    ]);
    command
}

/// Ranks 0 and 1 on one side, rank 2 on the other.
fn cut(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    for elements in [SMALL, LARGE] {
        let Some(network) = Network::new() else { return };
        let ranks = [(0, 0), (0, 1), (1, 2)].map(|place| rank(&network, place, wire, elements));
        let job = Job::of_commands(ranks.into());
        job.await_ready();
        sleep(Duration::from_millis(50));
        network.cut();
        let reports = [0, 1, 2].map(|rank| job.report(rank));
        for (rank, report) in reports.iter().enumerate() {
            let ended = report.call.unwrap();
            assert!(ended.kind == Kind::Timeout && ended.after < NEAR + SLACK, "rank {rank}: {report:?}");
            assert!(report.later.is_some_and(|later| later.after < SLACK), "rank {rank}: {report:?}");
        }
        // The chain of names leads across the link.
        let names = reports.map(|report| report.call.unwrap().rank);
        assert!(names[..2].contains(&2) && names[2] != 2, "{names:?}");
    }
}

/// Brevity's shared memory is for ranks of one host, which excludes two namespaces. UCX's own works between
/// namespaces, so cutting the link has no effect with it.
mod a_link_that_is_cut_ends_calls_by_their_deadline {
    use super::*;

    #[test]
    fn over_tcp() {
        cut(Wire::Tcp);
    }

    #[test]
    fn over_encrypted_tcp() {
        cut(Wire::TcpEncrypted);
    }

    #[test]
    fn beside_shared_memory() {
        cut(Wire::TcpShared);
    }

    #[test]
    fn over_ucx_and_tcp() {
        cut(Wire::UcxTcp);
    }

    #[test]
    fn over_ucx_and_tcp_beside_shared_memory() {
        cut(Wire::UcxLocalPeers);
    }
}
