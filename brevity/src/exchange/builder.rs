//! The list of tensors that an exchange is built from.

mod choose;

use std::cmp::Reverse;
use std::mem::take;

use brevity_collectives::Group;
use brevity_compress::Density;
use brevity_compress::Error as Compress;
use brevity_compress::low_rank::{LowRank, UnbiasedLowRank};
use brevity_compress::quantise::Values;
use brevity_compress::schedule::Schedule;

use super::auto::Candidate;
use super::bucket::{Bucket, in_buckets};
use super::course::Course;
use super::dense::DenseBucket;
use super::encoding::{Encoding, Shape};
use super::gathered::GatheredBucket;
use super::hierarchical::HierarchicalBucket;
use super::low_rank::LowRankBucket;
use super::parts::Parts;
use super::post_momentum::PostMomentum;
use super::room::Lacking;
use super::sparse::{Member, SparseBucket, Way};
use super::unbiased::UnbiasedBucket;
use super::vectors::{Vector, with_matrices};
use super::vote::VoteBucket;
use super::{GradientExchange, Tensor, sharing};
use crate::error::{Error, Result};
use crate::policy::{LowRankMethod, Policy, Resolved, Scope, SparsePolicy, elements};

/// The gradients of a bucket, in bytes, unless the caller says otherwise: of tensors of which all values
/// travel, and of the others.
const DENSE_BUCKET_BYTES: usize = 25 << 20;
const BUCKET_BYTES: usize = 128 << 20;

/// The elements that 32 bits can tell apart.
pub(super) const MOST_INDICES: usize = 1 << 32;

/// The default seed of the shared random numbers.
const DEFAULT_SEED: u64 = 0x5eed;

/// Collects tensors and their policies; see [`GradientExchange::builder`].
pub struct ExchangeBuilder {
    group: Group,
    seed: u64,
    number: Option<u32>,
    bucket_bytes: Option<usize>,
    over_participants: bool,
    keeps_going: bool,
    schedule: Option<(Schedule, u64)>,
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
            keeps_going: false,
            schedule: None,
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

    /// Sets the seed of the random numbers: the first right factors of low-rank tensors, the projections of
    /// unbiased ones, the samples of Spectral Atomo, and the places of [`random_k`](Policy::random_k) and
    /// [`random_block`](Policy::random_block). It must be the same on all ranks.
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

    /// Sets how many bytes of gradients a bucket holds. Unless set, that is 25 MiB of dense, quantised,
    /// signum and gathered tensors, and 128 MiB of sparse and low-rank ones. It must be the same on all
    /// ranks.
    ///
    /// Tensors with equal policies, but for density, rank and momentum, share buckets, which are formed from
    /// the last tensor on. A bucket travels as one vector; a larger tensor has a bucket of its own, and so
    /// has a sparse one whose format of values has scales (8 bits and less). In a
    /// [step](GradientExchange::begin), a bucket leaves as soon as its last gradient is ready: smaller ones
    /// leave earlier, larger ones wait less for messages. A bucket of low-rank matrices takes along vectors
    /// of the same policy, up to 25 MiB or as many bytes. Results depend on it: of a bucket, gTop-k delivers
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

    /// Lets ranks that are left of a loss agree on the last step, so that all have delivered it or none
    /// ([`GradientExchange::go_on`]). Costs a barrier in each step. It must be the same on all ranks.
    #[must_use]
    pub fn keep_going(mut self) -> Self {
        self.keeps_going = true;
        self
    }

