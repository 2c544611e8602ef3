//! Large messages are sent in fragments, with other messages in between.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::world::*;
use ucx_sys_wrap::Transport;
use ucx_sys_wrap::tcp::SEGMENT_BYTES;

/// Reads frames until `count` have come. Returns the header of each and its position in the stream.
fn frames(
    socket: &mut TcpStream,
    transports: &mut [ucx_sys_wrap::tcp::Tcp],
    count: usize,
) -> Vec<([u8; 64], usize)> {
    socket.set_nonblocking(true).unwrap();
    let (mut stream, mut chunk) = (Vec::new(), vec![0; 1 << 20]);
    let (mut found, mut at) = (Vec::new(), 0);
    turn_until(transports, |_| {
        if let Ok(got) = socket.read(&mut chunk) {
            stream.extend_from_slice(&chunk[..got]);
        }
        while let Some(header) = stream.get(at..at + 64) {
            let header: [u8; 64] = header.try_into().unwrap();
            let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap()) as usize;
            let payload = match header[0] {
                1 => word(40) + word(48) + word(56),
                9 => word(32),
                _ => 0,
            };
            if stream.len() < at + 64 + payload {
                break;
            }
            found.push((header, at));
            at += 64 + payload;
        }
        found.len() >= count
    });
    found
}

#[test]
fn a_small_message_waits_for_one_piece_of_a_large_one() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let size = 64 << 20;
    let _large = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    socket.write_all(&grant(1, 0)).unwrap();
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_sent > 1000);
    turn(&mut transports, 1000);
    // The kernel has taken as much as it can.
    let taken = transports[0].statistics().bytes_sent as usize;
    assert!(taken < size / 2, "{taken} bytes were taken");
    let small = Sending::post(&mut transports[0], 1, envelope(0, 1), &[b"12345678"]);
    let found = frames(socket, &mut transports, 2 + size / SEGMENT_BYTES);
    let (_, at) = *found.iter().find(|(header, _)| header[0] == 1).expect("the small message");
    assert!(at <= taken + SEGMENT_BYTES + 64, "it begins at {at}, {taken} bytes were taken before");
    assert!(found.iter().all(|(header, _)| header[0] != 9 || header[4..8] == [0; 4]));
    drop(small);
}

#[test]
fn large_messages_share_the_connection() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let size = 4 * SEGMENT_BYTES;
    let _sends = [0, 1].map(|round| {
        Sending::post(&mut transports[0], 1, envelope(0, round), &[&pattern(round as usize, size)])
    });
    socket.write_all(&[grant(1, 0), grant(1, 1)].concat()).unwrap();
    let found = frames(socket, &mut transports, 2 + 8);
    let order: Vec<_> =
        found.iter().filter(|(header, _)| header[0] == 9).map(|(header, _)| header[4]).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn puts_and_gets_do_not_wait_for_the_end_of_messages() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let size = 64 << 20;
    let large = pattern(1, size);
    let _sends = [0, 1].map(|round| Sending::post(&mut transports[0], 1, envelope(0, round), &[&large]));
    socket.write_all(&[grant(1, 0), grant(1, 1)].concat()).unwrap();
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_sent > 1000);
    turn(&mut transports, 1000);
    // A get from a region that does not exist, which is answered by a frame of kind 13.
    let taken = transports[0].statistics().bytes_sent as usize;
    socket.write_all(&control(11, 1, 7)).unwrap();
    let found = frames(socket, &mut transports, 2 + 1 + 2 * size / SEGMENT_BYTES);
    let (header, at) = *found.iter().find(|(header, _)| header[0] == 13).expect("the answer");
    assert_eq!(header[4], 7);
    // One fragment of each message is before it, and what the socket takes while it is read.
    assert!(at <= taken + size / 2, "it begins at {at}, {taken} bytes were taken before");
}

