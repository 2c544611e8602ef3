//! The list of tensors that an exchange is built from.

use std::cmp::Reverse;

use brevity_collectives::Group;
use brevity_compress::Error as Compress;
use brevity_compress::low_rank::LowRank;
use brevity_compress::quantise::Values;

use super::bucket::{Bucket, in_buckets};
use super::dense::DenseBucket;
use super::low_rank::LowRankBucket;
use super::parts::Parts;
use super::room::Lacking;
use super::sparse::{Member, SparseBucket, Way};
use super::vote::VoteBucket;
use super::{GradientExchange, Tensor};
use crate::error::{Error, Result};
use crate::policy::{Policy, Resolved, elements};

/// The gradients of a bucket, in bytes, unless the caller says otherwise: of tensors of which all values
/// travel, and of the others.
const DENSE_BUCKET_BYTES: usize = 25 << 20;
const BUCKET_BYTES: usize = 128 << 20;

/// The elements that 32 bits can tell apart.
const MOST_INDICES: usize = 1 << 32;

/// The default seed of the shared random numbers.
const DEFAULT_SEED: u64 = 0x5eed;

/// Collects tensors and their policies; see [`GradientExchange::builder`].
pub struct ExchangeBuilder {
    group: Group,
    seed: u64,
    number: Option<u32>,
    bucket_bytes: Option<usize>,
    over_participants: bool,
    tensors: Vec<(String, Vec<usize>, Policy)>,
}

impl ExchangeBuilder {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            group: group.clone(),
            seed: DEFAULT_SEED,
            number: None,
            bucket_bytes: None,
            over_participants: false,
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

    /// Sets the seed of the shared random numbers, which start the right factors of low-rank tensors and draw
    /// the places of [`random_k`](Policy::random_k) and [`random_block`](Policy::random_block). It must be
    /// the same on all ranks.
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

    /// Sets how many bytes of gradients a bucket holds. Unless set, that is 25 MiB of dense, quantised and
    /// signum tensors, and 128 MiB of sparse and low-rank ones. It must be the same on all ranks.
    ///
    /// Tensors with equal policies, but for density, rank and momentum, share buckets, which are formed from
    /// the last tensor on. A bucket travels as one vector; a larger tensor has a bucket of its own, and so
    /// has a sparse one whose format of values has scales (8 bits and less). In a
    /// [step](GradientExchange::begin), a bucket leaves as soon as its last gradient is ready: smaller ones
    /// leave earlier, larger ones wait less for messages. Results depend on it: of a bucket, gTop-k delivers
    /// the largest of the sums of all its tensors together, as many as are selected of these; and quantised
    /// tensors are rounded in other pieces.
    ///
    /// State of low-rank tensors can be loaded only by an exchange with the same buckets.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.bucket_bytes = Some(bytes);
        self
    }

    /// Divides averages by the number of ranks that have a gradient in the step, instead of by all: those
    /// that do not call [`step_empty`](GradientExchange::step_empty). Costs an all-reduce of 4 bytes more. It
    /// must be the same on all ranks.
    #[must_use]
    pub fn average_over_participants(mut self) -> Self {
        self.over_participants = true;
        self
    }

    /// Makes the exchange, with empty residuals. Sends nothing.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range; [`Error::PolicySetting`] for a setting that a sparse
    /// policy does not take; [`Error::Diverges`] for a quantised tensor whose residual would grow without
    /// bound; [`Error::TooLarge`] for a tensor with more than 2^32 elements and a sparse policy, or more than
    /// memory can address; [`Error::DuplicateName`]; [`Error::Memory`] without memory for the residuals, and
    /// for the work of a step.
    pub fn build(self) -> Result<GradientExchange> {
        let mut plan = Plan::default();
        let mut tensors: Vec<Tensor> = Vec::new();
        for (position, (name, shape, policy)) in self.tensors.into_iter().enumerate() {
            if tensors.iter().any(|known| known.name == name) {
                return Err(Error::DuplicateName { tensor: name });
            }
            let count = elements(&name, &shape)?;
            match policy.resolve(&name, &shape)? {
                Resolved::Dense => plan.dense.push((None, (position, count))),
                Resolved::Quantised { values } => plan.dense.push((Some(values), (position, count))),
                Resolved::Signum { momentum } => plan.votes.push(((), (position, count, momentum))),
                Resolved::Sparse { k, method, values, momentum, threshold } => {
                    let seed = self.seed.wrapping_add(position as u64);
                    let member = Member { tensor: position, count, k, momentum, seed };
                    plan.sparse.push((Way::new(method, values, threshold, position), member));
                }
                Resolved::LowRank { rows, cols, rank } => {
                    let seed = self.seed.wrapping_add(position as u64);
                    let state = LowRank::new(rows, cols, rank, seed);
                    let state = state.map_err(|error| refused(&name, error))?;
                    plan.low_rank.push(((), (position, state)));
                }
            }
            tensors.push(Tensor { name, count });
        }
        let buckets = plan.buckets(self.bucket_bytes, &tensors, self.group.world_size())?;
        let number = self.number.unwrap_or_else(|| self.group.number_object());
        let parts = Parts::new(tensors, buckets, number, self.over_participants);
        Ok(GradientExchange { group: self.group, parts, running: None })
    }
}

