//! Random-K and random-block all-reduce: the sum of all ranks' vectors at places that all ranks draw alike.
//!
//! The places depend on a seed and on the number of the step, which all ranks share, so only the values
//! travel, by a dense all-reduce: `4 k` bytes through it, however many ranks there are. Vogels et al.,
//! "PowerSGD: practical low-rank gradient compression for distributed optimization", NeurIPS 2019, appendix.

use brevity_compress::generator::Generator;
use brevity_compress::select::{random_block, random_k};
use brevity_compress::{Error as CompressError, SparseVec, SparseView};
use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::{Element, ReduceOp};
use crate::dense::{AllReduce, Collective, all_reduce};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Row, Work};

/// The algorithms of the all-reduce of the values, of which the fastest is taken.
pub(crate) const ROWS: &[Row] = AllReduce::ROWS;

/// What it has to do.
pub(crate) fn work(dim: usize, k: usize) -> Work {
    let entries = k.min(dim);
    let bytes = entries.saturating_mul(size_of::<f32>());
    Work { bytes, wide_bytes: bytes, entries, dim, ..Work::default() }
}

/// How places are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Draw {
    /// Any places: each set is equally likely (random K).
    #[default]
    Scattered,
    /// Consecutive places, wrapping around at the end: each start is equally likely (random block).
    Block,
}

impl Draw {
    const fn number(self) -> u8 {
        match self {
            Self::Scattered => 1,
            Self::Block => 2,
        }
    }
}

/// The places of a random-K all-reduce. All of it is equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomPlaces {
    /// How they are drawn.
    pub draw: Draw,
    /// How many; all of a shorter vector.
    pub k: usize,
    /// The seed of the generator.
    pub seed: u64,
    /// The number of the step. Each step of a seed has other places.
    pub step: u64,
}

impl RandomPlaces {
    /// The values of `vector` at these places, zeros too.
    ///
    /// # Errors
    /// [`brevity_compress::Error::NonFinite`] for the first value that is not finite, at one of the places or
    /// not; [`brevity_compress::Error::TooLong`].
    pub fn select(&self, vector: &[f32]) -> std::result::Result<SparseVec, CompressError> {
        let mut generator = Generator::for_stream(self.seed, self.step);
        let mut selected = SparseVec::new(vector.len());
        match self.draw {
            Draw::Scattered => random_k(vector, self.k, &mut generator, &mut selected, &mut Vec::new()),
            Draw::Block => random_block(vector, self.k, &mut generator, &mut selected),
        }?;
        Ok(selected)
    }
}

/// What ranks of a random-K all-reduce must agree on.
#[must_use]
pub fn describe(dim: usize, places: &RandomPlaces) -> Description {
    let RandomPlaces { draw, k, seed, step } = *places;
    let description = Description::sparse(Operation::RANDOM_K_ALL_REDUCE, f32::TYPE.number(), dim, k);
    Description { reduction: draw.number(), ..description }.with_detail(seed).with_detail(step)
}

/// The name in the `reduction` of a description.
pub(crate) fn name(reduction: u8) -> Option<&'static str> {
    match reduction {
        1 => Some("random k"),
        2 => Some("random block"),
        _ => None,
    }
}

/// Sums the vectors of all ranks at the places that all ranks draw, in the fixed order of dense sums. Every
/// rank gets the same bits: an entry for each place, also where the sum is 0.
///
/// Nothing is scaled, and `vector` is unchanged: what the caller keeps for later steps is the vector with
/// zeros at the [indices](SparseVec::indices) of the sum. A value of `vector` that is not finite poisons the
/// call, as tensor `tensor`, at one of the places or not; the sum has no entries on that rank then.
///
/// # Errors
/// Errors of the transport; [`Error::Overflow`] of tensor `tensor`, on all ranks, for a sum that is not
/// finite; [`Error::Compress`] for a vector of more than 2^32 elements.
pub async fn random_k_all_reduce(
    call: &Call<'_, '_>,
    vector: &[f32],
    places: &RandomPlaces,
    tensor: u32,
) -> Result<SparseVec> {
    call.check_open()?;
    let dim = vector.len();
    let (indices, values) = match places.select(vector) {
        Err(CompressError::NonFinite { .. }) => {
            call.set_poison(tensor);
            (None, call.zeros(places.k.min(dim))?)
        }
        selected => {
            let (indices, values) = call.computed(selected.map_err(Error::from))?.into_parts();
            (Some(indices), values)
        }
    };
    let sums = all_reduce(call, Chunk::from(values), ReduceOp::Sum).await?.into_vec();
    if !sums.iter().all(|sum| sum.is_finite()) {
        return Err(Error::Overflow { tensor });
    }
    match indices {
        Some(indices) => Ok(SparseVec::from_parts(dim, indices, sums)?),
        None => Ok(SparseVec::new(dim)),
    }
}

/// The sum of all ranks' vectors at random places, as a call of a group; see [`random_k_all_reduce`].
#[derive(Clone, Debug)]
pub struct RandomKAllReduce<V = Vec<f32>> {
    /// The vector of this rank.
    pub vector: V,
    /// Equal on all ranks.
    pub places: RandomPlaces,
}

impl<V: AsRef<[f32]> + Send + Sync> Compressed for RandomKAllReduce<V> {
    type Output = SparseVec;

    const OPERATION: Operation = Operation::RANDOM_K_ALL_REDUCE;

    fn check(&self) -> Result<()> {
        SparseView::new(self.vector.as_ref().len(), &[], &[])?;
        Ok(())
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len(), &self.places)
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<SparseVec> {
        random_k_all_reduce(call, self.vector.as_ref(), &self.places, 0).await
    }
}