#[test]
fn pieces_of_several_messages_find_their_places() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let sizes = [[70_000, 5], [30_000, 30_000]];
    let whole = sizes.map(|[a, b]| pattern(a, a + b));
    let mut receives: Vec<_> =
        (0..2).map(|i| Receiving::post(&mut transports[0], 1, envelope(1, i), &sizes[i as usize])).collect();
    let mut stream = Vec::new();
    for (i, [a, b]) in sizes.iter().enumerate() {
        let ucx_sys_wrap::Envelope { tag, signature, .. } = envelope(1, i as u32);
        stream.extend(header(6, i as u32, tag, signature, &[*a as u64, *b as u64]));
    }
    let mut rests = [&whole[0][..], &whole[1][..]];
    for (step, bytes) in [1, 4096, 40_000, 7, 64, 20_000].into_iter().cycle().enumerate() {
        let rest = &mut rests[step % 2];
        let (now, later) = rest.split_at(bytes.min(rest.len()));
        if !now.is_empty() {
            stream.extend(data(1, step as u32 % 2, now));
            stream.extend(message(1, 7, b"between"));
        }
        *rest = later;
        if rests.iter().all(|rest| rest.is_empty()) {
            break;
        }
    }
    let mut writer = socket.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&stream).unwrap());
    for (i, [a, _]) in sizes.iter().enumerate() {
        receive(&mut transports, 0, &mut receives[i]).unwrap();
        assert_eq!(receives[i].bytes(), [&whole[i][..*a], &whole[i][*a..]]);
    }
    writing.join().unwrap();
}

#[test]
fn a_receive_that_ends_between_two_pieces_leaves_the_rest_to_nobody() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[10_000]);
    socket.write_all(&[offer(1, 0, 3, 10_000), data(1, 3, &[1; 6000])].concat()).unwrap();
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_received >= 6128);
    assert!(receiving.cancel(&mut transports[0]).is_err());
    socket.write_all(&[data(1, 3, &[2; 4000]), message(1, 1, b"after")].concat()).unwrap();
    let mut after = Receiving::post(&mut transports[0], 1, envelope(1, 1), &[5]);
    receive(&mut transports, 0, &mut after).unwrap();
    assert_eq!(after.bytes(), [b"after"]);
}

#[test]
fn pieces_that_are_too_long_or_empty_are_refused() {
    for wrong in [10_001, 0] {
        let (mut transports, mut strangers) = world_with_strangers(1, 2);
        let socket = strangers[0][0].as_mut().unwrap();
        let mut receiving = Receiving::post(&mut transports[0], 1, envelope(1, 0), &[10_000]);
        socket.write_all(&[offer(1, 0, 3, 10_000), data(1, 3, &vec![1; wrong])].concat()).unwrap();
        let error = receive(&mut transports, 0, &mut receiving).unwrap_err().to_string();
        assert!(error.contains(&format!("{wrong} bytes of data for RTS 3")), "{error}");
    }
}

/// The number of an RTS is not reused before all its data is written.
#[test]
fn offers_have_numbers_of_their_own_while_their_data_is_under_way() {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].as_mut().unwrap();
    let size = 64 << 20;
    let _first = Sending::post(&mut transports[0], 1, envelope(0, 0), &[&pattern(1, size)]);
    socket.write_all(&grant(1, 0)).unwrap();
    turn_until(&mut transports, |transports| transports[0].statistics().bytes_sent > 1000);
    let _second = Sending::post(&mut transports[0], 1, envelope(0, 1), &[&pattern(2, 2 << 20)]);
    let found = frames(socket, &mut transports, 2 + size / SEGMENT_BYTES);
    let numbers =
        |kind: u8| found.iter().filter(move |(header, _)| header[0] == kind).map(|(header, _)| header[4]);
    assert_eq!(numbers(6).collect::<Vec<_>>(), [0, 1]);
    assert!(numbers(9).all(|number| number == 0));
    // Then it is used again.
    let _third = Sending::post(&mut transports[0], 1, envelope(0, 2), &[&pattern(2, 2 << 20)]);
    let found = frames(socket, &mut transports, 1);
    assert_eq!(found[0].0[4], 0);
}
