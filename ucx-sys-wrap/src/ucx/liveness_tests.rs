//! Control connections: deaths, causes, withdrawals, and unproven connections.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::bootstrap::Ports;
use crate::process::ProcessName;
use crate::ucx::notice::NOTICE_BYTES;
use crate::{Failure, Tag};

fn pair() -> [Liveness; 2] {
    let mut ranks =
        [1, 2].map(|seed| Liveness::new(Ipv4Addr::LOCALHOST.into(), Ports::default(), [seed; 16]).unwrap());
    let addresses = [0, 1].map(|rank: usize| Some((ranks[rank].address().unwrap(), ranks[rank].token)));
    ranks[0].add_peer(None);
    ranks[0].add_peer(addresses[1]);
    ranks[1].add_peer(addresses[0]);
    ranks[1].add_peer(None);
    ranks
}

/// Waits for an event.
fn wait_for_event(rank: &mut Liveness) -> PeerEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = rank.poll() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no event");
    }
}

#[test]
fn a_rank_that_ends_silently_has_died() {
    let [mut watcher, watched] = pair();
    assert_eq!(watcher.watch(Rank(1)), None);
    assert_eq!(watcher.poll(), None, "it does nothing, and lives");
    drop(watched);
    assert_eq!(wait_for_event(&mut watcher), PeerEvent::Died(Rank(1)));
    let event = watcher.watch(Rank(1)).unwrap_or_else(|| wait_for_event(&mut watcher));
    assert_eq!(event, PeerEvent::Gone(Rank(1)), "nobody listens there any more");
}

#[test]
fn watchers_are_told_even_if_nobody_had_taken_their_connection() {
    let [mut watcher, mut watched] = pair();
    watcher.watch(Rank(1));
    watched.answer(Closed::Left);
    drop(watched);
    assert_eq!(wait_for_event(&mut watcher), PeerEvent::Gone(Rank(1)));
}

#[test]
fn a_tear_down_reaches_ranks_that_do_not_watch() {
    let [mut failing, mut other] = pair();
    failing.notify_all(true);
    drop(failing);
    assert_eq!(wait_for_event(&mut other), PeerEvent::Died(Rank(0)));
}

fn notice(context: u16) -> transport::Notice {
    transport::Notice::closed(context, 9, Failure::Differs(Rank(1)))
}

#[test]
fn what_a_rank_tells_comes_in_order_and_before_its_end() {
    for watches in [false, true] {
        let [mut dying, mut other] = pair();
        if watches {
            assert_eq!(other.watch(Rank(0)), None);
        }
        (0..500).for_each(|context| dying.tell(Rank(1), notice(context)));
        drop(dying);
        let event = other.watch(Rank(0)).unwrap_or_else(|| wait_for_event(&mut other));
        assert!(matches!(event, PeerEvent::Died(Rank(0)) | PeerEvent::Gone(Rank(0))), "{event:?}");
        other.hear();
        assert_eq!(other.told, (0..500).map(|context| (Rank(0), notice(context))).collect::<Vec<_>>());
    }
}

#[test]
fn whoever_tells_what_no_rank_tells_is_named() {
    let [mut liar, mut other] = pair();
    liar.tell(Rank(1), notice(1024));
    assert_eq!(wait_for_event(&mut other), PeerEvent::Violated(Rank(0)));
    assert!(other.told.is_empty());
}