    /// Lets the density of all sparse tensors follow a schedule, for instance the exponential warm-up of Deep
    /// Gradient Compression; a period has so many steps, 0 counts as 1. In each step the larger one counts: a
    /// tensor's own density or that of the schedule. It must be the same on all ranks.
    ///
    /// [Steps](GradientExchange::steps) that were left out or have failed do not count.
    ///
    /// ```
    /// use brevity::compress::{Density, schedule::Schedule};
    /// use brevity::{GradientExchange, Group, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let group = Group::solo();
    /// let mut exchange = GradientExchange::builder(&group)
    ///     .tensor("weight", [32, 32], Policy::gtopk(1.0 / 1024.0))
    ///     .schedule(Schedule::exponential(Density::new(1.0 / 1024.0)?, 4), 2)
    ///     .build()?;
    /// for entries in [256, 256, 64, 64, 16, 16, 4, 4, 1, 1] {
    ///     let mut gradients = [vec![1.0f32; 1024]];
    ///     exchange.average(&mut gradients)?;
    ///     assert_eq!(gradients[0].iter().filter(|value| **value != 0.0).count(), entries);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule, steps_in_period: u64) -> Self {
        self.schedule = Some((schedule, steps_in_period));
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
        let mut course = Course { schedule: self.schedule, ..Course::default() };
        for (position, (name, shape, policy)) in self.tensors.into_iter().enumerate() {
            if tensors.iter().any(|known| known.name == name) {
                return Err(Error::DuplicateName { tensor: name });
            }
            course.own.push(None);
            let count = elements(&name, &shape)?;
            match policy.resolve(&name, &shape)? {
                Resolved::Dense => plan.dense.push((None, (position, count))),
                Resolved::Excluded => {}
                Resolved::Auto { density, allowed, matrix } => {
                    plan.auto.push(Candidate { tensor: position, count, density, allowed, matrix });
                }
                Resolved::Quantised { values } => plan.dense.push((Some(values), (position, count))),
                Resolved::Signum { momentum } => plan.votes.push(((), (position, count, momentum))),
                Resolved::Sparse(density, policy) => {
                    plan.add_sparse(&policy, density, (position, count), &mut course, self.seed);
                }
                Resolved::SignNorm => {
                    plan.gathered.push((None, (position, Encoding::SignNorm { count })));
                }
                Resolved::LowRank { method, rows, cols, rank, dense_steps } => {
                    course.dense_steps = course.dense_steps.max(dense_steps);
                    let seed = self.seed.wrapping_add(position as u64);
                    let matrix = plan.add_matrix((position, dense_steps), method, [rows, cols, rank], seed);
                    matrix.map_err(|error| refused(&name, error))?;
                }
                Resolved::Vector { method: LowRankMethod::PowerSgd } => plan.vectors.push((position, count)),
                Resolved::Vector { method: LowRankMethod::Unbiased } => {
                    plan.unbiased_vectors.push((position, count));
                }
                Resolved::Vector { .. } => plan.dense.push((None, (position, count))),
            }
            let momentum = policy.post_momentum_factor().map(|factor| PostMomentum::new(factor, count));
            let momentum = momentum.transpose().map_err(|bytes| lacking(named(&name), bytes))?;
            let is_excluded = policy == Policy::excluded();
            tensors.push(Tensor { name, count, momentum, choice: None, is_excluded });
        }
        let settings = (self.bucket_bytes, self.keeps_going, self.seed);
        plan.choose(&self.group, settings, &mut tensors, &mut course)?;
        let others = plan.gathered_buckets(self.bucket_bytes, self.seed, &self.group)?;
        let buckets = plan.buckets(self.bucket_bytes, &tensors, &self.group, others)?;
        let number = self.number.unwrap_or_else(|| self.group.number_object());
        let mut parts = Parts::new(tensors, buckets, number, (self.over_participants, self.keeps_going));
        parts.course = course;
        parts.follow_course();
        parts.built = sharing::built(&parts, self.seed);
        Ok(GradientExchange { group: self.group, parts, running: None })
    }
}

