//! Messages from every rank to every other one, directly.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use crate::call::Call;
use crate::engine::{join, join_all};
use crate::error::Result;
use crate::plan::{Estimate, Ground};

/// Messages that are on their way at once, each way. Each takes memory to receive into.
const AT_ONCE: usize = 8;

/// Sends to and receives from every other rank, a few at a time, and hands over what has come from each.
/// Receives are posted before anything is waited for.
///
/// # Errors
/// The first one of any of these.
pub(crate) async fn all_pairs<S, R, T>(
    call: &Call<'_, '_>,
    mut send: impl FnMut(u32) -> S,
    receive: impl Fn(u32) -> R,
    mut take: impl FnMut(u32, T) -> Result<()>,
) -> Result<()>
where
    S: Future<Output = Result<()>>,
    R: Future<Output = Result<T>>,
{
    let (rank, world_size) = (call.rank(), call.world_size());
    let offsets: Vec<u32> = (1..world_size).collect();
    for offsets in offsets.chunks(AT_ONCE) {
        let sources = || offsets.iter().map(|offset| (rank + world_size - offset) % world_size);
        let receives: Vec<R> = sources().map(&receive).collect();
        let sends: Vec<S> = offsets.iter().map(|offset| send((rank + offset) % world_size)).collect();
        let (received, sent) = join(join_all(receives), join_all(sends)).await;
        sent.into_iter().collect::<Result<Vec<()>>>()?;
        for (source, came) in sources().zip(received) {
            take(source, came?)?;
        }
    }
    Ok(())
}

/// What [`all_pairs`] takes for messages of so many bytes.
pub(crate) fn estimate(bytes: f64, ground: &Ground) -> Estimate {
    let others = ground.world_size.saturating_sub(1);
    let several = |count: u32| ground.messages(f64::from(count), f64::from(count) * bytes);
    let whole = several(AT_ONCE as u32).times(others / AT_ONCE as u32);
    match others % AT_ONCE as u32 {
        0 => whole,
        rest => whole.then(several(rest)),
    }
}

/// The messages of all ranks to this one, in rank order, where `going` has this rank's to each. None of them
/// is longer than `most` bytes.
///
/// # Errors
/// Errors of the transport; without memory to receive into, this rank leaves the call.
pub(crate) async fn scatter_bytes(
    call: &Call<'_, '_>,
    mut going: Vec<Vec<u8>>,
    round: u32,
    most: usize,
) -> Result<Vec<Vec<u8>>> {
    let rank = call.rank() as usize;
    let mut come: Vec<Vec<u8>> = going.iter().map(|_| Vec::new()).collect();
    come[rank] = std::mem::take(&mut going[rank]);
    let send = |to: u32| {
        let message = std::mem::take(&mut going[to as usize]);
        async move { call.send(to, round, message).await.map(drop) }
    };
    let receive = |from: u32| async move { receive_bytes(call, from, round, most).await };
    all_pairs(call, send, receive, |from, message| {
        come[from as usize] = message;
        Ok(())
    })
    .await?;
    Ok(come)
}

/// The messages of all ranks, in rank order, none of which is longer than `most` bytes.
///
/// # Errors
/// As for [`scatter_bytes`].
pub(crate) async fn gather_bytes(
    call: &Call<'_, '_>,
    own: Vec<u8>,
    round: u32,
    most: usize,
) -> Result<Vec<Vec<u8>>> {
    let own = Arc::new(own);
    let mut come: Vec<Vec<u8>> = (0..call.world_size()).map(|_| Vec::new()).collect();
    let send = |to: u32| {
        let message = Arc::clone(&own);
        async move { call.send(to, round, message).await.map(drop) }
    };
    let receive = |from: u32| async move { receive_bytes(call, from, round, most).await };
    all_pairs(call, send, receive, |from, message| {
        come[from as usize] = message;
        Ok(())
    })
    .await?;
    come[call.rank() as usize] = Arc::unwrap_or_clone(own);
    Ok(come)
}

async fn receive_bytes(call: &Call<'_, '_>, from: u32, round: u32, most: usize) -> Result<Vec<u8>> {
    let (mut message, lengths) = call.recv_up_to(from, round, call.zeros::<u8>(most)?).await?;
    message.truncate(lengths.iter().sum());
    Ok(message)
}

/// The elements that a rank reduces of a vector of `count`, whose pieces begin at multiples of 512: the unit
/// in which codes are packed.
pub(crate) fn slice(count: usize, world_size: u32, rank: u32) -> Range<usize> {
    const UNIT: usize = 512;
    let length = count.div_ceil(world_size as usize).next_multiple_of(UNIT);
    let start = (rank as usize).saturating_mul(length).min(count);
    start..start.saturating_add(length).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_of_whole_units_and_cover_the_vector() {
        for (count, world_size) in
            [(0, 3), (1, 3), (512, 2), (513, 2), (5000, 3), (5000, 33), (usize::MAX, 2)]
        {
            let slices: Vec<_> = (0..world_size).map(|rank| slice(count, world_size, rank)).collect();
            assert_eq!((slices[0].start, slices[slices.len() - 1].end), (0, count), "{count}, {world_size}");
            for pair in slices.windows(2) {
                assert!(pair[0].end == pair[1].start && (pair[1].is_empty() || pair[1].start % 512 == 0));
            }
        }
    }
}
