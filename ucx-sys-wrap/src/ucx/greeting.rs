//! Makes all connections before the first message.
//!
//! UCX connects when something is sent. Connecting at once spares the first messages the time, and no rank
//! leaves before all have joined. Besides, UCX 1.13 ends the process when an endpoint goes, here or at its
//! peer, that is still connecting. So every rank receives a greeting from every other; then it flushes its
//! endpoints, which includes what connecting has queued; then it receives a second greeting from every other,
//! and makes progress until then.

use std::time::{Duration, Instant};

use super::engine::{Engine, Protocol};
use super::exiting;
use super::handler::{GREETING, GREETING_BYTES, greeting};
use super::ucp_request::UcpRequest;
use super::{Meeting, NO_BYTES};
use crate::{Error, Rank, Result, STANDSTILL};

/// How often the meeting is asked whether all are still there, which takes system calls.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// The deadline of connecting, and the meeting that knows of dead ranks.
struct Patience<'a> {
    meeting: &'a mut dyn Meeting,
    start: Instant,
    most: Duration,
    next_check: Duration,
    /// The last look at the clock, and how long this process stood still, as long times between two show.
    seen: Duration,
    stood_still: Duration,
}

/// Connects to all peers, within `most`.
///
/// # Errors
/// [`Error::MissingRanks`] for ranks without a greeting in time; the meeting's error for ranks that have
/// gone.
pub(super) fn greet(own: Rank, engine: &mut Engine, meeting: &mut dyn Meeting, most: Duration) -> Result<()> {
    let (start, seen, stood_still) = (Instant::now(), Duration::ZERO, Duration::ZERO);
    let patience = &mut Patience { meeting, start, most, next_check: CHECK_EVERY, seen, stood_still };
    exchange_greetings(own, engine, 0, patience)?;
    let mut flushing = Vec::new();
    for peer in engine.peers() {
        let request = engine.ucp_requests().take();
        engine.flush(peer, &request);
        flushing.push((peer, request));
    }
    finish(engine, flushing, None, patience)?;
    exchange_greetings(own, engine, 1, patience)?;
    engine.is_connected = true;
    Ok(())
}

impl Patience<'_> {
    /// Checks that it is worth while to wait for the missing ranks.
    fn ask(&mut self, mut missing: Vec<Rank>) -> Result<()> {
        let waited = self.start.elapsed();
        if waited > self.next_check {
            self.next_check = waited + CHECK_EVERY;
            self.meeting.check()?;
        }
        let unseen = waited.saturating_sub(std::mem::replace(&mut self.seen, waited));
        if unseen >= STANDSTILL {
            self.stood_still += unseen;
        }
        if waited.saturating_sub(self.stood_still) <= self.most {
            return Ok(());
        }
        missing.sort_unstable();
        missing.dedup();
        let master = "each other over UCX (UCX_TLS, UCX_NET_DEVICES)".into();
        Err(Error::MissingRanks { missing, deadline: self.most, master })
    }
}

/// Greets every peer and receives the greeting of every peer.
fn exchange_greetings(own: Rank, engine: &mut Engine, time: u8, patience: &mut Patience<'_>) -> Result<()> {
    let mut requests = Vec::new();
    for peer in engine.peers() {
        let mut request = engine.ucp_requests().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { request.header_mut() };
        room[..GREETING_BYTES].copy_from_slice(&greeting(own, time));
        // SAFETY: there is no payload; the header is the request's own.
        unsafe { engine.send(peer, (GREETING, Protocol::Auto), GREETING_BYTES, NO_BYTES, &request) };
        requests.push((peer, request));
    }
    finish(engine, requests, Some(time), patience)
}

/// Makes progress until all requests are over and, with a `time`, all peers have greeted.
fn finish(
    engine: &mut Engine,
    mut requests: Vec<(Rank, UcpRequest)>,
    time: Option<u8>,
    patience: &mut Patience<'_>,
) -> Result<()> {
    loop {
        for position in (0..requests.len()).rev() {
            let Some((status, _)) = engine.reap(&requests[position].1) else { continue };
            engine.ucp_requests().put(requests.swap_remove(position).1);
            engine
                .check("connecting to a peer", status)
                .map_err(|error| patience.meeting.check().err().unwrap_or(error))?;
        }
        let mut missing: Vec<Rank> = requests.iter().map(|(peer, _)| *peer).collect();
        if let Some(time) = time {
            let peers = engine.peers();
            let heard = &engine.inbox().greetings[usize::from(time)];
            missing.extend(peers.iter().filter(|peer| !heard.contains(peer)));
        }
        if missing.is_empty() {
            return Ok(());
        }
        if exiting::has_begun() {
            return Err(Error::Closed);
        }
        patience.ask(missing)?;
        if !engine.progress() {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ucx::worlds::has_ucx;
    use crate::ucx::{Options, Ucx};

    /// Knows of the death of rank 1.
    struct Bereaved;

    impl Meeting for Bereaved {
        fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
            // Its own address, so that something answers, but never as rank 1.
            Ok(vec![mine.to_vec(); 2])
        }

        fn check(&mut self) -> Result<()> {
            Err(Error::PeerLost { rank: Rank(1) })
        }
    }

    #[test]
    fn a_peer_that_dies_before_it_greets_is_named_at_once() {
        if has_ucx() {
            let options = Options { join_timeout: Duration::from_secs(100_000), ..Options::default() };
            let error = Ucx::connect(Rank(0), 2, &mut Bereaved, &options).err();
            assert!(matches!(error, Some(Error::PeerLost { rank: Rank(1) })), "{error:?}");
        }
    }
}
