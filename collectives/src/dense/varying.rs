//! All-gather of vectors whose lengths only their ranks know.
//!
//! An all-gather of the lengths, and then a ring of `P - 1` rounds: in each, a rank passes on what it
//! received in the round before, so it sends all vectors except its successor's.

use std::sync::{Arc, LazyLock};

use bytemuck::allocation::try_zeroed_vec;
use rustix::system::sysinfo;
use ucx_sys_wrap::buffer::Chunk;

use super::{AllGather, Lengths};
use crate::call::Call;
use crate::data::Element;
use crate::error::{Error, Result};
use crate::pattern::{ring_chunk, ring_predecessor, ring_successor};

/// Gathers vectors of any length, in rank order. The lengths travel first, on the same ring.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`] if all vectors together need more memory than the machine has.
pub async fn all_gather_varying<'env, T: Element>(call: &Call<'_, 'env>, own: Vec<T>) -> Result<Vec<Vec<T>>> {
    let (rank, world_size) = (call.rank(), call.world_size());
    let (next, previous) = (ring_successor(rank, world_size), ring_predecessor(rank, world_size));
    let mut lengths = vec![0u64; world_size as usize];
    lengths[rank as usize] = own.len() as u64;
    let all = AllGather::new::<u64>(Lengths::Equal);
    let lengths = call.run_in_place(&all, Chunk::from(lengths)).await?;
    if let Some(rank) = first_without_room::<T>(&lengths, *MEMORY_BYTES) {
        return Err(too_long(call, rank, lengths[rank]));
    }

    let mut blocks: Vec<Arc<Vec<T>>> = vec![Arc::default(); world_size as usize];
    blocks[rank as usize] = Arc::new(own);
    for step in 0..world_size - 1 {
        let round = world_size - 1 + step;
        let (out, into) = (ring_chunk(rank, step, world_size), ring_chunk(rank, step + 1, world_size));
        let sending = call.send(next, round, Arc::clone(&blocks[out]));
        let place = zeroed(lengths[into]).ok_or_else(|| too_long(call, into, lengths[into]))?;
        blocks[into] = Arc::new(call.recv(previous, round, place).await?);
        sending.await?;
    }
    Ok(blocks.into_iter().map(Arc::unwrap_or_clone).collect())
}

/// The memory of this machine.
static MEMORY_BYTES: LazyLock<u64> = LazyLock::new(|| {
    let system = sysinfo();
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit))
});

/// The first rank whose vector, after those before it, needs more memory than there is. A system that
/// overcommits would still give it, and stop the process once a peer fills it.
fn first_without_room<T>(lengths: &[u64], memory_bytes: u64) -> Option<usize> {
    let mut room = memory_bytes;
    lengths.iter().position(|length| {
        let left = room.checked_sub(length.saturating_mul(size_of::<T>() as u64));
        room = left.unwrap_or(0);
        left.is_none()
    })
}

/// A vector of `length` zeros, whose memory is touched only where it is filled, because the length comes from
/// a peer; `None` if there is no memory.
fn zeroed<T: Element>(length: u64) -> Option<Vec<T>> {
    try_zeroed_vec(usize::try_from(length).ok()?).ok()
}

fn too_long(call: &Call<'_, '_>, rank: usize, length: u64) -> Error {
    call.refuse(rank as u32, format!("a length of {length} elements, more than there is memory for"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_share_the_memory() {
        assert_eq!(first_without_room::<f64>(&[3, 0, 5], 64), None);
        assert_eq!(first_without_room::<f64>(&[3, 0, 5, 0], 63), Some(2));
        assert_eq!(first_without_room::<f64>(&[u64::MAX, 1], u64::MAX - 1), Some(0));
        assert!(*MEMORY_BYTES > 1 << 20);
    }
}
