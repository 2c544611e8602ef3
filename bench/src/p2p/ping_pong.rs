//! Ping-pong: a message in each direction.

use brevity::Group;
use brevity::transport::buffer::{Comm, RecvBuffer, SendBuffer};

use super::{Lap, MESSAGE, Pair};
use crate::memory::PageAligned;
use crate::order::Order;
use crate::{Error, Result};

/// Bytes of the first of three parts, a header's.
const HEADER: usize = 16;

/// The tag of calls.
const TAG: u32 = 1;

/// One contiguous message.
pub(super) fn whole(pair: &Pair<'_>, order: &Order) -> Result<Vec<f64>> {
    let (out, mut incoming) = (pair.own_bytes(order.bytes), pair.untouched(order.bytes));
    let times = pair.waiting.run(async |comm| timed(pair, comm, &out[..], &mut incoming[..], order).await)?;
    pair.check(order, pair.peer, &incoming)?;
    Ok(times)
}

/// 16 bytes and two halves of the rest, which are separate in memory, like indices and values.
pub(super) fn parts(pair: &Pair<'_>, order: &Order) -> Result<Vec<f64>> {
    let too_short =
        || Error::Arguments(format!("{} bytes can't begin with a header of {HEADER}", order.bytes));
    let half = order.bytes.checked_sub(HEADER).ok_or_else(too_short)? / 2;
    let split = |whole: PageAligned| {
        let part_of = |start: usize, bytes: usize| PageAligned::new(bytes, |index| whole[start + index]);
        (part_of(0, HEADER), part_of(HEADER, half), part_of(HEADER + half, whole.len() - HEADER - half))
    };
    let out = split(pair.own_bytes(order.bytes));
    let mut places = split(pair.untouched(order.bytes));
    let times = pair.waiting.run(async |comm| {
        let out = (&out.0[..], (&out.1[..], &out.2[..]));
        let incoming = (&mut places.0[..], (&mut places.1[..], &mut places.2[..]));
        timed(pair, comm, out, incoming, order).await
    })?;
    pair.check(order, pair.peer, &[&places.0[..], &places.1, &places.2].concat())?;
    Ok(times)
}

/// The same by calls of a group.
pub(super) fn calls(group: &Group, pair: &Pair<'_>, order: &Order) -> Result<Vec<f64>> {
    let (out, mut incoming) = (pair.own_bytes(order.bytes), pair.untouched(order.bytes));
    let mut lap = Lap::new(order);
    for count in std::iter::once(order.warmup).chain(order.batches()) {
        for _ in 0..count {
            if pair.is_first() {
                group.send(&out[..], pair.peer.0, TAG)?;
            }
            group.recv(&mut incoming[..], pair.peer.0, TAG)?;
            if !pair.is_first() {
                group.send(&out[..], pair.peer.0, TAG)?;
            }
        }
        // Half a round trip.
        lap.end(2 * count);
    }
    lap.times.remove(0);
    pair.check(order, pair.peer, &incoming)?;
    Ok(lap.times)
}

/// Round trips, in batches. A single future instead of nested ones, because every poll passes through all
/// levels.
async fn timed<'env, S: SendBuffer + 'env, R: RecvBuffer + 'env>(
    pair: &Pair<'_>,
    comm: &Comm<'env>,
    mut out: S,
    mut incoming: R,
    order: &Order,
) -> Result<Vec<f64>> {
    let (sent, received) = (Pair::envelope(pair.own, MESSAGE), Pair::envelope(pair.peer, MESSAGE));
    let mut lap = Lap::new(order);
    for count in std::iter::once(order.warmup).chain(order.batches()) {
        for _ in 0..count {
            if pair.is_first() {
                (out, ()) = comm.send(pair.peer, sent, out).await?;
                (incoming, _) = comm.recv(pair.peer, received, incoming).await?;
            } else {
                (incoming, _) = comm.recv(pair.peer, received, incoming).await?;
                (out, ()) = comm.send(pair.peer, sent, out).await?;
            }
        }
        // Half a round trip.
        lap.end(2 * count);
    }
    lap.times.remove(0);
    Ok(lap.times)
}
