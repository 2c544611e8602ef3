//! Block-sparse all-reduce: the sum of dense vectors of which most blocks are zero.
//!
//! Only blocks that are not entirely zero travel, each with its number, as in OmniReduce (Fei et al.,
//! "Efficient sparse collective communication and its application to accelerate distributed deep learning",
//! SIGCOMM 2021), whose aggregators are the ranks themselves here: every rank owns a range of blocks, to
//! whose owner all others send theirs, directly; the owner sums them in the [fixed
//! order](crate::data::order) and sends the blocks of the sum to all. With blocks of `b` values, `B` blocks
//! of a rank that are not zero and `U` of the sum: 2 rounds, `(4 + 4 b) (P - 1) / P (B + U)` bytes a rank.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use brevity_compress::select::BLOCK_PLACES;
use brevity_compress::{Error as CompressError, in_standard_float_mode};

use super::message::receive_parts;
use super::tensors::Tensors;
use super::topk::union;
use crate::all_pairs::{self, all_pairs};
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::pattern::chunk_range;
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always};

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row { algorithm: Algorithm::Direct, fits: always, estimate }];

/// What it has to do for vectors with so many values that are not zero.
pub(crate) fn work(dim: usize, entries: usize) -> Work {
    Work { entries: entries.min(dim), dim, ..Work::default() }
}

/// What it takes in blocks of 256, if the values of each rank that are not zero are anywhere. Values that lie
/// together are in fewer blocks.
fn estimate(work: &Work, ground: &Ground) -> Estimate {
    let dim = work.dim.max(1) as f64;
    let each = dim.min(BLOCK_PLACES as f64);
    // Of the blocks of a vector with so many values.
    let bytes = |values: f64| {
        let absent = (0..each as usize).fold(1.0, |all, _| all * (1.0 - values / dim));
        (4.0 + 4.0 * each) * (dim / each) * (1.0 - absent)
    };
    summing(bytes(work.entries as f64), bytes(union(work, ground)), ground)
}

/// What it takes if each rank has so many whole blocks, at random places.
pub(crate) fn estimate_of_blocks(dim: usize, count: usize, ground: &Ground) -> Estimate {
    let each = dim.clamp(1, BLOCK_PLACES) as f64;
    let all = dim.div_ceil(BLOCK_PLACES).max(1) as f64;
    let own = (count as f64).min(all);
    let absent = (0..ground.world_size).fold(1.0, |absent, _| absent * (1.0 - own / all));
    let bytes = |blocks: f64| (4.0 + 4.0 * each) * blocks;
    summing(bytes(own), bytes(all * (1.0 - absent)), ground)
}

/// With so many bytes of blocks on each rank, and in the sum.
fn summing(own: f64, sums: f64, ground: &Ground) -> Estimate {
    let scattered = all_pairs::estimate(own / ground.ranks(), ground).computing(ground.combining(own));
    scattered.then(all_pairs::estimate(sums / ground.ranks(), ground))
}

/// What ranks of a block-sparse all-reduce must agree on.
#[must_use]
pub fn describe(count: usize, block: usize) -> Description {
    Description::new(Operation::BLOCK_ALL_REDUCE, f32::TYPE.number(), count).with_detail(block as u64)
}

/// Checks that a vector can be cut in blocks of so many values.
///
/// # Errors
/// [`Error::Length`] for blocks without values; [`Error::Compress`] for 2^32 blocks and more.
fn check(count: usize, block: usize) -> Result<()> {
    if block == 0 {
        return Err(Error::Length { what: "a block", found: 0, expected: 1 });
    }
    match u32::try_from(count.div_ceil(block)) {
        Ok(_) => Ok(()),
        Err(_) => Err(CompressError::TooLong { len: count }.into()),
    }
}

