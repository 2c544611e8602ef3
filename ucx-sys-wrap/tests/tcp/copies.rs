//! How often bytes are copied between the sender's memory and the receiver's: the exact numbers on every path
//! of this transport.

use std::collections::VecDeque;

use ucx_sys_wrap::Transport;
use ucx_sys_wrap::tcp::Tcp;

use super::world::*;

/// A header, indices and values.
const SPARSE: [usize; 3] = [16, 400 << 10, 400 << 10];

/// The most that is read into the staging area with a header, in bytes.
const STAGED: u64 = 4096;

/// Copies and copied bytes of the sender and the receiver for a message of these parts, whose receive is
/// posted before, or so many turns afterwards. Over sockets a thousand turns bring all of it. Over shared
/// memory it is there at once, and a turn may look at it, which costs a copy to the heap.
fn copied(transports: &mut [Tcp], parts: &[usize], posted_after: Option<usize>) -> [(u64, u64); 2] {
    let before = [0, 1].map(|rank| transports[rank].statistics());
    let payload: Vec<_> = parts.iter().map(|length| pattern(1, *length)).collect();
    let slices: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
    let early = posted_after.is_none().then(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), parts));
    let mut sending = Sending::post(&mut transports[0], 1, envelope(0, 0), &slices);
    turn(transports, posted_after.unwrap_or(0));
    let mut receiving =
        early.unwrap_or_else(|| Receiving::post(&mut transports[1], 0, envelope(0, 0), parts));
    receive(transports, 1, &mut receiving).unwrap();
    turn_until(transports, |transports| sending.test(&mut transports[0]).is_some());
    assert!(receiving.bytes() == payload);
    let of = |rank: usize| {
        let after = transports[rank].statistics();
        (after.copies - before[rank].copies, after.bytes_copied - before[rank].bytes_copied)
    };
    [of(0), of(1)]
}

fn times(parts: &[usize], times: u64) -> u64 {
    times * parts.iter().sum::<usize>() as u64
}

/// Small messages are packed for one system call, and read before their destination is known.
#[test]
fn over_sockets_small_messages_are_copied_once_on_each_side() {
    for parts in [&[8][..], &[16, 100, 100], &[4096]] {
        let count = parts.len() as u64;
        let whole = times(parts, 1);
        assert_eq!(copied(&mut world(2), parts, None), [(count, whole), (count, whole)], "{parts:?}");
        // First to the heap, then to their places.
        assert_eq!(
            copied(&mut world(2), parts, Some(1000)),
            [(count, whole), (count + 1, 2 * whole)],
            "{parts:?}"
        );
    }
}

#[test]
fn over_sockets_large_messages_are_not_copied() {
    for parts in [&[4097][..], &[400 << 10], &SPARSE] {
        assert_eq!(copied(&mut world(2), parts, None), [(0, 0), (0, 0)], "{parts:?}");
        // An unexpected message is on the heap; the part that comes with its header was in the staging area
        // before.
        let [sender, (copies, bytes)] = copied(&mut world(2), parts, Some(1000));
        assert_eq!((sender, copies), ((0, 0), parts.len() as u64 + 1), "{parts:?}");
        assert!((times(parts, 1)..=times(parts, 1) + STAGED).contains(&bytes), "{parts:?}: {bytes}");
    }
    // Starts with an RTS: no payload comes before its receive is posted.
    for posted_after in [None, Some(1000)] {
        let [sender, (copies, bytes)] = copied(&mut world(2), &[3 << 20], posted_after);
        assert_eq!(sender, (0, 0));
        assert!(copies <= 1 && bytes <= STAGED, "{copies} copies, {bytes} bytes");
    }
}

/// With many messages in transit and two receives posted at any time, messages go to their receives and not
/// to the heap, whether they are sent eagerly, by RTS, or first one and then the other.
#[test]
fn over_sockets_a_stream_is_not_copied() {
    const ON_THEIR_WAY: usize = 64;
    const COUNT: usize = 150;
    for bytes in [300 << 10, 512 << 10, 1 << 20, 2 << 20] {
        let transports = &mut world(2)[..];
        let payload = pattern(1, bytes);
        let (mut sends, mut receives) = (VecDeque::new(), VecDeque::new());
        let (mut sent, mut posted, mut received) = (0, 0, 0);
        while received < COUNT {
            while sent < COUNT && sends.len() < ON_THEIR_WAY {
                sends.push_back(Sending::post(&mut transports[0], 1, envelope(0, 0), &[&payload]));
                sent += 1;
            }
            while posted < COUNT && receives.len() < 2 {
                receives.push_back(Receiving::post(&mut transports[1], 0, envelope(0, 0), &[bytes]));
                posted += 1;
            }
            turn(transports, 1);
            while sends.front_mut().is_some_and(|send| send.test(&mut transports[0]).is_some()) {
                sends.pop_front();
            }
            if let Some(result) = receives.front_mut().and_then(|receive| receive.test(&mut transports[1])) {
                result.unwrap();
                assert!(receives.pop_front().is_some_and(|mut receive| receive.bytes()[0] == payload));
                received += 1;
            }
        }
        let copied = transports[1].statistics().bytes_copied;
        assert!(
            copied <= times(&[bytes], COUNT as u64) / 10,
            "messages of {bytes} bytes: {copied} bytes are copied"
        );
    }
}

