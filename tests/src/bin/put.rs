//! One of two ranks, of which rank 0 puts into rank 1's memory and gets from it without end, until that
//! fails.
//!
//! Reports go to the folder of [`faults`](brevity_tests::faults).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity::collectives;
use brevity::launch;
use brevity::transport::bootstrap::{Identity, open};
use brevity::transport::buffer::{Comm, Port, Region, RemoteRegion, scope};
use brevity::transport::{Envelope, Error, Mark, Rank, Result, Signature, Tag};
use brevity_tests::faults::Log;

const OWNER: Rank = Rank(1);
const BYTES: usize = 8 << 20;

/// A rank that is not ended from outside ends by itself after this time.
const PATIENCE: Duration = Duration::from_secs(90);

fn main() {
    launch::die_with_parent();
    let opened =
        Identity::from_env().and_then(|identity| open(&identity)).unwrap_or_else(|error| panic!("{error}"));
    let port = Port::new(opened.transport);
    if port.rank() == OWNER { own(&port) } else { access(&port) }
}

fn own(port: &Arc<Port>) {
    let region = Region::register(port, vec![0u8; BYTES]).unwrap_or_else(|error| panic!("{error}"));
    let key = region.key().to_bytes();
    run(port, async |comm| comm.send(Rank(0), envelope(), key).await.map(drop))
        .unwrap_or_else(|error| panic!("{error}"));
    Log::of(OWNER.0).ready();
    let start = Instant::now();
    while start.elapsed() < PATIENCE && port.failure(0).is_none() {
        turn(port);
    }
}

fn access(port: &Arc<Port>) {
    let log = Log::of(0);
    let mut key = vec![0u8; 4096];
    let received =
        run(port, async |comm| comm.recv(OWNER, envelope(), &mut key[..]).await.map(|(_, arrival)| arrival));
    let length = received.unwrap_or_else(|error| panic!("{error}")).lengths[0];
    let remote = RemoteRegion::open(port, OWNER, &key[..length]).unwrap_or_else(|error| panic!("{error}"));
    let start = Instant::now();
    let mut rounds = 0u32;
    while start.elapsed() < PATIENCE {
        if let Err(error) = round(port, &remote) {
            let error = match error {
                Error::PeerLost { rank } => collectives::Error::PeerLost { rank },
                other => collectives::Error::Transport(other),
            };
            log.ended("call", &error, start);
            break;
        }
        rounds += 1;
        if rounds == 3 {
            log.ready();
        }
    }
    let start = Instant::now();
    if let Err(Error::PeerLost { rank }) = round(port, &remote) {
        log.ended("later", &collectives::Error::PeerLost { rank }, start);
    }
    log.finish();
}

/// Puts, gets and flushes at the same time, on memory of this frame.
fn round(port: &Arc<Port>, remote: &RemoteRegion) -> Result<()> {
    let (source, mut place) = (vec![7u8; BYTES], vec![0u8; BYTES]);
    run(port, async |comm| {
        let put = comm.put(remote, 0, &source[..]);
        let get = comm.get(remote, 0, &mut place[..]);
        let flush = comm.flush(OWNER);
        put.await?;
        flush.await?;
        get.await.map(drop)
    })
}

fn run<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(port, |comm| turn(comm.port()), body)
}

fn turn(port: &Port) {
    if !port.progress() {
        std::thread::yield_now();
    }
}

fn envelope() -> Envelope {
    Envelope { tag: Tag::new(OWNER, 1, 1, 1), signature: Signature::default(), mark: Mark::NONE }
}
