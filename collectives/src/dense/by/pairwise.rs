//! Pairwise exchange: ranks meet in pairs, those at the same distance in the same round.
//!
//! All-to-all of blocks of b bytes: `floor(P / 2)` rounds of two messages, the last one of one message if `P`
//! is even; b (P - 1) bytes sent per rank; `floor(P / 2) alpha + b (P - 1) beta`.
//!
//! In round `k` a rank exchanges with ranks `rank + k` and `rank - k`, so it needs room for two blocks in
//! place. Ranks may choose for themselves whether they exchange in place: their partners are the same.

use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::error::Result;

/// Sends every other rank its block of `input`, and receives its own of theirs.
pub(in crate::dense) async fn all_to_all<'env>(
    call: &Call<'_, 'env>,
    input: &[&'env [u8]],
    output: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    // A copy: the block of this rank to itself.
    output[rank].copy_from_slice(input[rank]);
    for round in 1..=rounds(ranks) {
        let mut receives = Vec::with_capacity(2);
        for from in partners(rank, round, ranks).rev() {
            receives.push((from, call.recv(from as u32, 0, output[from].take())));
        }
        let sends: Vec<_> =
            partners(rank, round, ranks).map(|to| call.send(to as u32, 0, input[to])).collect();
        for (from, receive) in receives {
            output[from] = receive.await?;
        }
        for send in sends {
            send.await?;
        }
    }
    Ok(())
}

/// Exchanges the blocks of `data` in place: block `i` goes to rank `i`, whose block for this rank takes its
/// place. Blocks for each other are of equal length.
pub(in crate::dense) async fn exchange<'env>(
    call: &Call<'_, 'env>,
    data: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let (rank, ranks) = (call.rank() as usize, call.world_size() as usize);
    for round in 1..=rounds(ranks) {
        let mut receives = Vec::with_capacity(2);
        for from in partners(rank, round, ranks).rev() {
            receives.push((from, call.recv(from as u32, 0, call.scratch::<u8>(data[from].len())?)));
        }
        let sends: Vec<_> =
            partners(rank, round, ranks).map(|to| (to, call.send(to as u32, 0, data[to].take()))).collect();
        for (to, send) in sends {
            data[to] = send.await?;
        }
        for (from, receive) in receives {
            // A copy: the block may be overwritten only when it was sent.
            data[from].copy_from_slice(&receive.await?);
        }
    }
    Ok(())
}

/// How many rounds it takes until a rank has met all others.
fn rounds(ranks: usize) -> usize {
    ranks / 2
}

/// Whom a rank meets in a round, from 1 on: the ranks at this distance behind it and before it, or one that
/// is both.
fn partners(rank: usize, round: usize, ranks: usize) -> impl DoubleEndedIterator<Item = usize> {
    let (next, previous) = ((rank + round) % ranks, (rank + ranks - round) % ranks);
    std::iter::once(next).chain((next != previous).then_some(previous))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_meets_each_other_once_and_both_in_the_same_round() {
        for ranks in 1..=33 {
            for rank in 0..ranks {
                let mut met = Vec::new();
                for round in 1..=rounds(ranks) {
                    for peer in partners(rank, round, ranks) {
                        assert!(partners(peer, round, ranks).any(|other| other == rank), "{rank} of {ranks}");
                        met.push(peer);
                    }
                }
                met.sort_unstable();
                assert!(met.into_iter().eq((0..ranks).filter(|peer| *peer != rank)), "{rank} of {ranks}");
            }
        }
    }
}
