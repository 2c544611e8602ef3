//! The exchange without its group: what it consists of, and a step of which all gradients are there.

use std::time::Instant;

use brevity_collectives::dense::barrier;
use brevity_collectives::sparse::Wire;
use brevity_collectives::{Call, Description, Error as Collective, Group, Operation};
use brevity_compress::{in_standard_float_mode, state};

use super::bucket::Bucket;
use super::course::Course;
use super::gradient::GradientMut;
use super::participants::Shares;
use super::report::{Phase, Watched, tell};
use super::{Ending, PostMomentum, Tensor, named};
use crate::error::Result;

/// The exchange without its group.
pub(super) struct Parts {
    pub(super) tensors: Vec<Tensor>,
    pub(super) buckets: Vec<Bucket>,
    /// Its number among the objects of the group.
    pub(super) number: u32,
    /// Whether averages are over the ranks that have gradients in a step.
    pub(super) over_participants: bool,
    /// Whether a step ends with a barrier, so that ranks that are left of a loss agree on it.
    pub(super) keeps_going: bool,
    /// The last step, if this rank has its results and does not know whether others have delivered it.
    pub(super) undecided: Option<Shares>,
    /// The steps that were delivered since the exchange was built, or has rejoined a group. It is counted on
    /// when the exchange goes on: ranks may learn of a step in one group, and others only in the next.
    pub(super) delivered: u64,
    pub(super) course: Course,
    /// What the exchange was built with, in words.
    pub(super) built: Vec<String>,
    /// What all ranks must have built alike.
    pub(super) description: Description,
    /// The same of a bucket that travels by itself.
    pub(super) of_buckets: Vec<Description>,
    /// How many buckets there are, also while they are in a step.
    pub(super) count: usize,
    /// How the entries of each tensor are written, also in a step.
    pub(super) wires: Vec<Option<Wire>>,
    /// The bytes of the state that is saved, also in a step.
    pub(super) saved_bytes: usize,
    /// The same of what a step does beside its buckets.
    pub(super) of_head: Description,
    /// The same of the barrier at its end.
    pub(super) of_confirming: Description,
}

impl Parts {
    pub(super) fn new(
        tensors: Vec<Tensor>,
        buckets: Vec<Bucket>,
        number: u32,
        (over_participants, keeps_going): (bool, bool),
    ) -> Self {
        let (description, count) = (Description::of_plan(Operation::EXCHANGE, &[]), buckets.len());
        let mut parts = Self {
            tensors,
            buckets,
            number,
            over_participants,
            keeps_going,
            undecided: None,
            delivered: 0,
            course: Course::default(),
            built: Vec::new(),
            description,
            of_buckets: Vec::new(),
            count,
            wires: Vec::new(),
            saved_bytes: 0,
            of_head: description,
            of_confirming: description,
        };
        parts.describe_anew();
        parts
    }

