//! A wire delivers its bytes whole and in order, or ends with a clear reason; an encrypted one shows nothing.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::io::Errno;
use socket2::SockRef;

use super::Wire;
use crate::Statistics;
use crate::noise::testing::sessions;
use crate::tcp::fuzzing::loopback_pair;

const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of a connection, non-blocking.
fn sockets() -> (TcpStream, TcpStream) {
    loopback_pair().unwrap()
}

fn over(near: TcpStream, far: TcpStream, encrypt: bool) -> (Wire, Wire) {
    if !encrypt {
        return (near.into(), far.into());
    }
    let (caller, answerer) = sessions();
    (Wire::encrypted(near, caller), Wire::encrypted(far, answerer))
}

/// Both ends of a wire.
fn wires(encrypt: bool) -> (Wire, Wire) {
    let (near, far) = sockets();
    over(near, far, encrypt)
}

/// Both ends of an encrypted wire, and the ends of its sockets between which somebody sits.
fn tapped() -> (Wire, TcpStream, TcpStream, Wire) {
    let ((near, near_tap), (far_tap, far)) = (sockets(), sockets());
    let (near, far) = over(near, far, true);
    (near, near_tap, far_tap, far)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ (i >> 15)) as u8).collect()
}

fn write(wire: &mut Wire, bytes: &[u8]) -> usize {
    match wire.write(&[IoSlice::new(bytes)], &mut Statistics::default()) {
        Ok(count) => count,
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            0
        }
    }
}

fn read(wire: &mut Wire, most: usize) -> rustix::io::Result<Vec<u8>> {
    let mut place = vec![0; most];
    let count = wire.read(&mut [IoSliceMut::new(&mut place)], &mut Statistics::default())?;
    place.truncate(count);
    Ok(place)
}

/// Reads until something else comes than "nothing yet".
fn read_anything(wire: &mut Wire, most: usize) -> rustix::io::Result<Vec<u8>> {
    let start = Instant::now();
    loop {
        match read(wire, most) {
            Err(Errno::AGAIN) => assert!(start.elapsed() < PATIENCE),
            result => return result,
        }
    }
}

fn take(tap: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    tap.set_nonblocking(false).unwrap();
    tap.read_exact(&mut bytes).unwrap();
    bytes
}

/// Each message's record, as it is on its way.
fn records(near: &mut Wire, tap: &mut TcpStream, messages: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    for message in messages {
        assert_eq!(write(near, message), message.len());
        records.push(take(tap, 2 + message.len() + 16));
    }
    records
}

fn assert_refused(far: &mut Wire) {
    assert_eq!(read_anything(far, 4096), Err(Errno::BADMSG));
    assert!(far.violation().is_some_and(|what| what.contains("do not decrypt")));
    assert_eq!(read_anything(far, 4096), Err(Errno::BADMSG), "it stays so");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn bytes_come_whole_and_in_order(
        encrypt: bool,
        sizes in vec(prop_oneof![1usize..200, 1usize..70_000, 200_000usize..2_000_000], 1..8),
        reads in vec(prop_oneof![1usize..100, 1usize..10_000, 60_000usize..1_000_000], 1..8),
        cut in 1usize..5000,
    ) {
        let (mut near, mut far) = wires(encrypt);
        let stream = bytes(sizes.iter().sum());
        let mut statistics = Statistics::default();
        let (mut written, mut got) = (0, Vec::new());
        // Where each write is to end: as frames do, it goes on where the one before was cut short.
        let mut ends = sizes.iter().scan(0, |end, size| { *end += size; Some(*end) });
        let mut end = 0;
        let mut reads = reads.iter().cycle();
        let start = Instant::now();
        while got.len() < stream.len() {
            if written == end {
                end = ends.next().unwrap_or(end);
            }
            let rest = &stream[written..end];
            let (first, second) = rest.split_at(cut.min(rest.len()));
            match near.write(&[IoSlice::new(first), IoSlice::new(second)], &mut statistics) {
                Ok(count) => written += count,
                Err(error) => prop_assert_eq!(error, Errno::AGAIN),
            }
            let most = *reads.next().unwrap();
            let mut place = vec![0; most];
            let (left, right) = place.split_at_mut(most / 3);
            match far.read(&mut [IoSliceMut::new(left), IoSliceMut::new(right)], &mut statistics) {
                Ok(count) => got.extend_from_slice(&place[..count]),
                Err(error) => prop_assert_eq!(error, Errno::AGAIN),
            }
            prop_assert!(start.elapsed() < PATIENCE, "{} of {} bytes", got.len(), stream.len());
        }
        prop_assert!(got == stream);
        prop_assert!(!far.has_unread());
        prop_assert_eq!(read(&mut far, 10), Err(Errno::AGAIN));
    }
}

