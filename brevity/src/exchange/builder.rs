//! The list of tensors that an exchange is built from.

use brevity_collectives::Group;
use brevity_compress::Error as Compress;
use brevity_compress::low_rank::LowRank;

use super::dense::DenseLane;
use super::lane::Lane;
use super::low_rank::LowRankLane;
use super::quantised::QuantisedLane;
use super::room::Lacking;
use super::sparse::SparseLane;
use super::vote::VoteLane;
use super::{GradientExchange, Parts, Tensor};
use crate::error::{Error, Result};
use crate::policy::{Policy, Resolved, elements};

/// The default seed of the shared random numbers.
const DEFAULT_SEED: u64 = 0x5eed;

/// Collects tensors and their policies; see [`GradientExchange::builder`].
pub struct ExchangeBuilder {
    group: Group,
    seed: u64,
    number: Option<u32>,
    tensors: Vec<(String, Vec<usize>, Policy)>,
}

impl ExchangeBuilder {
    pub(super) fn new(group: &Group) -> Self {
        Self { group: group.clone(), seed: DEFAULT_SEED, number: None, tensors: Vec::new() }
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

    /// Sets the exchange's [`number`](GradientExchange::number), for one that takes the place of another.
    /// Otherwise it takes the [next one of the group](Group::number_object).
    #[must_use]
    pub fn number(mut self, number: u32) -> Self {
        self.number = Some(number);
        self
    }

    /// Makes the exchange, with empty residuals. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range; [`Error::Diverges`] for a quantised tensor whose
    /// residual would grow without bound; [`Error::TooLarge`] for a tensor with more than 2^32 elements and a
    /// sparse policy, or more than memory can address; [`Error::DuplicateName`]; [`Error::Memory`] without
    /// memory for the residuals, and for the work of a step.
    pub fn build(self) -> Result<GradientExchange> {
        let mut dense = DenseLane::default();
        let mut low_rank = LowRankLane::default();
        let mut quantised = QuantisedLane::default();
        let mut votes = VoteLane::default();
        let mut lanes = Vec::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        for (position, (name, shape, policy)) in self.tensors.into_iter().enumerate() {
            if tensors.iter().any(|known| known.name == name) {
                return Err(Error::DuplicateName { tensor: name });
            }
            let count = elements(&name, &shape)?;
            match policy.resolve(&name, &shape)? {
                Resolved::Dense => dense.add(position, count),
                Resolved::Quantised { values } => quantised.add(position, count, values),
                Resolved::Signum { momentum } => votes.add(position, count, momentum),
                Resolved::Sparse { k, method, values } => {
                    let lane = SparseLane::new(position, count, k, (method, values), self.group.world_size());
                    lanes.push(Lane::Sparse(lane.map_err(|bytes| lacking(named(&name), bytes))?));
                }
                Resolved::LowRank { rows, cols, rank } => {
                    let seed = self.seed.wrapping_add(position as u64);
                    let state = LowRank::new(rows, cols, rank, seed);
                    let added = state.and_then(|state| low_rank.add(position, state));
                    added.map_err(|error| match error {
                        Compress::Memory { bytes } => lacking(named(&name), bytes),
                        error => brevity_collectives::Error::from(error).into(),
                    })?;
                }
            }
            tensors.push(Tensor { name, count });
        }
        if !low_rank.is_empty() {
            low_rank.allocate().map_err(|bytes| lacking("factors of low rank".into(), bytes))?;
            lanes.insert(0, Lane::LowRank(low_rank));
        }
        if !dense.is_empty() {
            dense.allocate().map_err(|bytes| lacking("all dense tensors".into(), bytes))?;
            lanes.insert(0, Lane::Dense(dense));
        }
        if !quantised.is_empty() {
            let allocated = quantised.allocate(self.group.world_size());
            allocated.map_err(|bytes| lacking("all quantised tensors".into(), bytes))?;
            lanes.push(Lane::Quantised(quantised));
        }
        if !votes.is_empty() {
            votes.allocate().map_err(|bytes| lacking("all signum tensors".into(), bytes))?;
            lanes.push(Lane::Vote(votes));
        }
        let number = self.number.unwrap_or_else(|| self.group.number_object());
        Ok(GradientExchange { group: self.group, parts: Parts::new(tensors, lanes, number) })
    }
}

fn named(tensor: &str) -> String {
    format!("tensor {tensor:?}")
}

fn lacking(what: String, bytes: Lacking) -> Error {
    Error::Memory { what, bytes }
}
