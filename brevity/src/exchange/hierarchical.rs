//! Sparse tensors by hosts: the ranks of a host sum what they have, densely, and its leader selects entries
//! of the sum, which leaders sum sparsely.
//!
//! Each rank keeps its own gradients until a step has succeeded. After that, what was not delivered of a
//! host's is its leader's, so that it is sent once; other ranks keep nothing.

use std::mem;
use std::ops::Range;

use brevity_collectives::sparse::{
    Coder, HierarchicalSum, LeaderSum, TensorEnd, Wire, describe_hierarchical, hierarchical_all_reduce,
};
use brevity_collectives::{Call, Description, Group, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::select::{TopKScratch, top_k};
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Density, Error as Compress, SparseVec};

use super::gradient::GradientMut;
use super::participants::Shares;
use super::pending::Pending;
use super::room::Lacking;
use super::sparse::{Member, Way};
use super::taking::Taking;
use super::{Ending, room};
use crate::policy::SparseMethod;

/// Sparse tensors that travel together by hosts, as one vector of their elements.
pub(super) struct HierarchicalBucket {
    way: Way,
    by: LeaderSum,
    parts: Vec<Part>,
    /// Where each of them ends in the vector.
    ends: Vec<TensorEnd>,
    /// The entries that a leader selects by the densities of the policies.
    own_k: usize,
    world_size: u32,
    coder: Coder,
    scratch: TopKScratch,
    /// What the collective has delivered and left, once it has succeeded.
    arrived: Option<HierarchicalSum>,
}

/// One tensor of a bucket.
struct Part {
    tensor: usize,
    range: Range<usize>,
    /// The entries that a leader selects of it.
    k: usize,
    pending: Pending,
}

impl HierarchicalBucket {
    pub(super) fn new(way: Way, members: &[Member], group: &Group) -> std::result::Result<Self, Lacking> {
        let (mut parts, mut ends, mut end) = (Vec::new(), Vec::new(), 0);
        for &Member { tensor, count, k, .. } in members {
            let range = end..end + count;
            end = range.end;
            ends.push(TensorEnd { end, tensor: tensor as u32 });
            parts.push(Part { tensor, range, k, pending: Pending::new(count)? });
        }
        let by = match way.method {
            SparseMethod::Global(rule) => LeaderSum::Gtopk(rule),
            _ => LeaderSum::Topk,
        };
        let (own_k, world_size) = (members.iter().map(|member| member.own_k).sum(), group.world_size());
        let (coder, scratch) = (Coder::new(way.wire_in(group, end, own_k)), TopKScratch::new());
        let bucket = Self { way, by, parts, ends, own_k, world_size, coder, scratch, arrived: None };
        room::check(bucket.working_bytes(bucket.k()))?;
        Ok(bucket)
    }

    /// The elements of all tensors.
    fn count(&self) -> usize {
        self.parts.last().map_or(0, |part| part.range.end)
    }

    /// The entries of all tensors that a leader selects.
    fn k(&self) -> usize {
        self.parts.iter().map(|part| part.k).sum()
    }

