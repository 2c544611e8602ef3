//! How often bytes are copied between the sender's memory and the receiver's, apart from UCX's own copies.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Port, RecvBuffer, SendBuffer};
use ucx_sys_wrap::ucx::{MAX_EAGER_BYTES, PACKED_BYTES};
use ucx_sys_wrap::{Rank, Statistics};

use super::{OVER_UCX, envelope, pattern, ported_on, run};

/// The copies of a message: times and bytes at the sender, at a receiver whose receive is posted, and at one
/// whose is not.
struct Copies {
    parts: [usize; 3],
    at_the_sender: (u64, u64),
    at_the_receiver: (u64, u64),
    unasked: (u64, u64),
}

const fn row(parts: [usize; 3], sender: (u64, u64), receiver: (u64, u64), unasked: (u64, u64)) -> Copies {
    Copies { parts, at_the_sender: sender, at_the_receiver: receiver, unasked }
}

const ROOM: usize = PACKED_BYTES - 16;

/// A header, indices and values.
const SPARSE: [Copies; 5] = [
    // Packed: one copy on each side, and one more for an unexpected message.
    row([16, 100, 100], (1, 216), (1, 216), (2, 432)),
    row([16, ROOM - 100, 100], (1, 4096), (1, 4096), (2, 8192)),
    // The header is sent with UCX's, the rest from its own memory: eagerly, and the receiver copies each
    // separately.
    row([16, ROOM, 100], (1, 116), (2, 4196), (4, 8392)),
    row([16, 3000, 2000], (1, 16), (3, 5016), (6, 10_032)),
    // The rest is fetched into its place.
    row([16, 400 << 10, 400 << 10], (1, 16), (1, 16), (2, 32)),
];

/// One part: its bytes, how often the receiver copies it, and how often if it was unexpected. Between these
/// sizes, up to the eager limit, UCX decides whether it fetches the data.
const CONTIGUOUS: [(usize, u64, u64); 4] =
    [(8, 1, 2), (PACKED_BYTES, 1, 2), (MAX_EAGER_BYTES + 1, 0, 0), (3 << 20, 0, 0)];

/// Sends a message from rank 0 to rank 1, whose receive is posted before, or after the message has arrived.
/// Returns what this rank has copied.
fn copied<B>(port: &Arc<Port>, is_posted: bool, (message, places): (B, B)) -> (u64, u64)
where
    B: SendBuffer + RecvBuffer + Clone + PartialEq + 'static,
{
    let (rank, peer) = (port.rank(), Rank(1 - port.rank().0));
    let before = port.statistics();
    run(port, async |comm| {
        let hear =
            async |round| drop(comm.recv(peer, envelope(peer, round), Vec::<u8>::new()).await.unwrap());
        let tell =
            async |round| drop(comm.send(peer, envelope(rank, round), Vec::<u8>::new()).await.unwrap());
        if rank == Rank(0) {
            if is_posted {
                hear(1).await;
            }
            let sending = comm.send(peer, envelope(rank, 0), message.clone());
            tell(2).await;
            sending.await.unwrap();
            hear(3).await;
            return;
        }
        let mut places = Some(places);
        let mut post = || comm.recv(peer, envelope(peer, 0), places.take().unwrap());
        let early = is_posted.then(&mut post);
        if is_posted {
            tell(1).await;
        }
        // The unexpected message has arrived before this.
        hear(2).await;
        let receiving = early.unwrap_or_else(post);
        assert!(receiving.await.unwrap().0 == message);
        tell(3).await;
    });
    let Statistics { copies, bytes_copied, .. } = port.statistics();
    (copies - before.copies, bytes_copied - before.bytes_copied)
}

#[test]
fn of_a_header_indices_and_values() {
    for Copies { parts, at_the_sender, at_the_receiver, unasked } in &SPARSE {
        let sparse = |fill: fn(usize) -> Vec<u8>| (fill(parts[0]), (fill(parts[1]), fill(parts[2])));
        for (is_posted, received) in [(true, at_the_receiver), (false, unasked)] {
            ported_on(&OVER_UCX, 2, |port, rank| {
                let buffers =
                    (sparse(|length| pattern(length as u32, length)), sparse(|length| vec![0; length]));
                let expected = if rank == Rank(0) { at_the_sender } else { received };
                assert_eq!(
                    copied(port, is_posted, buffers),
                    *expected,
                    "rank {rank}, posted {is_posted}, {parts:?}"
                );
            });
        }
    }
}

#[test]
fn of_one_part() {
    for (bytes, asked, unasked) in CONTIGUOUS {
        for (is_posted, times) in [(true, asked), (false, unasked)] {
            ported_on(&OVER_UCX, 2, |port, rank| {
                let times = if rank == Rank(0) { 0 } else { times };
                let found = copied(port, is_posted, (pattern(1, bytes), vec![0; bytes]));
                assert_eq!(
                    found,
                    (times, times * bytes as u64),
                    "rank {rank}, posted {is_posted}, {bytes} bytes"
                );
            });
        }
    }
}

/// UCX decides whether it fetches messages between these sizes: then nothing is copied, otherwise as often as
/// for smaller ones.
#[test]
fn of_one_part_that_ucx_may_fetch() {
    for bytes in [PACKED_BYTES + 1, 16 << 10, MAX_EAGER_BYTES] {
        for (is_posted, times) in [(true, 1), (false, 2)] {
            ported_on(&OVER_UCX, 2, |port, rank| {
                let found = copied(port, is_posted, (pattern(1, bytes), vec![0; bytes]));
                let is_copied = rank == Rank(1) && found == (times, times * bytes as u64);
                assert!(
                    found == (0, 0) || is_copied,
                    "rank {rank}, posted {is_posted}, {bytes} bytes: {found:?}"
                );
            });
        }
    }
}
