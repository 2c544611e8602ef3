//! Puts and gets with a peer that lies: it accesses no memory, and the rank gets the right error.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ucx_sys_wrap::buffer::{Comm, Port, Region, RemoteRegion, scope};
use ucx_sys_wrap::{Error, Failure, Rank, Tag};

use super::world::{HEADER_BYTES, PATIENCE, pattern, world_with_strangers};

const PUT: u8 = 10;
const GET: u8 = 11;
const BYTES: u8 = 12;
const ENDED: u8 = 13;

const UNTOUCHED: u8 = 0x5c;
const LENGTH: usize = 1000;

fn block<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(port, |comm| turn(comm.port()), body)
}

fn turn(port: &Port) {
    if !port.progress() {
        thread::yield_now();
    }
}

/// A rank 0, and the socket of a stranger that plays rank 1.
fn with_stranger() -> (Arc<Port>, TcpStream) {
    let (mut transports, mut strangers) = world_with_strangers(1, 2);
    let socket = strangers[0][0].take().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (Port::new(Box::new(transports.remove(0))), socket)
}

/// The content of a frame of puts and gets.
#[derive(Clone, Copy, Default)]
struct Place {
    region: u64,
    nonce: [u8; 16],
    offset: u64,
}

fn frame(kind: u8, outcome: u8, number: u32, place: Place, length: u64) -> Vec<u8> {
    let mut bytes = vec![kind, outcome, 0, 0];
    bytes.extend(number.to_le_bytes());
    bytes.extend(Tag::new(Rank(1), 0, 0, 0).0.to_le_bytes());
    bytes.extend(place.nonce);
    bytes.extend(place.offset.to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(place.region.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

fn put(number: u32, place: Place, payload: &[u8]) -> Vec<u8> {
    [frame(PUT, 0, number, place, payload.len() as u64), payload.to_vec()].concat()
}

fn answer(number: u32, payload: &[u8]) -> Vec<u8> {
    [frame(BYTES, 0, number, Place::default(), payload.len() as u64), payload.to_vec()].concat()
}

fn ended(number: u32, outcome: u8) -> Vec<u8> {
    frame(ENDED, outcome, number, Place::default(), 0)
}

/// Where a region of rank 0 begins, from its key.
fn place(region: &Region<Vec<u8>>) -> Place {
    let key = region.key().to_bytes();
    Place {
        region: u64::from_le_bytes(key[16..24].try_into().unwrap()),
        nonce: key[24..40].try_into().unwrap(),
        offset: 0,
    }
}

/// A region that the stranger claims to have.
fn remote(port: &Arc<Port>) -> RemoteRegion {
    let key =
        [&b"brvk"[..], &1u32.to_le_bytes(), &1u32.to_le_bytes(), &[0; 4], &7u64.to_le_bytes(), &[9; 16]];
    let key = [key.concat(), (LENGTH as u64).to_le_bytes().to_vec()].concat();
    RemoteRegion::open(port, Rank(1), &key).unwrap()
}

fn receive(socket: &mut TcpStream) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    socket.read_exact(&mut header).unwrap();
    header
}

/// The answers to frames that the stranger sends, as outcomes by number.
fn outcomes(port: &Port, socket: &mut TcpStream, frames: &[Vec<u8>], count: usize) -> Vec<(u32, u8)> {
    socket.write_all(&frames.concat()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let (mut bytes, start) = (Vec::new(), Instant::now());
    while bytes.len() < count * HEADER_BYTES as usize {
        turn(port);
        let mut space = [0; 4096];
        let got = socket.read(&mut space).unwrap_or(0);
        bytes.extend_from_slice(&space[..got]);
        assert!(start.elapsed() < PATIENCE, "{} bytes of answers", bytes.len());
    }
    socket.set_nonblocking(false).unwrap();
    let answers = bytes.chunks(HEADER_BYTES as usize);
    answers.map(|answer| (u32::from_le_bytes(answer[4..8].try_into().unwrap()), answer[1])).collect()
}

fn assert_untouched(region: &Region<Vec<u8>>) {
    let mut found = vec![0; LENGTH];
    region.read(0, &mut found).unwrap();
    assert!(found == [UNTOUCHED; LENGTH]);
}

#[test]
fn puts_and_gets_outside_of_a_region_touch_nothing() {
    let (port, mut socket) = with_stranger();
    let region = Region::register(&port, vec![UNTOUCHED; LENGTH]).unwrap();
    let inside = place(&region);
    let at = |offset| Place { offset, ..inside };
    let payload = pattern(1, 100);
    let frames = [
        put(1, at(LENGTH as u64 - 99), &payload),
        put(2, at(LENGTH as u64), &payload),
        put(3, at(u64::MAX), &payload),
        put(4, at(u64::MAX - 99), &payload),
        frame(GET, 0, 5, at(1), LENGTH as u64),
        frame(GET, 0, 6, at(u64::MAX), 2),
        frame(GET, 0, 7, at(0), 1 << 40),
    ];
    let expected: Vec<_> = (1..=7).map(|number| (number, 2)).collect();
    let mut found = outcomes(&port, &mut socket, &frames, 7);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_untouched(&region);
    // The peer may have made a mistake: the connection goes on.
    assert_eq!(outcomes(&port, &mut socket, &[put(8, at(0), &payload)], 1), [(8, 0)]);
    let mut now = vec![0; 100];
    region.read(0, &mut now).unwrap();
    assert_eq!(now, payload);
    assert_eq!(port.failure(0), None);
}

#[test]
fn puts_and_gets_with_a_key_that_is_none_any_more_or_never_was_touch_nothing() {
    let (port, mut socket) = with_stranger();
    let region = Region::register(&port, vec![UNTOUCHED; LENGTH]).unwrap();
    let good = place(&region);
    let dropped = place(&Region::register(&port, vec![UNTOUCHED; LENGTH]).unwrap());
    let mut guessed = good;
    guessed.nonce[15] ^= 1;
    let frames = [
        put(1, dropped, &pattern(1, 100)),
        put(2, guessed, &pattern(1, 100)),
        put(3, Place { region: 99, ..good }, &pattern(1, 100)),
        put(4, Place { nonce: dropped.nonce, ..good }, &[]),
        frame(GET, 0, 5, dropped, 10),
        frame(GET, 0, 6, guessed, 10),
    ];
    let mut found = outcomes(&port, &mut socket, &frames, 6);
    found.sort_unstable();
    assert_eq!(found, (1..=6).map(|number| (number, 1)).collect::<Vec<_>>());
    assert_untouched(&region);
    assert_eq!(port.failure(0), None);
}

/// A region that goes away while a put arrives gets no more of it, and the rank that puts is told.
#[test]
fn the_rest_of_a_put_into_a_region_that_is_gone_goes_nowhere() {
    let (port, mut socket) = with_stranger();
    let region = Region::register(&port, vec![UNTOUCHED; LENGTH]).unwrap();
    let bytes = put(3, place(&region), &pattern(1, LENGTH));
    let (early, late) = bytes.split_at(HEADER_BYTES as usize + LENGTH / 2);
    socket.write_all(early).unwrap();
    let start = Instant::now();
    let mut found = vec![0; LENGTH];
    while found[..LENGTH / 2] != pattern(1, LENGTH)[..LENGTH / 2] {
        turn(&port);
        region.read(0, &mut found).unwrap();
        assert!(start.elapsed() < PATIENCE, "the first half does not arrive");
    }
    let memory = region.unregister().unwrap();
    assert_eq!(outcomes(&port, &mut socket, &[late.to_vec()], 1), [(3, 1)]);
    assert!(memory == found, "the second half has gone where the region was");
    assert_eq!(port.failure(0), None);
}

/// How a get of 100 bytes ends with this answer of the stranger, and the memory it was for.
fn get(lie: impl FnOnce(u32) -> Vec<u8> + Send + 'static) -> (Result<(), Error>, Vec<u8>, Arc<Port>) {
    let (port, mut socket) = with_stranger();
    let remote = remote(&port);
    let stranger = thread::spawn(move || {
        let request = receive(&mut socket);
        assert_eq!(request[0], GET);
        socket.write_all(&lie(u32::from_le_bytes(request[4..8].try_into().unwrap()))).unwrap();
        socket
    });
    // The 100 bytes wanted, between others that must not be written.
    let mut memory = vec![UNTOUCHED; 300];
    let result = block(&port, async |comm| comm.get(&remote, 0, &mut memory[100..200]).await.map(|_| ()));
    let socket = stranger.join().unwrap();
    let start = Instant::now();
    while port.failure(0).is_none() && start.elapsed().as_millis() < 200 {
        turn(&port);
    }
    drop(socket);
    (result, memory, port)
}

#[test]
fn an_honest_answer_is_taken() {
    let (result, memory, port) =
        get(|number| [answer(number, &pattern(1, 40)), answer(number, &pattern(2, 60))].concat());
    result.unwrap();
    assert_eq!(memory[100..200], [pattern(1, 40), pattern(2, 60)].concat());
    assert!(memory[..100].iter().chain(&memory[200..]).all(|byte| *byte == UNTOUCHED));
    assert_eq!(port.failure(0), None);
}

#[test]
fn an_answer_that_was_not_asked_for_closes_the_transport() {
    let lies: [fn(u32) -> Vec<u8>; 6] = [
        // More than requested, at once and after a part; of another get; the end of what has no such end.
        |number| answer(number, &pattern(1, 101)),
        |number| [answer(number, &pattern(1, 60)), answer(number, &pattern(2, 41))].concat(),
        |number| answer(number + 1, &pattern(1, 100)),
        |number| ended(number, 0),
        |number| ended(number + 1, 1),
        |number| [answer(number, &pattern(1, 60)), answer(number + 7, &[])].concat(),
    ];
    for (case, lie) in lies.into_iter().enumerate() {
        let (result, memory, port) = get(lie);
        assert!(matches!(result, Err(Error::Protocol { rank: Rank(1), .. })), "case {case}: {result:?}");
        assert_eq!(port.failure(0), Some(Failure::PeerLost(Rank(1))), "case {case}");
        assert!(memory[..100].iter().chain(&memory[200..]).all(|byte| *byte == UNTOUCHED), "case {case}");
    }
}

#[test]
fn a_second_answer_to_a_get_touches_nothing_and_closes_the_transport() {
    let (result, memory, port) =
        get(|number| [answer(number, &pattern(1, 100)), answer(number, &pattern(2, 100))].concat());
    assert!(memory[100..200] == pattern(1, 100), "the second answer was taken");
    assert!(result.is_ok() || matches!(result, Err(Error::Protocol { .. })), "{result:?}");
    assert_eq!(port.failure(0), Some(Failure::PeerLost(Rank(1))));
    assert!(memory[..100].iter().chain(&memory[200..]).all(|byte| *byte == UNTOUCHED));
}

#[test]
fn a_get_that_is_refused_ends_with_the_reason_it_was_given() {
    let (result, memory, port) = get(|number| ended(number, 1));
    assert!(matches!(result, Err(Error::NoSuchRegion { rank: Rank(1) })), "{result:?}");
    assert!(memory.iter().all(|byte| *byte == UNTOUCHED));
    let (result, _, _) = get(|number| ended(number, 2));
    assert!(matches!(result, Err(Error::OutOfRegion { rank: Rank(1), .. })), "{result:?}");
    assert_eq!(port.failure(0), None);
}

#[test]
fn a_put_that_is_answered_twice_closes_the_transport() {
    let (port, mut socket) = with_stranger();
    let remote = remote(&port);
    let stranger = thread::spawn(move || {
        let request = receive(&mut socket);
        assert_eq!(request[0], PUT);
        let number = u32::from_le_bytes(request[4..8].try_into().unwrap());
        socket.write_all(&[ended(number, 0), ended(number, 0)].concat()).unwrap();
        socket
    });
    block(&port, async |comm| {
        let _ = comm.put(&remote, 0, pattern(1, 100)).await;
        let flushed = comm.flush(Rank(1)).await;
        let is_lost = matches!(flushed, Err(Error::Protocol { .. } | Error::PeerLost { .. }));
        assert!(flushed.is_ok() || is_lost, "{flushed:?}");
    });
    let socket = stranger.join().unwrap();
    let start = Instant::now();
    while port.failure(0).is_none() {
        turn(&port);
        assert!(start.elapsed() < PATIENCE);
    }
    drop(socket);
    assert_eq!(port.failure(0), Some(Failure::PeerLost(Rank(1))));
}
