//! Sparse tensors: only the largest entries travel.

use brevity_collectives::{Call, Description, Result, sparse};
use brevity_compress::feedback::Residual;
use brevity_compress::select::TopKScratch;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Density, SparseVec, in_standard_float_mode};

use super::Ending;
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
    scratch: TopKScratch,
}

impl SparseLane {
    pub(super) fn new(tensor: usize, count: usize, k: usize, method: SparseMethod) -> Self {
        Self {
            tensor,
            k,
            method,
            residual: Residual::new(count),
            selected: SparseVec::new(count),
            added: false,
            sum: SparseVec::new(count),
            put_back: SparseVec::new(count),
            scratch: TopKScratch::new(),
        }
    }

    /// Takes effect in the next step.
    pub(super) fn set_density(&mut self, density: Density) {
        self.k = density.entries(self.residual.len());
    }

    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        let gradient: &[f32] = gradients[self.tensor];
        let fed = self.residual.feed_top_k(gradient, self.k, &mut self.selected, &mut self.scratch);
        self.added = fed.is_ok();
        let finite = matches!(fed, Ok(None));
        (!finite).then_some(self.tensor as u32)
    }

    pub(super) fn describe(&self) -> Description {
        match self.method {
            SparseMethod::Union => sparse::describe_topk(self.residual.len(), self.k),
            SparseMethod::Global(rule) => sparse::describe_gtopk(self.residual.len(), self.k, rule),
        }
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        if poisoned {
            in_standard_float_mode(|| self.restore(Restore::Selected));
        }
        let local = self.selected.view();
        match self.method {
            SparseMethod::Union => {
                self.sum = sparse::topk_all_reduce(call, local, self.k, self.tensor as u32).await?;
                self.put_back.clear();
            }
            SparseMethod::Global(rule) => {
                let outcome = sparse::gtopk_all_reduce(call, local, self.k, rule, self.tensor as u32).await?;
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
                self.sum.scale(1.0 / world_size as f32);
                self.sum.add_to(gradient);
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

    /// Returns entries to the residual that they were selected from; their indices are in range for that
    /// reason.
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

    pub(super) fn residual(&self, tensor: usize) -> Option<Vec<f32>> {
        self.holds(tensor).then(|| self.residual.values().to_vec())
    }
}

enum Restore {
    PutBack,
    Selected,
}
