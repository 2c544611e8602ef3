//! Sparse tensors: only the largest entries travel.

use brevity_collectives::sparse::{self, Coder, Wire, gtopk_all_reduce_with_feedback};
use brevity_collectives::{Call, Description, Result};
use brevity_compress::feedback::Residual;
use brevity_compress::quantise::Values;
use brevity_compress::select::TopKScratch;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Density, SparseVec, in_standard_float_mode};

use super::room::Lacking;
use super::{Ending, room};
use crate::policy::SparseMethod;

/// One sparse tensor.
pub(super) struct SparseLane {
    tensor: usize,
    k: usize,
    method: SparseMethod,
    residual: Residual,
    /// The entries taken out of the residual in this step.
    selected: SparseVec,
    /// Whether this step's gradient is in the residual. False if a sum would not have been finite.
    added: bool,
    /// The undivided sum over all ranks, once the collective has succeeded.
    sum: SparseVec,
    /// The entries that the collective returns to the residual.
    put_back: SparseVec,
    coder: Coder,
    scratch: TopKScratch,
}

impl SparseLane {
    pub(super) fn new(
        tensor: usize,
        count: usize,
        k: usize,
        (method, values): (SparseMethod, Values),
        world_size: u32,
    ) -> std::result::Result<Self, Lacking> {
        let wire = if values.is_exact() { Wire::Pairs } else { Wire::Coded(values) };
        let lane = Self {
            tensor,
            k,
            method,
            residual: Residual::try_new(count).map_err(|error| room::lacking(&error))?,
            selected: SparseVec::new(count),
            added: false,
            sum: SparseVec::new(count),
            put_back: SparseVec::new(count),
            coder: Coder::new(wire),
            scratch: TopKScratch::new(),
        };
        room::check(working_bytes((method, wire), count, k, world_size))?;
        Ok(lane)
    }

    /// Takes effect in the next step.
    pub(super) fn set_density(
        &mut self,
        density: Density,
        world_size: u32,
    ) -> std::result::Result<(), Lacking> {
        let k = density.entries(self.residual.len());
        if k > self.k {
            let method = (self.method, self.coder.wire());
            room::check(working_bytes(method, self.residual.len(), k, world_size))?;
        }
        self.k = k;
        Ok(())
    }

    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        let gradient: &[f32] = gradients[self.tensor];
        let fed = self.residual.feed_top_k(gradient, self.k, &mut self.selected, &mut self.scratch);
        self.added = fed.is_ok();
        let finite = matches!(fed, Ok(None));
        (!finite).then_some(self.tensor as u32)
    }

    pub(super) fn describe(&self) -> Description {
        let (n, k, wire) = (self.residual.len(), self.k, self.coder.wire());
        match self.method {
            SparseMethod::Union => sparse::describe_topk(n, k, wire),
            SparseMethod::Global(rule) => sparse::describe_gtopk(n, k, rule, wire),
        }
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        if poisoned {
            in_standard_float_mode(|| self.restore(Restore::Selected));
        }
        let (local, k, tensor) = (self.selected.view(), self.k, self.tensor as u32);
        let (coder, residual) = (&mut self.coder, &self.residual);
        match self.method {
            SparseMethod::Union => {
                let outcome = sparse::topk_all_reduce(call, local, k, coder, tensor).await?;
                (self.sum, self.put_back) = (outcome.sum, outcome.kept);
            }
            SparseMethod::Global(rule) => {
                let outcome =
                    gtopk_all_reduce_with_feedback(call, local, residual, k, rule, coder, tensor).await?;
                (self.sum, self.put_back) = (outcome.result, outcome.put_back);
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [&mut [f32]], world_size: u32) {
        let gradient = &mut *gradients[self.tensor];
        match ending {
            Ending::Done => {
                self.restore(Restore::PutBack);
                gradient.fill(0.0);
                for (index, sum) in self.sum.iter() {
                    // Divided like a dense average, so that both have the same bits.
                    gradient[index as usize] = sum / world_size as f32;
                }
            }
            Ending::Failed => self.restore(Restore::Selected),
            Ending::Poisoned => {
                self.restore(Restore::Selected);
                if self.added {
                    self.withdraw(gradient);
                }
            }
        }
    }

    /// Returns entries to the residual. They have its length, and their sums are finite: the residual is zero
    /// where entries were selected, and a call succeeds only if there is room for what its merges dropped.
    fn restore(&mut self, what: Restore) {
        let entries = match what {
            Restore::PutBack => &self.put_back,
            Restore::Selected => &self.selected,
        };
        let restored = self.residual.put_back(entries.view());
        debug_assert!(restored.is_ok(), "{restored:?}");
        self.selected.clear();
    }

    /// Takes this step's gradient out of the residual again. Its length was checked when it was added.
    fn withdraw(&mut self, gradient: &[f32]) {
        let withdrawn = self.residual.withdraw(gradient);
        debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
    }

    /// How the tensor travels.
    pub(super) fn travels(&self) -> String {
        let values = match self.coder.wire() {
            Wire::Pairs => String::new(),
            Wire::Coded(values) => format!(", {values} values"),
        };
        match self.method {
            SparseMethod::Union => format!("top {} entries{values}", self.k),
            SparseMethod::Global(rule) => format!("gtop {} entries, {rule:?}{values}", self.k),
        }
    }

    pub(super) fn holds(&self, tensor: usize) -> bool {
        tensor == self.tensor
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        contents.part(&self.residual);
    }

    pub(super) fn read_state(
        &mut self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        contents.part(&mut self.residual)
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if self.holds(tensor) {
            out.copy_from_slice(self.residual.values());
        }
    }
}

/// The least bytes of memory that a full step needs beside the residual of `n` elements: the vectors of `k`
/// entries that the collective holds at the same time, and the space for selecting.
fn working_bytes((method, wire): (SparseMethod, Wire), n: usize, k: usize, world_size: u32) -> usize {
    let ranks = world_size as usize;
    let (vectors, messages) = match (method, wire) {
        (SparseMethod::Union, _) => (2 + ranks, ranks),
        (SparseMethod::Global(_), Wire::Pairs) => (5, 0),
        (SparseMethod::Global(_), Wire::Coded(_)) => (7, 1),
    };
    let messages = wire.most_bytes(n, k).saturating_mul(messages);
    let selecting = 24_usize.saturating_mul(k).min(8 * n);
    (8 * vectors).saturating_mul(k).saturating_add(messages).saturating_add(selecting)
}

enum Restore {
    PutBack,
    Selected,
}
