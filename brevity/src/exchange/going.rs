//! Going on after a loss: all ranks that are left have delivered the last step, or none has.
//!
//! A step of an exchange that keeps going ends with a barrier. A rank that passes it knows that all others
//! have the results; so one that fails in it has them too, and only waits for the decision: it delivers the
//! step if any rank that is left has passed, and puts it back otherwise. A rank that fails before has kept
//! all others from passing.
//!
//! The ranks compare the number of steps that each has delivered in all groups so far. So if one more is lost
//! while they do, and only some have learned the result, the others learn it in the next group.

use std::time::Duration;

use brevity_collectives::dense::barrier;
use brevity_collectives::engine::Handle;
use brevity_collectives::{Error as Collective, Group, ReduceOp, Reserved};
use brevity_compress::in_standard_float_mode;

use super::gradient::{GradientElement, GradientMut, all_of};
use super::participants::Shares;
use super::parts::Parts;
use super::report::{Phase, Watched};
use super::{Ending, GradientExchange, post_momentum};
use crate::error::{Error, Result};

/// The barrier at the end of a step that is handed in tensor by tensor.
pub(super) enum Confirming {
    /// The exchange does without.
    Unneeded,
    Reserved(Reserved),
    Away(Handle<((), Result<(), Collective>)>),
    Ended(Result<(), Collective>),
}

impl Confirming {
    /// Takes the number of the barrier.
    pub(super) fn reserve(group: &Group, parts: &Parts) -> Self {
        if parts.keeps_going {
            Self::Reserved(group.reserve(parts.of_confirming, false))
        } else {
            Self::Unneeded
        }
    }

    /// Starts it, once this rank has all results.
    pub(super) fn start(&mut self) {
        *self = match std::mem::replace(self, Self::Unneeded) {
            Self::Reserved(reserved) => {
                Self::Away(reserved.start((), |call, ()| Box::pin(async move { barrier(call).await })))
            }
            other => other,
        };
    }

    /// Whether others may have passed it, or will.
    pub(super) fn has_started(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Ended(_))
    }

    /// Waits for its end, in any runtime.
    pub(super) async fn end(&mut self) {
        if let Self::Away(handle) = self {
            *self = Self::Ended(handle.await.1);
        }
    }

    /// Whether all ranks have the results. Blocks.
    pub(super) fn wait(self) -> Result<(), Collective> {
        match self {
            Self::Away(handle) => handle.wait().1,
            Self::Ended(ended) => ended,
            // Another error comes first then.
            Self::Unneeded | Self::Reserved(_) => Ok(()),
        }
    }
}

