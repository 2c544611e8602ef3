//! What is kept of a sparse tensor from step to step.

use brevity_compress::feedback::{Gradient, Residual};
use brevity_compress::momentum::{Clip, MomentumCorrection, SparsificationAware};
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Error, SparseVec, SparseView};

use super::gradient::widened;
use super::select::{Rule, Scratch, Selecting, Selector};
use super::taking::Taking;
use crate::policy::Momentum;

/// What has not been sent of a tensor's gradients, and its momentum.
pub(super) enum Kept {
    Residual(Residual, Selector),
    Corrected(MomentumCorrection<Selecting>),
    Aware(SparsificationAware<Selecting>),
}

/// What has become of a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fed {
    /// It is in what is kept.
    Whole,
    /// It is, but for the sums that are not finite.
    InPart,
    /// It was refused: nothing has changed.
    Refused,
}

impl Kept {
    pub(super) fn new(
        n: usize,
        momentum: Momentum,
        selector: Selector,
        world_size: u32,
    ) -> Result<Self, Error> {
        Ok(match momentum {
            Momentum::None => Self::Residual(Residual::try_new(n)?, selector),
            Momentum::Corrected { factor, nesterov, clip } => {
                let mut corrected = MomentumCorrection::new(n, Selecting::new(selector), factor)?;
                if nesterov {
                    corrected = corrected.with_nesterov();
                }
                if let Some(limit) = clip {
                    corrected = corrected.with_clip(Clip::new(limit, world_size as usize)?);
                }
                Self::Corrected(corrected)
            }
            Momentum::Aware { factor } => {
                Self::Aware(SparsificationAware::new(n, Selecting::new(selector), factor)?)
            }
        })
    }

    pub(super) fn selector(&self) -> &Selector {
        match self {
            Self::Residual(_, selector) => selector,
            Self::Corrected(corrected) => corrected.compressor().selector(),
            Self::Aware(aware) => aware.compressor().selector(),
        }
    }

    pub(super) fn selector_mut(&mut self) -> &mut Selector {
        match self {
            Self::Residual(_, selector) => selector,
            Self::Corrected(corrected) => corrected.compressor_mut().selector_mut(),
            Self::Aware(aware) => aware.compressor_mut().selector_mut(),
        }
    }

    /// Goes on among another number of ranks.
    pub(super) fn rejoin(&mut self, momentum: Momentum, world_size: u32) {
        self.selector_mut().restart();
        if let (Self::Corrected(corrected), Momentum::Corrected { clip, .. }) = (self, momentum) {
            corrected.set_clip(clip.and_then(|limit| Clip::new(limit, world_size as usize).ok()));
        }
    }

    /// Adds a gradient and takes out the selected entries.
    pub(super) fn feed(&mut self, gradient: Gradient<'_>, out: &mut SparseVec, scratch: &mut Scratch) -> Fed {
        let fed = match self {
            Self::Residual(residual, selector) if selector.rule() == Rule::Exact => {
                match residual.feed_top_k(gradient, selector.k(), out, &mut scratch.top_k) {
                    Ok(None) => return Fed::Whole,
                    Ok(Some(_)) => return Fed::InPart,
                    Err(error) => Err(error),
                }
            }
            Self::Residual(residual, selector) => residual
                .accumulate(&widened(gradient))
                .and_then(|()| selector.select(residual.values(), out, scratch))
                .and_then(|()| residual.clear_at(out.indices())),
            Self::Corrected(corrected) => corrected.compress(gradient, out),
            Self::Aware(aware) => aware.compress(gradient, 1.0, out),
        };
        if fed.is_ok() {
            return Fed::Whole;
        }
        out.clear();
        Fed::Refused
    }

    /// Adds a gradient and takes nothing out. Returns whether all sums are finite; if not, nothing is added.
    pub(super) fn accumulate(&mut self, gradient: Gradient<'_>) -> bool {
        let added = match self {
            Self::Residual(residual, _) => residual.accumulate(&widened(gradient)),
            Self::Corrected(corrected) => corrected.accumulate(gradient),
            Self::Aware(aware) => aware.accumulate(&widened(gradient)),
        };
        added.is_ok()
    }

    /// Takes out entries that were selected of the values after that.
    pub(super) fn take(&mut self, entries: &SparseVec) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => residual.clear_at(entries.indices()),
            Self::Corrected(corrected) => corrected.take(entries),
            Self::Aware(aware) => aware.take(entries),
        }
    }

    /// All values were delivered. Velocities go on.
    pub(super) fn deliver(&mut self) {
        match self {
            Self::Residual(residual, _) => residual.clear(),
            Self::Corrected(corrected) => corrected.deliver(),
            Self::Aware(aware) => aware.deliver(),
        }
    }

    /// Takes back entries that were not delivered.
    pub(super) fn put_back(&mut self, entries: &SparseVec) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => residual.put_back(entries.view()),
            Self::Corrected(corrected) => corrected.put_back(entries.view()),
            Self::Aware(aware) => aware.put_back(entries),
        }
    }

    /// Keeps what rounding and merging have taken away from entries that were delivered.
    pub(super) fn keep_error(&mut self, entries: &SparseVec) -> Result<(), Error> {
        match self {
            Self::Corrected(corrected) => corrected.add_error(entries.view()),
            // It counts as not sent.
            _ => self.put_back(entries),
        }
    }

    /// Whether both of them would succeed.
    pub(super) fn check_put_back(&self, entries: SparseView<'_>) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => residual.check_put_back(entries),
            Self::Corrected(corrected) => corrected.check_put_back(entries),
            Self::Aware(aware) => aware.check_put_back(entries),
        }
    }

    /// Takes the last gradient out again, after what was taken out for it was put back.
    pub(super) fn withdraw(&mut self, gradient: Gradient<'_>) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => residual.withdraw(gradient),
            Self::Corrected(corrected) => corrected.withdraw(gradient),
            Self::Aware(aware) => aware.withdraw(gradient, 1.0),
        }
    }

    /// What has not been sent.
    pub(super) fn values(&self) -> &[f32] {
        match self {
            Self::Residual(residual, _) => residual.values(),
            Self::Corrected(corrected) => corrected.accumulated(),
            Self::Aware(aware) => aware.state(),
        }
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        match self {
            Self::Residual(residual, _) => contents.part(residual),
            Self::Corrected(corrected) => contents.part(corrected),
            Self::Aware(aware) => contents.part(aware),
        }
        self.selector().write_state(contents);
    }

    pub(super) fn read_state(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => contents.part(residual),
            Self::Corrected(corrected) => contents.part(corrected),
            Self::Aware(aware) => contents.part(aware),
        }?;
        self.selector_mut().read_state(contents)
    }

    /// Adds what another rank has saved, velocities too. Thresholds and draws stay.
    pub(super) fn take_over(&mut self, from: &mut Taking<'_>) -> Result<(), Error> {
        match self {
            Self::Residual(residual, _) => {
                if let Some(sums) = from.sum(residual.values())? {
                    residual.load(sums)?;
                }
            }
            Self::Corrected(corrected) => {
                let sums = from.sum_both([corrected.velocity(), corrected.accumulated()])?;
                if let Some([velocity, accumulated]) = sums {
                    corrected.load(velocity, accumulated)?;
                }
            }
            Self::Aware(aware) => {
                if let Some(sums) = from.sum(aware.state())? {
                    aware.load(sums)?;
                }
            }
        }
        self.selector().clone().read_state(from.contents())
    }
}
