//! Strangers at every door of a job, while it joins and while it runs: they get nothing, and take nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use brevity_tests::faults::{Ended, Job, Kind, PATIENCE, Process, Wire, listening_ports};
use brevity_tests::worlds::reserved_port;

const FAULT: &str = env!("CARGO_BIN_EXE_fault");

/// How many connections strangers try to make, and how many of them they keep.
const ATTEMPTS: usize = 10_000;
const KEPT: usize = 500;

/// What a rank may have at most while strangers are at its doors: the program, and what it keeps for callers.
const PEAK_KIB: u64 = 64 << 10;
const DESCRIPTORS: usize = 300;

/// What a stranger says: nothing, noise, the first half of an opening, a whole one without a key, another protocol.
fn words(number: usize) -> Vec<u8> {
    const HEAD: &[u8] = b"BREVITY\x01\x01\x00\x00\x00\x01\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00";
    let opening = |length: usize| [HEAD, &vec![0; length - HEAD.len()]].concat();
    match number % 6 {
        0 => Vec::new(),
        1 => (0..3000).map(|at| (at * 7 + number) as u8).collect(),
        2 => opening(60),
        3 => opening(124 + 32),
        4 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        _ => vec![0; 32],
    }
}

/// Strangers that connect, say something, and stay until too many others have come.
#[derive(Default)]
struct Strangers {
    open: VecDeque<TcpStream>,
    in_vain: usize,
}

impl Strangers {
    fn call(&mut self, port: u16, number: usize) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(3)) else {
            self.in_vain += 1;
            return;
        };
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&words(number));
        self.open.push_back(stream);
        if self.open.len() > KEPT {
            self.open.pop_front();
        }
    }

    /// Makes all attempts at these doors of the ranks, and looks after the ranks meanwhile.
    fn besiege(&mut self, ranks: &[Process], doors: fn(Process) -> Vec<u16>) {
        let start = Instant::now();
        let mut most_descriptors = 0;
        let mut ports = Vec::new();
        for number in 0..ATTEMPTS {
            if number % 100 == 0 {
                ports = ranks.iter().flat_map(|rank| doors(*rank)).collect();
                let descriptors = ranks.iter().map(|rank| rank.descriptors()).max().unwrap();
                most_descriptors = descriptors.max(most_descriptors);
            }
            assert!(!ports.is_empty(), "nobody listens");
            self.call(ports[number % ports.len()], number);
            assert!(start.elapsed() < PATIENCE, "only {number} attempts in {PATIENCE:?}");
        }
        let peak = ranks.iter().map(|rank| rank.peak_kib()).max().unwrap();
        println!(
            "{ATTEMPTS} attempts at {ports:?} in {:?}, {} in vain: at most {peak} KiB and {most_descriptors} descriptors",
            start.elapsed(),
            self.in_vain
        );
        assert!(peak > 0 && peak < PEAK_KIB, "{peak} KiB");
        assert!(most_descriptors > 0 && most_descriptors < DESCRIPTORS, "{most_descriptors} descriptors");
    }
}

/// A rank of a job of three that meets at `master`.
fn rank(rank: u32, master: u16, wire: Wire) -> Command {
    let mut command = Command::new(FAULT);
    command.args(["reduce", "100"]).envs(wire.environment().iter().copied());
    command.envs([
        ("BREVITY_RANK", rank.to_string().as_str()),
        ("BREVITY_WORLD_SIZE", "3"),
        ("BREVITY_MASTER", &format!("127.0.0.1:{master}")),
        ("BREVITY_MASTER_RESERVED", "1"),
        ("BREVITY_KEY", "a key that strangers do not have"),
        ("BREVITY_TIMEOUT", "50"),
    ]);
    command
}

/// The job is as it should be: it goes on, and a death is named.
fn assert_works(job: &Job) {
    assert!(job.ranks().iter().all(|rank| rank.is_running()));
    job.ranks()[2].signal("KILL");
    for rank in [0, 1] {
        let report = job.report(rank);
        assert!(matches!(report.call, Some(Ended { kind: Kind::Lost, rank: 2, .. })), "rank {rank}: {report:?}");
        assert!(report.peak_kib < PEAK_KIB, "rank {rank}: {report:?}");
    }
}

