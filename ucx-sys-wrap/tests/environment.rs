//! The identity of a process, from its environment.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use ucx_sys_wrap::bootstrap::{Choice, Identity, JobKey, Master, Ports};
use ucx_sys_wrap::{Error, Rank, Result};

const KEY: &str = "correct horse battery staple";

/// A key or a name distinguishes ranks that are started by hand from those of other jobs; without either they
/// are refused.
#[test]
fn ranks_of_a_job_without_key_or_name_are_refused() {
    let own = [("BREVITY_RANK", "1"), ("BREVITY_WORLD_SIZE", "2"), ("BREVITY_MASTER", "127.0.0.1:4000")];
    let torchrun = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "29500"),
    ];
    let mpiexec = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("BREVITY_MASTER", "127.0.0.1:4000")];
    for by_hand in [&own[..], &torchrun, &mpiexec] {
        let error = read(by_hand).unwrap_err().to_string();
        assert!(error.starts_with("BREVITY_KEY is not set") && error.contains("BREVITY_JOB"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        let unnamed = read(&[by_hand, &[("BREVITY_JOB", "")]].concat());
        assert!(unnamed.is_err(), "{unnamed:?}");
        let named = read(&[by_hand, &[("BREVITY_JOB", "night")]].concat()).unwrap();
        assert_eq!(named.job, "night");
        read(&[by_hand, &[("BREVITY_KEY", KEY)]].concat()).unwrap();
    }
}

/// Torchrun without a run id, imitated by a shell: its ranks share it, and no ranks of others do.
#[test]
fn ranks_of_one_torchrun_are_told_from_those_of_another() {
    const NAME: &str = "ranks_of_one_torchrun_are_told_from_those_of_another";
    if std::env::var_os("TEST_IS_A_RANK").is_some() {
        println!("job {}", Identity::from_env().unwrap().job);
        return;
    }
    let run = || {
        let script =
            "for RANK in 0 1; do export RANK; \"$0\" \"$@\"; sh -c '\"$0\" \"$@\"; true' \"$0\" \"$@\"; done";
        let mut torchrun = Command::new("sh");
        torchrun.args(["-c", script]).arg(std::env::current_exe().unwrap()).args([
            "--exact",
            NAME,
            "--nocapture",
        ]);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("BREVITY_")) {
                torchrun.env_remove(name);
            }
        }
        torchrun.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")]);
        torchrun.envs([("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"), ("TEST_IS_A_RANK", "1")]);
        let output = torchrun.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let jobs =
            said.lines().filter_map(|line| line.split_once("job torchrun ")).map(|(_, job)| job.to_owned());
        let jobs: Vec<String> = jobs.collect();
        assert_eq!(jobs.len(), 4, "{output:?}");
        assert!(jobs.iter().all(|job| *job == jobs[0]), "{jobs:?}");
        jobs[0].clone()
    };
    assert_ne!(run(), run());
}

#[test]
fn all_that_is_known_of_a_job_is_in_its_name() {
    let torchrun =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    let name = |more: &[(&'static str, &'static str)]| read(&[&torchrun[..], more].concat()).unwrap().job;
    assert_eq!(name(&[("TORCHELASTIC_RUN_ID", "7f3")]), "torchrun 7f3");
    assert_eq!(name(&[("TORCHELASTIC_RUN_ID", "7f3"), ("BREVITY_JOB", "night")]), "night torchrun 7f3");
    assert_eq!(name(&[("TORCHELASTIC_RUN_ID", "none"), ("BREVITY_KEY", KEY)]), "");
    let slurm =
        [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")];
    let own_address = [&slurm[..], &[("BREVITY_MASTER", "127.0.0.1:4000")]].concat();
    assert_eq!(read(&own_address).unwrap().job, "slurm 7.0", "also where the user says where to meet");
}

/// Variables and their values.
type Variables<'a> = Vec<(&'a str, &'a str)>;

fn read(variables: &[(&str, &str)]) -> Result<Identity> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    Identity::from_lookup(|name| variables.get(name).map(Into::into))
}