/// Sums the vectors of all ranks; `vector` becomes the undivided sum. It has the bits of the dense sum in the
/// fixed order, except that a zero may have the other sign, and the same bits on all ranks.
///
/// `block` is the number of values of a block, of which the last may be shorter; it is equal on all ranks. A
/// value that is not finite poisons the call, as its tensor's.
///
/// # Errors
/// Before anything is sent [`Error::Length`] for a `block` of 0, [`Error::Compress`] for 2^32 blocks and
/// more. Errors of the transport; [`Error::Payload`] for an invalid message of a peer; [`Error::Overflow`] of
/// a tensor, on all ranks, for a sum that is not finite. `vector` is unspecified then.
pub async fn block_all_reduce(
    call: &Call<'_, '_>,
    vector: &mut [f32],
    block: usize,
    tensors: impl Into<Tensors<'_>>,
) -> Result<()> {
    let tensors = tensors.into();
    call.check_open()?;
    call.computed(check(vector.len(), block))?;
    let not_finite = |vector: &[f32]| vector.iter().position(|value| !value.is_finite());
    if let Some(index) = not_finite(vector) {
        call.set_poison(tensors.at(index));
        vector.fill(0.0);
    }
    if call.world_size() > 1 {
        let cut = Cut { count: vector.len(), block, world_size: call.world_size() };
        let come = scatter(call, vector, cut).await?;
        let sums = in_standard_float_mode(|| cut.sums(call.rank(), vector, &come));
        cut.replace(call.rank(), sums.view(), vector);
        gather(call, sums, vector, cut).await?;
    }
    not_finite(vector).map_or(Ok(()), |index| Err(Error::Overflow { tensor: tensors.at(index) }))
}

/// Sends every owner this rank's blocks, and returns those that have come from each rank.
async fn scatter(call: &Call<'_, '_>, vector: &[f32], cut: Cut) -> Result<Vec<Blocks>> {
    let mut come: Vec<Blocks> = (0..call.world_size()).map(|_| Blocks::default()).collect();
    let send = |owner: u32| {
        let Blocks { places, values } = cut.non_zero(owner, vector);
        async move { call.send(owner, 0, (places, values)).await.map(drop) }
    };
    let receive = |from: u32| receive(call, from, 0, cut.room(call.rank()));
    all_pairs(call, send, receive, |from, blocks| {
        cut.check(call, call.rank(), from, blocks.view())?;
        come[from as usize] = blocks;
        Ok(())
    })
    .await?;
    Ok(come)
}

/// Sends all ranks this rank's sums, and puts those of the others into `vector`.
async fn gather(call: &Call<'_, '_>, sums: Blocks, vector: &mut [f32], cut: Cut) -> Result<()> {
    let own = (Arc::new(sums.places), Arc::new(sums.values));
    let send = |to: u32| {
        let message = own.clone();
        async move { call.send(to, 1, message).await.map(drop) }
    };
    let receive = |from: u32| receive(call, from, 1, cut.room(from));
    all_pairs(call, send, receive, |from, blocks| {
        cut.check(call, from, from, blocks.view())?;
        cut.replace(from, blocks.view(), vector);
        Ok(())
    })
    .await
}

/// Receives at most so many blocks, with so many values.
async fn receive(call: &Call<'_, '_>, from: u32, round: u32, room: (usize, usize)) -> Result<Blocks> {
    let (places, values) = receive_parts(call, from, round, room).await?;
    Ok(Blocks { places, values })
}

/// Some blocks of a vector: their numbers, rising, and their values, one block after the other.
#[derive(Default)]
struct Blocks {
    places: Vec<u32>,
    values: Vec<f32>,
}

/// The same, borrowed.
#[derive(Clone, Copy)]
struct View<'a> {
    places: &'a [u32],
    values: &'a [f32],
}

impl Blocks {
    fn view(&self) -> View<'_> {
        View { places: &self.places, values: &self.values }
    }

    fn push(&mut self, place: usize, values: &[f32]) {
        self.places.push(place as u32);
        self.values.extend_from_slice(values);
    }
}

/// How a vector is cut in blocks, of which every rank owns a range.
#[derive(Clone, Copy, Debug)]
struct Cut {
    count: usize,
    block: usize,
    world_size: u32,
}

impl Cut {
    /// The numbers of the blocks of an owner.
    fn owned(self, owner: u32) -> Range<usize> {
        chunk_range(self.count.div_ceil(self.block), self.world_size, owner as usize)
    }

    /// The elements of a block.
    fn elements(self, place: usize) -> Range<usize> {
        let start = place.saturating_mul(self.block).min(self.count);
        start..start.saturating_add(self.block).min(self.count)
    }

    /// How many blocks an owner has, and how many values these have.
    fn room(self, owner: u32) -> (usize, usize) {
        let Range { start, end } = self.owned(owner);
        (end - start, self.elements(end).start - self.elements(start).start)
    }

    /// The blocks of an owner that are not entirely zero.
    fn non_zero(self, owner: u32, vector: &[f32]) -> Blocks {
        let mut blocks = Blocks::default();
        for place in self.owned(owner) {
            let values = &vector[self.elements(place)];
            if is_present(values) {
                blocks.push(place, values);
            }
        }
        blocks
    }