    fn part(&self, tensor: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.tensor == tensor)
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        self.part(tensor).is_some()
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.tensor)
    }

    /// Goes on in another group.
    pub(super) fn rejoin(&mut self, group: &Group) {
        self.world_size = group.world_size();
        self.coder = Coder::new(self.way.wire_in(group, self.count(), self.own_k));
    }

    /// How entries travel between hosts.
    pub(super) fn wire(&self) -> Wire {
        self.coder.wire()
    }

    /// Checks that there is memory for this density of a tensor.
    pub(super) fn check_room(&self, tensor: usize, density: Density) -> std::result::Result<(), Lacking> {
        let Some(part) = self.part(tensor) else { return Ok(()) };
        let k = density.entries(part.range.len());
        if k > part.k { room::check(self.working_bytes(self.k() - part.k + k)) } else { Ok(()) }
    }

    /// Changes a tensor's density, from the next step on. Returns whether another number is selected.
    pub(super) fn set_density(&mut self, tensor: usize, density: Density) -> bool {
        let Some(part) = self.parts.iter_mut().find(|part| part.tensor == tensor) else { return false };
        let k = density.entries(part.range.len());
        mem::replace(&mut part.k, k) != k
    }

    /// Adds the gradient of a tensor of the bucket. Returns whether all sums are finite; if not, nothing is
    /// added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let part = self.parts.iter_mut().find(|part| part.tensor == tensor);
        part.is_none_or(|part| part.pending.add(gradient))
    }

    pub(super) fn describe(&self) -> Description {
        describe_hierarchical(self.count(), self.k(), self.by, self.coder.wire())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        let (count, k) = (self.count(), self.k());
        let mut vector = Vec::with_capacity(count);
        self.parts.iter().filter(|_| !poisoned).for_each(|part| {
            vector.extend_from_slice(part.pending.values());
        });
        vector.resize(count, 0.0);
        let Self { by, parts, ends, coder, scratch, .. } = self;
        let select = |sums: &[f32]| largest(parts, sums, scratch);
        let sum = hierarchical_all_reduce(call, vector, (k, *by), select, coder, &ends[..]).await?;
        self.arrived = Some(sum);
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let arrived = self.arrived.take();
        for part in &mut self.parts {
            match (ending, &arrived) {
                (Ending::Done, Some(HierarchicalSum { result, left })) => {
                    let range = part.range.clone();
                    match left {
                        Some(left) => part.pending.leave(|values| values.copy_from_slice(&left[range])),
                        None => part.pending.clear(),
                    }
                    let start = part.range.start as u32;
                    let entries = result.view().within(part.range.clone());
                    let averages = entries.iter().map(|(index, sum)| (index - start, shares.average(sum)));
                    gradients[part.tensor].write_entries(averages);
                }
                (Ending::Done | Ending::Failed, _) => part.pending.keep(),
                (Ending::Poisoned, _) => part.pending.withdraw(gradients[part.tensor].read()),
            }
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let k = self.part(tensor)?.k;
        let values = self.way.words();
        Some(match self.by {
            LeaderSum::Topk => format!("top {k} entries by hosts{values}"),
            LeaderSum::Gtopk(rule) => format!("gtop {k} entries by hosts, {rule:?}{values}"),
        })
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        self.part(tensor).map(|_| "sparse by hosts".into())
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(part) = self.part(tensor) {
            contents.f32s(part.pending.values());
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        let part = self.parts.iter_mut().find(|part| part.tensor == tensor);
        part.map_or(Ok(()), |part| part.pending.load(|values| contents.f32s(values)))
    }

    /// Adds what another rank has saved of a tensor.
    pub(super) fn take(&mut self, tensor: usize, from: &mut Taking<'_>) -> std::result::Result<(), Compress> {
        let part = self.parts.iter_mut().find(|part| part.tensor == tensor);
        part.map_or(Ok(()), |part| part.pending.take(from))
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(part) = self.part(tensor) {
            out.copy_from_slice(part.pending.values());
        }
    }

    /// The least bytes of memory that a full step needs beside the residuals, with `k` entries: this rank's
    /// vector and its host's, and the vectors of entries that a leader holds at the same time.
    fn working_bytes(&self, k: usize) -> usize {
        let vectors = match self.by {
            LeaderSum::Topk => 3 + self.world_size as usize,
            LeaderSum::Gtopk(_) => 8,
        };
        (8 * vectors).saturating_mul(k).saturating_add(8_usize.saturating_mul(self.count()))
    }
}

/// The entries that a leader selects of the sums of its host: of each tensor its own number.
fn largest(
    parts: &[Part],
    sums: &[f32],
    scratch: &mut TopKScratch,
) -> std::result::Result<SparseVec, Compress> {
    let (mut all, mut own) = (SparseVec::new(sums.len()), SparseVec::new(0));
    for part in parts {
        top_k(&sums[part.range.clone()], part.k, &mut own, scratch)?;
        let start = part.range.start as u32;
        own.iter().for_each(|(index, value)| all.push(start + index, value));
    }
    Ok(all)
}
