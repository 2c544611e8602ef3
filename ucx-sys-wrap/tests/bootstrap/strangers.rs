//! Strangers connect while a job joins: they neither stop nor delay it, and are never taken for a rank.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::bootstrap::{Identity, Master, Rendezvous, connect_mesh};

use crate::world::{AMPLE, Port, SHORT, error, joined, missing, rank};

/// Connects and misbehaves until it is dropped.
struct Strangers {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Strangers {
    fn at(address: SocketAddr) -> Self {
        Self::who_say(address, 200, rubbish)
    }

    /// More at a time than the listener and the system keep together; they send nothing.
    fn silent_at(address: SocketAddr) -> Self {
        Self::who_say(address, 5000, |_| b"")
    }

    fn who_say(address: SocketAddr, at_a_time: usize, what: fn(usize) -> &'static [u8]) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let thread = thread::spawn(move || {
            let mut open = VecDeque::new();
            let mut connected = 0;
            while !stop.load(Ordering::Relaxed) {
                let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let _ = stream.write_all(what(connected));
                connected += 1;
                open.push_back(stream);
                if open.len() > at_a_time {
                    open.pop_front();
                }
            }
            connected
        });
        Self { done, thread: Some(thread) }
    }

    fn stop(mut self) -> usize {
        self.done.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

/// Nothing, half an opening, a whole but false one, another protocol, many zeros.
fn rubbish(number: usize) -> &'static [u8] {
    const OPENING: [u8; 124] = {
        let mut opening = [0; 124];
        let head =
            *b"BREVITY\x01\x01\x00\x00\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00";
        let mut at = 0;
        while at < head.len() {
            opening[at] = head[at];
            at += 1;
        }
        opening
    };
    match number % 6 {
        0 => b"",
        1 => &OPENING[..40],
        2 => &OPENING,
        3 => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        4 => &[0; 5000],
        _ => {
            b"BREVITY\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\
               \xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
        }
    }
}

#[test]
fn strangers_neither_stop_nor_delay_a_job() {
    besieged(Strangers::at);
}

/// They take every place again as soon as it is free, and fill the system's queue.
#[test]
fn silent_strangers_that_never_cease_neither_stop_nor_delay_a_job() {
    raise_descriptor_limit();
    besieged(Strangers::silent_at);
}

fn besieged(by: impl FnOnce(SocketAddr) -> Strangers) {
    let port = Port::reserve();
    let strangers = by(port.address());
    let body = |identity: &Identity, mut rendezvous: Rendezvous| {
        rendezvous.exchange(&[identity.rank.0 as u8])?;
        connect_mesh(identity, &mut rendezvous)?;
        Ok(Instant::now())
    };
    let mut ranks = vec![rank(port.identity(0, 4, AMPLE), body)];
    // Time for the strangers to fill the room before the others come.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    ranks.extend((1..4).map(|number| rank(port.identity(number, 4, AMPLE), body)));
    let ends: Vec<Instant> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
    let slowest = ends.iter().max().unwrap().duration_since(start);
    let met = strangers.stop();
    println!("joined in {slowest:?} beside {met} strangers");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
}

#[test]
fn a_thousand_silent_connections_do_not_keep_a_job_from_joining() {
    raise_descriptor_limit();
    let port = Port::reserve();
    let root = rank(port.identity(0, 2, AMPLE), joined);
    let mut silent = Vec::new();
    let start = Instant::now();
    while silent.len() < 1000 && start.elapsed() < AMPLE {
        match TcpStream::connect(port.address()) {
            Ok(stream) => silent.push(stream),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    }
    assert_eq!(silent.len(), 1000, "the strangers could not connect");
    let start = Instant::now();
    rank(port.identity(1, 2, AMPLE), joined).join().unwrap().unwrap();
    root.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// The strangers of a test and the ranks share one process.
fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
}

#[test]
fn strangers_that_come_between_exchanges_do_not_keep_rank_0_busy() {
    let port = Port::reserve();
    let address = port.address();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let root = rank(port.identity(0, 2, AMPLE), |_, mut rendezvous| {
        let before = thread_time();
        rendezvous.exchange(b"mine")?;
        Ok(thread_time() - before)
    });
    let other = rank(port.identity(1, 2, AMPLE), move |_, mut rendezvous| {
        let _ = receiver.recv();
        rendezvous.exchange(b"mine")
    });
    thread::sleep(Duration::from_millis(300));
    let _stranger = TcpStream::connect(address);
    thread::sleep(Duration::from_secs(1));
    drop(sender);
    other.join().unwrap().unwrap();
    let busy = root.join().unwrap().unwrap();
    assert!(busy < Duration::from_millis(300), "rank 0 was busy for {busy:?} of a second");
}

/// Processor time of this thread in nanoseconds: the first figure of its statistics.
fn thread_time() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn a_stranger_on_the_masters_port_is_not_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        // Sends back everything it receives, including each caller's own proof.
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut bytes = [0; 256];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let _ = stream.write_all(&bytes[..count]);
                }
            });
        }
    });
    let mut identity = Identity::new(Rank(1), 2, Master { host: "127.0.0.1".into(), port });
    identity.join_timeout = SHORT;
    assert_eq!(missing(&error(rank(identity, joined))), [0]);
}
