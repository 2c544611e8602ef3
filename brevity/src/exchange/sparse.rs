//! Sparse tensors: only the largest entries travel. Those that travel the same way share a bucket, which is
//! one vector, with one tree of messages.

use std::ops::Range;

use brevity_collectives::sparse::{
    self, Coder, PutBack, TensorEnd, Tensors, Wire, gtopk_all_reduce_with_feedback, topk_all_reduce,
};
use brevity_collectives::{Call, Description, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::merge::split_by;
use brevity_compress::quantise::Values;
use brevity_compress::select::TopKScratch;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Error as Compress, SparseVec, SparseView};

use super::gradient::GradientMut;
use super::kept::{Fed, Kept};
use super::participants::Shares;
use super::room::Lacking;
use super::{Ending, room};
use crate::policy::{Momentum, SparseMethod};

/// What tensors of one bucket have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) method: SparseMethod,
    pub(super) values: Values,
    /// The tensor, if it travels alone: where several values share a scale, it must be of one tensor.
    alone: Option<usize>,
}

impl Way {
    pub(super) fn new(method: SparseMethod, values: Values, tensor: usize) -> Self {
        let has_scales = !matches!(values, Values::F32 | Values::F16 | Values::Bf16);
        Self { method, values, alone: has_scales.then_some(tensor) }
    }
}

/// A tensor for a bucket.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) tensor: usize,
    pub(super) count: usize,
    /// The most entries that a rank selects of it.
    pub(super) k: usize,
    pub(super) momentum: Momentum,
}

/// Sparse tensors that travel together, as one vector of their elements.
pub(super) struct SparseBucket {
    method: SparseMethod,
    parts: Vec<Part>,
    /// Where each of them ends in the vector.
    ends: Vec<TensorEnd>,
    /// The entries of all tensors together that a rank selects, and that gTop-k delivers.
    k: usize,
    /// The entries taken out of the residuals in this step, tensor after tensor.
    selected: SparseVec,
    /// The undivided sum over all ranks, once the collective has succeeded.
    sum: SparseVec,
    /// The entries that the collective returns to the residuals.
    put_back: SparseVec,
    coder: Coder,
    scratch: TopKScratch,
}

/// One tensor of a bucket.
struct Part {
    tensor: usize,
    range: Range<usize>,
    k: usize,
    momentum: Momentum,
    kept: Kept,
    /// What was taken out of the residual in this step.
    selected: SparseVec,
    /// Whether this step's gradient is in what is kept. False if it was refused.
    added: bool,
}

impl SparseBucket {
    pub(super) fn new(way: Way, members: &[Member], world_size: u32) -> std::result::Result<Self, Lacking> {
        let wire = if way.values.is_exact() { Wire::Pairs } else { Wire::Coded(way.values) };
        let (mut parts, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
        for member in members {
            let range = end..end + member.count;
            end = range.end;
            ends.push(TensorEnd { end, tensor: member.tensor as u32 });
            parts.push(Part::new(member, range, world_size)?);
        }
        let k = members.iter().map(|member| member.k).sum();
        let bucket = Self {
            method: way.method,
            parts,
            ends,
            k,
            selected: SparseVec::new(end),
            sum: SparseVec::new(end),
            put_back: SparseVec::new(end),
            coder: Coder::new(wire),
            scratch: TopKScratch::new(),
        };
        room::check(bucket.working_bytes(k, world_size))?;
        Ok(bucket)
    }

    /// The number of elements of all tensors.
    fn count(&self) -> usize {
        self.ends.last().map_or(0, |tensor| tensor.end)
    }

    fn part(&self, tensor: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.tensor == tensor)
    }