    /// Averages gradients whose lengths were checked.
    pub(super) fn average(
        &mut self,
        group: &Group,
        has_gradient: bool,
        slices: &mut [GradientMut<'_>],
    ) -> Result<()> {
        note_plan(group, &self.description, &self.tensors, &self.buckets);
        let description = self.description;
        group.run_in_order(description, async |call| all_at_once(call, self, has_gradient, slices).await)
    }

    /// Describes what must be the same on all ranks: the tensors in their order and what the buckets do, in
    /// sequence, and which of the group's exchanges it is. Every message carries a digest of it, so ranks
    /// that use different exchanges find out in the first step.
    ///
    /// Must be called whenever a bucket's own description, or the exchange's number, has changed. Notes also
    /// what callers may ask while the buckets are in a step.
    pub(super) fn describe_anew(&mut self) {
        let wire = |tensor: usize| self.buckets.iter().find_map(|bucket| bucket.wire(tensor));
        self.wires = (0..self.tensors.len()).map(wire).collect();
        self.saved_bytes = state::saved_bytes(&*self);
        let mut plan = Vec::new();
        for text in texts(&self.tensors, &self.buckets) {
            plan.extend_from_slice(&(text.len() as u64).to_le_bytes());
            plan.extend_from_slice(text.as_bytes());
        }
        for bucket in &self.buckets {
            let description = bucket.describe();
            plan.extend_from_slice(&description.encode().0);
            plan.extend_from_slice(&description.detail.to_le_bytes());
            bucket
                .tensors()
                .iter()
                .for_each(|&tensor| plan.extend_from_slice(&(tensor as u64).to_le_bytes()));
        }
        let mut of = |bucket: u64| {
            let length = plan.len();
            plan.extend_from_slice(&bucket.to_le_bytes());
            let description = Description::of_plan(Operation::EXCHANGE, &plan);
            plan.truncate(length);
            let flags = u64::from(self.keeps_going) << 1 | u64::from(self.over_participants);
            description.with_detail(u64::from(self.number) << 2 | flags)
        };
        self.of_buckets = (0..self.buckets.len() as u64).map(&mut of).collect();
        (self.description, self.of_head) = (of(u64::MAX), of(u64::MAX - 1));
        self.of_confirming = of(u64::MAX - 2);
    }
}

/// Lets ranks whose tensors differ be told which.
pub(super) fn note_plan(group: &Group, description: &Description, tensors: &[Tensor], buckets: &[Bucket]) {
    group.note_plan(description, texts(tensors, buckets));
}

/// Each tensor in words: name, length, and how it travels, with all settings.
pub(super) fn texts(tensors: &[Tensor], buckets: &[Bucket]) -> impl Iterator<Item = String> {
    texts_by(tensors, buckets, |bucket, _, position| bucket.travels(position), PostMomentum::travels)
}

/// What each tensor keeps from step to step, in words.
pub(super) fn kept_texts(tensors: &[Tensor], buckets: &[Bucket]) -> impl Iterator<Item = String> {
    // What is kept of a tensor whose way was chosen fits all choices.
    let keeps = |bucket: &Bucket, tensor: &Tensor, position| {
        if tensor.fits_every_choice() { Some("auto".to_owned()) } else { bucket.keeps(position) }
    };
    texts_by(tensors, buckets, keeps, |momentum| momentum.keeps().to_owned())
}

/// Each tensor in words, with what `of` says of the bucket that holds it, and `and` of its momentum.
fn texts_by(
    tensors: &[Tensor],
    buckets: &[Bucket],
    of: fn(&Bucket, &Tensor, usize) -> Option<String>,
    and: fn(&PostMomentum) -> String,
) -> impl Iterator<Item = String> {
    tensors.iter().enumerate().map(move |(position, tensor)| {
        let excluded = tensor.is_excluded.then(|| "excluded".to_owned());
        let words = excluded.or_else(|| buckets.iter().find_map(|bucket| of(bucket, tensor, position)));
        let words = words.unwrap_or_default();
        let momentum = tensor.momentum.as_ref().map(and).unwrap_or_default();
        format!("tensor {:?} of {} elements, {words}{momentum}", tensor.name, tensor.count)
    })
}

/// One step on one rank, of which all gradients are there.
pub(super) async fn all_at_once(
    call: &Call<'_, '_>,
    parts: &mut Parts,
    has_gradient: bool,
    gradients: &mut [GradientMut<'_>],
) -> Result<()> {
    let Parts { tensors, buckets, over_participants, .. } = &mut *parts;
    let mut watched = watched(buckets, tensors, call.rank());
    let bad = in_standard_float_mode(|| {
        let all = buckets.iter_mut().enumerate().filter_map(|(place, bucket)| {
            let tensors = bucket.tensors().into_iter();
            let mut add = |tensor: usize| {
                let add = || bucket.accumulate(tensor, gradients[tensor].read());
                Watched::during_if(watched.get_mut(place), Phase::Select, Some(tensor), add)
            };
            tensors.filter(|&tensor| !add(tensor)).min()
        });
        all.min()
    });
    if let Some(tensor) = bad {
        call.set_poison(tensor as u32);
    }
    let counts = over_participants.then_some(has_gradient);
    let outcome = all_buckets(call, buckets, bad.is_some(), counts, &mut watched).await;
    let ending = Ending::of(&outcome);
    let shares = *outcome.as_ref().unwrap_or(&Shares::all(call.world_size()));
    if parts.keeps_going && !matches!(ending, Ending::Failed) {
        // All ranks know of a value that is not finite: that needs no decision.
        let confirmed = barrier(call).await;
        if let (Ending::Done, Err(error)) = (ending, confirmed) {
            parts.undecided = Some(shares);
            return Err(named(error, &parts.tensors));
        }
    }
    parts.finish(ending, gradients, shares, &mut watched);
    watched.into_iter().for_each(|bucket| tell(&bucket.end(), &parts.tensors));
    outcome.map(drop).map_err(|error| named(error, &parts.tensors))
}

/// The watches of all buckets, if `debug` spans are enabled; otherwise none.
fn watched(buckets: &[Bucket], tensors: &[Tensor], rank: u32) -> Vec<Watched> {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return Vec::new();
    }
    let (begun, span) = (Instant::now(), tracing::debug_span!("step", rank));
    buckets.iter().map(|bucket| Watched::new(bucket.tensors(), tensors, &span, begun)).collect()
}

/// The collectives of all buckets, one after the other. With `counts`, returns over how many the average is.
pub(super) async fn all_buckets(
    call: &Call<'_, '_>,
    buckets: &mut [Bucket],
    poisoned: bool,
    counts: Option<bool>,
    watched: &mut [Watched],
) -> Result<Shares, Collective> {
    let shares = match counts {
        Some(has_gradient) => Shares::counted(call, has_gradient).await?,
        None => Shares::all(call.world_size()),
    };
    if buckets.is_empty() && counts.is_none() {
        // So that ranks that have some find out.
        barrier(call).await?;
    }
    for (place, bucket) in buckets.iter_mut().enumerate() {
        let watch = watched.get_mut(place).map(|watched| (watched.leaves(call), watched));
        // After a collective every rank knows of the value that is not finite, so all ranks stop here
        // together.
        let outcome = bucket.exchange(call, poisoned).await;
        if let Some((left, watched)) = watch {
            watched.arrives(&left.arrives(call));
        }
        outcome?;
    }
    Ok(shares)
}