impl GradientExchange {
    /// Goes on in `group`, which has the ranks that are [left](Group::shrink) of the exchange's own. All of
    /// them call this, on an exchange that [keeps going](crate::ExchangeBuilder::keep_going). Afterwards they
    /// have all delivered the last step, or none has.
    ///
    /// Returns true on a rank whose last step has failed, although others have delivered it: `averages` are
    /// those of that step then, for the model. Otherwise they are unchanged, and a step that has failed is in
    /// the residuals: don't hand it in again. Low-rank tensors keep their warm start; thresholds and draws
    /// begin anew, on all ranks.
    ///
    /// An exchange that was just built has delivered no step, and can't go on beside others that have: it
    /// gets its state by [`share_state`](Self::share_state).
    ///
    /// Costs an all-reduce of 8 bytes.
    ///
    /// # Errors
    /// [`Error::Order`] for an exchange that does not keep going, in the middle of a step, for one that was
    /// not in the steps of the others, and where the others contradict its own number; [`Error::Shape`].
    /// Those of the all-reduce, for instance if another rank is lost: nothing has changed, and this can be
    /// called again with the next group.
    pub fn go_on<E: GradientElement, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        averages: &mut [G],
    ) -> Result<bool> {
        self.go_on_within(group, averages, group.timeout())
    }

    /// Like [`go_on`](Self::go_on), with another timeout than that of the group.
    ///
    /// # Errors
    /// As for [`go_on`](Self::go_on).
    pub fn go_on_within<E: GradientElement, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        averages: &mut [G],
        timeout: Duration,
    ) -> Result<bool> {
        let mut slices = all_of(averages);
        self.check_going(&slices)?;
        let mut steps = [self.parts.delivered];
        group.with_timeout(timeout).all_reduce(&mut steps, ReduceOp::Max)?;
        self.go_on_after(steps[0], group, &mut slices)
    }

    /// Like [`go_on`](Self::go_on), without blocking. If the future is dropped, nothing has changed, and the
    /// other ranks may have gone on.
    ///
    /// # Errors
    /// As for [`go_on`](Self::go_on).
    pub async fn go_on_async<E: GradientElement, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        averages: &mut [G],
    ) -> Result<bool> {
        let mut slices = all_of(averages);
        self.check_going(&slices)?;
        let (steps, reduced) = group.start_all_reduce(vec![self.parts.delivered], ReduceOp::Max).await;
        reduced?;
        self.go_on_after(steps[0], group, &mut slices)
    }

    fn check_going(&self, averages: &[GradientMut<'_>]) -> Result<()> {
        self.check_shapes(averages)?;
        self.check_whole()?;
        if self.parts.keeps_going {
            return Ok(());
        }
        Err(Error::Order {
            what: "going on with an exchange that does not know how its last step has ended elsewhere",
            remedy: "build it with keep_going, or call rejoin",
        })
    }

    /// Goes on where some rank has delivered so many steps.
    fn go_on_after(&mut self, steps: u64, group: &Group, averages: &mut [GradientMut<'_>]) -> Result<bool> {
        let Parts { delivered, undecided, .. } = &self.parts;
        // The largest of the ranks' numbers, of which this rank's own is one.
        let Some(missed) = steps.checked_sub(*delivered) else {
            return Err(Error::Order {
                what: "going on with ranks whose largest number of steps is below this rank's own",
                remedy: "one of them is faulty: make a group without it",
            });
        };
        let is_delivered = missed > 0;
        // One that waits for the decision is at most one step behind, and others none.
        if missed > u64::from(undecided.is_some()) {
            return Err(Error::Order {
                what: "an exchange that has missed steps of other ranks",
                remedy: "take the model and the state of one of them: call share_state on all ranks",
            });
        }
        self.parts.decide(is_delivered, averages);
        self.move_to(group);
        Ok(is_delivered)
    }
}

impl Parts {
    /// Ends a step that waits for a decision. Returns whether there was one.
    pub(super) fn decide(&mut self, is_delivered: bool, gradients: &mut [GradientMut<'_>]) -> bool {
        let Some(shares) = self.undecided.take() else { return false };
        self.finish(if is_delivered { Ending::Done } else { Ending::Failed }, gradients, shares, &mut []);
        true
    }

    /// Ends a step in all buckets, which are watched if `debug` spans are enabled.
    pub(super) fn finish(
        &mut self,
        ending: Ending,
        gradients: &mut [GradientMut<'_>],
        shares: Shares,
        watched: &mut [Watched],
    ) {
        in_standard_float_mode(|| {
            for (place, bucket) in self.buckets.iter_mut().enumerate() {
                let apply = || bucket.finish(ending, gradients, shares);
                Watched::during_if(watched.get_mut(place), Phase::Apply, None, apply);
            }
        });
        if matches!(ending, Ending::Done) {
            self.deliver(gradients);
        }
    }

    /// Counts a step whose averages are there, and applies momenta to them.
    pub(super) fn deliver(&mut self, averages: &mut [GradientMut<'_>]) {
        post_momentum::apply(&mut self.tensors, averages);
        self.delivered = self.delivered.saturating_add(1);
        self.count_step();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn a_number_below_its_own_is_an_error_and_changes_nothing() {
        let group = Group::solo();
        let builder = GradientExchange::builder(&group).tensor("weight", [2], Policy::dense());
        let mut exchange = builder.keep_going().build().unwrap();
        let mut gradients = [vec![1.0_f32; 2]];
        exchange.average(&mut gradients).unwrap();
        for (steps, expected) in [(0, "below this rank's own"), (2, "has missed steps")] {
            let error = exchange.go_on_after(steps, &group, &mut all_of(&mut gradients)).unwrap_err();
            assert!(matches!(error, Error::Order { .. }) && error.to_string().contains(expected), "{error}");
        }
        assert!(!exchange.go_on_after(1, &group, &mut all_of(&mut gradients)).unwrap());
        exchange.average(&mut gradients).unwrap();
    }
}
