//! A rank with many peers looks at those that it waits for, and at those that have something.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::Tcp;
use super::frame::Header;
use crate::buffer::testing::lend_to_receive;
use crate::buffer::{Buffer, RawVec};
use crate::transport::{Posted, RecvId, RecvParts, Transport};
use crate::{Envelope, Mark, Rank, Signature, Tag};

const PEERS: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(20);
/// More turns than it takes until what every turn reads is not watched.
const MANY_TURNS: usize = 10_000;

/// A rank 0 and the other ends of its sockets.
fn world() -> (Tcp, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut row = vec![None];
    let mut others = Vec::new();
    for _ in 0..PEERS {
        others.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        row.push(Some(listener.accept().unwrap().0));
    }
    (Tcp::new(Rank(0), PEERS + 1, row).unwrap(), others)
}

fn envelope(from: u32) -> Envelope {
    Envelope { tag: Tag::new(Rank(from), 0, 0, 0), signature: Signature::default(), mark: Mark::NONE }
}

fn post(transport: &mut Tcp, from: u32) -> (RecvId, RawVec<u8>) {
    let mut memory = vec![0u8; 4].into_raw();
    let mut parts = RecvParts::new();
    lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
    match transport.post_recv(Rank(from), envelope(from), parts) {
        Posted::Pending(id) => (id, memory),
        Posted::Done(_) => panic!("nothing was sent"),
    }
}

fn send(socket: &mut TcpStream, from: u32) {
    let Envelope { tag, signature, mark } = envelope(from);
    let header = Header { tag, signature, mark, lengths: [4].into_iter().collect() };
    socket.write_all(&[&header.encode()[..], b"1234"].concat()).unwrap();
}

fn receive(transport: &mut Tcp, id: RecvId) {
    let start = Instant::now();
    while transport.test_recv(id).is_none() {
        transport.progress();
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn the_looks_of_a_turn_do_not_grow_with_the_world() {
    for awaited in [1, PEERS] {
        let (mut transport, mut others) = world();
        let receives: Vec<_> = (1..=awaited).map(|from| post(&mut transport, from)).collect();
        let before = transport.looks;
        for _ in 0..1000 {
            transport.progress();
        }
        assert!(transport.looks - before <= 1000, "{} looks in 1000 turns", transport.looks - before);
        // Connections that are not awaited are served too; their messages are kept.
        for from in 1..=PEERS {
            send(&mut others[from as usize - 1], from);
        }
        for (id, _memory) in receives {
            receive(&mut transport, id);
        }
        let start = Instant::now();
        while transport.statistics.bytes_received < u64::from(PEERS) * 68 {
            transport.progress();
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

#[test]
fn what_every_turn_reads_is_watched_again_before_a_sleep_and_heard_without() {
    let (mut transport, mut others) = world();
    for from in [1, 2] {
        let (id, _memory) = post(&mut transport, from);
        for _ in 0..MANY_TURNS {
            transport.progress();
        }
        assert!(transport.poller.unwatched.contains(&(from as usize)));
        send(&mut others[from as usize - 1], from);
        receive(&mut transport, id);
    }
    // No receive waits for the first any more, nor after this for any.
    let (start, before) = (Instant::now(), transport.statistics.bytes_received);
    send(&mut others[0], 1);
    while transport.statistics.bytes_received == before {
        transport.progress();
        assert!(start.elapsed() < PATIENCE);
    }
    let (id, _memory) = post(&mut transport, 2);
    for _ in 0..MANY_TURNS {
        transport.progress();
    }
    assert!(
        transport.poller.unwatched.contains(&2) && !transport.poller.unwatched.contains(&1),
        "only what is read"
    );
    while transport.arm().is_none() {
        transport.progress();
    }
    assert!(transport.poller.wait(Duration::ZERO).is_empty());
    send(&mut others[1], 2);
    assert_eq!(transport.poller.wait(PATIENCE)[..], [2]);
    receive(&mut transport, id);
}
