//! Ranks that are connected by several streams, or by encrypted ones: what else must hold beside the battery.

use std::net::TcpStream;
use std::time::Instant;

use ucx_sys_wrap::tcp::{Lane, MAX_LANES, Tcp};
use ucx_sys_wrap::{Error, Failure, Rank, Transport};

use super::world::*;

/// A rank 0 with `count` lanes to a stranger, and the stranger's ends.
fn with_stranger(count: usize) -> (Tcp, Vec<TcpStream>) {
    let pairs = (0..count).map(|_| {
        let mut rows = mesh(2);
        (rows[0][1].take().unwrap(), rows[1][0].take().unwrap())
    });
    let (near, far): (Vec<_>, Vec<_>) = pairs.unzip();
    let lanes = vec![vec![], near.into_iter().map(Lane::from).collect()];
    (Tcp::over(Rank(0), 2, lanes).unwrap(), far)
}

#[test]
fn who_loses_one_stream_has_lost_the_peer() {
    for lost in 0..3 {
        let (mut transport, mut strangers) = with_stranger(3);
        let mut receiving = Receiving::post(&mut transport, 1, envelope(1, 0), &[8]);
        let start = Instant::now();
        strangers.remove(lost);
        let result = receive(std::slice::from_mut(&mut transport), 0, &mut receiving);
        assert_lost(result, 1);
        assert!(start.elapsed().as_secs() < 5, "stream {lost}");
        assert_eq!(transport.failure(), Some(Failure::PeerLost(Rank(1))));
    }
}

#[test]
fn an_end_of_one_stream_does_not_overtake_the_last_word_of_another() {
    let (mut transport, mut strangers) = with_stranger(2);
    let mut receiving = Receiving::post(&mut transport, 1, envelope(1, 0), &[5]);
    drop(strangers.pop());
    turn(std::slice::from_mut(&mut transport), 1000);
    let payload = [message(1, 0, b"hello"), control(2, 1, 0)].concat();
    let header = [&(payload.len() as u32).to_le_bytes()[..], &[0; 4]].concat();
    std::io::Write::write_all(&mut strangers[0], &[header, payload].concat()).unwrap();
    receive(std::slice::from_mut(&mut transport), 0, &mut receiving).unwrap();
    assert_eq!(receiving.bytes(), [b"hello"]);
    turn(std::slice::from_mut(&mut transport), 10);
    assert_eq!(transport.failure(), None, "it has left in good order");
}

#[test]
fn ranks_that_are_not_connected_equally_often_are_refused() {
    let lanes = |counts: &[usize]| {
        let lane = || Lane::from(mesh(2)[0][1].take().unwrap());
        counts.iter().map(|count| (0..*count).map(|_| lane()).collect()).collect::<Vec<Vec<Lane>>>()
    };
    for counts in [&[0, 1, 2][..], &[1, 1, 1], &[0, 0, 0], &[0, 1], &[0, MAX_LANES + 1, MAX_LANES + 1]] {
        let refused = Tcp::over(Rank(0), 3, lanes(counts));
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{counts:?}");
    }
    assert!(Tcp::over(Rank(0), 3, lanes(&[0, MAX_LANES, MAX_LANES])).is_ok());
}

#[test]
fn encryption_costs_a_copy_of_what_is_small_and_none_of_what_is_large() {
    let mut transports = met(2, Lanes { streams: 1, encrypt: true });
    let size = 900_000;
    let before = copied(&transports);
    let mut receiving = Receiving::post(&mut transports[1], 0, envelope(0, 0), &[size]);
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    receive(&mut transports, 1, &mut receiving).unwrap();
    turn_until(&mut transports, |transports| sending.test(&mut transports[0]).is_some());
    assert!(receiving.bytes() == [pattern(1, size)]);
    let after = copied(&transports);
    // A record that has the frame's header is gathered from two places; and what is left over at the end is
    // small.
    for (rank, (before, after)) in before.into_iter().zip(after).enumerate() {
        let copied = after - before;
        assert!(copied > 0 && copied < size as u64 / 3, "rank {rank} copied {copied} bytes");
    }
}

/// Bytes that each rank has copied.
fn copied(transports: &[Tcp]) -> Vec<u64> {
    transports.iter().map(|transport| transport.statistics().bytes_copied).collect()
}