    /// Checks blocks of `owner` that have come from rank `from`.
    fn check(self, call: &Call<'_, '_>, owner: u32, from: u32, blocks: View<'_>) -> Result<()> {
        self.fault(owner, blocks).map_or(Ok(()), |what| Err(call.refuse(from, what)))
    }

    /// What is wrong with blocks of `owner`.
    fn fault(self, owner: u32, blocks: View<'_>) -> Option<String> {
        let owned = self.owned(owner);
        if !blocks.places.is_sorted_by(|a, b| a < b) {
            return Some("blocks whose numbers do not rise".to_owned());
        }
        let is_owned = |place: &&u32| owned.contains(&(**place as usize));
        if let Some(place) = blocks.places.iter().find(|place| !is_owned(place)) {
            return Some(format!("block {place}, expected one of {owned:?}"));
        }
        let expected: usize = blocks.places.iter().map(|place| self.elements(*place as usize).len()).sum();
        let (found, count) = (blocks.values.len(), blocks.places.len());
        (found != expected).then(|| format!("{count} blocks with {found} values, expected {expected}"))
    }

    /// The sums of the blocks of `owner`, without those that no rank has. Of its own blocks it has those in
    /// `vector`; `come` has those of the other ranks.
    fn sums(self, owner: u32, vector: &[f32], come: &[Blocks]) -> Blocks {
        let mut left: Vec<View<'_>> = come.iter().map(Blocks::view).collect();
        let mut sums = Blocks::default();
        for place in self.owned(owner) {
            let elements = self.elements(place);
            let operands = left.iter_mut().enumerate().map(|(rank, blocks)| {
                let values = if rank == owner as usize {
                    Some(&vector[elements.clone()]).filter(|values| is_present(values))
                } else {
                    blocks.take(place, elements.len())
                };
                values.map(Cow::Borrowed)
            });
            if let Some(sum) = in_order(operands.collect()).filter(|sum| is_present(sum)) {
                sums.push(place, &sum);
            }
        }
        sums
    }

    /// Replaces the blocks of an owner by these; those that are not there are zero.
    fn replace(self, owner: u32, blocks: View<'_>, vector: &mut [f32]) {
        let Range { start, end } = self.owned(owner);
        vector[self.elements(start).start..self.elements(end).start].fill(0.0);
        let mut left = blocks;
        for place in blocks.places {
            let elements = self.elements(*place as usize);
            if let Some(values) = left.take(*place as usize, elements.len()) {
                vector[elements].copy_from_slice(values);
            }
        }
    }
}

impl<'a> View<'a> {
    /// Takes the first block if it has this number and so many values.
    fn take(&mut self, place: usize, length: usize) -> Option<&'a [f32]> {
        let (first, places) = self.places.split_first()?;
        if *first as usize != place {
            return None;
        }
        let (values, left) = self.values.split_at_checked(length)?;
        (self.places, self.values) = (places, left);
        Some(values)
    }
}

/// Whether a value is not zero, of either sign.
fn is_present(values: &[f32]) -> bool {
    values.iter().fold(0, |bits, value| bits | value.to_bits() << 1) != 0
}

/// The sum of a block in the fixed order of ranks. One that is absent is zero.
fn in_order<'a>(mut ranks: Vec<Option<Cow<'a, [f32]>>>) -> Option<Cow<'a, [f32]>> {
    let members = 1 << ranks.len().checked_ilog2()?;
    for (rank, guest) in ranks.split_off(members).into_iter().enumerate() {
        ranks[rank] = added(ranks[rank].take(), guest);
    }
    while ranks.len() > 1 {
        let half = ranks.len() / 2;
        for pair in 0..half {
            ranks[pair] = added(ranks[2 * pair].take(), ranks[2 * pair + 1].take());
        }
        ranks.truncate(half);
    }
    ranks.pop().flatten()
}

fn added<'a>(a: Option<Cow<'a, [f32]>>, b: Option<Cow<'a, [f32]>>) -> Option<Cow<'a, [f32]>> {
    match (a, b) {
        (Some(a), Some(b)) => {
            // A sum of two is commutative.
            let (mut sum, other) = if matches!(a, Cow::Owned(_)) { (a, b) } else { (b, a) };
            sum.to_mut().iter_mut().zip(&*other).for_each(|(sum, other)| *sum += other);
            Some(sum)
        }
        (a, b) => a.or(b),
    }
}

