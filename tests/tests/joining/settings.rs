//! Settings that are wrong: one line that names the setting as the program knows it.

use std::fs;
use std::time::Duration;

use brevity::transport::bootstrap::Choice;
use brevity::{JobId, Join, Machine, Settings};

use super::{KEY, SHORT, as_ranks, loopback_id, port_of, transport_error, works};

/// What a join that fails at once says.
fn refusal(join: Join) -> String {
    let text = transport_error(join.timeout(SHORT).join()).to_string();
    assert!(!text.contains('\n') && !text.contains("BREVITY_"), "{text}");
    text
}

fn at(address: &str) -> Join {
    Join::new(1, 2).address(address).key(KEY)
}

#[test]
fn what_is_wrong_is_named() {
    let here = || at("127.0.0.1:4000");
    for (join, expected) in [
        (Join::new(0, 0), "world_size is 0: expected the number of ranks, from 1 to 1048576"),
        (Join::new(0, 2_000_000), "world_size is 2000000:"),
        (Join::new(2, 2), "rank is 2: expected this process's number"),
        (Join::new(1, 2), "address is not set: expected host:port where rank 0 waits"),
        (at("node0"), "address is \"node0\": expected host:port"),
        (at("node0:0"), "address is \"node0:0\""),
        (at("fd00::1:4000"), "address is \"fd00::1:4000\""),
        (here().id(loopback_id()), "id is set beside address: expected only one of the two"),
        (Join::new(1, 2).id(loopback_id()).address("127.0.0.1:4000"), "address is set beside id"),
        (
            Join::new(1, 2).address("127.0.0.1:4000"),
            "key is not set: expected the same key on all ranks (or key_file)",
        ),
        (Join::new(1, 2).address("192.0.2.7:4000").job("named"), "key is not set: expected the same key"),
        (Join::new(1, 2).key("short"), "key is too short: expected at least 16 bytes"),
        (here().key_file("/nowhere/key"), "can't read the key of key_file in /nowhere/key"),
        (here().job(&"long".repeat(20)), "job is a name of 80 bytes: expected at most 64 bytes"),
        (here().timeout(Duration::ZERO), "timeout is 0 s: expected more than 0"),
        (here().port_range(20, 10), "port_range is 20-10: expected two ports above 0"),
        (here().announce("a b"), "announce is \"a b\": expected host"),
        (
            here().settings(Settings { segment_bytes: 63, ..Settings::default() }),
            "settings.segment_bytes is 63: expected bytes, from 64 to 2^30",
        ),
        (
            here().settings(Settings { machine: Some(Machine::uniform(-1.0, 0.0)), ..Settings::default() }),
            "settings.machine is inside:-1000000,0,0;",
        ),
        (here().host_id(""), "host_id is a name of 0 bytes"),
        (
            here().encrypt(true).transport(Choice::Ucx),
            "encrypt is 1 beside transport ucx: expected transport tcp",
        ),
        (here().announce("gate").transport(Choice::Ucx), "announce is set beside transport ucx"),
    ] {
        let found = refusal(join);
        assert!(found.starts_with(expected), "{found}, expected {expected}");
    }
}

#[test]
fn the_first_wrong_setting_counts() {
    let join = at("127.0.0.1:4000").key("short").job(&"long".repeat(20)).key(KEY);
    assert!(refusal(join).starts_with("key is too short"));
}

#[test]
fn an_identifier_is_made_of_right_settings_only() {
    let of = |join: Join| transport_error(join.make_id().map(|id| panic!("{id:?}"))).to_string();
    assert!(
        of(Join::new(0, 2).interface("nowhere0")).starts_with("interface is \"nowhere0\", and this host has")
    );
    assert!(of(Join::new(0, 2).key("short")).starts_with("key is too short"));
}

/// Whether two ranks share memory that join with these settings.
fn share_memory(settings: fn(Join, u32) -> Join) -> bool {
    let id = loopback_id();
    let shared = as_ranks(0..2, move |rank| {
        let group = settings(Join::new(rank, 2).id(id.clone()), rank).join().unwrap();
        works(&group);
        group.local_group().is_some()
    });
    assert_eq!(shared[0], shared[1]);
    shared[0]
}

#[test]
fn ranks_share_memory_or_not() {
    assert!(share_memory(|join, _| join));
    assert!(share_memory(|join, rank| join.shared_memory(rank == 0)), "rank 0's counts");
    assert!(!share_memory(|join, _| join.shared_memory(false)));
    assert!(share_memory(|join, _| join.host_id("here")));
    assert!(!share_memory(|join, rank| join.host_id(["here", "there"][rank as usize])));
}

#[test]
fn settings_of_the_group() {
    let settings = Settings { timeout: Duration::from_secs(7), ..Settings::default() };
    assert_eq!(Join::new(0, 1).settings(settings).join().unwrap().timeout(), Duration::from_secs(7));
}

/// Rank 0 listens on all its addresses, and the other rank calls the announced one.
#[test]
fn ports_and_announced_addresses() {
    let listens = |join: Join| join.port_range(20_000, 29_999).announce("127.0.0.1").transport(Choice::Tcp);
    let id = listens(Join::new(0, 2)).make_id().unwrap();
    assert!((20_000..30_000).contains(&port_of(&id)) && format!("{id:?}").contains("[127.0.0.1]"), "{id:?}");
    as_ranks(0..2, move |rank| {
        let join = Join::new(rank, 2).id(id.clone());
        works(&if rank == 0 { listens(join) } else { join }.join().unwrap());
    });
}

#[test]
fn a_key_is_read_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, KEY).unwrap();
    let id = Join::new(0, 2).interface("127.0.0.1").key(KEY).make_id().unwrap();
    as_ranks(0..2, move |rank| {
        let join = Join::new(rank, 2).id(id.clone());
        let join = if rank == 0 { join.key_file(&file) } else { join.key(KEY) };
        works(&join.join().unwrap());
    });
}

#[test]
fn secrets_are_not_shown() {
    let id = JobId::new().unwrap();
    let join = format!("{:?}", at("127.0.0.1:4000").id(id.clone()));
    assert!(!join.contains(KEY) && join.contains(&format!("{id:?}")), "{join}");
    let bytes = id.to_bytes();
    let key: String = bytes[22..54].iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!join.contains(&key));
}
