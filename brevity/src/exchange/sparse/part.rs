//! One tensor of a bucket.

use std::ops::Range;

use brevity_compress::feedback::Gradient;
use brevity_compress::merge::split_by;
use brevity_compress::{Error, SparseVec, SparseView};

use super::super::kept::{Fed, Kept};
use super::super::room::{self, Lacking};
use super::super::select::{Scratch, Selector};
use super::Member;
use crate::policy::Momentum;

/// One tensor of a bucket.
pub(super) struct Part {
    pub(super) tensor: usize,
    pub(super) range: Range<usize>,
    pub(super) momentum: Momentum,
    pub(super) kept: Kept,
    /// What was taken out of the residual in this step.
    pub(super) selected: SparseVec,
    /// Whether this step's gradient is in what is kept. False if it was refused.
    pub(super) added: bool,
}

impl Part {
    pub(super) fn new(
        member: &Member,
        range: Range<usize>,
        selector: Selector,
        world_size: u32,
    ) -> Result<Self, Lacking> {
        let &Member { tensor, momentum, .. } = member;
        let kept = Kept::new(range.len(), momentum, selector, world_size);
        let kept = kept.map_err(|error| room::lacking(&error))?;
        let selected = SparseVec::new(range.len());
        Ok(Self { tensor, range, momentum, kept, selected, added: false })
    }

    /// Adds a gradient and selects. Returns whether all sums are finite.
    pub(super) fn accumulate(&mut self, gradient: Gradient<'_>, scratch: &mut Scratch) -> bool {
        let fed = self.kept.feed(gradient, &mut self.selected, scratch);
        self.added = fed != Fed::Refused;
        fed == Fed::Whole
    }

    /// Adds a gradient, without selecting. Returns whether all sums are finite; if not, nothing is added.
    pub(super) fn add(&mut self, gradient: Gradient<'_>) -> bool {
        self.added = self.kept.accumulate(gradient);
        self.selected.reset(self.range.len());
        self.added
    }

    /// Takes back what the collective returns. What is not in the `result` was not delivered; without one,
    /// all was, and this is what rounding and merging have taken away. All sums are finite: what is kept is
    /// zero, or smaller, where entries were selected, and a call succeeds only if there is room for what its
    /// merges dropped.
    pub(super) fn settle(&mut self, returned: &SparseVec, result: Option<&SparseVec>) {
        let settled = match result {
            None => self.kept.keep_error(returned),
            Some(result) => {
                let (mut errors, mut others) = (SparseVec::new(0), SparseVec::new(0));
                split_by(returned.view(), result.indices(), &mut errors, &mut others);
                self.kept.put_back(&others).and_then(|()| self.kept.keep_error(&errors))
            }
        };
        debug_assert!(settled.is_ok(), "{settled:?}");
        self.kept.selector_mut().commit();
    }

    /// Takes back all that was selected.
    pub(super) fn restore(&mut self) {
        let restored = self.kept.put_back(&self.selected);
        debug_assert!(restored.is_ok(), "{restored:?}");
    }

    /// Takes this step's gradient out of what is kept again. Its length was checked when it was added.
    pub(super) fn withdraw(&mut self, gradient: Gradient<'_>) {
        let withdrawn = self.kept.withdraw(gradient);
        debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
    }
}

/// The entries of a bucket's vector that are in `range`, with indices from its start.
pub(super) fn take(entries: SparseView<'_>, range: &Range<usize>, out: &mut SparseVec) {
    out.reset(range.len());
    for (index, value) in entries.within(range.clone()).iter() {
        out.push(index - range.start as u32, value);
    }
}

/// Whether the residuals of all tensors can take these entries. The index of an error is the bucket's.
pub(super) fn check_put_back(parts: &[Part], entries: SparseView<'_>) -> Result<(), Error> {
    let mut own = SparseVec::new(0);
    parts.iter().try_for_each(|part| {
        take(entries, &part.range, &mut own);
        part.kept.check_put_back(own.view()).map_err(|error| match error {
            Error::NonFinite { index, value } => Error::NonFinite { index: part.range.start + index, value },
            error => error,
        })
    })
}
