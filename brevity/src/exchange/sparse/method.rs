//! The collective of a bucket.

use std::mem;

use brevity_collectives::dense::all_reduce;
use brevity_collectives::sparse::{
    self, Coder, Draw, OkTopk, PutBack, RandomPlaces, TensorEnd, Tensors, Wire, block_all_reduce,
    gtopk_all_reduce_with_feedback, ok_topk_all_reduce_with_feedback, topk_all_reduce_with_feedback,
};
use brevity_collectives::{Call, Chunk, Description, Error, ReduceOp, Result};
use brevity_compress::select::BLOCK_PLACES;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{SparseVec, SparseView};

use super::super::room::{self, Lacking};
use super::super::select::{Rule, read_threshold};
use super::part::{Part, check_put_back};
use super::{Limits, Member};
use crate::policy::{SparseMethod, Threshold};

/// The collective of a bucket, and what it keeps from step to step.
pub(super) enum Method {
    Union,
    Global(PutBack),
    OkTopk(Box<States>),
    Random(Draw),
    Blocks(Blocks),
}

/// The states of Ok-Topk before a step, and after it.
pub(super) struct States {
    before: OkTopk,
    after: OkTopk,
    /// What a load has found: all tensors of a bucket have saved the same.
    loaded: (u64, f32),
}

/// A vector in blocks, each of which is of one tensor.
pub(super) struct Blocks {
    vector: Vec<f32>,
    /// Where each tensor ends: at the end of a block.
    ends: Vec<TensorEnd>,
}

/// What a collective delivers, and what it returns to this rank.
pub(super) struct Delivered {
    /// The undivided sum over all ranks.
    pub(super) sum: SparseVec,
    pub(super) put_back: SparseVec,
}

impl Method {
    pub(super) fn new(
        method: SparseMethod,
        members: &[Member],
        limits: Limits,
        world_size: u32,
    ) -> std::result::Result<Self, Lacking> {
        Ok(match method {
            SparseMethod::Union => Self::Union,
            SparseMethod::Global(rule) => Self::Global(rule),
            SparseMethod::OkTopk => Self::OkTopk(Box::new(States::new(limits, world_size))),
            SparseMethod::Random(draw) => Self::Random(draw),
            SparseMethod::Blocks => Self::Blocks(Blocks::new(members)?),
        })
    }

    /// How entries are selected for it.
    pub(super) const fn rule(method: SparseMethod, threshold: Threshold) -> Rule {
        match (method, threshold) {
            (SparseMethod::Random(draw), _) => Rule::Random(draw),
            (SparseMethod::Blocks, _) => Rule::Blocks,
            (_, Threshold::Exact) => Rule::Exact,
            (_, Threshold::Sampled) => Rule::Sampled,
            (_, Threshold::Adaptive) => Rule::Adaptive,
            (_, Threshold::Fixed(tau)) => Rule::Fixed(tau),
        }
    }

    /// Begins anew, perhaps with other limits or among another number of ranks.
    pub(super) fn restart(&mut self, limits: Limits, world_size: u32) {
        if let Self::OkTopk(states) = self {
            **states = States::new(limits, world_size);
        }
    }

    /// Whether it may go over the slots of the host.
    pub(super) fn uses_slots(&self) -> bool {
        matches!(self, Self::Random(_))
    }

    /// Whether what a rank gives is all delivered, but for rounding and, if mergers keep them, entries that
    /// they drop.
    pub(super) fn delivers_all(&self) -> bool {
        !matches!(self, Self::Global(PutBack::Conserving | PutBack::Published) | Self::OkTopk(_))
    }

    pub(super) fn describe(&self, limits: Limits, wire: Wire, parts: &[Part]) -> Description {
        let Limits { count, k, most } = limits;
        match self {
            Self::Union => sparse::describe_topk(count, most, wire),
            Self::Global(rule) => sparse::describe_gtopk(count, k, *rule, wire),
            Self::OkTopk(states) => sparse::describe_ok_topk(&states.after, wire),
            Self::Random(draw) => {
                let places = RandomPlaces { draw: *draw, k: most, seed: 0, step: 0 };
                let steps = parts.iter().map(|part| part.kept.selector().places());
                steps.fold(sparse::describe_random_k(count, &places), |description, (seed, step)| {
                    description.with_detail(seed).with_detail(step)
                })
            }
            Self::Blocks(blocks) => sparse::describe_blocks(blocks.vector.len(), BLOCK_PLACES),
        }
    }

    /// Sums the entries of all ranks.
    pub(super) async fn run(
        &mut self,
        call: &Call<'_, '_>,
        local: SparseView<'_>,
        limits: Limits,
        coder: &mut Coder,
        (parts, ends): (&[Part], &[TensorEnd]),
    ) -> Result<Delivered> {
        let tensors = Tensors::from(ends);
        let check = |kept: SparseView<'_>| check_put_back(parts, kept);
        match self {
            Self::Union => {
                let outcome = topk_all_reduce_with_feedback(call, local, limits.most, coder, tensors, check);
                let outcome = outcome.await?;
                Ok(Delivered { sum: outcome.sum, put_back: outcome.kept })
            }
            Self::Global(rule) => {
                let (k, rule) = (limits.k, *rule);
                let outcome = gtopk_all_reduce_with_feedback(call, local, k, rule, coder, tensors, check);
                let outcome = outcome.await?;
                Ok(Delivered { sum: outcome.result, put_back: outcome.put_back })
            }
            Self::OkTopk(states) => {
                let state = &mut states.after;
                let outcome = ok_topk_all_reduce_with_feedback(call, local, state, coder, tensors, check);
                let outcome = outcome.await?;
                Ok(Delivered { sum: outcome.result, put_back: outcome.put_back })
            }
            Self::Random(_) => Ok(Delivered {
                sum: values_all_reduce(call, local, limits.most, parts).await?,
                put_back: SparseVec::new(local.dim()),
            }),
            Self::Blocks(blocks) => Ok(Delivered {
                sum: blocks.all_reduce(call, local, parts).await?,
                put_back: SparseVec::new(local.dim()),
            }),
        }
    }

