//! Fuzzing of one connection: arbitrary input while operations are posted, tested and canceled.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use super::connection::{Connection, Status};
use super::frame::{HEADER_BYTES, Header};
use super::wire::Wire;
use crate::buffer::testing::{lend_to_receive, lend_to_send};
use crate::buffer::{Buffer, RawVec};
use crate::fuzzing::Bytes;
use crate::transport::{Posted, RecvParts, SendParts};
use crate::{Envelope, Error, Mark, Rank, Signature, Statistics, Tag};

const WORLD_SIZE: u32 = 4;
const PEER: Rank = Rank(1);

/// The most heap memory that a connection may hold beyond what has come: the steps in which it grows.
const KEPT_BEYOND: usize = 1 << 20;

/// Lent memory and the key of its operation, until that has ended.
type Operation = (RawVec<u8>, Option<usize>);

/// A connection, the peer's end of its socket, and what was posted.
struct Bench {
    connection: Connection,
    peer: TcpStream,
    statistics: Statistics,
    receives: Vec<Operation>,
    sends: Vec<Operation>,
    written: usize,
}

/// Interprets `data` as steps: operations of this rank, and bytes that the peer sends.
pub fn tcp_stream(data: &[u8]) {
    let Some(mut bench) = Bench::new() else { return };
    let mut bytes = Bytes(data);
    while let Some(step) = bytes.byte() {
        if bench.step(step, &mut bytes).is_none() {
            break;
        }
    }
    bench.finish();
}

impl Bench {
    fn new() -> Option<Self> {
        let (own, peer) = loopback_pair()?;
        let wire = Wire::from(own);
        let connection = Connection::new(Rank(0), PEER, WORLD_SIZE, wire, std::sync::Arc::default());
        let (statistics, receives, sends) = (Statistics::default(), Vec::new(), Vec::new());
        Some(Self { connection, peer, statistics, receives, sends, written: 0 })
    }

    /// Takes one step; `None` at the end of the plan or of the connection.
    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) -> Option<()> {
        match step % 8 {
            0 => self.post_recv(bytes.byte()?, bytes.word()?),
            1 => {
                let count = usize::from(bytes.byte()?);
                self.write(bytes.take(count));
            }
            2 => self.write_frame(bytes)?,
            3 => {
                let count = bytes.word()?;
                self.write(&vec![step; count]);
            }
            4 => self.cancel_recv(usize::from(bytes.byte()?)),
            5 => self.post_send(bytes.byte()?, bytes.word()? * 16),
            6 => self.cancel_send(usize::from(bytes.byte()?)),
            _ => return self.service(bytes.word()?),
        }
        Some(())
    }

    fn write(&mut self, bytes: &[u8]) {
        // Bytes that the kernel does not take are never sent.
        self.written += self.peer.write(bytes).unwrap_or(0);
    }

    /// Sends a valid frame with another kind and number, and one changed byte.
    fn write_frame(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (kind, number, round) = (bytes.byte()?, bytes.byte()?, bytes.byte()?);
        let lengths = (0..bytes.byte()? % 4).map(|_| bytes.word()).collect::<Option<_>>()?;
        let Envelope { tag, signature, mark } = envelope(PEER, round);
        let mut frame = Header { tag, signature, mark, lengths }.encode();
        frame[0] = kind;
        frame[4] = number;
        let (at, change) = (usize::from(bytes.byte()?), bytes.byte()?);
        frame[at % HEADER_BYTES] ^= if at < HEADER_BYTES { change } else { 0 };
        self.write(&frame);
        Some(())
    }

    fn service(&mut self, quota: usize) -> Option<()> {
        let (_, status) = self.connection.service(quota + 1, &mut self.statistics);
        assert!(self.statistics.bytes_received <= self.written as u64);
        let kept = self.connection.incoming.receives.kept_capacity();
        assert!(kept <= self.written + KEPT_BEYOND, "{kept} bytes are kept of {}", self.written);
        matches!(status, Status::Open).then_some(())
    }

    fn post_recv(&mut self, round: u8, capacity: usize) {
        let mut memory = vec![0u8; capacity].into_raw();
        let mut parts = RecvParts::new();
        lend_to_receive::<Vec<u8>>(&mut memory, &mut parts);
        let posted = self.connection.post_recv(envelope(PEER, round), parts, &mut self.statistics);
        self.receives.push((memory, pending(posted)));
    }

    fn post_send(&mut self, round: u8, length: usize) {
        let memory = vec![round; length].into_raw();
        let mut parts = SendParts::new();
        lend_to_send::<Vec<u8>>(&memory, &mut parts);
        let posted = self.connection.post_send(envelope(Rank(0), round), parts, &mut self.statistics);
        self.sends.push((memory, pending(posted)));
    }

    fn cancel_recv(&mut self, number: usize) {
        if let Some((_, key)) = self.receives.get_mut(number) {
            key.take_if(|key| {
                self.connection.cancel_recv(*key, Error::Canceled);
                self.connection.incoming.receives.take_ended(*key).is_some()
            });
        }
    }

    fn cancel_send(&mut self, number: usize) {
        if let Some((_, key)) = self.sends.get_mut(number) {
            key.take_if(|key| {
                self.connection.outgoing.cancel(*key, Error::Canceled, &mut self.statistics);
                self.connection.outgoing.take_ended(*key).is_some()
            });
        }
    }

    /// Every operation ends when the connection is closed.
    fn finish(mut self) {
        if self.receives.len().is_multiple_of(2) {
            self.connection.close(&Error::Closed, &mut self.statistics);
        } else {
            self.connection.finish(&mut self.statistics);
        }
        for key in self.receives.iter().filter_map(|(_, key)| *key) {
            assert!(self.connection.incoming.receives.take_ended(key).is_some(), "a receive goes on");
        }
        for key in self.sends.iter().filter_map(|(_, key)| *key) {
            assert!(self.connection.outgoing.take_ended(key).is_some(), "a send goes on");
        }
    }
}

fn pending<Done>(posted: Posted<usize, Done>) -> Option<usize> {
    if let Posted::Pending(key) = posted { Some(key) } else { None }
}

/// Two connected, non-blocking sockets.
pub(super) fn loopback_pair() -> Option<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let far = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let near = listener.accept().ok()?.0;
    for socket in [&near, &far] {
        socket.set_nonblocking(true).ok()?;
        socket.set_nodelay(true).ok()?;
    }
    Some((near, far))
}

fn envelope(source: Rank, round: u8) -> Envelope {
    let tag = Tag::new(source, 0, 0, u32::from(round % 4));
    Envelope { tag, signature: Signature([round % 2; 16]), mark: Mark::NONE }
}
