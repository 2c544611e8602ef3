//! Collectives in a tight loop, as in the benchmarks of MPI: no barrier between two calls, ordinary buffers.

use std::time::{Instant, SystemTime};

use brevity::{Group, ReduceOp};

use crate::order::Order;
use crate::{Error, Result};

/// The time of a sum over all ranks, in microseconds, on each rank.
///
/// # Errors
/// If a rank is lost or the sum is wrong.
pub fn all_reduce(group: &Group, order: &Order, reduction: ReduceOp) -> Result<Vec<f64>> {
    let count = order.bytes / size_of::<f32>();
    let (rank, world) = (group.rank(), group.world_size());
    let mut data: Vec<f32> = (0..count).map(|index| (index % 1000) as f32 + rank as f32).collect();
    group.all_reduce(&mut data, reduction)?;
    let expected = |index: usize| (world as usize * (index % 1000)) as f32 + (world * (world - 1) / 2) as f32;
    check(group, "allreduce", &data, expected)?;
    // Zeros stay zero in every sum.
    data.fill(0.0);
    for _ in 0..order.warmup {
        group.all_reduce(&mut data, reduction)?;
    }
    timed(order, || Ok(group.all_reduce(&mut data, reduction)?))
}

/// The time of a broadcast, in microseconds, on each rank. The root rotates, so that no rank can run ahead.
///
/// # Errors
/// If a rank is lost or the bytes are wrong.
pub fn broadcast(group: &Group, order: &Order) -> Result<Vec<f64>> {
    let count = order.bytes / size_of::<f32>();
    let (rank, world) = (group.rank(), group.world_size());
    let expected = |index: usize| (index % 1000) as f32 + 1.0;
    let mut data: Vec<f32> = Vec::new();
    let mut root = 0;
    for iteration in 0..world as usize + order.warmup {
        if iteration < world as usize {
            data = (0..count).map(|index| if rank == root { expected(index) } else { 0.0 }).collect();
        }
        group.broadcast(&mut data, root)?;
        check(group, "broadcast", if iteration < world as usize { &data } else { &[] }, expected)?;
        root = (root + 1) % world;
    }
    timed(order, || {
        group.broadcast(&mut data, root)?;
        root = (root + 1) % world;
        Ok(())
    })
}

/// Waits in a barrier for a rank that never comes. Returns the time of the error, in microseconds since the
/// system's epoch.
///
/// # Errors
/// If the barrier ends in any other way than by the loss of that rank.
pub fn hang(group: &Group, order: &Order) -> Result<Vec<f64>> {
    use brevity::collectives::Error as Collective;
    let ended = group.barrier();
    let time = microseconds_since_epoch();
    match ended {
        Err(Collective::PeerLost { rank }) if rank.index() == order.bytes => Ok(vec![time]),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Error::Arguments(format!("rank {} has come to the barrier", order.bytes))),
    }
}

/// The clock that all processes of a host share.
#[must_use]
pub fn microseconds_since_epoch() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn timed(order: &Order, mut call: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let batch = |count| {
        let start = Instant::now();
        (0..count).try_for_each(|_| call())?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
    };
    order.batches().map(batch).collect()
}

fn check(group: &Group, what: &'static str, found: &[f32], expected: impl Fn(usize) -> f32) -> Result<()> {
    let wrong = (0..found.len()).find(|&index| found[index] != expected(index));
    wrong.map_or(Ok(()), |index| {
        let (bytes, expected) = (size_of_val(found), expected(index).to_string());
        Err(Error::Wrong {
            rank: group.rank(),
            what,
            bytes,
            index,
            found: found[index].to_string(),
            expected,
        })
    })
}