/// The sum of all ranks' vectors, of which blocks that are zero do not travel, as a call of a group; see
/// [`block_all_reduce`].
#[derive(Clone, Debug)]
pub struct BlockAllReduce<V = Vec<f32>> {
    /// The vector of this rank, which becomes the sum.
    pub vector: V,
    /// The values of a block, at least 1; equal on all ranks. OmniReduce has 256
    /// ([`BLOCK_PLACES`](brevity_compress::select::BLOCK_PLACES)).
    pub block: usize,
}

impl<V: AsRef<[f32]> + AsMut<[f32]> + Send + Sync> Compressed for BlockAllReduce<V> {
    type Output = ();

    const OPERATION: Operation = Operation::BLOCK_ALL_REDUCE;

    fn check(&self) -> Result<()> {
        check(self.vector.as_ref().len(), self.block)
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len(), self.block)
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<()> {
        block_all_reduce(call, self.vector.as_mut(), self.block, 0).await
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::SparseVec;
    use brevity_compress::generator::Generator;
    use brevity_compress::select::random_k;

    use super::*;
    use crate::plan::Machine;

    #[test]
    fn every_block_has_one_owner() {
        for world_size in 1..=33 {
            for (count, block) in [(0, 1), (1, 256), (255, 4), (256, 256), (5000, 7), (40, usize::MAX)] {
                let cut = Cut { count, block, world_size };
                let places: Vec<_> = (0..world_size).flat_map(|owner| cut.owned(owner)).collect();
                assert!(places.iter().copied().eq(0..count.div_ceil(block)));
                let elements: Vec<_> = places.into_iter().flat_map(|place| cut.elements(place)).collect();
                assert!(elements.into_iter().eq(0..count));
                let room = (0..world_size).map(|owner| cut.room(owner));
                let all = room.fold((0, 0), |all, room| (all.0 + room.0, all.1 + room.1));
                assert_eq!(all, (count.div_ceil(block), count));
            }
        }
    }

    #[test]
    fn estimated_bytes_are_those_of_entries_that_are_anywhere() {
        const DIM: usize = 2000 * BLOCK_PLACES;
        for (world_size, k) in [(2, 500), (4, 2000), (5, 8000)] {
            let cut = Cut { count: DIM, block: BLOCK_PLACES, world_size };
            let mut sum = vec![0.0; DIM];
            let bytes = |vector: &[f32]| {
                let blocks = (0..world_size).map(|owner| cut.non_zero(owner, vector));
                blocks.map(|blocks| 4 * (blocks.places.len() + blocks.values.len())).sum::<usize>() as f64
            };
            let mut of_ranks = 0.0;
            for rank in 0..world_size {
                let (mut own, mut drawn) = (SparseVec::new(DIM), Vec::new());
                let mut generator = Generator::for_stream(5, rank.into());
                random_k(&vec![1.0; DIM], k, &mut generator, &mut own, &mut drawn).unwrap();
                own.view().add_to(&mut sum);
                of_ranks += bytes(&own.to_dense());
            }
            let ranks = f64::from(world_size);
            let found = (of_ranks / ranks + bytes(&sum)) * (ranks - 1.0) / ranks;
            let ground = Ground::new(Machine::uniform(1e-6, 1e-9), world_size);
            let ratio = estimate(&work(DIM, k), &ground).bytes / found;
            assert!((0.95..=1.05).contains(&ratio), "{world_size} ranks, {k} entries: {ratio}");
        }
    }

    #[test]
    fn what_is_no_list_of_blocks_is_refused() {
        // Rank 1 has blocks 2 and 3, of 4 values and of 2.
        let cut = Cut { count: 14, block: 4, world_size: 2 };
        let fault = |places: &[u32], values: usize| {
            let values = vec![1.0; values];
            cut.fault(1, View { places, values: &values })
        };
        assert!(
            [(&[][..], 0), (&[2], 4), (&[3], 2), (&[2, 3], 6)].iter().all(|(p, v)| fault(p, *v).is_none())
        );
        for (places, values) in
            [(&[3, 2][..], 6), (&[2, 2], 8), (&[1], 4), (&[4], 0), (&[u32::MAX], 4), (&[3], 4), (&[], 1)]
        {
            assert!(fault(places, values).is_some(), "{places:?} with {values} values");
        }
    }
}