/// A message that was read to the place of another is staged again, and copied to its own place from there.
#[test]
fn over_sockets_a_wrong_guess_costs_two_copies() {
    const BYTES: usize = 20_000;
    let transports = &mut world(2)[..];
    // The first receive waits for a message that comes last.
    let mut receives =
        [1, 2].map(|round| Receiving::post(&mut transports[1], 0, envelope(0, round), &[BYTES]));
    let mut sends = [2, 1].map(|round| {
        let sending =
            Sending::post(&mut transports[0], 1, envelope(0, round), &[&pattern(round as usize, BYTES)]);
        turn(transports, 100);
        sending
    });
    receive(transports, 1, &mut receives[1]).unwrap();
    let statistics = transports[1].statistics();
    receive(transports, 1, &mut receives[0]).unwrap();
    for (round, receiving) in (1..).zip(&mut receives) {
        assert!(receiving.bytes() == [pattern(round, BYTES)], "message {round}");
    }
    sends.iter_mut().for_each(|sending| turn_until(transports, |all| sending.test(&mut all[0]).is_some()));
    let copied = statistics.bytes_copied;
    assert!((BYTES as u64 + 1..=2 * BYTES as u64 + STAGED).contains(&copied), "{copied} bytes are copied");
}

/// A record with a header or the ends of two parts is gathered; the remainder at the end of one is small.
#[test]
fn encryption_copies_little_of_a_header_indices_and_values() {
    let found = copied(&mut met_encrypted(2), &SPARSE, None);
    for (rank, (copies, bytes)) in found.into_iter().enumerate() {
        assert!(copies > 0 && bytes < times(&SPARSE, 1) / 3, "rank {rank} copied {bytes} bytes");
    }
}

/// One copy in and one out, posted or not: a message in its descriptor or in the fast box, or fragment by
/// fragment.
#[test]
fn through_shared_memory_every_byte_is_copied_once_on_each_side() {
    for posted_after in [None, Some(0)] {
        for parts in [&[8][..], &[16, 100, 100], &[2048], &[4097], &[400 << 10], &SPARSE, &[3 << 20]] {
            let [(in_copies, in_bytes), (out_copies, out_bytes)] =
                copied(&mut local_peers(2, false), parts, posted_after);
            assert_eq!((in_bytes, out_bytes), (times(parts, 1), times(parts, 1)), "{parts:?}");
            assert_eq!(in_copies, out_copies, "{parts:?}: pieces");
            assert!(times(parts, 1) > 2048 || in_copies == 1, "{parts:?}: {in_copies} copies");
        }
    }
}

/// The receiver reads the sender's memory, all parts in one call. Messages up to 8 KiB still go through the
/// ring, and so do messages up to 1 MiB while the receiver has received all earlier ones.
#[test]
fn what_may_be_read_is_copied_by_the_receiver_alone_unless_it_is_likely_to_be_expected() {
    for posted_after in [None, Some(0)] {
        for parts in [&[(8 << 10) + 1][..], &[400 << 10], &SPARSE, &[1 << 20]] {
            let mut transports = local_peers(2, true);
            let ahead =
                Sending::post(&mut transports[0], 1, envelope(0, 9), &[&[0; 8]]).test(&mut transports[0]);
            ahead.expect("it lies in its cell").unwrap();
            // The receiver has kept the previous one.
            assert_eq!(
                copied(&mut transports, parts, posted_after),
                [(0, 0), (2, times(parts, 1) + 8)],
                "{parts:?}"
            );
        }
        for bytes in [2049, 8 << 10, (8 << 10) + 1, 1 << 20] {
            let [(_, in_bytes), (_, out_bytes)] = copied(&mut local_peers(2, true), &[bytes], posted_after);
            // An unexpected message is copied once more, to its receive's place.
            assert_eq!(
                (in_bytes, out_bytes),
                (bytes as u64, bytes as u64),
                "{bytes}, posted after {posted_after:?}"
            );
        }
    }
}