#[test]
fn environments_that_name_a_place() {
    let own = [("BREVITY_RANK", "3"), ("BREVITY_WORLD_SIZE", "4"), ("BREVITY_MASTER", "127.0.0.1:4000")];
    let torchrun =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    let key = ("BREVITY_KEY", KEY);
    let job = ("BREVITY_JOB", "night");
    let with_job = |variables: &[(&'static str, &'static str)]| [variables, &[job]].concat();
    let table: Vec<(Variables<'_>, u32, u32, &str)> = vec![
        (vec![], 0, 1, "127.0.0.1:0"),
        (with_job(&own), 3, 4, "127.0.0.1:4000"),
        (with_job(&torchrun), 1, 2, "localhost:29501"),
        ([&torchrun[..], &[("BREVITY_MASTER", "localhost:7000"), job]].concat(), 1, 2, "localhost:7000"),
        ([&own[..], &torchrun[..], &[key]].concat(), 3, 4, "127.0.0.1:4000"),
        (vec![("BREVITY_RANK", "0"), ("BREVITY_WORLD_SIZE", "1")], 0, 1, "127.0.0.1:0"),
        (vec![("RANK", "0"), ("WORLD_SIZE", "1")], 0, 1, "127.0.0.1:0"),
        (vec![own[0], own[1], ("BREVITY_MASTER", "[::1]:4000"), job], 3, 4, "[::1]:4000"),
        (vec![own[0], own[1], ("BREVITY_MASTER", "192.0.2.1:4000"), key], 3, 4, "192.0.2.1:4000"),
        (vec![own[0], own[1], ("BREVITY_MASTER", "node0:4000"), key], 3, 4, "node0:4000"),
    ];
    for (variables, rank, world_size, master) in table {
        let identity = read(&variables).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
        let found = (identity.rank, identity.world_size, identity.master.to_string());
        assert_eq!(found, (Rank(rank), world_size, master.to_owned()), "{variables:?}");
    }
}

#[test]
fn environments_that_are_refused() {
    let own = [("BREVITY_RANK", "3"), ("BREVITY_WORLD_SIZE", "4"), ("BREVITY_MASTER", "127.0.0.1:4000")];
    let torchrun =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    let with = |name, value| [&own[..], &[(name, value)]].concat();
    let table: Vec<(Variables<'_>, &str, &str)> = vec![
        (own[..2].to_vec(), "BREVITY_MASTER", "not set"),
        (own[1..].to_vec(), "BREVITY_RANK", "not set"),
        (vec![own[0], own[2]], "BREVITY_WORLD_SIZE", "not set"),
        (own[2..].to_vec(), "BREVITY_RANK", "not set"),
        (torchrun[1..].to_vec(), "RANK", "not set"),
        (torchrun[..3].to_vec(), "MASTER_PORT", "not set"),
        (vec![torchrun[0], torchrun[1], torchrun[3]], "MASTER_ADDR", "not set"),
        ([&torchrun[..3], &[("MASTER_PORT", "65535")]].concat(), "MASTER_PORT", "\"65535\""),
        (with("BREVITY_RANK", "4"), "BREVITY_RANK", "\"4\""),
        (with("BREVITY_RANK", "-1"), "BREVITY_RANK", "\"-1\""),
        (with("BREVITY_RANK", ""), "BREVITY_RANK", "\"\""),
        (with("BREVITY_WORLD_SIZE", "0"), "BREVITY_WORLD_SIZE", "\"0\""),
        (with("BREVITY_WORLD_SIZE", "1048577"), "BREVITY_WORLD_SIZE", "\"1048577\""),
        (with("BREVITY_MASTER", "127.0.0.1"), "BREVITY_MASTER", "\"127.0.0.1\""),
        (with("BREVITY_MASTER", "127.0.0.1:0"), "BREVITY_MASTER", "\"127.0.0.1:0\""),
        (with("BREVITY_MASTER", "::1:4000"), "BREVITY_MASTER", "\"::1:4000\""),
        (with("BREVITY_MASTER", "192.0.2.1:4000"), "BREVITY_KEY", "not set"),
        (with("BREVITY_KEY", "hunter2"), "BREVITY_KEY", "too short"),
        (with("BREVITY_TRANSPORT", "pigeon"), "BREVITY_TRANSPORT", "\"pigeon\""),
        (with("BREVITY_JOIN_TIMEOUT", "0"), "BREVITY_JOIN_TIMEOUT", "\"0\""),
        (with("BREVITY_JOIN_TIMEOUT", "-5"), "BREVITY_JOIN_TIMEOUT", "\"-5\""),
        (with("BREVITY_JOIN_TIMEOUT", "NaN"), "BREVITY_JOIN_TIMEOUT", "\"NaN\""),
        (with("BREVITY_MASTER_RESERVED", "yes"), "BREVITY_MASTER_RESERVED", "\"yes\""),
        (with("BREVITY_SHARED_MEMORY", "yes"), "BREVITY_SHARED_MEMORY", "\"yes\""),
        (with("BREVITY_HOST_ID", ""), "BREVITY_HOST_ID", "\"\""),
        (with("BREVITY_ENCRYPT", "yes"), "BREVITY_ENCRYPT", "\"yes\""),
        (with("BREVITY_INTERFACE", ""), "BREVITY_INTERFACE", "\"\""),
        (with("BREVITY_PORT_RANGE", "20000"), "BREVITY_PORT_RANGE", "\"20000\""),
        (with("BREVITY_ANNOUNCE", "host:0"), "BREVITY_ANNOUNCE", "\"host:0\""),
        (with("BREVITY_ANNOUNCE", "gateway"), "BREVITY_KEY", "not set"),
    ];
    for (variables, name, value) in table {
        match read(&variables) {
            Err(Error::Environment { variable, found, .. }) => {
                assert_eq!((variable, &*found), (name, value), "{variables:?}")
            }
            other => panic!("{variables:?}: {other:?}"),
        }
    }
}

