//! Decides which rank learns from which examples in which epoch.
//!
//! All ranks draw the same permutation from (seed, epoch) and cut it into steps of `world_size * batch_size`
//! examples, of which each rank takes its own `batch_size`. So shards are disjoint, and every rank has the
//! same number of batches, so that none waits for a rank that has finished. The examples that do not fill a
//! last step are left out; they differ from epoch to epoch.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// One rank's examples of one epoch, in the order in which it learns from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    indices: Vec<u32>,
    batch_size: usize,
}

impl Shard {
    /// Distributes `example_count` examples; every rank must pass the same seed, epoch and sizes.
    ///
    /// # Panics
    /// If `rank` is not below `world_size`, or `batch_size` is 0.
    pub fn new(
        example_count: usize,
        batch_size: usize,
        (rank, world_size): (usize, usize),
        (seed, epoch): (u64, usize),
    ) -> Self {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        let mut order: Vec<u32> = (0..example_count as u32).collect();
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(epoch as u64);
        order.shuffle(&mut generator);
        let step = world_size * batch_size;
        let indices = order
            .chunks_exact(step)
            .flat_map(|examples| &examples[rank * batch_size..(rank + 1) * batch_size])
            .copied()
            .collect();
        Self { indices, batch_size }
    }

    /// The indices of each batch, all of the same length.
    pub fn batches(&self) -> impl Iterator<Item = &[u32]> {
        self.indices.chunks_exact(self.batch_size)
    }
}

/// The number of batches of every rank in every epoch.
///
/// # Panics
/// If `batch_size` or `world_size` is 0.
pub fn batches_per_epoch(example_count: usize, batch_size: usize, world_size: usize) -> usize {
    example_count / (world_size * batch_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn shards_are_disjoint_equal_and_nearly_complete(
            examples in 1usize..400, batch_size in 1usize..9, world_size in 1usize..9,
            seed: u64, epoch in 0usize..5,
        ) {
            let mut seen = HashSet::new();
            for rank in 0..world_size {
                let shard = Shard::new(examples, batch_size, (rank, world_size), (seed, epoch));
                let batches: Vec<_> = shard.batches().collect();
                prop_assert_eq!(batches.len(), batches_per_epoch(examples, batch_size, world_size));
                for &index in batches.into_iter().flatten() {
                    prop_assert!((index as usize) < examples);
                    prop_assert!(seen.insert(index), "example {} was dealt out twice", index);
                }
            }
            prop_assert!(examples - seen.len() < world_size * batch_size);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_order_and_epochs_differ() {
        let shard = |seed, epoch| Shard::new(100, 10, (1, 2), (seed, epoch));
        assert_eq!(shard(5, 0), shard(5, 0));
        assert_ne!(shard(5, 0), shard(5, 1));
        assert_ne!(shard(5, 0), shard(6, 0));
    }

    #[test]
    fn a_step_holds_the_same_examples_however_many_ranks_share_it() {
        let alone = Shard::new(96, 12, (0, 1), (9, 2));
        let first: HashSet<u32> = alone.batches().flatten().copied().take(12).collect();
        let shared: HashSet<u32> = (0..3)
            .flat_map(|rank| {
                let shard = Shard::new(96, 4, (rank, 3), (9, 2));
                shard.batches().next().unwrap().to_vec()
            })
            .collect();
        assert_eq!(first, shared);
    }
}
