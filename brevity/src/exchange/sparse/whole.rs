//! The tensors of a bucket looked at as a whole: one threshold for all of them, and steps in which everything
//! travels.

use brevity_collectives::dense::all_reduce;
use brevity_collectives::{Call, Chunk, Error, ReduceOp, Result};
use brevity_compress::SparseVec;

use super::super::course::after_dense_steps;
use super::super::room::{self, Lacking};
use super::super::select::{Rule, Scratch, Selector};
use super::Member;
use super::part::{Part, take};
use crate::policy::Scope;

/// What a bucket has of all its tensors.
pub(super) struct Whole {
    /// Selects from all tensors at once, if they have one threshold.
    pub(super) selector: Option<Selector>,
    /// The steps in which everything travels: so many, from the first on.
    dense_steps: u64,
    /// Whether the next step is one of these.
    pub(super) is_dense: bool,
    /// What is kept of all tensors, or the sums of these over all ranks.
    vector: Vec<f32>,
}

impl Whole {
    /// For a bucket of these members, of which `rule` selects.
    pub(super) fn new(
        (scope, dense_steps): (Scope, u64),
        rule: Rule,
        may_exceed: bool,
        members: &[Member],
    ) -> std::result::Result<Self, Lacking> {
        let k = members.iter().map(|member| member.k).sum();
        let seed = members.first().map_or(0, |member| member.seed);
        let is_common = scope != Scope::Tensor;
        let selector = is_common.then(|| Selector::new(rule, may_exceed, k, seed));
        let count = members.iter().map(|member| member.count).sum();
        let vector = if is_common || dense_steps > 0 { room::with_room(count)? } else { Vec::new() };
        Ok(Self { selector, dense_steps, is_dense: false, vector })
    }

    /// The exchange has made so many steps. Returns whether that begins or ends dense steps.
    pub(super) fn follow(&mut self, steps: u64) -> bool {
        let is_dense = steps < self.dense_steps;
        if !is_dense && self.selector.is_none() {
            self.vector = Vec::new();
        }
        std::mem::replace(&mut self.is_dense, is_dense) != is_dense
    }

    /// Whether each tensor selects by itself, as soon as its gradient is there.
    pub(super) fn leaves_selecting(&self) -> bool {
        !self.is_dense && self.selector.is_none()
    }

    /// How tensors travel, in words around others.
    pub(super) fn travels(&self, scope: Scope, words: String) -> String {
        let words = match scope {
            Scope::Tensor => words,
            scope => format!("{words}, one threshold of the {scope}"),
        };
        after_dense_steps(words, self.is_dense, self.dense_steps)
    }

    /// Takes the selected entries out of all tensors. Returns whether that was possible.
    pub(super) fn select(
        &mut self,
        parts: &mut [Part],
        selected: &mut SparseVec,
        scratch: &mut Scratch,
    ) -> bool {
        gather(parts, &mut self.vector);
        let Some(selector) = &mut self.selector else { return true };
        if selector.select(&self.vector, selected, scratch).is_err() {
            return false;
        }
        parts.iter_mut().all(|part| {
            take(selected.view(), &part.range, &mut part.selected);
            part.kept.take(&part.selected).is_ok()
        })
    }

    /// The step in which entries were selected has succeeded.
    pub(super) fn commit(&mut self, parts: &mut [Part]) {
        if let Some(selector) = &mut self.selector {
            selector.commit();
        }
        self.tell(parts);
    }

    /// Selects as many as the parts do, from the next step on.
    pub(super) fn follow_parts(&mut self, parts: &mut [Part]) {
        if let Some(selector) = &mut self.selector {
            selector.set_k(parts.iter().map(|part| part.kept.selector().k()).sum());
        }
        self.tell(parts);
    }

    /// Begins anew among other ranks.
    pub(super) fn restart(&mut self) {
        if let Some(selector) = &mut self.selector {
            selector.restart();
        }
    }

    /// Lets all parts remember what the whole does: that is what they save.
    fn tell(&self, parts: &mut [Part]) {
        if let Some(selector) = &self.selector {
            parts.iter_mut().for_each(|part| part.kept.selector_mut().remember(selector));
        }
    }

    /// Goes on from what the parts have loaded. Parts of several buckets begin anew.
    pub(super) fn load(&mut self, parts: &[Part]) {
        let Some((first, others)) = parts.split_first() else { return };
        let Some(selector) = &mut self.selector else { return };
        let first = first.kept.selector();
        if others.iter().all(|part| part.kept.selector().remembers(first)) {
            selector.remember(first);
        } else {
            selector.restart();
        }
    }

    /// Sums what is kept of all tensors over all ranks.
    pub(super) async fn all_reduce(
        &mut self,
        call: &Call<'_, '_>,
        poisoned: bool,
        parts: &[Part],
    ) -> Result<()> {
        let mut own = std::mem::take(&mut self.vector);
        gather(parts, &mut own);
        if poisoned {
            own.fill(0.0);
        }
        self.vector = all_reduce(call, Chunk::from(own), ReduceOp::Sum).await?.into_vec();
        // All ranks have the same bits and so the same outcome.
        let is_finite = |part: &&Part| self.sums(part).iter().all(|sum| sum.is_finite());
        match parts.iter().find(|part| !is_finite(part)) {
            Some(part) => Err(Error::Overflow { tensor: part.tensor as u32 }),
            None => Ok(()),
        }
    }

    /// The sums of a tensor, after [`all_reduce`](Self::all_reduce).
    pub(super) fn sums(&self, part: &Part) -> &[f32] {
        &self.vector[part.range.clone()]
    }
}

/// Copies what is kept of all parts.
fn gather(parts: &[Part], vector: &mut Vec<f32>) {
    vector.clear();
    parts.iter().for_each(|part| vector.extend_from_slice(part.kept.values()));
}
