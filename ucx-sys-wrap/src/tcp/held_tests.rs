//! Sends that are canceled while the first byte of their frame ends an encrypted record: the kernel has some
//! of that record, so the byte can't be taken back.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::connection::{Connection, Status};
use super::frame::HEADER_BYTES;
use super::stream_tests::{PEER, Receiving, WORLD_SIZE, envelope};
use super::wire::Wire;
use crate::buffer::testing::lent_to_send;
use crate::limits::MAX_EAGER_BYTES;
use crate::noise::{MAX_OPEN_BYTES, testing::sessions};
use crate::transport::Notice;
use crate::transport::Posted;
use crate::{Error, Failure, Rank, Statistics};

const PATIENCE: Duration = Duration::from_secs(60);

/// What ends one byte into the frame of the third message, with the header of the first in a record of its
/// own kind.
const REST: usize = 1000;
const FIRST: usize = (MAX_OPEN_BYTES - HEADER_BYTES) + 12 * MAX_OPEN_BYTES + REST;
const SECOND: usize = MAX_OPEN_BYTES - 1 - HEADER_BYTES - REST;

const SMALL: usize = 100;
const OFFERED: usize = MAX_EAGER_BYTES + 1;

/// Two ends of a connection with messages from `near` to `far`, by number.
struct Pair {
    near: Connection,
    far: Connection,
    messages: Vec<Vec<Vec<u8>>>,
    keys: Vec<usize>,
    counts: Statistics,
    start: Instant,
}

/// Sockets whose buffers are shorter than a record.
fn sockets() -> (TcpStream, TcpStream) {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let (listener, near) = (socket(), socket());
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(1).unwrap();
    near.set_send_buffer_size(4096).unwrap();
    near.connect(&listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for socket in [&near, &far] {
        socket.set_nonblocking(true).unwrap();
    }
    (near.into(), far.into())
}

impl Pair {
    /// Ends the second message's send while one byte of the third's frame is on its way.
    fn with_third(bytes: usize) -> Self {
        let (near, far) = sockets();
        let (caller, answerer) = sessions();
        let mut pair = Self {
            near: Connection::new(
                PEER,
                Rank(0),
                WORLD_SIZE,
                Wire::encrypted(near, caller),
                std::sync::Arc::default(),
            ),
            far: Connection::new(
                Rank(0),
                PEER,
                WORLD_SIZE,
                Wire::encrypted(far, answerer),
                std::sync::Arc::default(),
            ),
            messages: Vec::new(),
            keys: Vec::new(),
            counts: Statistics::default(),
            start: Instant::now(),
        };
        [FIRST, SECOND, bytes].into_iter().for_each(|bytes| pair.send(bytes));
        while pair.near.outgoing.take_ended(pair.keys[1]).is_none() {
            let _ = pair.near.outgoing.take_ended(pair.keys[0]);
            pair.turn(2048);
        }
        assert!(pair.near.outgoing.take_ended(pair.keys[2]).is_none());
        pair
    }

    fn send(&mut self, bytes: usize) {
        let message = vec![(0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()];
        let posted = self.near.post_send(
            envelope(self.messages.len() as u32),
            lent_to_send(&message),
            &mut self.counts,
        );
        self.messages.push(message);
        match posted {
            Posted::Pending(key) => self.keys.push(key),
            Posted::Done(_) => panic!("the kernel takes all"),
        }
    }

    fn cancel_third(&mut self) {
        self.near.outgoing.cancel(self.keys[2], Error::Canceled, &mut self.counts);
        let done = self.near.outgoing.take_ended(self.keys[2]).unwrap();
        assert!(matches!(done.result, Err(Error::Canceled)));
        drop(done);
        // Its memory belongs to the caller again, which writes something else there.
        self.messages[2][0].iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn turn(&mut self, quota: usize) {
        assert!(self.start.elapsed() < PATIENCE, "what counts as sent does not come");
        for status in [self.far.service(quota, &mut self.counts).1, self.near.service(1, &mut self.counts).1]
        {
            assert!(matches!(status, Status::Open), "{status:?}");
        }
    }

    /// Receives a message that has been sent.
    fn receive(&mut self, round: usize) -> Vec<u8> {
        let receiving =
            Receiving::post(&mut self.far, round as u32, &[self.messages[round][0].len()], &mut self.counts);
        let mut done = receiving.posted;
        loop {
            match done {
                Posted::Done(mut done) => {
                    return done.parts[0].bytes_mut()[..done.result.unwrap().lengths[0]].to_vec();
                }
                Posted::Pending(key) => match self.far.incoming.receives.take_ended(key) {
                    Some(ended) => done = Posted::Done(ended),
                    None => {
                        self.turn(1 << 20);
                        done = Posted::Pending(key);
                    }
                },
            }
        }
    }

    fn receive_all(&mut self) {
        for round in 0..self.messages.len() {
            let mut expected = self.messages[round][0].clone();
            if round == 2 {
                expected.iter_mut().for_each(|byte| *byte = !*byte);
            }
            assert!(self.receive(round) == expected, "message {round}");
        }
    }
}

#[test]
fn what_counts_as_sent_comes_when_the_next_message_is_canceled() {
    let mut pair = Pair::with_third(SMALL);
    pair.cancel_third();
    pair.receive_all();
}

#[test]
fn what_follows_a_canceled_message_comes_whole() {
    let mut pair = Pair::with_third(SMALL);
    pair.cancel_third();
    pair.send(OFFERED);
    pair.receive_all();
}

#[test]
fn what_follows_a_canceled_offer_comes_whole() {
    let mut pair = Pair::with_third(OFFERED);
    pair.cancel_third();
    pair.send(SMALL);
    pair.receive_all();
}

#[test]
fn a_notice_is_told_behind_what_was_begun() {
    let told = Notice::closed(5, 1, Failure::Aborted(PEER));
    let mut pair = Pair::with_third(SMALL);
    pair.near.end_context(0, &Error::Canceled, &mut pair.counts);
    pair.near.tell(told, &mut pair.counts);
    while pair.far.incoming.notices.is_empty() {
        pair.near.service(1 << 20, &mut pair.counts);
        let status = pair.far.service(1 << 20, &mut pair.counts).1;
        assert!(matches!(status, Status::Open), "{status:?}");
        assert!(pair.start.elapsed() < PATIENCE, "nothing is told");
    }
    assert_eq!(pair.far.incoming.notices, [told]);
}
