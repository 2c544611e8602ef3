//! Puts into the peer's memory and gets from it: the lower rank accesses; the higher one lends its memory and
//! waits.

use brevity::transport::buffer::{Comm, Region, RemoteRegion};

use super::{Lap, Pair, WORD};
use crate::memory::PageAligned;
use crate::order::Order;
use crate::{Error, Result};

/// Larger than a region's key.
const KEY_BYTES: usize = 16 << 10;

/// A put and the acknowledgement of its arrival.
pub(super) fn put(pair: &Pair<'_>, order: &Order) -> Result<Vec<f64>> {
    let Some(remote) = remote(pair)? else {
        let memory = lend(pair, pair.untouched(order.bytes))?;
        pair.check(order, pair.peer, &memory)?;
        return Ok(Vec::new());
    };
    let bytes = pair.own_bytes(order.bytes);
    pair.waiting.run(async |comm| {
        let mut out = &bytes[..];
        let mut lap = Lap::new(order);
        for count in std::iter::once(order.warmup).chain(order.batches()) {
            for _ in 0..count {
                (out, ()) = comm.put(&remote, 0, out).await?;
                comm.flush(pair.peer).await?;
            }
            lap.end(count);
        }
        end(pair, comm, lap).await
    })
}

/// A get.
pub(super) fn get(pair: &Pair<'_>, order: &Order) -> Result<Vec<f64>> {
    let Some(remote) = remote(pair)? else {
        lend(pair, pair.own_bytes(order.bytes))?;
        return Ok(Vec::new());
    };
    let mut incoming = pair.untouched(order.bytes);
    let times = pair.waiting.run(async |comm| {
        let mut place = &mut incoming[..];
        let mut lap = Lap::new(order);
        for count in std::iter::once(order.warmup).chain(order.batches()) {
            for _ in 0..count {
                (place, ()) = comm.get(&remote, 0, place).await?;
            }
            lap.end(count);
        }
        end(pair, comm, lap).await
    })?;
    pair.check(order, pair.peer, &incoming)?;
    Ok(times)
}

/// Tells the peer that nothing more follows; returns the times without the warm-up.
async fn end(pair: &Pair<'_>, comm: &Comm<'_>, mut lap: Lap) -> Result<Vec<f64>> {
    pair.say(comm).await?;
    lap.times.remove(0);
    Ok(lap.times)
}

/// The peer's memory, on the accessing rank.
fn remote(pair: &Pair<'_>) -> Result<Option<RemoteRegion>> {
    if !pair.is_first() {
        return Ok(None);
    }
    let key = pair.waiting.run(async |comm| {
        let (mut key, arrival) =
            comm.recv(pair.peer, Pair::envelope(pair.peer, WORD), vec![0u8; KEY_BYTES]).await?;
        key.truncate(arrival.lengths.first().copied().unwrap_or(0));
        Ok::<_, Error>(key)
    })?;
    Ok(Some(RemoteRegion::open(pair.waiting.port(), pair.peer, &key)?))
}

/// Lends memory to the peer until it is finished; returns the memory's contents.
fn lend(pair: &Pair<'_>, memory: PageAligned) -> Result<Vec<u8>> {
    let region = Region::register(pair.waiting.port(), memory.into_buffer())?;
    pair.waiting.run(async |comm| {
        comm.send(pair.peer, Pair::envelope(pair.own, WORD), region.key().to_bytes()).await?;
        pair.hear(comm).await
    })?;
    let mut memory = vec![0; region.byte_count()];
    region.read(0, &mut memory)?;
    Ok(memory)
}
