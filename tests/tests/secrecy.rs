//! What a listener on the network sees of a job that joins like processes do: everything, or nothing if bytes
//! are encrypted. Only root may listen; with `BREVITY_REQUIRE_LISTENING=1` it is a failure if that is
//! impossible.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use brevity_testing::is_required;
use brevity_testing::worlds::{boxed, joined};
use brevity_tests::on_transports;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};

/// Every protocol, in the order of the network (packet(7)).
const ALL_PROTOCOLS: u32 = 0x0003_u16.to_be() as u32;

/// Searches all frames that pass this host for some bytes.
struct Listener {
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Listener {
    /// Fails if the process may not listen.
    fn start(secret: [u8; 32]) -> Result<Self, Errno> {
        let protocol = NonZeroU32::new(ALL_PROTOCOLS).map(Protocol::from_raw);
        let ear = socket(AddressFamily::PACKET, SocketType::RAW, protocol)?;
        set_socket_timeout(&ear, Timeout::Recv, Some(Duration::from_millis(50)))?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        Ok(Self { has_ended, thread: std::thread::spawn(move || listen(&ear, &secret, &ended)) })
    }

    /// The number of frames that had them.
    fn end(self) -> usize {
        // The last frames may not have been received yet.
        std::thread::sleep(Duration::from_millis(200));
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn listen(ear: &OwnedFd, secret: &[u8], has_ended: &AtomicBool) -> usize {
    let (mut frame, mut heard) = (vec![0; 1 << 17], 0);
    while !has_ended.load(Ordering::Relaxed) {
        if let Ok((length, _)) = recv(ear, &mut frame[..], RecvFlags::empty()) {
            // Frames are cut anywhere; the secret is repeated, so that every frame has it whole.
            let first = &secret[..8];
            let is_here = |at: usize| frame[at..length].starts_with(secret);
            heard += usize::from(
                frame[..length].windows(8).enumerate().any(|(at, eight)| eight == first && is_here(at)),
            );
        }
    }
    heard
}

/// Frames in which a listener sees what ranks broadcast, short and long.
fn seen(encrypt: bool) -> Result<usize, Errno> {
    let random = RandomState::new();
    let words: [u64; 4] = std::array::from_fn(|at| random.hash_one(at));
    let secret: [u8; 32] = words.map(u64::to_ne_bytes).as_flattened().try_into().unwrap();
    let listener = Listener::start(secret)?;
    on_transports(boxed(joined(3, encrypt)), move |group| {
        for repeats in [1, 100, 20_000] {
            let sent = secret.repeat(repeats);
            let mut data = if group.rank() == 1 { sent.clone() } else { vec![0; sent.len()] };
            group.broadcast(&mut data, 1).unwrap();
            assert!(data == sent);
        }
        group.barrier().unwrap();
    });
    Ok(listener.end())
}

#[test]
fn who_listens_hears_nothing_of_a_job_that_encrypts() {
    match seen(false) {
        Err(why) => {
            assert!(!is_required("BREVITY_REQUIRE_LISTENING"), "no right to listen on the network: {why}");
            println!("skipped: no right to listen on the network ({why})");
        }
        Ok(heard) => {
            assert!(heard > 0, "the listener is deaf");
            assert_eq!(seen(true), Ok(0), "frames with what was encrypted");
        }
    }
}
