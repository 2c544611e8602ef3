//! Strangers connect to every listening socket of a job, while it joins and while it runs: they get nothing,
//! and do no harm.

mod relay;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brevity::transport::bootstrap::{Choice, WIRE_VERSION};
use brevity_testing::worlds::reserved_port;
use brevity_testing::{Process, Wire, listening_ports};
use brevity_tests::faults::{Ended, Job, Kind, PATIENCE};

const FAULT: &str = env!("CARGO_BIN_EXE_fault");

/// How many connections strangers try to make, and how many of them they keep.
const ATTEMPTS: usize = 10_000;
const KEPT: usize = 500;

/// How many of them must succeed at least: if ranks are slow, the system's queue of a socket is full at
/// times.
const CONNECTED: usize = ATTEMPTS / 10;

/// The largest memory of a rank while strangers connect: the program, and what it keeps for callers.
const PEAK_KIB: u64 = 64 << 10;
const DESCRIPTORS: usize = 300;

/// An opening and a proof on the wire, in bytes.
const OPENING_BYTES: usize = 124;
const PROOF_BYTES: usize = 32;

/// The purposes of connections between ranks.
const RENDEZVOUS: u8 = 1;
const MESH: u8 = 2;

/// The first bytes of a connection from rank 2 of three to rank `peer`.
fn opening(purpose: u8, peer: u8) -> Vec<u8> {
    const CALLER: u8 = 1;
    let version = WIRE_VERSION.to_le_bytes();
    let head =
        [&b"BREVITY\x01"[..], &version, &[purpose, CALLER, 0, 0, 2, 0, 0, 0, peer, 0, 0, 0, 3, 0, 0, 0]]
            .concat();
    [&head[..], &vec![0; OPENING_BYTES - head.len()]].concat()
}

/// A notice for UCX's control connections that rank 1 has aborted, from a sender without the token.
fn notice() -> Vec<u8> {
    [&b"brvc"[..], &[0; 4], &(3u64 << 32 | 1).to_le_bytes(), &[0x5a; 16]].concat()
}

/// The data that a stranger sends: nothing, noise, the first half of an opening, a whole one and a proof
/// without the key, another protocol, a notice.
fn words(number: usize) -> Vec<u8> {
    let peer = (number / 8 % 3) as u8;
    match number % 8 {
        0 => Vec::new(),
        1 => (0..3000).map(|at| (at * 7 + number) as u8).collect(),
        2 => opening(RENDEZVOUS, 0)[..60].to_vec(),
        3 => [opening(RENDEZVOUS, 0), vec![0; PROOF_BYTES]].concat(),
        4 => [opening(MESH, peer), vec![0; PROOF_BYTES]].concat(),
        5 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        6 => notice(),
        _ => vec![0; 32],
    }
}

/// For all attempts, of which each may wait: far more than they take on a busy machine.
const LONGEST: Duration = Duration::from_secs(150);

/// Strangers that connect, send something, and stay until too many others have come.
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

    /// Makes all attempts at these sockets of the ranks, and watches the ranks meanwhile.
    fn besiege(&mut self, ranks: &[Process], doors: impl Fn(Process) -> Vec<u16>) {
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
            assert!(start.elapsed() < LONGEST, "only {number} attempts in {LONGEST:?}");
        }
        let peak = ranks.iter().map(|rank| rank.peak_kib()).max().unwrap();
        println!(
            "{ATTEMPTS} attempts at {ports:?} in {:?}, {} in vain: at most {peak} KiB and {most_descriptors} \
             descriptors",
            start.elapsed(),
            self.in_vain
        );
        assert!(ATTEMPTS - self.in_vain >= CONNECTED, "hardly anybody has come");
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
        ("BREVITY_JOIN_TIMEOUT", "300"),
    ]);
    command
}

/// Checks that the job works: it continues, and a death is named.
fn assert_works(job: &Job) {
    assert!(job.ranks().iter().all(|rank| rank.is_running()));
    job.ranks()[2].signal("KILL");
    for rank in [0, 1] {
        let report = job.report(rank);
        assert!(
            matches!(report.call, Some(Ended { kind: Kind::Lost, rank: 2, .. })),
            "rank {rank}: {report:?}"
        );
        assert!(report.peak_kib < PEAK_KIB, "rank {rank}: {report:?}");
    }
}

/// Checks that a stranger that claims to be rank 2 without the key hears nothing but a refusal.
fn assert_refused(port: u16, purpose: u8, peer: u8) {
    let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.write_all(&opening(purpose, peer)).unwrap();
    let mut answer = [0; OPENING_BYTES];
    stranger.read_exact(&mut answer).unwrap();
    let _ = stranger.write_all(&[0; PROOF_BYTES]);
    let mut rest = Vec::new();
    stranger.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, [0], "the answer to a wrong proof");
}

