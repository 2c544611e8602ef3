//! The list of tensors that an exchange is built from.

use brevity_collectives::Group;
use brevity_compress::low_rank::LowRank;

use super::dense::DenseLane;
use super::low_rank::LowRankLane;
use super::sparse::SparseLane;
use super::{GradientExchange, Lane, Parts, Tensor};
use crate::error::{Error, Result};
use crate::policy::{Policy, Resolved, elements};

/// The default seed of the shared random numbers.
const DEFAULT_SEED: u64 = 0x5eed;

/// Collects tensors and their policies; see [`GradientExchange::builder`].
pub struct ExchangeBuilder {
    group: Group,
    seed: u64,
    tensors: Vec<(String, Vec<usize>, Policy)>,
}

impl ExchangeBuilder {
    pub(super) fn new(group: &Group) -> Self {
        Self { group: group.clone(), seed: DEFAULT_SEED, tensors: Vec::new() }
    }

    /// Adds a tensor: its name, its dimensions and how its gradients travel. All ranks add the same tensors
    /// in the same order.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>, shape: impl AsRef<[usize]>, policy: Policy) -> Self {
        self.tensors.push((name.into(), shape.as_ref().to_vec(), policy));
        self
    }

    /// Sets the seed of the shared random numbers, which start the right factors of low-rank tensors. It must
    /// be the same on all ranks.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Makes the exchange, with empty residuals. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range and for a tensor with too many elements (more than 2^32
    /// for a sparse policy, more than memory can address otherwise); [`Error::DuplicateName`].
    pub fn build(self) -> Result<GradientExchange> {
        let mut dense = DenseLane::default();
        let mut low_rank = LowRankLane::default();
        let mut lanes = Vec::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        for (position, (name, shape, policy)) in self.tensors.into_iter().enumerate() {
            if tensors.iter().any(|known| known.name == name) {
                return Err(Error::DuplicateName { tensor: name });
            }
            let count = elements(&name, &shape)?;
            match policy.resolve(&name, &shape)? {
                Resolved::Dense => dense.add(position, count),
                Resolved::Sparse { k, method } => {
                    lanes.push(Lane::Sparse(SparseLane::new(position, count, k, method)))
                }
                Resolved::LowRank { rows, cols, rank } => {
                    let seed = self.seed.wrapping_add(position as u64);
                    let state =
                        LowRank::new(rows, cols, rank, seed).map_err(brevity_collectives::Error::from)?;
                    low_rank.add(position, state);
                }
            }
            tensors.push(Tensor { name, count });
        }
        if !low_rank.is_empty() {
            lanes.insert(0, Lane::LowRank(low_rank));
        }
        if !dense.is_empty() {
            lanes.insert(0, Lane::Dense(dense));
        }
        Ok(GradientExchange { group: self.group, parts: Parts::new(tensors, lanes) })
    }
}