/// The tensors of each kind.
#[derive(Default)]
struct Plan {
    /// Tensors that a way is to be chosen for.
    auto: Vec<Candidate>,
    dense: Vec<(Option<Values>, (usize, usize))>,
    votes: Vec<((), (usize, usize, f32))>,
    /// With dense steps.
    low_rank: Vec<(u64, (usize, LowRank))>,
    /// Tensors of low-rank policies that do not shrink.
    vectors: Vec<Vector>,
    unbiased: Vec<((), (usize, UnbiasedLowRank))>,
    unbiased_vectors: Vec<Vector>,
    /// With a method for matrices.
    gathered: Vec<(Option<LowRankMethod>, (usize, Encoding))>,
    sparse: Vec<(Way, Member)>,
}

impl Plan {
    /// Adds a sparse tensor.
    fn add_sparse(
        &mut self,
        policy: &SparsePolicy,
        density: Density,
        (tensor, count): (usize, usize),
        course: &mut Course,
        seed: u64,
    ) {
        course.own[tensor] = Some(density);
        course.dense_steps = course.dense_steps.max(policy.dense_steps);
        let [k, own_k] = [course.most(density), density].map(|of| policy.method.selected(of, count));
        // Each draws its own random numbers.
        let seed = seed.wrapping_add(tensor as u64);
        let member = Member { tensor, count, k, own_k, momentum: policy.momentum, seed };
        self.sparse.push((Way::of(policy, tensor), member));
    }

    /// Adds a matrix of rows, columns and a rank.
    fn add_matrix(
        &mut self,
        (tensor, dense_steps): (usize, u64),
        method: LowRankMethod,
        [rows, cols, rank]: [usize; 3],
        seed: u64,
    ) -> std::result::Result<(), Compress> {
        let shape = Shape::new(rows, cols, rank);
        match method {
            LowRankMethod::PowerSgd => {
                self.low_rank.push((dense_steps, (tensor, LowRank::new(rows, cols, rank, seed)?)));
            }
            LowRankMethod::Unbiased => {
                self.unbiased.push(((), (tensor, UnbiasedLowRank::new(rows, cols, rank, seed)?)));
            }
            LowRankMethod::Best => self.gathered.push((Some(method), (tensor, Encoding::Best(shape)))),
            LowRankMethod::Atomo => self.gathered.push((Some(method), (tensor, Encoding::Atomo(shape)))),
        }
        Ok(())
    }

    /// Puts the tensors into buckets of so many bytes of gradients, beside those that there are. They are
    /// sorted by when they become complete, if gradients are ready from the last tensor on.
    fn buckets(
        mut self,
        bytes: Option<usize>,
        tensors: &[Tensor],
        group: &Group,
        mut buckets: Vec<Bucket>,
    ) -> Result<Vec<Bucket>> {
        let world_size = group.world_size();
        let most = |default: usize| bytes.unwrap_or(default) / size_of::<f32>();
        buckets.extend(self.low_rank_buckets(most, tensors, world_size)?);
        buckets.extend(self.unbiased_buckets(most, tensors, world_size)?);
        self.dense.sort_by_key(|(_, (tensor, _))| *tensor);
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
        self.sparse.sort_by_key(|(_, member)| member.tensor);
        let count = |member: &Member| member.count;
        // One threshold for the model: one bucket.
        let (whole, others): (Vec<_>, Vec<_>) =
            self.sparse.into_iter().partition(|(way, _)| way.scope == Scope::Model);
        let others = in_buckets(others, count, most(BUCKET_BYTES).min(MOST_INDICES));
        for (way, members) in others.into_iter().chain(in_buckets(whole, count, MOST_INDICES)) {
            let of = || words("sparse", members.iter().map(|member| member.tensor), tensors);
            let bucket = if way.hierarchical {
                HierarchicalBucket::new(way, &members, group)
                    .map(|bucket| Bucket::Hierarchical(Box::new(bucket)))
            } else {
                SparseBucket::new(way, &members, group).map(|bucket| Bucket::Sparse(Box::new(bucket)))
            };
            buckets.push(bucket.map_err(|bytes| lacking(of(), bytes))?);
        }
        buckets.sort_by_key(|bucket| Reverse(bucket.tensors().first().copied()));
        Ok(buckets)
    }

