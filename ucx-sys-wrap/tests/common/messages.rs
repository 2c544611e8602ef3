//! Cases in which only the messages themselves go wrong.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Port;
use ucx_sys_wrap::{Arrival, Envelope, Error, Mark, Rank, Signature, Tag};

use super::{block, envelope, pattern, peers};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// The arrival of an ordinary message with these parts.
fn arrival(lengths: &[usize]) -> Arrival {
    Arrival { mark: Mark::NONE, lengths: lengths.iter().copied().collect() }
}

pub fn order_within_a_tag(port: &Arc<Port>) {
    let length = |index: usize| if index.is_multiple_of(5) { 20_000 + index } else { index % 50 };
    block(port, async |comm| {
        if port.rank() == A {
            let sends: Vec<_> = (0..200)
                .map(|index| comm.send(B, envelope(A, 1, 0), pattern(index, length(index))))
                .collect();
            for send in sends {
                send.await.unwrap();
            }
        } else {
            for index in 0..200 {
                let (bytes, arrived) = comm.recv(A, envelope(A, 1, 0), vec![0u8; 30_000]).await.unwrap();
                assert_eq!(arrived, arrival(&[length(index)]), "message {index}");
                assert_eq!(bytes[..length(index)], pattern(index, length(index)), "message {index}");
            }
        }
    });
}

pub fn tags_out_of_order(port: &Arc<Port>) {
    let length = |round: u32| [3, 5000, 70_000][round as usize % 3];
    block(port, async |comm| {
        if port.rank() == A {
            let sends: Vec<_> = (0..50)
                .map(|round| comm.send(B, envelope(A, 1, round), pattern(round as usize, length(round))))
                .collect();
            for send in sends {
                send.await.unwrap();
            }
        } else {
            for round in (0..50).rev() {
                let place = vec![0u8; length(round)];
                let (bytes, _) = comm.recv(A, envelope(A, 1, round), place).await.unwrap();
                assert_eq!(bytes, pattern(round as usize, length(round)), "round {round}");
            }
        }
    });
}

pub fn unexpected(port: &Arc<Port>) {
    const COUNT: usize = 2000;
    block(port, async |comm| {
        if port.rank() == A {
            let sends: Vec<_> = (0..COUNT)
                .map(|index| comm.send(B, envelope(A, 1, index as u32 % 7), pattern(index, 100)))
                .collect();
            comm.send(B, envelope(A, 2, 0), ()).await.unwrap();
            for send in sends {
                send.await.unwrap();
            }
        } else {
            comm.recv(A, envelope(A, 2, 0), ()).await.unwrap();
            for round in (0..7).rev() {
                for index in (0..COUNT).filter(|index| index % 7 == round) {
                    let (bytes, _) =
                        comm.recv(A, envelope(A, 1, round as u32), vec![0u8; 100]).await.unwrap();
                    assert_eq!(bytes, pattern(index, 100), "message {index}");
                }
            }
        }
    });
}

