//! Two hosts on one machine: network namespaces connected by a pair of virtual interfaces, IPv4 and IPv6.
//! Which addresses ranks listen on, the errors for wrong choices, and joining when no peer answers.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use brevity_testing::is_required;
use brevity_tests::command::{Ended, run_within};
use brevity_tests::network::{LINK, Network, OTHER};

const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// The limit for one job; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(100);

/// Deadlines of joins that can't succeed, in seconds.
const SHORT: &str = "2";

/// The environment of a rank besides its place.
type Variables<'a> = &'a [(&'a str, &'a str)];

/// Runs ranks, each on the host with that number, and waits for all.
fn run(
    network: &Network,
    hosts: &[usize],
    master: &str,
    each: impl Fn(usize) -> Vec<(String, String)>,
) -> Vec<Ended> {
    let ranks = hosts.iter().enumerate().map(|(rank, &host)| {
        let mut command = network.command(host, RANK);
        command.args(["suite"]).envs([("EXPECTED_TRANSPORT", "tcp"), ("BREVITY_TRANSPORT", "tcp")]);
        command.env("BREVITY_RANK", rank.to_string()).env("BREVITY_WORLD_SIZE", hosts.len().to_string());
        command.env("BREVITY_MASTER", master).envs(each(rank));
        thread::spawn(move || run_within(&mut command, PATIENCE))
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn all(variables: Variables<'_>) -> Vec<(String, String)> {
    variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn assert_success(ranks: &[Ended]) {
    for rank in ranks {
        assert!(rank.status.is_some_and(|status| status.success()), "{ranks:?}");
    }
}

/// Checks that every rank has failed with one line that contains all these words.
fn assert_told(ranks: &[Ended], words: &[&str]) {
    for rank in ranks {
        assert!(rank.status.is_some_and(|status| !status.success()), "{ranks:?}");
        assert_eq!(rank.stderr.lines().count(), 1, "{ranks:?}");
        assert!(words.iter().all(|&word| rank.stderr.contains(word)), "{words:?}: {ranks:?}");
    }
}

const KEY: (&str, &str) = ("BREVITY_KEY", "a key for ranks on two hosts");

/// Distinguishes a job without a key from others.
const JOB: (&str, &str) = ("BREVITY_JOB", "hosts");

#[test]
fn ranks_of_two_hosts_run_every_collective_over_both_families() {
    let Some(network) = Network::new() else { return };
    for master in [network.master(4), network.master(6)] {
        assert_success(&run(&network, &[0, 0, 1], &master, |_| all(&[KEY])));
        // The other way round, rank 0 is alone on its host.
        assert_success(&run(&network, &[0, 1, 1], &master, |_| all(&[KEY])));
    }
}

#[test]
fn an_interface_is_chosen_by_name_or_address() {
    let Some(network) = Network::new() else { return };
    for master in [network.master(4), network.master(6)] {
        assert_success(&run(&network, &[0, 1], &master, |_| all(&[KEY, ("BREVITY_INTERFACE", LINK)])));
        // Ranks meet over one address family and connect to each other over the other.
        for family in [4, 6] {
            let by_address = |rank| {
                let own = ("BREVITY_INTERFACE".to_owned(), network.address(rank, family));
                [all(&[KEY]), vec![own]].concat()
            };
            assert_success(&run(&network, &[0, 1], &master, by_address));
        }
    }
}

#[test]
fn a_wrong_interface_is_told_with_the_remedy() {
    let Some(network) = Network::new() else { return };
    let master = network.master(4);
    let join = [KEY, ("BREVITY_JOIN_TIMEOUT", SHORT)];
    // One interface that leads nowhere, and the loopback interface.
    for wrong in [OTHER, "lo"] {
        let ranks =
            run(&network, &[0, 1], &master, |_| all(&[&join[..], &[("BREVITY_INTERFACE", wrong)]].concat()));
        assert_told(&ranks, &["did not join within 2 s", "BREVITY_INTERFACE"]);
    }
    let ranks =
        run(&network, &[0, 1], &master, |_| all(&[&join[..], &[("BREVITY_INTERFACE", "nowhere0")]].concat()));
    assert!(
        ranks.iter().any(|rank| rank.stderr.contains("nowhere0") && rank.stderr.contains(LINK)),
        "{ranks:?}"
    );
}

#[test]
fn without_a_key_only_loopback_is_served() {
    let Some(network) = Network::new() else { return };
    for master in [network.master(4), network.master(6)] {
        assert_told(
            &run(&network, &[0, 1], &master, |_| vec![]),
            &["BREVITY_KEY is not set", "BREVITY_KEY_FILE"],
        );
    }
    // Both address families of loopback work without a key.
    for master in ["127.0.0.1:4000", "[::1]:4000", "localhost:4000"] {
        assert_success(&run(&network, &[0, 0], master, |_| all(&[JOB])));
    }
    // A job on loopback must not be visible from outside.
    let mut command = network.command(0, RANK);
    command.arg("suite").envs([
        ("BREVITY_RANK", "0"),
        ("BREVITY_WORLD_SIZE", "2"),
        ("BREVITY_MASTER", "127.0.0.1:4000"),
        JOB,
    ]);
    command.env("BREVITY_JOIN_TIMEOUT", SHORT);
    let waiting = thread::spawn(move || run_within(&mut command, PATIENCE));
    let start = Instant::now();
    let listening = loop {
        let listening = network.listening(0);
        if !listening.is_empty() || start.elapsed() > PATIENCE {
            break listening;
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(listening, ["0100007F:0FA0"], "127.0.0.1:4000 and nothing else");
    assert_told(&[waiting.join().unwrap()], &["rank 1 did not join within 2 s"]);
}

/// Some launchers tell rank 0 that the master is `localhost`, and all others its real address.
#[test]
fn rank_0_behind_localhost_is_found_by_ranks_of_another_host() {
    let Some(network) = Network::new() else { return };
    for version in [4, 6] {
        let masters = ["localhost:4000".into(), "localhost:4000".into(), network.master(version)];
        let master = |rank: usize| all(&[KEY, ("BREVITY_MASTER", &masters[rank])]);
        assert_success(&run(&network, &[0, 0, 1], "", master));
    }
    // A loopback address, or no key: rank 0 reports why no rank comes.
    for (host, proof) in [("127.0.0.1:4000", KEY), ("localhost:4000", JOB)] {
        let variables = all(&[proof, ("BREVITY_JOIN_TIMEOUT", SHORT)]);
        let ranks =
            run(&network, &[0], host, |_| [&variables[..], &all(&[("BREVITY_WORLD_SIZE", "2")])].concat());
        assert_told(&ranks, &["rank 1 did not join within 2 s", "rank 0 listens on loopback alone"]);
    }
}

/// Packets to the master vanish: no answer, no refusal.
#[test]
fn a_master_that_never_answers_is_named_at_the_deadline() {
    let Some(network) = Network::new() else { return };
    for master in network.black_holes() {
        let variables = all(&[KEY, ("BREVITY_JOIN_TIMEOUT", SHORT)]);
        let mut command = network.command(1, RANK);
        command.arg("suite").envs(variables).env("BREVITY_MASTER", &master);
        command.envs([("BREVITY_RANK", "1"), ("BREVITY_WORLD_SIZE", "2")]);
        let ended = run_within(&mut command, PATIENCE);
        assert!(ended.took >= Duration::from_secs(2) && ended.took < PATIENCE / 4, "{ended:?}");
        assert_told(&[ended], &["rank 0 did not join within 2 s", &master]);
    }
}

/// A rank that reaches rank 0 but can't be reached by the others: all ranks end by the deadline, with the
/// remedy.
#[test]
fn a_rank_that_can_not_be_reached_after_the_rendezvous_ends_all() {
    let Some(network) = Network::new() else { return };
    let interface = |rank: usize| {
        let other = (rank == 1).then_some(("BREVITY_INTERFACE", OTHER));
        all(&[&[KEY, ("BREVITY_JOIN_TIMEOUT", SHORT)][..], other.as_slice()].concat())
    };
    let ranks = run(&network, &[0, 1, 0], &network.master(4), interface);
    assert_told(&ranks, &["did not join within 2 s", "BREVITY_INTERFACE"]);
    assert!(ranks.iter().all(|rank| rank.took < PATIENCE / 4), "{ranks:?}");
}

/// The address over which a rank reaches rank 0 on its own host says nothing about where other hosts can
/// reach it.
#[test]
fn a_rank_that_came_over_an_address_of_its_own_host_serves_the_others_all_the_same() {
    let Some(network) = Network::new() else { return };
    for version in [4, 6] {
        let known = network.master(version);
        // Rank 0 listens on all addresses, because this is not an address of its host.
        let elsewhere = known.replace(&network.address(0, version), &network.address(1, version));
        let masters = [elsewhere, network.dead_end(0), known];
        let master = |rank: usize| all(&[KEY, ("BREVITY_MASTER", &masters[rank])]);
        assert_success(&run(&network, &[0, 0, 1], "", master));
    }
}

/// MPICH's launcher on two hosts: rank 0 publishes its addresses through PMI-1.
#[test]
fn mpiexec_on_two_hosts() {
    let Some(network) = Network::new() else { return };
    if Command::new("mpiexec.mpich").arg("--version").output().is_err() {
        assert!(!is_required("BREVITY_REQUIRE_LAUNCHERS"), "no mpiexec.mpich");
        println!("skipped: no mpiexec.mpich");
        return;
    }
    let mut command = network.command(0, "mpiexec.mpich");
    let hosts = [network.address(0, 4), network.address(1, 4)].join(",");
    command.args([
        "-launcher",
        "ssh",
        "-launcher-exec",
        &network.remote_shell(),
        "-hosts",
        &hosts,
        "-iface",
        LINK,
    ]);
    command.args(["-n", "4", RANK, "suite"]);
    command.envs([("EXPECTED_TRANSPORT", "tcp"), ("BREVITY_TRANSPORT", "tcp")]);
    assert_success(&[run_within(&mut command, PATIENCE)]);
}
