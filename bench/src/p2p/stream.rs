//! Streams of messages, with 64 in transit.

use std::collections::VecDeque;

use brevity::collectives::engine::join;
use brevity::transport::buffer::Comm;

use super::{Lap, MESSAGE, Pair};
use crate::memory::PageAligned;
use crate::order::{Order, WINDOW};
use crate::{Error, Result};

/// Streams where this rank sends, receives, or both.
pub(super) fn run(pair: &Pair<'_>, (sends, receives): (bool, bool), order: &Order) -> Result<Vec<f64>> {
    let out = sends.then(|| pair.own_bytes(order.bytes));
    let total = order.warmup + order.iterations;
    let depth = if receives { order.over.depth(order.bytes).min(total) } else { 0 };
    let mut memory: Vec<PageAligned> = (0..depth).map(|_| pair.untouched(order.bytes)).collect();
    let times = pair.waiting.run(async |comm| {
        let mut places: Places<'_> = memory.iter_mut().map(|place| &mut place[..]).collect();
        places = batch(pair, comm, out.as_deref(), places, order.warmup).await?;
        let mut lap = Lap::new(order);
        for count in order.batches() {
            places = batch(pair, comm, out.as_deref(), places, count).await?;
            lap.end(count);
        }
        Ok::<_, Error>(lap.times)
    })?;
    memory.iter().try_for_each(|place| pair.check(order, pair.peer, place))?;
    Ok(times)
}

type Places<'env> = VecDeque<&'env mut [u8]>;

/// `count` messages, and the word that all have arrived.
async fn batch<'env>(
    pair: &Pair<'_>,
    comm: &Comm<'env>,
    out: Option<&'env [u8]>,
    places: Places<'env>,
    count: usize,
) -> Result<Places<'env>> {
    let (sent, received) = join(send(pair, comm, out, count), receive(pair, comm, places, count)).await;
    sent?;
    let places = received?;
    if pair.is_first() {
        pair.hear(comm).await?;
    } else {
        pair.say(comm).await?;
    }
    Ok(places)
}

/// Sends with at most [`WINDOW`] in transit, all from the same memory.
async fn send<'env>(
    pair: &Pair<'_>,
    comm: &Comm<'env>,
    bytes: Option<&'env [u8]>,
    count: usize,
) -> Result<()> {
    let Some(bytes) = bytes else { return Ok(()) };
    let envelope = Pair::envelope(pair.own, MESSAGE);
    let mut window = VecDeque::with_capacity(WINDOW);
    for _ in 0..count {
        if window.len() == WINDOW
            && let Some(oldest) = window.pop_front()
        {
            let _: (_, ()) = oldest.await?;
        }
        window.push_back(comm.send(pair.peer, envelope, bytes));
    }
    for send in window {
        send.await?;
    }
    Ok(())
}

/// Receives with as many posted as there are places, which are reused.
async fn receive<'env>(
    pair: &Pair<'_>,
    comm: &Comm<'env>,
    mut free: Places<'env>,
    count: usize,
) -> Result<Places<'env>> {
    let envelope = Pair::envelope(pair.peer, MESSAGE);
    let mut posted = VecDeque::with_capacity(free.len());
    if free.is_empty() {
        return Ok(free);
    }
    for _ in 0..count {
        if free.is_empty()
            && let Some(oldest) = posted.pop_front()
        {
            free.push_back(place(oldest).await?);
        }
        if let Some(place) = free.pop_front() {
            posted.push_back(comm.recv(pair.peer, envelope, place));
        }
    }
    for oldest in posted {
        free.push_back(place(oldest).await?);
    }
    Ok(free)
}

async fn place<'env>(
    receive: brevity::transport::buffer::Recv<'_, 'env, &'env mut [u8]>,
) -> Result<&'env mut [u8]> {
    Ok(receive.await?.0)
}