#[test]
fn unproven_connections_are_neither_kept_nor_believed() {
    let [mut watcher, mut watched] = pair();
    assert_eq!(watcher.watch(Rank(1)), None);
    let address = watched.address().unwrap();
    let mut open = Vec::new();
    for number in 0..1000 {
        let mut unproven = TcpStream::connect(address).unwrap();
        // Nothing, half a notice, other bytes, or a notice of another job: a failure or a withdrawal.
        let failed = encode(Notice::Closed(Rank(0), Closed::Abandoned), &[9; 16]);
        let withdrawn = encode(Notice::Withdrawn(Withdrawal { tag: Tag(9), serial: 1 }), &[9; 16]);
        let contents: [&[u8]; 5] = [&[], &[7; 5], &[7; NOTICE_BYTES], &failed, &withdrawn];
        let _ = unproven.write(contents[number % contents.len()]);
        open.push(unproven);
        assert_eq!((watched.poll(), watcher.poll()), (None, None));
        assert!(watched.withdrawn.is_empty(), "an unproven notice is believed");
        assert!(
            watched.accepted.len() <= MAX_UNPROVEN + 4,
            "{} connections are kept",
            watched.accepted.len()
        );
    }
    drop(watched);
    let start = Instant::now();
    // A rank that is still there may have closed the connection to make room: that is no death.
    let event = loop {
        if let Some(event) = watcher.watch(Rank(1)).or_else(|| watcher.poll()) {
            break event;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no event");
    };
    assert!(matches!(event, PeerEvent::Died(Rank(1)) | PeerEvent::Gone(Rank(1))), "{event:?}");
}

/// A connection with a proven token is kept, however old it is and however many come after it.
#[test]
fn unproven_connections_do_not_replace_proven_ones() {
    let [mut peer, mut rank] = pair();
    peer.withdraw(Rank(1), Withdrawal { tag: Tag(9), serial: 1 });
    let start = Instant::now();
    while rank.withdrawn.is_empty() {
        assert_eq!((peer.poll(), rank.poll()), (None, None));
        assert!(start.elapsed() < Duration::from_secs(10), "no event");
    }
    let address = rank.address().unwrap();
    let unproven: Vec<_> = (0..3 * MAX_UNPROVEN)
        .map(|_| {
            let unproven = TcpStream::connect(address).unwrap();
            assert_eq!(rank.poll(), None);
            unproven
        })
        .collect();
    let proven = rank.accepted.iter().filter(|(_, connection)| connection.is_proven).count();
    assert_eq!((rank.accepted.len(), proven), (2 * 2 + MAX_UNPROVEN, 1));
    drop(unproven);
}

#[test]
fn an_endless_unproven_connection_is_closed() {
    let [_, mut watched] = pair();
    let mut unproven = TcpStream::connect(watched.address().unwrap()).unwrap();
    unproven.set_nonblocking(true).unwrap();
    let start = Instant::now();
    // Until it is refused.
    while !matches!(unproven.write(&[7; 4096]), Err(error) if error.kind() != ErrorKind::WouldBlock) {
        assert_eq!(watched.poll(), None);
        assert!(start.elapsed() < Duration::from_secs(10), "it is still read");
    }
    assert!(watched.accepted.is_empty());
}

#[test]
fn withdrawals_arrive() {
    let [mut sender, mut receiver] = pair();
    let messages = [1, 2, 3].map(|serial| Withdrawal { tag: Tag(9), serial });
    messages.iter().for_each(|message| sender.withdraw(Rank(1), *message));
    let start = Instant::now();
    while receiver.withdrawn.len() < 3 && start.elapsed() < Duration::from_secs(10) {
        assert_eq!((sender.poll(), receiver.poll()), (None, None));
    }
    assert_eq!(receiver.withdrawn, messages);
}

/// As in a forked child, which has all sockets of the rank.
#[test]
fn a_rank_has_died_though_a_child_of_its_holds_its_sockets() {
    let [mut watcher, mut watched] = pair();
    let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let name = ProcessName::of(process.id()).unwrap();
    watcher.add_processes(vec![None, name.open(&ProcessName::own().unwrap())]);
    assert_eq!(watcher.watch(Rank(1)), None);
    assert_eq!((watched.poll(), watcher.poll()), (None, None));
    drop(process.stdin.take());
    assert_eq!(wait_for_event(&mut watcher), PeerEvent::Died(Rank(1)));
    assert_eq!(watcher.watch(Rank(1)), Some(PeerEvent::Gone(Rank(1))), "the child listens there");
    assert_eq!(watcher.poll(), None, "it is reported once");
    process.wait().unwrap();
}

#[test]
fn a_notice_comes_before_the_end_of_its_sender() {
    let [mut watcher, mut watched] = pair();
    let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let name = ProcessName::of(process.id()).unwrap();
    let opened = name.open(&ProcessName::own().unwrap()).unwrap();
    let end = opened.as_fd().try_clone_to_owned().unwrap();
    watcher.add_processes(vec![None, Some(opened)]);
    assert_eq!(watcher.watch(Rank(1)), None);
    watched.tell(Rank(0), notice(3));
    drop(process.stdin.take());
    rustix::event::poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&Timespec { tv_sec: 60, tv_nsec: 0 }))
        .unwrap();
    assert_eq!(wait_for_event(&mut watcher), PeerEvent::Died(Rank(1)));
    assert_eq!(watcher.told, [(Rank(1), notice(3))]);
    process.wait().unwrap();
}

#[test]
fn a_rank_that_left_stops_listening_though_a_child_has_the_listener() {
    let [mut watcher, mut watched] = pair();
    let _child = watched.listener.try_clone().unwrap();
    watched.answer(Closed::Left);
    watched.stop_listening();
    drop(watched);
    let event = watcher.watch(Rank(1)).unwrap_or_else(|| wait_for_event(&mut watcher));
    assert_eq!(event, PeerEvent::Gone(Rank(1)));
}

const DEAF_TEST: &str =
    "ucx::liveness::tests::a_connection_that_cannot_be_accepted_does_not_keep_the_rank_awake";
const CHILD: &str = "BREVITY_TEST_DESCRIPTORS";

/// In a process of its own, because it uses up its descriptors.
#[test]
fn a_connection_that_cannot_be_accepted_does_not_keep_the_rank_awake() {
    if std::env::var_os(CHILD).is_some() {
        return use_descriptors_up();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([DEAF_TEST, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn use_descriptors_up() {
    let [mut watcher, mut watched] = pair();
    assert_eq!(watcher.watch(Rank(1)), None);
    let is_ready = |rank: &Liveness| {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(rank.descriptor(), PollFlags::IN)], Some(&now)).unwrap() > 0
    };
    let start = Instant::now();
    while !is_ready(&watched) {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody has connected");
    }
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1), maximum: limits.maximum }).unwrap();
    assert_eq!(watched.poll(), None);
    assert!(watched.accepted.is_empty() && !is_ready(&watched), "a rank that sleeps on it would not");
    setrlimit(Resource::Nofile, limits).unwrap();
    // It has waited, and is accepted.
    while watched.accepted.is_empty() {
        assert_eq!((watched.poll(), watcher.poll()), (None, None));
        assert!(start.elapsed() < Duration::from_secs(20), "it is not taken any more");
    }
}