    /// Goes on among another number of ranks.
    pub(super) fn rejoin(&mut self, world_size: u32) {
        self.parts.iter_mut().for_each(|part| part.kept.rejoin(part.momentum, world_size));
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.tensor)
    }

    /// Checks that there is memory to select `k` entries of a tensor.
    pub(super) fn check_room(
        &self,
        tensor: usize,
        k: usize,
        world_size: u32,
    ) -> std::result::Result<(), Lacking> {
        let all = self.k + k - self.part(tensor).map_or(0, |part| part.k);
        if all > self.k { room::check(self.working_bytes(all, world_size)) } else { Ok(()) }
    }

    /// Changes how many entries of a tensor are selected, from the next step on. Returns whether they are
    /// others.
    pub(super) fn set_entries(&mut self, tensor: usize, k: usize) -> bool {
        let Some(part) = self.parts.iter_mut().find(|part| part.tensor == tensor) else { return false };
        let before = std::mem::replace(&mut part.k, k);
        self.k = self.k - before + k;
        before != k
    }

    /// Adds the gradient of a tensor of the bucket and selects. Returns whether all sums are finite.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Self { parts, scratch, .. } = self;
        let part = parts.iter_mut().find(|part| part.tensor == tensor);
        part.is_none_or(|part| part.accumulate(gradient, scratch))
    }

    pub(super) fn describe(&self) -> Description {
        let (n, k, wire) = (self.count(), self.k, self.coder.wire());
        match self.method {
            SparseMethod::Union => sparse::describe_topk(n, k, wire),
            SparseMethod::Global(rule) => sparse::describe_gtopk(n, k, rule, wire),
        }
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        self.selected.clear();
        for part in self.parts.iter().filter(|_| !poisoned) {
            let start = part.range.start as u32;
            part.selected.iter().for_each(|(index, value)| self.selected.push(start + index, value));
        }
        let (local, k, tensors) = (self.selected.view(), self.k, Tensors::from(&self.ends[..]));
        let (coder, parts) = (&mut self.coder, &self.parts);
        match self.method {
            SparseMethod::Union => {
                let outcome = topk_all_reduce(call, local, k, coder, tensors).await?;
                (self.sum, self.put_back) = (outcome.sum, outcome.kept);
            }
            SparseMethod::Global(rule) => {
                let check = |kept: SparseView<'_>| check_put_back(parts, kept);
                let outcome = gtopk_all_reduce_with_feedback(call, local, k, rule, coder, tensors, check);
                let outcome = outcome.await?;
                (self.sum, self.put_back) = (outcome.result, outcome.put_back);
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let (mut own, mut result) = (SparseVec::new(0), SparseVec::new(0));
        let all_delivered =
            matches!(self.method, SparseMethod::Union | SparseMethod::Global(PutBack::MergerKeeps));
        for part in &mut self.parts {
            match ending {
                Ending::Done => {
                    take(self.put_back.view(), &part.range, &mut own);
                    take(self.sum.view(), &part.range, &mut result);
                    part.settle(&own, Some(&result).filter(|_| !all_delivered));
                    let averages = result.iter().map(|(index, sum)| (index, shares.average(sum)));
                    gradients[part.tensor].write_entries(averages);
                }
                Ending::Failed => part.restore(),
                Ending::Poisoned => {
                    part.restore();
                    if part.added {
                        part.withdraw(gradients[part.tensor].read());
                    }
                }
            }
            part.selected.clear();
            part.added = false;
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let Part { k, momentum, .. } = self.part(tensor)?;
        let values = match self.coder.wire() {
            Wire::Pairs => String::new(),
            Wire::Coded(values) => format!(", {values} values"),
        };
        Some(match self.method {
            SparseMethod::Union => format!("top {k} entries{values}{momentum}"),
            SparseMethod::Global(rule) => format!("gtop {k} entries, {rule:?}{values}{momentum}"),
        })
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        Some(format!("sparse{}", self.part(tensor)?.momentum.kept()))
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.part(tensor).is_some()
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(part) = self.part(tensor) {
            part.kept.write_state(contents);
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        let part = self.parts.iter_mut().find(|part| part.tensor == tensor);
        part.map_or(Ok(()), |part| part.kept.read_state(contents))
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(part) = self.part(tensor) {
            out.copy_from_slice(part.kept.values());
        }
    }

    /// The least bytes of memory that a full step with `k` entries needs beside the residuals: the vectors of
    /// entries that the collective holds at the same time, and the space for selecting.
    fn working_bytes(&self, k: usize, world_size: u32) -> usize {
        let (ranks, n, wire) = (world_size as usize, self.count(), self.coder.wire());
        let (vectors, messages) = match (self.method, wire) {
            (SparseMethod::Union, _) => (3 + ranks, ranks),
            (SparseMethod::Global(_), Wire::Pairs) => (6, 0),
            (SparseMethod::Global(_), Wire::Coded(_)) => (8, 1),
        };
        let messages = wire.most_bytes(n, k).saturating_mul(messages);
        let selecting = 24_usize.saturating_mul(k).min(8 * n);
        (8 * vectors).saturating_mul(k).saturating_add(messages).saturating_add(selecting)
    }
}

impl Part {
    fn new(member: &Member, range: Range<usize>, world_size: u32) -> std::result::Result<Self, Lacking> {
        let &Member { tensor, k, momentum, .. } = member;
        let kept = Kept::new(range.len(), momentum, world_size).map_err(|error| room::lacking(&error))?;
        let selected = SparseVec::new(range.len());
        Ok(Self { tensor, range, k, momentum, kept, selected, added: false })
    }

    /// Adds a gradient and selects. Returns whether all sums are finite.
    fn accumulate(&mut self, gradient: Gradient<'_>, scratch: &mut TopKScratch) -> bool {
        let fed = self.kept.feed(gradient, self.k, &mut self.selected, scratch);
        self.added = fed != Fed::Refused;
        fed == Fed::Whole
    }

    /// Takes back what the collective returns. What is not in the `result` was not delivered; without one,
    /// all was, and this is what rounding and merging have taken away. All sums are finite: what is kept is
    /// zero, or smaller, where entries were selected, and a call succeeds only if there is room for what its
    /// merges dropped.
    fn settle(&mut self, returned: &SparseVec, result: Option<&SparseVec>) {
        let settled = match result {
            None => self.kept.keep_error(returned),
            Some(result) => {
                let (mut errors, mut others) = (SparseVec::new(0), SparseVec::new(0));
                split_by(returned.view(), result.indices(), &mut errors, &mut others);
                self.kept.put_back(&others).and_then(|()| self.kept.keep_error(&errors))
            }
        };
        debug_assert!(settled.is_ok(), "{settled:?}");
    }

    /// Takes back all that was selected.
    fn restore(&mut self) {
        let restored = self.kept.put_back(&self.selected);
        debug_assert!(restored.is_ok(), "{restored:?}");
    }

    /// Takes this step's gradient out of what is kept again. Its length was checked when it was added.
    fn withdraw(&mut self, gradient: Gradient<'_>) {
        let withdrawn = self.kept.withdraw(gradient);
        debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
    }
}

/// The entries of a bucket's vector that are in `range`, with indices from its start.
fn take(entries: SparseView<'_>, range: &Range<usize>, out: &mut SparseVec) {
    out.reset(range.len());
    for (index, value) in entries.within(range.clone()).iter() {
        out.push(index - range.start as u32, value);
    }
}

/// Whether the residuals of all tensors can take these entries. The index of an error is the bucket's.
fn check_put_back(parts: &[Part], entries: SparseView<'_>) -> std::result::Result<(), Compress> {
    let mut own = SparseVec::new(0);
    parts.iter().try_for_each(|part| {
        take(entries, &part.range, &mut own);
        part.kept.check_put_back(own.view()).map_err(|error| match error {
            Compress::NonFinite { index, value } => {
                Compress::NonFinite { index: part.range.start + index, value }
            }
            error => error,
        })
    })
}
