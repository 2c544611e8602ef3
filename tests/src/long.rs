//! Collectives on vectors of bytes that are longer than 32 bits can count, checked in content.

use brevity::collectives::Result;
use brevity::{Group, ReduceOp};

/// The byte at a place of a rank's vector: a hash of the place, so that no two stretches are alike.
fn value(place: usize, rank: u32) -> u8 {
    ((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 ^ rank as u8
}

/// Fills `data` with the vector.
fn fill(data: &mut [u8], rank: u32) {
    data.iter_mut().enumerate().for_each(|(place, byte)| *byte = value(place, rank));
}

fn check(what: &str, data: &[u8], first: usize, expected: impl Fn(usize) -> u8) {
    let wrong = data.iter().enumerate().position(|(place, byte)| *byte != expected(first + place));
    assert!(wrong.is_none(), "{what} of {} bytes is wrong at {wrong:?}", data.len());
}

/// Makes an all-reduce, a broadcast, a reduce-scatter and an all-gather of vectors, and blocks, of so many
/// bytes, by the algorithms that the library chooses. Takes `P` times as many bytes of memory.
///
/// # Errors
/// The first one of a call.
///
/// # Panics
/// When a byte is wrong.
pub fn check_long(group: &Group, bytes: usize) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.world_size());
    let sum = |place| (0..ranks).fold(0u8, |sum, rank| sum.wrapping_add(value(place, rank)));
    let mut data = vec![0u8; bytes];
    fill(&mut data, rank);
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    check("an all-reduce", &data, 0, sum);

    let root = ranks - 1;
    fill(&mut data, rank);
    group.broadcast(&mut data, root)?;
    check("a broadcast", &data, 0, |place| value(place, root));

    fill(&mut data, rank);
    // The last block has the rest.
    let mut lengths = vec![bytes / ranks as usize; ranks as usize];
    lengths[root as usize] += bytes % ranks as usize;
    group.reduce_scatter_v_in_place(&mut data, &lengths, ReduceOp::Sum)?;
    let start = bytes / ranks as usize * rank as usize;
    check("a reduce-scatter", &data[start..start + lengths[rank as usize]], start, sum);

    data.clear();
    data.resize(bytes * ranks as usize, 0);
    fill(&mut data[bytes * rank as usize..][..bytes], rank);
    group.all_gather_in_place(&mut data)?;
    for (rank, block) in (0..ranks).zip(data.chunks_exact(bytes)) {
        check("a block of an all-gather", block, 0, |place| value(place, rank));
    }
    Ok(())
}