pub fn parts(port: &Arc<Port>) {
    const LENGTHS: [usize; 5] = [0, 1, 9, 5000, 100_000];
    block(port, async |comm| {
        for a in LENGTHS {
            for b in LENGTHS {
                let c = a.max(b) - a.min(b);
                if port.rank() == A {
                    comm.send(B, envelope(A, 1, 0), ()).await.unwrap();
                    comm.send(B, envelope(A, 1, 1), pattern(1, a)).await.unwrap();
                    comm.send(B, envelope(A, 1, 2), (pattern(1, a), pattern(2, b))).await.unwrap();
                    let three = ((pattern(1, a), pattern(2, b)), pattern(3, c));
                    comm.send(B, envelope(A, 1, 3), three).await.unwrap();
                } else {
                    let place = |length: usize| vec![0u8; length + 3];
                    let ((), none) = comm.recv(A, envelope(A, 1, 0), ()).await.unwrap();
                    assert_eq!(none, arrival(&[]));
                    let (first, one) = comm.recv(A, envelope(A, 1, 1), place(a)).await.unwrap();
                    assert_eq!((one, &first[..a]), (arrival(&[a]), &pattern(1, a)[..]));
                    let places = (place(a), place(b));
                    let ((first, second), two) = comm.recv(A, envelope(A, 1, 2), places).await.unwrap();
                    assert_eq!(two, arrival(&[a, b]));
                    assert!(
                        first[..a] == pattern(1, a) && second[..b] == pattern(2, b),
                        "two parts of {a} and {b}"
                    );
                    let places = ((place(a), place(b)), place(c));
                    let (((first, second), third), three) =
                        comm.recv(A, envelope(A, 1, 3), places).await.unwrap();
                    assert_eq!(three, arrival(&[a, b, c]));
                    assert!(
                        first[..a] == pattern(1, a) && second[..b] == pattern(2, b),
                        "three parts of {a} and {b}"
                    );
                    assert_eq!(third[..c], pattern(3, c));
                }
            }
        }
    });
}

/// The receive fails, the send does not, and the tag still works.
pub fn refused(port: &Arc<Port>) {
    let mut other = Signature([7; 16]);
    other.0[Signature::EPOCH_AT] = 0;
    for length in [8, 200_000] {
        block(port, async |comm| {
            if port.rank() == A {
                let strange = ucx_sys_wrap::Envelope { signature: other, ..envelope(A, 1, 0) };
                comm.send(B, strange, pattern(1, length)).await.unwrap();
                comm.send(B, envelope(A, 1, 0), pattern(2, length)).await.unwrap();
                comm.send(B, envelope(A, 1, 0), pattern(3, length)).await.unwrap();
                comm.send(B, envelope(A, 1, 0), (pattern(4, length), pattern(5, length))).await.unwrap();
                comm.send(B, envelope(A, 1, 0), pattern(6, length)).await.unwrap();
                return;
            }
            let mismatch = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap_err();
            let Error::Mismatch { rank, expected, found } = mismatch else { panic!("{mismatch}") };
            assert_eq!((rank, expected, found), (A, Signature::default(), other));
            let too_long = comm.recv(A, envelope(A, 1, 0), vec![0u8; length - 1]).await.unwrap_err();
            let Error::TooLong { rank, part, sent, capacity } = too_long else { panic!("{too_long}") };
            assert_eq!((rank, part, sent, capacity), (A, 0, length as u64, length - 1));
            let too_few =
                comm.recv(A, envelope(A, 1, 0), (vec![0u8; length], vec![0u8; 1])).await.unwrap_err();
            assert!(matches!(too_few, Error::TooLong { rank: A, .. }), "{too_few}");
            let too_many = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap_err();
            assert!(matches!(too_many, Error::TooLong { rank: A, .. }), "{too_many}");
            let (bytes, _) = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap();
            assert_eq!(bytes, pattern(6, length));
        });
    }
}

pub fn mark(port: &Arc<Port>) {
    block(port, async |comm| {
        for (index, mark) in [Mark::NONE, Mark(1), Mark(u64::MAX)].into_iter().enumerate() {
            for length in [0, 100_000] {
                if port.rank() == A {
                    let marked = ucx_sys_wrap::Envelope { mark, ..envelope(A, 1, 0) };
                    comm.send(B, marked, pattern(index, length)).await.unwrap();
                } else {
                    let (_, arrived) = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap();
                    assert_eq!(arrived.mark, mark);
                }
            }
        }
    });
}

pub fn sizes(port: &Arc<Port>) {
    for length in [0, 1, 8, 511, 513, 4095, 4096, 4097, 65 << 10, (1 << 20) + 3] {
        round_trip(port, length);
    }
}

pub fn forty_mebibytes(port: &Arc<Port>) {
    round_trip(port, 40 << 20);
}