/// The tensors of each kind.
#[derive(Default)]
struct Plan {
    dense: Vec<(Option<Values>, (usize, usize))>,
    votes: Vec<((), (usize, usize, f32))>,
    low_rank: Vec<((), (usize, LowRank))>,
    sparse: Vec<(Way, Member)>,
}

impl Plan {
    /// Puts the tensors into buckets of so many bytes of gradients. They are sorted by when
    /// they become complete, if gradients are ready from the last tensor on.
    fn buckets(self, bytes: Option<usize>, tensors: &[Tensor], world_size: u32) -> Result<Vec<Bucket>> {
        let most = |default: usize| bytes.unwrap_or(default) / size_of::<f32>();
        let mut buckets = Vec::new();
        for (values, members) in in_buckets(self.dense, |(_, count)| *count, most(DENSE_BUCKET_BYTES)) {
            let mut bucket = values.map_or_else(DenseBucket::default, DenseBucket::quantised);
            members.into_iter().for_each(|(tensor, count)| bucket.add(tensor, count));
            let (allocated, kind) = (bucket.allocate(world_size), values.map_or("dense", |_| "quantised"));
            allocated.map_err(|bytes| lacking(words(kind, bucket.tensors(), tensors), bytes))?;
            buckets.push(Bucket::Dense(bucket));
        }
        for ((), members) in in_buckets(self.votes, |(_, count, _)| *count, most(DENSE_BUCKET_BYTES)) {
            let mut bucket = VoteBucket::default();
            members.into_iter().for_each(|(tensor, count, momentum)| bucket.add(tensor, count, momentum));
            let allocated = bucket.allocate();
            allocated.map_err(|bytes| lacking(words("signum", bucket.tensors(), tensors), bytes))?;
            buckets.push(Bucket::Vote(bucket));
        }
        let matrices =
            in_buckets(self.low_rank, |(_, state)| state.rows() * state.cols(), most(BUCKET_BYTES));
        let has_several = matrices.len() > 1;
        for (number, ((), members)) in matrices.into_iter().enumerate() {
            let mut bucket = LowRankBucket::default();
            for (tensor, state) in members {
                bucket.add(tensor, state).map_err(|error| refused(&tensors[tensor].name, error))?;
            }
            if has_several {
                bucket.name(number);
            }
            bucket.allocate().map_err(|bytes| lacking("factors of low rank".into(), bytes))?;
            buckets.push(Bucket::LowRank(Box::new(bucket)));
        }
        for (way, members) in
            in_buckets(self.sparse, |member| member.count, most(BUCKET_BYTES).min(MOST_INDICES))
        {
            let of = || words("sparse", members.iter().map(|member| member.tensor), tensors);
            let bucket =
                SparseBucket::new(way, &members, world_size).map_err(|bytes| lacking(of(), bytes))?;
            buckets.push(Bucket::Sparse(Box::new(bucket)));
        }
        buckets.sort_by_key(|bucket| Reverse(bucket.tensors().first().copied()));
        Ok(buckets)
    }
}

/// The tensors of a bucket in words.
fn words(kind: &str, members: impl Iterator<Item = usize>, tensors: &[Tensor]) -> String {
    let members: Vec<usize> = members.collect();
    match members[..] {
        [tensor] => named(&tensors[tensor].name),
        _ => format!("{} {kind} tensors", members.len()),
    }
}

fn refused(tensor: &str, error: Compress) -> Error {
    match error {
        Compress::Memory { bytes } => lacking(named(tensor), bytes),
        error => brevity_collectives::Error::from(error).into(),
    }
}

fn named(tensor: &str) -> String {
    format!("tensor {tensor:?}")
}

fn lacking(what: String, bytes: Lacking) -> Error {
    Error::Memory { what, bytes }
}
