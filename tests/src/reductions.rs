//! A reduction of a program, on elements that the library doesn't know, in every collective that reduces.

use brevity::collectives::dense::{AllReduce, Collective, Lengths, Place, Reduce, ReduceScatter};
use brevity::collectives::{Algorithm, Buffers, Ground, Result};
use brevity::{Group, Reduction};
use bytemuck::{Pod, Zeroable};

use crate::dense::{algorithms, in_order_by, vector};

/// An element: 12 bytes, which divide no segment.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Reading {
    /// Its sum depends on the order.
    pub value: f32,
    /// How many ranks are in it.
    pub ranks: u32,
    /// Mixed anew by each step.
    pub mixed: u32,
}

impl Reading {
    /// Both together: commutative, and by the order of the fixed sums alone.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            ranks: self.ranks + other.ranks,
            mixed: self.mixed.wrapping_add(other.mixed).wrapping_mul(31),
        }
    }
}

/// The elements of a rank.
#[must_use]
pub fn readings(rank: u32, count: usize) -> Vec<Reading> {
    let reading = |value: f32| Reading { value, ranks: 1, mixed: value.to_bits() ^ rank };
    vector(rank, count).into_iter().map(reading).collect()
}

/// The reduction of a program that takes readings together.
#[must_use]
pub fn together() -> Reduction<Reading> {
    Reduction::new("together", |into: &mut [Reading], from: &[Reading]| {
        assert!(!into.is_empty() && into.len() == from.len());
        into.iter_mut().zip(from).for_each(|(into, from)| *into = into.and(*from));
        Ok(())
    })
}

/// Reduces readings by every collective that reduces and every algorithm of it, apart and in place, with
/// vectors or blocks of `count` elements.
///
/// # Errors
/// The first one of a call.
///
/// # Panics
/// When a result is wrong.
pub async fn check_reduction(group: &Group, ground: Ground, count: usize) -> Result<()> {
    let case = Case::new(group, ground, count);
    case.all_reduce().await?;
    for root in [0, group.world_size() - 1] {
        case.reduce(root).await?;
    }
    case.reduce_scatter().await?;
    case.reduce_scatter_v().await
}

struct Case<'a> {
    group: &'a Group,
    ground: Ground,
    count: usize,
    reduction: Reduction<Reading>,
}

impl<'a> Case<'a> {
    fn new(group: &'a Group, ground: Ground, count: usize) -> Self {
        Self { group, ground, count, reduction: together() }
    }

    fn expected(&self, count: usize) -> Vec<Reading> {
        let all = (0..self.group.world_size()).map(|rank| readings(rank, count)).collect();
        in_order_by(all, Reading::and)
    }

    fn own(&self, count: usize) -> Vec<Reading> {
        readings(self.group.rank(), count)
    }

    /// The algorithms that a collective has for these lengths.
    fn algorithms<C: Collective>(
        &self,
        collective: &C,
        (input, output): (usize, usize),
    ) -> Vec<Option<Algorithm>> {
        let (input, mut output) = (vec![Reading::zeroed(); input], vec![Reading::zeroed(); output]);
        let place = Place { rank: self.group.rank(), world_size: self.group.world_size() };
        algorithms(collective, Buffers::apart(&input, &mut output).sizes(), (place, self.ground), None)
    }

    async fn all_reduce(&self) -> Result<()> {
        let (count, expected) = (self.count, self.expected(self.count));
        for algorithm in self.algorithms(&AllReduce::new(&self.reduction)?, (count, count)) {
            let by = self.group.with_algorithm(algorithm);
            let (found, result) = by.start_all_reduce(self.own(count), &self.reduction).await;
            result?;
            assert!(found == expected, "all-reduce of {count} in place by {algorithm:?}");
            let room = vec![Reading::zeroed(); count];
            let ((_, found), result) = by.start_all_reduce_to(self.own(count), room, &self.reduction).await;
            result?;
            assert!(found == expected, "all-reduce of {count} by {algorithm:?}");
        }
        Ok(())
    }

    async fn reduce(&self, root: u32) -> Result<()> {
        let (count, expected, is_root) = (self.count, self.expected(self.count), self.group.rank() == root);
        for algorithm in self.algorithms(&Reduce::new(&self.reduction, root)?, (count, count)) {
            let by = self.group.with_algorithm(algorithm);
            let (found, result) = by.start_reduce_in_place(self.own(count), &self.reduction, root).await;
            result?;
            assert!(!is_root || found == expected, "reduce of {count} in place by {algorithm:?}");
            let room = vec![Reading::zeroed(); if is_root { count } else { 0 }];
            let ((_, found), result) = by.start_reduce(self.own(count), room, &self.reduction, root).await;
            result?;
            assert!(!is_root || found == expected, "reduce of {count} by {algorithm:?}");
        }
        Ok(())
    }

    async fn reduce_scatter(&self) -> Result<()> {
        let (rank, count) = (self.group.rank() as usize, self.count);
        let total = count * self.group.world_size() as usize;
        let (expected, block) = (self.expected(total), rank * count..(rank + 1) * count);
        let collective = ReduceScatter::new(&self.reduction, Lengths::Equal)?;
        for algorithm in self.algorithms(&collective, (total, count)) {
            let by = self.group.with_algorithm(algorithm);
            let (found, result) = by.start_reduce_scatter_in_place(self.own(total), &self.reduction).await;
            result?;
            assert!(found[block.clone()] == expected[block.clone()], "in place by {algorithm:?}");
            let room = vec![Reading::zeroed(); count];
            let ((_, found), result) = by.start_reduce_scatter(self.own(total), room, &self.reduction).await;
            result?;
            assert!(found == expected[block.clone()], "reduce-scatter of {count} by {algorithm:?}");
        }
        Ok(())
    }

    /// Blocks that are longer by rank; the first is empty.
    async fn reduce_scatter_v(&self) -> Result<()> {
        let (rank, size) = (self.group.rank() as usize, self.group.world_size() as usize);
        let lengths: Vec<usize> = (0..size).map(|rank| rank * self.count / size).collect();
        let (total, start) = (lengths.iter().sum(), lengths[..rank].iter().sum::<usize>());
        let (expected, block) = (self.expected(total), start..start + lengths[rank]);
        let collective = ReduceScatter::new(&self.reduction, Lengths::each(&lengths))?;
        for algorithm in self.algorithms(&collective, (total, block.len())) {
            let by = self.group.with_algorithm(algorithm);
            let (found, result) =
                by.start_reduce_scatter_v_in_place(self.own(total), &lengths, &self.reduction).await;
            result?;
            assert!(found[block.clone()] == expected[block.clone()], "in place by {algorithm:?}");
            let room = vec![Reading::zeroed(); block.len()];
            let ((_, found), result) =
                by.start_reduce_scatter_v(self.own(total), room, &lengths, &self.reduction).await;
            result?;
            assert!(found == expected[block.clone()], "reduce-scatter of {lengths:?} by {algorithm:?}");
        }
        Ok(())
    }
}
