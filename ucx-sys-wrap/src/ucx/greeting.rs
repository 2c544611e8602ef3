//! Making all connections before the first message.
//!
//! UCX makes a connection when something is sent. Making all of them at once spares the first messages the time, and
//! nobody can leave before all have joined. And UCX 1.13 ends the process when an endpoint goes, here or because its
//! peer has gone, that still has a part of its connecting to do. So: every rank hears from every other; then it
//! flushes its endpoints, which includes what connecting has queued; then every rank hears from every other that this
//! is done, and goes on making progress until then.

use std::time::{Duration, Instant};

use super::NO_BYTES;
use super::engine::{Engine, Manner};
use super::exiting;
use super::flight::Flight;
use super::handler::{GREETING, NOTE_BYTES, note};
use crate::{Error, Rank, Result};

/// Connects to all peers, within `patience`.
///
/// # Errors
/// [`Error::MissingRanks`] for those that are not heard from in time.
pub(super) fn greet(own: Rank, engine: &mut Engine, patience: Duration) -> Result<()> {
    let start = Instant::now();
    let deadline = (start, patience);
    exchange_greetings(own, engine, 0, deadline)?;
    let mut flushing = Vec::new();
    for peer in engine.peers() {
        let flight = engine.flights().take();
        engine.flush(peer, &flight);
        flushing.push((peer, flight));
    }
    finish(engine, flushing, None, deadline)?;
    exchange_greetings(own, engine, 1, deadline)?;
    engine.is_connected = true;
    Ok(())
}

/// Greets every peer and hears the greeting of every peer.
fn exchange_greetings(own: Rank, engine: &mut Engine, time: u8, deadline: (Instant, Duration)) -> Result<()> {
    let mut flights = Vec::new();
    for peer in engine.peers() {
        let mut flight = engine.flights().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { flight.header_mut() };
        room[..NOTE_BYTES].copy_from_slice(&note(own, time));
        // SAFETY: there is no payload; the header is the flight's own.
        unsafe { engine.send(peer, (GREETING, Manner::Any), NOTE_BYTES, NO_BYTES, &flight) };
        flights.push((peer, flight));
    }
    finish(engine, flights, Some(time), deadline)
}

/// Makes progress until all operations are over and, with a `time`, all peers have greeted.
fn finish(
    engine: &mut Engine,
    mut flights: Vec<(Rank, Flight)>,
    time: Option<u8>,
    (start, patience): (Instant, Duration),
) -> Result<()> {
    loop {
        for position in (0..flights.len()).rev() {
            let Some((status, _)) = engine.reap(&flights[position].1) else { continue };
            engine.flights().put(flights.swap_remove(position).1);
            engine.check("connecting to a peer", status)?;
        }
        let mut missing: Vec<Rank> = flights.iter().map(|(peer, _)| *peer).collect();
        if let Some(time) = time {
            let peers = engine.peers();
            let heard = engine.inbox().greeted(time.into());
            missing.extend(peers.iter().filter(|peer| !heard.contains(peer)));
        }
        if missing.is_empty() {
            return Ok(());
        }
        if exiting::has_begun() {
            return Err(Error::Closed);
        }
        if start.elapsed() > patience {
            missing.sort_unstable();
            missing.dedup();
            let master = "each other over UCX (UCX_TLS, UCX_NET_DEVICES)".into();
            return Err(Error::MissingRanks { missing, deadline: patience, master });
        }
        if !engine.progress() {
            std::thread::yield_now();
        }
    }
}