/// Strangers connect to the ranks that have come, and to every socket that is opened until the job has
/// joined.
fn besieged_while_joining(wire: Wire) {
    if !wire.is_here() {
        return;
    }
    let (_reserved, master) = reserved_port();
    let mut job = Job::of_commands([0, 1].map(|number| rank(number, master, wire)).into());
    job.until("rank 0 does not listen", || listening_ports(job.ranks()[0]).contains(&master));
    let mut strangers = Strangers::default();
    strangers.besiege(&job.ranks()[..1], listening_ports);
    assert_refused(master, RENDEZVOUS, 0);
    job.add(rank(2, master, wire));
    let mut number = 0;
    let doors = if wire.choice() == Choice::Tcp { listening_ports } else { |_| Vec::new() };
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

/// The first socket is the same for all wires: one test for each transport, and one for the sockets for
/// shared memory.
mod ten_thousand_strangers_do_not_keep_a_job_from_joining {
    use super::*;

    #[test]
    fn over_tcp() {
        besieged_while_joining(Wire::Tcp);
    }

    #[test]
    fn over_tcp_and_shared_memory() {
        besieged_while_joining(Wire::TcpShared);
    }

    #[test]
    fn over_ucx_as_it_comes() {
        besieged_while_joining(Wire::Ucx);
    }
}

/// The sockets between ranks are open from the rendezvous until all have come: here until rank 2 learns where
/// the others are.
#[test]
fn ten_thousand_strangers_at_the_doors_between_ranks_do_not_keep_a_job_from_joining() {
    // The sockets are the same with and without shared memory. Encryption has the most steps that can be
    // disturbed.
    let wire = Wire::TcpEncrypted;
    let (_reserved, master) = reserved_port();
    let mut job = Job::of_commands([0, 1].map(|number| rank(number, master, wire)).into());
    let behind = TcpListener::bind("127.0.0.1:0").unwrap();
    job.add(rank(2, behind.local_addr().unwrap().port(), wire));
    let (last, is_over) = (job.ranks()[2], Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    // Rank 2 opens its own socket before it sends its address; only then does rank 0 tell it the others'.
    relay::hold(behind, master, move || !over.load(Ordering::Relaxed) && !listening_ports(last).is_empty());
    let doors = |rank| listening_ports(rank).into_iter().filter(|port| *port != master).collect::<Vec<_>>();
    job.until("a rank has no door", || job.ranks().iter().all(|rank| !doors(*rank).is_empty()));
    let waiting = &job.ranks()[..2];
    Strangers::default().besiege(waiting, doors);
    for (peer, rank) in (0..).zip(waiting) {
        doors(*rank).into_iter().for_each(|port| assert_refused(port, MESH, peer));
    }
    assert!((0..3).all(|rank| !job.is_ready(rank)), "the job has joined already");
    is_over.store(true, Ordering::Relaxed);
    job.await_ready();
    assert_works(&job);
}

/// Once a job over tcp has joined, it listens on no socket.
#[test]
fn a_job_over_tcp_that_runs_listens_on_nothing() {
    for wire in Wire::ALL.into_iter().filter(|wire| wire.choice() == Choice::Tcp && *wire != Wire::TcpRings) {
        let (_reserved, master) = reserved_port();
        let job = Job::of_commands([0, 1, 2].map(|number| rank(number, master, wire)).into());
        job.await_ready();
        for rank in job.ranks() {
            assert_eq!(listening_ports(*rank), [0u16; 0]);
        }
        assert_works(&job);
    }
}

/// As behind a firewall that lets only some ports through. UCX's own listeners are included.
#[test]
fn all_that_a_job_over_ucx_listens_on_is_in_its_range() {
    let first = 30_000 + (std::process::id() % 80) as u16 * 32;
    for wire in [Wire::UcxTcp, Wire::Ucx].into_iter().filter(|wire| wire.is_here()) {
        let (_reserved, master) = reserved_port();
        let ranks = [0, 1, 2].map(|number| {
            let mut command = rank(number, master, wire);
            command.env("BREVITY_PORT_RANGE", format!("{first}-{}", first + 31));
            command
        });
        let job = Job::of_commands(ranks.into());
        job.await_ready();
        for rank in job.ranks() {
            let ports = listening_ports(*rank);
            assert!(
                !ports.is_empty() && ports.iter().all(|port| (first..first + 32).contains(port)),
                "{ports:?}"
            );
        }
        assert_works(&job);
    }
}

/// Over UCX the control listener stays open; it is the last one that a rank opens. The others are UCX's own,
/// which are only as trustworthy as the network.
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
fn ten_thousand_strangers_do_not_disturb_a_job_over_ucx_and_tcp() {
    besieged_while_running(Wire::UcxTcp);
}

#[test]
fn ten_thousand_strangers_do_not_disturb_a_job_over_ucx_as_it_comes() {
    besieged_while_running(Wire::Ucx);
}

/// A stranger repeats what rank 1 has sent to rank 0.
#[test]
fn a_stranger_that_replays_a_rank_is_refused() {
    let (_reserved, master) = reserved_port();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let behind_relay = door.local_addr().unwrap().port();
    let mut job = Job::of_commands(vec![rank(0, master, Wire::Tcp), rank(1, behind_relay, Wire::Tcp)]);
    let recorded = relay::record(door, master);
    // Opening and proof.
    job.until("rank 1 does not call", || recorded.lock().unwrap().len() > OPENING_BYTES + PROOF_BYTES);
    let said = recorded.lock().unwrap().clone();
    for _ in 0..3 {
        let mut stranger = TcpStream::connect(("127.0.0.1", master)).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(&said[..OPENING_BYTES]).unwrap();
        let mut answer = [0; OPENING_BYTES];
        stranger.read_exact(&mut answer).unwrap();
        let _ = stranger.write_all(&said[OPENING_BYTES..]);
        // Refused, without anything that could be used elsewhere.
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest);
        assert!(rest.iter().all(|byte| *byte == 0) && rest.len() <= 1, "{rest:?}");
    }
    job.add(rank(2, master, Wire::Tcp));
    job.await_ready();
    assert_works(&job);
}
