//! Groups that overlap, and collectives of any kind on them.

use brevity::collectives::{Error, Result};
use brevity::compress::SparseVec;
use brevity::{Group, PutBack, ReduceOp};

use crate::{oracle, suite};

/// Three groups of a world, which overlap. A victim is a member of the first two.
#[derive(Clone, Copy, Debug)]
pub struct ThreeGroups {
    /// The ranks of the world.
    pub world_size: u32,
    /// The member of the first two groups that is not in the third. All other ranks are.
    pub victim: u32,
    /// Whether no other rank is in both of the first two.
    pub are_apart: bool,
}

impl ThreeGroups {
    /// Whether a rank is a member of a group.
    #[must_use]
    pub fn has(&self, group: usize, rank: u32) -> bool {
        let distance = (rank + self.world_size - self.victim) % self.world_size;
        let half = self.world_size / 2;
        match group {
            0 => !self.are_apart || distance <= half,
            1 if self.are_apart => distance == 0 || distance > half,
            1 => distance <= half,
            _ => distance != 0,
        }
    }
}

/// Whether the error names this rank as lost.
#[must_use]
pub fn is_lost<T>(result: &Result<T>, victim: u32) -> bool {
    matches!(result, Err(Error::PeerLost { rank }) if rank.0 == victim)
}

/// Makes one call, or some that are pending at once. Which and how long depends on `turn` and the size of the
/// group, so it is the same on all ranks.
///
/// # Errors
/// Those of the calls.
///
/// # Panics
/// If a result is wrong.
pub fn any_call(group: &Group, turn: u32) -> Result<()> {
    let size = group.world_size();
    let random = (turn * 4 + size).wrapping_mul(0x9e37_79b9) >> 20;
    let length = [1, 100, 3000, 40_000][random as usize / 8 % 4];
    let value = |rank: u32| turn * 10 + rank;
    let sum: u32 = (0..size).map(value).sum();
    match random % 8 {
        0 | 1 => {
            let mut data = vec![value(group.rank()); length];
            group.all_reduce(&mut data, ReduceOp::Sum)?;
            assert!(data.iter().all(|found| *found == sum));
        }
        2 | 3 => {
            let handle = group.start_all_reduce(vec![value(group.rank()); length], ReduceOp::Sum);
            let (most, result) = group.start_all_reduce(vec![group.rank(); 3], ReduceOp::Max).wait();
            result.map(|()| assert_eq!(most, [size - 1; 3]))?;
            let (data, result) = handle.wait();
            result.map(|()| assert!(data.iter().all(|found| *found == sum)))?;
        }
        4 => {
            let root = turn % size;
            let mut data = vec![if group.rank() == root { turn } else { 0 }; length];
            group.broadcast(&mut data, root)?;
            assert!(data.iter().all(|found| *found == turn));
        }
        5 => {
            let mut all = vec![0; size as usize];
            group.all_gather(&[value(group.rank())], &mut all)?;
            assert!((0..size).map(value).eq(all));
        }
        _ => sparse_call(group, turn, random.is_multiple_of(2))?,
    }
    Ok(())
}

fn sparse_call(group: &Group, turn: u32, is_topk: bool) -> Result<()> {
    let (count, k) = (500, 20);
    let vectors: Vec<_> =
        (0..group.world_size()).map(|rank| oracle::vector(rank + 100 * turn, count)).collect();
    let own = suite::sparse(&vectors[group.rank() as usize], k);
    if is_topk {
        let found = group.topk_all_reduce(own.view(), k)?;
        let selected: Vec<_> = vectors.iter().map(|vector| suite::sparse(vector, k)).collect();
        let dense: Vec<_> = selected.iter().map(SparseVec::to_dense).collect();
        assert_eq!(found.to_dense(), oracle::sum(&dense));
    } else {
        let found = group.gtopk_all_reduce(own.view(), k, PutBack::Conserving)?;
        let tops = vectors.iter().map(|vector| oracle::top_k(vector, k)).collect();
        assert!(found.result.iter().eq(oracle::gtopk(tops, k).iter().map(|(&i, &v)| (i, v))));
    }
    Ok(())
}
