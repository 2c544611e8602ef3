//! Ranks with the variables of torchrun, whose store has a port and does not reserve the next ones.

use std::net::TcpListener;
use std::process::Command;
use std::thread::{JoinHandle, spawn};

use brevity_tests::command::{Ended, run_within};

use super::programs::{PATIENCE, RANK, clean};

/// Starts rank `rank` of two on this host, like a torchrun whose store has `port`.
fn start(port: u16, rank: u32, mode: &'static str) -> JoinHandle<Ended> {
    let mut command = clean(Command::new(RANK));
    command.arg(mode).env("RANK", rank.to_string()).env("MASTER_PORT", port.to_string());
    command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    command.env("TORCHELASTIC_RUN_ID", format!("run of {port}")).env("BREVITY_TRANSPORT", "tcp");
    spawn(move || run_within(&mut command, PATIENCE))
}

fn succeeds(rank: JoinHandle<Ended>) {
    let ended = rank.join().unwrap();
    assert!(ended.status.is_some_and(|status| status.success()), "{ended:?}");
}

/// A listener that accepts and never answers, and the port before its own.
fn silent_listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port() - 1;
    (listener, port)
}

#[test]
fn a_program_that_has_the_port_after_torchruns_is_no_hindrance() {
    let (_listener, port) = silent_listener();
    [0, 1].map(|rank| start(port, rank, "tell")).into_iter().for_each(succeeds);
}

/// The first job waits at the port that the second one tries first.
#[test]
fn jobs_of_torchrun_with_adjacent_ports_do_not_disturb_each_other() {
    let (_listener, port) = silent_listener();
    let waiting = start(port, 0, "tell");
    [0, 1].map(|rank| start(port + 1, rank, "tell")).into_iter().for_each(succeeds);
    let late = start(port, 1, "tell");
    [waiting, late].into_iter().for_each(succeeds);
}

#[test]
fn several_groups_under_torchrun() {
    let (listener, port) = silent_listener();
    drop(listener);
    [0, 1].map(|rank| start(port, rank, "groups")).into_iter().for_each(succeeds);
}