    /// The step has ended. What it has changed counts if it is `done`.
    pub(super) fn end(&mut self, done: bool) {
        if let Self::OkTopk(states) = self {
            let States { before, after, .. } = &mut **states;
            let (from, to) = if done { (after, before) } else { (before, after) };
            to.clone_from(from);
        }
    }

    pub(super) const fn kept(&self) -> &'static str {
        if let Self::OkTopk(_) = self { ", Ok-Topk" } else { "" }
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        if let Self::OkTopk(states) = self {
            contents.u64(states.after.step());
            contents.u64(states.after.threshold().to_bits().into());
        }
    }

    /// Reads what a tensor of the bucket has saved. Tensors of several buckets begin anew.
    pub(super) fn read_state(
        &mut self,
        is_first: bool,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        if let Self::OkTopk(states) = self {
            let found = (contents.u64()?, read_threshold(contents)?);
            if is_first {
                states.loaded = found;
            } else if states.loaded != found {
                states.loaded = (0, 0.0);
            }
            let (step, threshold) = states.loaded;
            states.after.resume(step, threshold);
            states.before.clone_from(&states.after);
        }
        Ok(())
    }

    /// Reads what a tensor of the bucket has saved on another rank, and keeps nothing of it.
    pub(super) fn pass_over(
        &self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        if let Self::OkTopk(_) = self {
            contents.u64()?;
            read_threshold(contents)?;
        }
        Ok(())
    }

    /// How many vectors of at most as many entries as a rank selects a step holds at the same time, how many
    /// messages of them, and other bytes.
    pub(super) fn working(&self, wire: Wire, world_size: u32) -> (usize, usize, usize) {
        let ranks = world_size as usize;
        match (self, wire) {
            (Self::Union, _) => (3 + ranks, ranks, 0),
            (Self::Global(_), Wire::Pairs) => (6, 0, 0),
            (Self::Global(_), Wire::Coded(_)) => (8, 1, 0),
            // Those going out and coming in, and parts of the sum.
            (Self::OkTopk(_), _) => (8 + ranks, ranks, 0),
            (Self::Random(_), _) => (4, 0, 0),
            // Blocks out, and room for those of all others.
            (Self::Blocks(blocks), _) => (3 + ranks, 0, 4 * blocks.vector.len()),
        }
    }
}

impl States {
    fn new(limits: Limits, world_size: u32) -> Self {
        let before = OkTopk::new(limits.count, limits.k, world_size);
        Self { after: before.clone(), before, loaded: (0, 0.0) }
    }
}

/// Sums values at places that all ranks have drawn alike; a poisoned rank has none, which count as zeros.
async fn values_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    places: usize,
    parts: &[Part],
) -> Result<SparseVec> {
    let mut values = local.values().to_vec();
    values.resize(places, 0.0);
    let sums = all_reduce(call, Chunk::from(values), ReduceOp::Sum).await?.into_vec();
    // All ranks have the same bits and so take the same branch.
    if let Some(place) = sums.iter().position(|sum| !sum.is_finite()) {
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.kept.selector().k();
            Some((*end, part.tensor as u32))
        });
        let tensor = ends.into_iter().find(|(end, _)| place < *end).map_or(0, |(_, tensor)| tensor);
        return Err(Error::Overflow { tensor });
    }
    if local.len() < places {
        return Ok(SparseVec::new(local.dim()));
    }
    Ok(SparseVec::from_parts(local.dim(), local.indices().to_vec(), sums)?)
}

impl Blocks {
    fn new(members: &[Member]) -> std::result::Result<Self, Lacking> {
        let (mut ends, mut end) = (Vec::new(), 0);
        for member in members {
            end += member.count.next_multiple_of(BLOCK_PLACES);
            ends.push(TensorEnd { end, tensor: member.tensor as u32 });
        }
        Ok(Self { vector: room::zeros(end)?, ends })
    }

    async fn all_reduce(
        &mut self,
        call: &Call<'_, '_>,
        local: SparseView<'_>,
        parts: &[Part],
    ) -> Result<SparseVec> {
        let mut vector = mem::take(&mut self.vector);
        vector.fill(0.0);
        for (start, part) in self.starts().zip(parts) {
            for (index, value) in local.within(part.range.clone()).iter() {
                vector[start + index as usize - part.range.start] = value;
            }
        }
        let reduced = block_all_reduce(call, &mut vector, BLOCK_PLACES, Tensors::from(&self.ends[..])).await;
        self.vector = vector;
        reduced?;
        let mut sum = SparseVec::new(local.dim());
        for (start, part) in self.starts().zip(parts) {
            let sums = &self.vector[start..start + part.range.len()];
            for (index, value) in (part.range.start..).zip(sums).filter(|(_, value)| **value != 0.0) {
                sum.push(index as u32, *value);
            }
        }
        Ok(sum)
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        std::iter::once(0).chain(self.ends.iter().map(|tensor| tensor.end))
    }
}
