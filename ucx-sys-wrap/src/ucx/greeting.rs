//! Making all connections before the first message.
//!
//! UCX makes a connection when something is sent. Making all of them at once spares the first messages the time, and
//! nobody can leave before all have joined. And UCX 1.13 ends the process when an endpoint goes, here or because its
//! peer has gone, that still has a part of its connecting to do. So: every rank hears from every other; then it
//! flushes its endpoints, which includes what connecting has queued; then every rank hears from every other that this
//! is done, and goes on making progress until then.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::flight::Flight;
use crate::{Error, Rank, Result, Tag};

/// Connects to all peers, within `patience`.
///
/// # Errors
/// [`Error::MissingRanks`] for those that are not heard from in time.
pub(super) fn greet(own: Rank, engine: &mut Engine, patience: Duration) -> Result<()> {
    let start = Instant::now();
    let deadline = (start, patience);
    exchange_greetings(own, engine, deadline)?;
    let mut flushing = Vec::new();
    for peer in engine.peers() {
        let flight = engine.flights.take();
        engine.flush(peer, &flight);
        flushing.push((peer, flight));
    }
    finish(engine, flushing, deadline)?;
    exchange_greetings(own, engine, deadline)?;
    engine.is_connected = true;
    Ok(())
}

/// Sends an empty message to every peer and receives one from every peer.
fn exchange_greetings(own: Rank, engine: &mut Engine, deadline: (Instant, Duration)) -> Result<()> {
    let tag = |source: Rank| Tag::new(source, 0, 0, 0).0;
    let nothing = NonNull::<u8>::dangling().as_ptr();
    let mut flights = Vec::new();
    for peer in engine.peers() {
        let (sent, heard) = (engine.flights.take(), engine.flights.take());
        // SAFETY: no bytes are read or written.
        unsafe {
            engine.send(peer, tag(own), nothing, 0, &sent);
            engine.recv(tag(peer), nothing, 0, &heard, None);
        }
        flights.extend([(peer, sent), (peer, heard)]);
    }
    finish(engine, flights, deadline)
}

/// Makes progress until all operations are over.
fn finish(engine: &mut Engine, mut flights: Vec<(Rank, Flight)>, (start, patience): (Instant, Duration)) -> Result<()> {
    while !flights.is_empty() {
        if !engine.progress() {
            std::thread::yield_now();
        }
        for position in (0..flights.len()).rev() {
            let Some((status, _)) = engine.reap(&flights[position].1) else { continue };
            engine.flights.put(flights.swap_remove(position).1);
            engine.check("connecting to a peer", status)?;
        }
        if start.elapsed() > patience {
            let mut missing: Vec<Rank> = flights.iter().map(|(peer, _)| *peer).collect();
            missing.sort_unstable();
            missing.dedup();
            let master = "each other over UCX (UCX_TLS, UCX_NET_DEVICES)".into();
            return Err(Error::MissingRanks { missing, deadline: patience, master });
        }
    }
    Ok(())
}