/// Strangers besiege the ranks that have come, and whatever is opened until the job has joined.
fn besieged_while_joining(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    let (_reserved, master) = reserved_port();
    let mut job = Job::of_commands([0, 1].map(|number| rank(number, master, wire)).into());
    job.until("rank 0 does not listen", || listening_ports(job.ranks()[0]).contains(&master));
    let mut strangers = Strangers::default();
    strangers.besiege(&job.ranks()[..1], listening_ports);
    job.add(rank(2, master, wire));
    let mut number = 0;
    let doors =
        if matches!(wire, Wire::Tcp | Wire::TcpEncrypted | Wire::TcpShared) { listening_ports } else { |_| Vec::new() };
    job.until("the job does not join", || {
        let opened = job.ranks().iter().flat_map(|rank| doors(*rank));
        for port in opened.chain([master]) {
            (0..20).for_each(|_| strangers.call(port, number));
            number += 1;
        }
        (0..3).all(|rank| job.is_ready(rank))
    });
    assert_works(&job);
}

#[test]
fn ten_thousand_strangers_do_not_keep_a_job_from_joining_over_tcp() {
    besieged_while_joining(Wire::Tcp);
}

#[test]
fn ten_thousand_strangers_do_not_keep_a_job_from_joining_beside_shared_memory() {
    besieged_while_joining(Wire::TcpShared);
}

/// Once a job over tcp has joined, there is no door any more.
#[test]
fn a_job_over_tcp_that_runs_listens_on_nothing() {
    for wire in [Wire::Tcp, Wire::TcpShared] {
        let (_reserved, master) = reserved_port();
        let job = Job::of_commands([0, 1, 2].map(|number| rank(number, master, wire)).into());
        job.await_ready();
        for rank in job.ranks() {
            assert_eq!(listening_ports(*rank), [0u16; 0]);
        }
        assert_works(&job);
    }
}

/// Over UCX the control listener stays: the last one that a rank opens. The others are UCX's own, which is as trusted as
/// its network.
fn besieged_while_running(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    let (_reserved, master) = reserved_port();
    let job = Job::of_commands([0, 1, 2].map(|number| rank(number, master, wire)).into());
    job.await_ready();
    let control = |rank| listening_ports(rank).last().copied().into_iter().collect();
    Strangers::default().besiege(job.ranks(), control);
    assert_works(&job);
}

#[test]
fn ten_thousand_strangers_do_not_disturb_a_job_over_ucx_and_shared_memory() {
    besieged_while_running(Wire::UcxShared);
}

#[test]
fn ten_thousand_strangers_do_not_disturb_a_job_over_ucx_and_tcp() {
    besieged_while_running(Wire::UcxTcp);
}

#[test]
fn ten_thousand_strangers_do_not_keep_a_job_from_joining_over_ucx() {
    besieged_while_joining(Wire::UcxShared);
}

/// What rank 1 says to rank 0, said again by somebody else.
#[test]
fn a_stranger_that_replays_a_rank_is_refused() {
    let (_reserved, master) = reserved_port();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let behind_relay = relay.local_addr().unwrap().port();
    let mut job = Job::of_commands(vec![rank(0, master, Wire::Tcp), rank(1, behind_relay, Wire::Tcp)]);
    let recorded = record(relay, master);
    // Opening and proof.
    job.until("rank 1 does not call", || recorded.lock().unwrap().len() > 124 + 32);
    let said = recorded.lock().unwrap().clone();
    for _ in 0..3 {
        let mut stranger = TcpStream::connect(("127.0.0.1", master)).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(&said[..124]).unwrap();
        let mut answer = [0; 124];
        stranger.read_exact(&mut answer).unwrap();
        let _ = stranger.write_all(&said[124..]);
        // Refused, and nothing that could be used elsewhere.
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest);
        assert!(rest.iter().all(|byte| *byte == 0) && rest.len() <= 1, "{rest:?}");
    }
    job.add(rank(2, master, Wire::Tcp));
    job.await_ready();
    assert_works(&job);
}

/// Passes on what comes to `relay`, and keeps what the first caller says first.
fn record(relay: TcpListener, master: u16) -> Arc<Mutex<Vec<u8>>> {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&recorded);
    thread::spawn(move || {
        for caller in relay.incoming() {
            let (caller, answerer) = (caller.unwrap(), until_connected(master));
            let (back_from, back_to) = (answerer.try_clone().unwrap(), caller.try_clone().unwrap());
            let record = Arc::clone(&record);
            thread::spawn(move || pass(back_from, back_to, &mut |_| {}));
            thread::spawn(move || pass(caller, answerer, &mut |bytes| record.lock().unwrap().extend(bytes)));
        }
    });
    recorded
}

fn until_connected(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, seen: &mut dyn FnMut(&[u8])) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        seen(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
