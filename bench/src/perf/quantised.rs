//! All-reduces in few bits: quantised, and the vote of signs. Quantising is timed.

use std::sync::Arc;

use brevity::compress::quantise::{Encoded, Values};
use brevity::{Group, collectives};

use super::workload::{Difference, Going, Workload};
use crate::oracle;

/// A collective on vectors whose values take few bits on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FewBits {
    /// The sum of all ranks' vectors, in this format.
    Quantised(Values),
    /// The majority of all ranks' signs.
    Vote,
}

impl FewBits {
    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quantised(_) => "quantised-allreduce",
            Self::Vote => "vote-allreduce",
        }
    }

    /// What every rank gets.
    ///
    /// # Errors
    /// If vectors can't be quantised.
    pub fn expected(self, world_size: u32, count: usize) -> collectives::Result<Arc<[f32]>> {
        let vectors = || (0..world_size).map(|rank| oracle::vector(rank, count, oracle::EXACT));
        match self {
            Self::Quantised(values) => Ok(quantised(&vectors().collect::<Vec<_>>(), values)?.into()),
            Self::Vote => {
                let mut votes = vec![0_i32; count];
                for vector in vectors() {
                    votes.iter_mut().zip(&vector).for_each(|(votes, value)| {
                        *votes += i32::from(*value > 0.0) - i32::from(*value < 0.0);
                    });
                }
                Ok(votes.into_iter().map(|votes| votes.signum() as f32).collect())
            }
        }
    }
}

/// The sum by slices of whole blocks of 512: contributions are rounded, but those of a slice's owner, and the
/// sum is rounded again. Integers up to [`oracle::EXACT`] are added exactly in any order, as long as rounding
/// leaves integers.
fn quantised(vectors: &[Vec<f32>], values: Values) -> collectives::Result<Vec<f32>> {
    let count = vectors.first().map_or(0, Vec::len);
    let length = count.div_ceil(vectors.len()).next_multiple_of(512);
    let mut sums = vec![0.0; count];
    for (owner, sum) in sums.chunks_mut(length.max(1)).enumerate() {
        let start = owner * length;
        let mut ranks = Vec::with_capacity(vectors.len());
        for (rank, vector) in vectors.iter().enumerate() {
            let piece = &vector[start..start + sum.len()];
            ranks.push(if rank == owner { piece.to_vec() } else { said(piece, values)? });
        }
        sum.copy_from_slice(&said(&oracle::ordered_dense(ranks), values)?);
    }
    Ok(sums)
}

fn said(values: &[f32], format: Values) -> collectives::Result<Vec<f32>> {
    let (mut bytes, mut said) = (Vec::new(), vec![0.0; values.len()]);
    format.quantiser().encode(values, &mut bytes)?;
    Encoded::new(format.format(), values.len(), &bytes)?.decode_into(&mut said)?;
    Ok(said)
}

/// This rank's part, with the expected result.
pub struct InFewBits {
    which: FewBits,
    vector: Vec<f32>,
    before: Vec<f32>,
    expected: Arc<[f32]>,
}

impl InFewBits {
    /// This rank's vector, as long as what is [expected](FewBits::expected).
    pub fn new(group: &Group, which: FewBits, expected: Arc<[f32]>) -> Self {
        let before = oracle::vector(group.rank(), expected.len(), oracle::EXACT);
        Self { which, vector: before.clone(), before, expected }
    }
}

impl Workload for InFewBits {
    fn prepare(&mut self) {
        self.vector.copy_from_slice(&self.before);
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        match self.which {
            FewBits::Quantised(values) => group.quantised_all_reduce(&mut self.vector, values).map(drop),
            FewBits::Vote => group.vote_all_reduce(&mut self.vector),
        }
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let vector = std::mem::take(&mut self.vector);
        Box::pin(async move {
            let outcome;
            (self.vector, outcome) = match self.which {
                FewBits::Quantised(values) => {
                    let (given, outcome) = group.start_quantised_all_reduce(vector, values).await;
                    (given.vector, outcome.map(drop))
                }
                FewBits::Vote => {
                    let (given, outcome) = group.start_vote_all_reduce(vector).await;
                    (given.vector, outcome)
                }
            };
            outcome
        })
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.vector, &self.expected)
    }
}