/// Both directions at the same time, into borrowed memory.
fn round_trip(port: &Arc<Port>, length: usize) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    let outgoing = pattern(own.index(), length);
    let mut incoming = vec![0u8; length];
    block(port, async |comm| {
        let recv = comm.recv(peer, envelope(peer, 1, 0), &mut incoming[..]);
        let send = comm.send(peer, envelope(own, 1, 0), &outgoing[..]);
        assert_eq!(recv.await.unwrap().1, arrival(&[length]));
        send.await.unwrap();
    });
    assert!(incoming == pattern(peer.index(), length), "{length} bytes");
}

pub fn all_to_all(port: &Arc<Port>) {
    let own = port.rank();
    let length =
        |from: Rank, to: Rank| if (from.0 + to.0).is_multiple_of(2) { 64 } else { 100_000 + from.index() };
    block(port, async |comm| {
        for round in 0..5 {
            let seed = |from: Rank, to: Rank| from.index() * 1000 + to.index() * 10 + round as usize;
            let sends: Vec<_> = peers(port)
                .map(|to| comm.send(to, envelope(own, 1, round), pattern(seed(own, to), length(own, to))))
                .collect();
            let recvs: Vec<_> = peers(port)
                .map(|from| (from, comm.recv(from, envelope(from, 1, round), vec![0u8; length(from, own)])))
                .collect();
            for (from, recv) in recvs.into_iter().rev() {
                assert!(recv.await.unwrap().0 == pattern(seed(from, own), length(from, own)), "from {from}");
            }
            for send in sends {
                send.await.unwrap();
            }
        }
    });
}

pub fn no_such_peer(port: &Arc<Port>) {
    let own = port.rank();
    block(port, async |comm| {
        for peer in [own, Rank(2), Rank(u32::MAX)] {
            let send = comm.send(peer, envelope(own, 1, 0), ()).await.unwrap_err();
            let recv = comm.recv(peer, envelope(peer, 1, 0), ()).await.unwrap_err();
            for error in [send, recv] {
                assert!(matches!(error, Error::NoSuchPeer { rank, .. } if rank == peer), "{error}");
            }
        }
    });
}

pub fn statistics(port: &Arc<Port>) {
    let before = port.statistics();
    for length in [10, 300_000] {
        round_trip(port, length);
    }
    let after = port.statistics();
    assert_eq!(after.messages_sent - before.messages_sent, 2);
    assert_eq!(after.messages_received - before.messages_received, 2);
    assert!(after.bytes_sent - before.bytes_sent >= 300_010, "{after:?}");
    assert!(after.bytes_received - before.bytes_received >= 300_010, "{after:?}");
}

/// Tags that the sender can't use are refused by the call, and the transport goes on.
pub fn foreign_tags(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    let tags =
        |sender: Rank| [Tag::new(Rank(7), 0, 0, 0), Tag::new(sender, 0, 0, 0).with_kind(2), Tag(u64::MAX)];
    block(port, async |comm| {
        for tag in tags(own).into_iter().chain([envelope(peer, 1, 0).tag]) {
            let envelope = Envelope { tag, ..envelope(own, 1, 0) };
            let refused = Error::ForeignTag { tag, rank: own }.to_string();
            assert_eq!(comm.send(peer, envelope, pattern(1, 100)).await.unwrap_err().to_string(), refused);
            assert_eq!(comm.send(peer, envelope, ()).await.unwrap_err().to_string(), refused);
        }
        for tag in tags(peer).into_iter().chain([envelope(own, 1, 0).tag]) {
            let envelope = Envelope { tag, ..envelope(peer, 1, 0) };
            let refused = Error::ForeignTag { tag, rank: peer }.to_string();
            assert_eq!(comm.recv(peer, envelope, vec![0u8; 100]).await.unwrap_err().to_string(), refused);
        }
    });
    assert_eq!(port.failure(0), None);
}