    /// Buckets of matrices, and of the vectors that travel with them. The others become dense tensors.
    fn low_rank_buckets(
        &mut self,
        most: impl Fn(usize) -> usize,
        tensors: &[Tensor],
        world_size: u32,
    ) -> Result<Vec<Bucket>> {
        let (matrices, vectors) = (take(&mut self.low_rank), take(&mut self.vectors));
        let elements = |state: &LowRank| state.rows() * state.cols();
        let (members, left) =
            with_matrices(matrices, elements, vectors, most(BUCKET_BYTES), most(DENSE_BUCKET_BYTES));
        self.dense.extend(left.into_iter().map(|vector| (None, vector)));
        let (has_several, mut buckets) = (members.len() > 1, Vec::new());
        for (number, (dense_steps, (matrices, vectors))) in members.into_iter().enumerate() {
            let mut bucket = LowRankBucket::default();
            bucket.set_dense_steps(dense_steps);
            for (tensor, state) in matrices {
                bucket.add(tensor, state).map_err(|error| refused(&tensors[tensor].name, error))?;
            }
            vectors.into_iter().for_each(|(tensor, count)| bucket.add_vector(tensor, count));
            if has_several {
                bucket.name(number);
            }
            let allocated = bucket.allocate(world_size);
            allocated.map_err(|bytes| lacking("factors of low rank".into(), bytes))?;
            buckets.push(Bucket::LowRank(Box::new(bucket)));
        }
        Ok(buckets)
    }

    /// Buckets of unbiased matrices and of their vectors.
    fn unbiased_buckets(
        &mut self,
        most: impl Fn(usize) -> usize,
        tensors: &[Tensor],
        world_size: u32,
    ) -> Result<Vec<Bucket>> {
        let (matrices, vectors) = (take(&mut self.unbiased), take(&mut self.unbiased_vectors));
        let elements = |state: &UnbiasedLowRank| state.dimensions()[0] * state.dimensions()[1];
        let (members, left) =
            with_matrices(matrices, elements, vectors, most(BUCKET_BYTES), most(DENSE_BUCKET_BYTES));
        self.dense.extend(left.into_iter().map(|vector| (None, vector)));
        let mut buckets = Vec::new();
        for ((), (matrices, vectors)) in members {
            let mut bucket = UnbiasedBucket::default();
            for (tensor, state) in matrices {
                let Tensor { name, count, .. } = &tensors[tensor];
                bucket.add(tensor, state, *count).map_err(|bytes| lacking(named(name), bytes))?;
            }
            vectors.into_iter().for_each(|(tensor, count)| bucket.add_vector(tensor, count));
            let allocated = bucket.allocate(world_size);
            allocated.map_err(|bytes| lacking("factors of low rank".into(), bytes))?;
            buckets.push(Bucket::Unbiased(bucket));
        }
        Ok(buckets)
    }

    /// Buckets of tensors whose messages are gathered.
    fn gathered_buckets(&mut self, bytes: Option<usize>, seed: u64, group: &Group) -> Result<Vec<Bucket>> {
        let most = bytes.unwrap_or(DENSE_BUCKET_BYTES) / size_of::<f32>();
        let mut buckets = Vec::new();
        for (_, members) in in_buckets(take(&mut self.gathered), |(_, encoding)| encoding.count(), most) {
            let mut bucket = GatheredBucket::new(seed, group.rank());
            let what = format!("{} tensors whose messages are gathered", members.len());
            let mut add = |(tensor, encoding)| bucket.add(tensor, encoding);
            let added = members.into_iter().try_for_each(&mut add);
            let allocated = added.and_then(|()| bucket.allocate(group.world_size()));
            allocated.map_err(|bytes| lacking(what, bytes))?;
            buckets.push(Bucket::Gathered(bucket));
        }
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
