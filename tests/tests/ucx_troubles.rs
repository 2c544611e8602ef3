//! UCX that is missing, can't work, or interferes with the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::Duration;

use brevity_testing::{is_required, ucx_is_here};
use brevity_tests::command::{Ended, run_ranks};

const RANK: &str = env!("CARGO_BIN_EXE_rank");

/// Generous: it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Three ranks that report about themselves, each started with `environment`.
fn tell(transport: &str, environment: &[(&str, &str)]) -> Vec<Ended> {
    run_ranks(3, PATIENCE, |_| {
        let mut command = Command::new(RANK);
        command.arg("tell").envs(environment.iter().copied());
        command.env("BREVITY_TRANSPORT", transport).env("BREVITY_JOIN_TIMEOUT", "30");
        command
    })
}

/// UCX is there, but none of its transports: no worker can be made.
const NO_TRANSPORT: (&str, &str) = ("UCX_TLS", "nonsense");

#[test]
fn where_ucx_cannot_work_auto_takes_tcp_and_rank_0_says_why() {
    if !ucx_is_here() {
        return;
    }
    for (rank, ended) in tell("auto", &[NO_TRANSPORT]).into_iter().enumerate() {
        assert!(ended.status.is_some_and(|status| status.success()), "rank {rank}: {ended:?}");
        // UCX prints its own errors on standard output.
        assert!(
            ended.stdout.lines().last().is_some_and(|line| line.starts_with("tcp ")),
            "rank {rank}: {ended:?}"
        );
        let said =
            ended.stderr.lines().filter(|line| line.starts_with("brevity: warning: using transport \"tcp\""));
        assert_eq!(said.count(), usize::from(rank == 0), "rank {rank}: {ended:?}");
    }
}

#[test]
fn where_ucx_cannot_work_every_rank_that_must_take_it_says_why() {
    if !ucx_is_here() {
        return;
    }
    for (rank, ended) in tell("ucx", &[NO_TRANSPORT]).into_iter().enumerate() {
        assert!(ended.status.is_some_and(|status| !status.success()), "rank {rank}: {ended:?}");
        assert!(ended.stderr.contains("rank 0 has none: ucp_init failed"), "rank {rank}: {ended:?}");
        assert!(
            ended.stderr.contains("enlarge /dev/shm") && ended.stderr.contains("BREVITY_TRANSPORT=tcp"),
            "{ended:?}"
        );
    }
}

/// Two ranks that run a collective, each in its own user namespace, as in rootless containers.
fn apart(environment: &[(&str, &str)]) -> Option<Vec<Ended>> {
    let within = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", program]);
        command
    };
    if !within("true").output().is_ok_and(|output| output.status.success()) {
        assert!(!is_required("BREVITY_REQUIRE_NAMESPACES"), "no user namespaces can be made here");
        println!("skipped: no user namespaces can be made here");
        return None;
    }
    Some(run_ranks(2, PATIENCE, |_| {
        let mut command = within(RANK);
        command.arg("suite").env("EXPECTED_TRANSPORT", "ucx").envs(environment.iter().copied());
        command.env("BREVITY_TRANSPORT", "ucx").env("BREVITY_JOIN_TIMEOUT", "30");
        command
    }))
}

#[test]
fn ranks_that_cannot_reach_each_others_memory_use_ucx_without_its_shared_memory() {
    if !ucx_is_here() {
        return;
    }
    for shared_memory in ["on", "off"] {
        let Some(ranks) = apart(&[("BREVITY_SHARED_MEMORY", shared_memory)]) else { return };
        for (rank, ended) in ranks.into_iter().enumerate() {
            assert!(ended.status.is_some_and(|status| status.success()), "rank {rank}: {ended:?}");
            assert!(!ended.stdout.contains("UCX  ") && ended.stderr.is_empty(), "rank {rank}: {ended:?}");
        }
    }
}

#[test]
fn who_insists_on_ucx_shared_memory_that_cannot_work_is_told_the_remedy() {
    if !ucx_is_here() {
        return;
    }
    let Some(ranks) = apart(&[("UCX_TLS", "all")]) else { return };
    let succeeded = ranks.iter().filter(|ended| ended.status.is_some_and(|status| status.success())).count();
    if succeeded == ranks.len() {
        // UCX 1.22 finds out by itself that it must not use its shared memory; 1.13 does not.
        return;
    }
    assert_eq!(succeeded, 0, "{ranks:?}");
    let remedy = "UCX_TLS=tcp,self or BREVITY_TRANSPORT=tcp";
    assert!(ranks.iter().any(|ended| ended.stderr.contains(remedy)), "{ranks:?}");
}

#[test]
fn a_missing_library_is_said_and_tcp_taken() {
    for path in ["/nowhere/libucp.so.0", "/bin/true"] {
        let ranks = tell("auto", &[("BREVITY_UCX_LIB", path)]);
        assert!(ranks.iter().all(|ended| ended.stdout.starts_with("tcp ")), "{ranks:?}");
        assert!(
            ranks[0].stderr.contains("warning: using transport \"tcp\"") && ranks[0].stderr.contains(path),
            "{ranks:?}"
        );
    }
}

#[test]
fn a_rendezvous_that_breaks_a_promise_is_said_once() {
    if !ucx_is_here() {
        return;
    }
    let ranks = tell("ucx", &[("UCX_RNDV_SCHEME", "put_zcopy")]);
    let said: Vec<_> =
        ranks.iter().map(|ended| ended.stderr.matches("UCX_RNDV_SCHEME is not get_zcopy").count()).collect();
    assert_eq!(said, [1, 0, 0], "{ranks:?}");
}

#[test]
fn logging_can_be_turned_off() {
    let ranks = tell("auto", &[("BREVITY_UCX_LIB", "/nowhere"), ("BREVITY_LOG", "off")]);
    assert!(ranks.iter().all(|ended| ended.stderr.is_empty()), "{ranks:?}");
    let ranks = tell("tcp", &[("BREVITY_LOG", "loud")]);
    assert!(ranks[1].stderr.contains("BREVITY_LOG=\"loud\" is no level, expected off, error"), "{ranks:?}");
}

/// A closed terminal ends the job, over UCX too; and a crash is left to the program.
#[test]
fn ucx_takes_no_signals() {
    if !ucx_is_here() {
        return;
    }
    let caught = |environment: &[(&str, &str)]| {
        let ranks = tell("ucx", environment);
        let mask = ranks[1].stdout.strip_prefix("ucx ").map(|mask| u64::from_str_radix(mask.trim(), 16));
        mask.unwrap_or_else(|| panic!("{ranks:?}")).unwrap()
    };
    // Hangup, illegal instruction, arithmetic error: signals without other handlers here.
    let taken = 1 << (1 - 1) | 1 << (4 - 1) | 1 << (8 - 1);
    assert_eq!(caught(&[]) & taken, 0);
    // If the user asks for it.
    assert_eq!(caught(&[("UCX_DEBUG_SIGNO", "HUP")]) & taken, 1);
}