#[test]
fn the_rest_of_the_environment() {
    let plain = read(&[]).unwrap();
    assert_eq!(
        (plain.transport, plain.join_timeout, plain.port_reserved),
        (Choice::Auto, Duration::from_secs(60), false)
    );
    assert!(plain.shared_memory && plain.host_id.is_none());
    assert!(!plain.encrypt);
    assert!(plain.ports == Ports::default() && plain.announce.is_none());
    assert!(plain.key.is_none() && plain.job.is_empty() && plain.interface.is_none());
    let full = read(&[
        ("BREVITY_TRANSPORT", "ucx"),
        ("BREVITY_JOIN_TIMEOUT", "2.5"),
        ("BREVITY_KEY", KEY),
        ("BREVITY_JOB", "night"),
        ("BREVITY_INTERFACE", "eth0"),
        ("BREVITY_MASTER_RESERVED", "1"),
        ("BREVITY_SHARED_MEMORY", "off"),
        ("BREVITY_HOST_ID", "left"),
        ("BREVITY_PORT_RANGE", "20000-20100"),
        ("BREVITY_ANNOUNCE", "gateway"),
    ])
    .unwrap();
    assert_eq!(
        (full.transport, full.join_timeout, full.port_reserved),
        (Choice::Ucx, Duration::from_millis(2500), true)
    );
    assert_eq!(Some(full.ports), Ports::parse("20000-20100"));
    assert_eq!(full.announce, Some(Master { host: "gateway".into(), port: 0 }));
    assert_eq!((full.shared_memory, full.host_id.as_deref()), (false, Some("left")));
    assert_eq!(
        (full.key, &*full.job, full.interface.as_deref()),
        (JobKey::parse(KEY), "night", Some("eth0"))
    );
}

#[test]
fn encryption_is_asked_for() {
    assert!(read(&[("BREVITY_ENCRYPT", "1")]).unwrap().encrypt);
    assert!(!read(&[("BREVITY_ENCRYPT", "0")]).unwrap().encrypt);
    let switches = ["BREVITY_ENCRYPT", "BREVITY_SHARED_MEMORY", "BREVITY_MASTER_RESERVED"];
    for (text, is_on) in [("0", false), ("off", false), ("1", true), ("on", true)] {
        let found = read(&switches.map(|name| (name, text))).unwrap();
        assert_eq!(
            (found.encrypt, found.shared_memory, found.port_reserved),
            (is_on, is_on, is_on),
            "{text}"
        );
    }
    let refused = read(&[("BREVITY_ENCRYPT", "1"), ("BREVITY_TRANSPORT", "ucx")]).unwrap_err().to_string();
    let expected = "BREVITY_ENCRYPT is 1 beside BREVITY_TRANSPORT=ucx: \
                    expected BREVITY_TRANSPORT=tcp or auto: UCX can't encrypt";
    assert_eq!(refused, expected);
}

#[test]
fn a_key_comes_from_one_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    std::fs::write(&path, format!("{KEY}\n")).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(read(&[("BREVITY_KEY_FILE", path)]).unwrap().key, JobKey::parse(KEY));
    let both = read(&[("BREVITY_KEY_FILE", path), ("BREVITY_KEY", KEY)]).unwrap_err();
    assert!(matches!(both, Error::Environment { variable: "BREVITY_KEY_FILE", .. }), "{both}");
    assert!(!both.to_string().contains(KEY));
}
