//! The list of tensors that an exchange is built from.

use brevity_collectives::Group;
use brevity_compress::Error as Compress;
use brevity_compress::low_rank::LowRank;

use super::dense::DenseLane;
use super::lane::Lane;
use super::low_rank::LowRankLane;
use super::room::Lacking;
use super::sparse::{Member, SparseBucket, Way, in_buckets};
use super::{GradientExchange, Parts, Tensor};
use crate::error::{Error, Result};
use crate::policy::{Policy, Resolved, elements};

/// The gradients of a bucket of sparse tensors, in bytes, unless the caller says otherwise.
const DEFAULT_BUCKET_BYTES: usize = 128 << 20;

/// The default seed of the shared random numbers.
const DEFAULT_SEED: u64 = 0x5eed;

/// Collects tensors and their policies; see [`GradientExchange::builder`].
pub struct ExchangeBuilder {
    group: Group,
    seed: u64,
    number: Option<u32>,
    bucket_bytes: usize,
    tensors: Vec<(String, Vec<usize>, Policy)>,
}

impl ExchangeBuilder {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            group: group.clone(),
            seed: DEFAULT_SEED,
            number: None,
            bucket_bytes: DEFAULT_BUCKET_BYTES,
            tensors: Vec::new(),
        }
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

    /// Sets how many bytes of gradients a bucket holds (128 MiB unless set): sparse tensors with equal policies
    /// but for the density share one, formed from the last tensor on, and travel as one vector. A larger
    /// tensor has a bucket of its own; with 0, each has. It must be the same on all ranks.
    ///
    /// In a bucket every rank selects by each tensor's density. gTop-k then keeps the largest of the sums of
    /// the bucket, as many as are selected of all its tensors together.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.bucket_bytes = bytes;
        self
    }

    /// Makes the exchange, with empty residuals. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range; [`Error::TooLarge`] for a tensor with more than 2^32
    /// elements and a sparse policy, or more than memory can address; [`Error::DuplicateName`];
    /// [`Error::Memory`] without memory for the residuals, and for the work of a step.
    pub fn build(self) -> Result<GradientExchange> {
        let mut dense = DenseLane::default();
        let mut low_rank = LowRankLane::default();
        let mut sparse = Vec::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        for (position, (name, shape, policy)) in self.tensors.into_iter().enumerate() {
            if tensors.iter().any(|known| known.name == name) {
                return Err(Error::DuplicateName { tensor: name });
            }
            let count = elements(&name, &shape)?;
            match policy.resolve(&name, &shape)? {
                Resolved::Dense => dense.add(position, count),
                Resolved::Sparse { k, method, values } => {
                    sparse.push((Way { method, values }, Member { tensor: position, count, k }));
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
        let mut lanes = Vec::new();
        if !dense.is_empty() {
            dense.allocate().map_err(|bytes| lacking("all dense tensors".into(), bytes))?;
            lanes.push(Lane::Dense(dense));
        }
        if !low_rank.is_empty() {
            low_rank.allocate().map_err(|bytes| lacking("factors of low rank".into(), bytes))?;
            lanes.push(Lane::LowRank(low_rank));
        }
        for (way, members) in in_buckets(&sparse, self.bucket_bytes / size_of::<f32>()) {
            let bucket = SparseBucket::new(way, &members, self.group.world_size());
            let what = || match &members[..] {
                [member] => named(&tensors[member.tensor].name),
                _ => format!("{} sparse tensors", members.len()),
            };
            lanes.push(Lane::Sparse(bucket.map_err(|bytes| lacking(what(), bytes))?));
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