#[test]
fn a_short_read_means_that_nothing_is_left() {
    for encrypt in [false, true] {
        let (mut near, mut far) = wires(encrypt);
        let message = bytes(300_000);
        assert_eq!(write(&mut near, &message), message.len());
        // What the kernel no longer has, the wire reports as unread: so a sleep on the socket misses nothing.
        let mut got = read_anything(&mut far, 1000).unwrap();
        let start = Instant::now();
        while got.len() < message.len() {
            assert!(start.elapsed() < PATIENCE);
            match read(&mut far, 100_000) {
                Ok(more) => {
                    assert!(more.len() == 100_000 || !far.has_unread(), "encrypted: {encrypt}");
                    got.extend(more);
                }
                Err(error) => assert!(error == Errno::AGAIN && !far.has_unread()),
            }
        }
        assert!(got == message);
    }
}

#[test]
fn what_passes_can_be_read_by_nobody_else() {
    let message = b"the gradient of layer 7 is very private; ".repeat(3000);
    let is_in = |captured: &[u8]| captured.windows(16).any(|window| window == &message[..16]);
    for encrypt in [false, true] {
        let ((near, mut tap), (mut far_tap, far)) = (sockets(), sockets());
        let (mut near, mut far) = over(near, far, encrypt);
        let (mut captured, mut got, mut written) = (Vec::new(), Vec::new(), 0);
        let start = Instant::now();
        while got.len() < message.len() {
            written += write(&mut near, &message[written..]);
            let mut space = [0; 10_000];
            match tap.read(&mut space) {
                Ok(count) => {
                    captured.extend_from_slice(&space[..count]);
                    far_tap.write_all(&space[..count]).unwrap();
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            got.extend(read(&mut far, 1 << 20).unwrap_or_default());
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(got == message);
        assert_eq!(is_in(&captured), !encrypt, "encrypted: {encrypt}");
        assert_eq!(near.is_encrypted(), encrypt);
    }
}

#[test]
fn a_flipped_bit_ends_the_wire() {
    let message = b"values";
    for at in 0..2 + message.len() + 16 {
        let (mut near, mut tap, mut far_tap, mut far) = tapped();
        let mut record = records(&mut near, &mut tap, &[message]).remove(0);
        record[at] ^= 0x04;
        far_tap.write_all(&record).unwrap();
        if at < 2 {
            // Another length: what follows is taken for the rest of the record.
            far_tap.write_all(&[0; 70_000]).unwrap();
        }
        assert_refused(&mut far);
    }
}

#[test]
fn records_that_are_repeated_left_out_or_exchanged_end_the_wire() {
    for order in [&[0, 0][..], &[1], &[1, 0], &[0, 2]] {
        let (mut near, mut tap, mut far_tap, mut far) = tapped();
        let records = records(&mut near, &mut tap, &[b"one", b"two", b"three"]);
        for number in order {
            far_tap.write_all(&records[*number]).unwrap();
        }
        if order[0] == 0 {
            assert_eq!(read_anything(&mut far, 3).unwrap(), b"one");
        }
        assert_refused(&mut far);
    }
}

#[test]
fn a_record_without_bytes_is_refused() {
    for length in [0u16, 15, 16] {
        let (_near, _tap, mut far_tap, mut far) = tapped();
        far_tap.write_all(&[&length.to_le_bytes()[..], &[0; 16]].concat()).unwrap();
        assert_refused(&mut far);
    }
}

#[test]
fn a_wire_that_is_cut_brings_nothing_of_the_cut_record() {
    let (mut near, mut tap, mut far_tap, mut far) = tapped();
    let records = records(&mut near, &mut tap, &[b"whole", b"cut"]);
    far_tap.write_all(&records[0]).unwrap();
    far_tap.write_all(&records[1][..10]).unwrap();
    drop(far_tap);
    assert_eq!(read_anything(&mut far, 100).unwrap(), b"whole");
    assert_eq!(read_anything(&mut far, 100).unwrap(), b"", "the end");
    assert_eq!(far.violation(), None);
}

#[test]
fn bytes_count_as_written_when_the_kernel_has_their_record() {
    let (mut near, mut far) = wires(true);
    let message = bytes(60_000);
    let (mut whole, mut last) = (0, message.len());
    while last == message.len() {
        last = write(&mut near, &message);
        whole += usize::from(last == message.len());
    }
    // The record is sealed, and its last byte is held back until the kernel has it.
    assert_eq!(last, message.len() - 1);
    assert_eq!(write(&mut near, &message[last..]), 0, "there is no room yet");
    let mut got = 0;
    while got < (whole + 1) * message.len() {
        got += read(&mut far, 1 << 20).map_or(0, |bytes| bytes.len());
        if last < message.len() {
            last += write(&mut near, &message[last..]);
        }
    }
    assert_eq!(last, message.len());
}

/// Of a call of 300 s, the default, and of one of twice that.
#[test]
fn a_link_that_is_cut_costs_no_connection_before_calls_have_ended_by_their_deadline() {
    let wire = wires(false).0;
    wire.set_up().unwrap();
    let socket = SockRef::from(wire.socket());
    let retries = socket.tcp_keepalive_retries().unwrap();
    let silence = socket.tcp_keepalive_time().unwrap() + retries * socket.tcp_keepalive_interval().unwrap();
    assert!(socket.keepalive().unwrap() && silence > Duration::from_secs(600), "{silence:?}");
}
