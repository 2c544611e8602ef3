//! A step whose gradients become ready one after the other.

use std::time::Instant;

use brevity_collectives::Group;
use brevity_compress::feedback::Gradient;
use brevity_compress::in_standard_float_mode;
use tracing::debug_span;
use ucx_sys_wrap::Rank;

use super::bucket::Bucket;
use super::flight::{Flight, Running, State, outcome};
use super::going::Confirming;
use super::gradient::{GradientElement, GradientMut, all_of};
use super::participants::Shares;
use super::parts::{Parts, all_buckets, note_plan};
use super::report::{Phase, StepReport, Watched, tell};
use super::{Ending, GradientExchange, named};
use crate::error::{Error, Result};

/// A step that has begun: hand in each gradient when it is [ready](Self::ready), then
/// [finish](Self::finish). The tensors of a bucket leave as soon as the last of them is ready, so that they
/// travel while other gradients are computed.
///
/// A step that is dropped closes the group ([`Group::abort`]), because other ranks wait for it. The gradients
/// that were handed in stay in the residuals, unless all buckets have arrived: then others have delivered
/// them.
#[must_use = "a step that is not finished closes the group"]
pub struct Step<'a> {
    exchange: &'a mut GradientExchange,
}

impl GradientExchange {
    /// Begins a step whose gradients are handed in one by one, while others are computed. The results have
    /// the bits of [`average`](Self::average). All ranks make their steps the same way; in a step they may
    /// hand in tensors in any order.
    ///
    /// Until it is finished, make no other call on the group that may go over shared memory, as a barrier: it
    /// would wait for the step. Buckets travel while this rank is in a call on the group (also in
    /// [`ready`](Step::ready)), or by its [progress thread](brevity_collectives::Settings).
    ///
    /// ```
    /// use brevity::{GradientExchange, Group, Policy};
    ///
    /// let group = Group::solo();
    /// let mut exchange = GradientExchange::builder(&group)
    ///     .tensor("first", [3], Policy::dense())
    ///     .tensor("last", [2], Policy::dense())
    ///     .build()?;
    /// let mut gradients = [vec![1.0f32; 3], vec![2.0; 2]];
    /// let mut step = exchange.begin()?;
    /// for tensor in [1, 0] {
    ///     step.ready(tensor, &gradients[tensor])?; // computed just now, from the last layer on
    /// }
    /// step.finish(&mut gradients)?;
    /// # Ok::<(), brevity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Collective`] in a forked child; [`Error::Order`] if a step was [left](Step::leave).
    pub fn begin(&mut self) -> Result<Step<'_>> {
        self.begin_as(true)
    }

    /// Begins a step on a rank that has no gradient: as [`step_empty`](Self::step_empty) to
    /// [`average`](Self::average). Finish it with zeros.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub fn begin_empty(&mut self) -> Result<Step<'_>> {
        self.begin_as(false)
    }

    fn begin_as(&mut self, has_gradient: bool) -> Result<Step<'_>> {
        self.group.check_process()?;
        self.check_settled()?;
        let (begun, span) = (Instant::now(), debug_span!("step", rank = self.group.rank()));
        let Parts { tensors, buckets, of_buckets, of_head, over_participants, .. } = &mut self.parts;
        let mut places = vec![(None, false); tensors.len()];
        // Ranks that differ find out in the first call.
        if let Some(first) = of_buckets.first() {
            note_plan(&self.group, first, tensors, buckets);
        }
        let counts = over_participants.then_some(has_gradient);
        let head = (counts.is_some() || buckets.is_empty()).then(|| {
            note_plan(&self.group, of_head, tensors, buckets);
            self.group.start_in_order(*of_head, (), move |call, ()| {
                Box::pin(all_buckets(call, &mut [], false, counts, &mut []))
            })
        });
        let flights = std::mem::take(buckets).into_iter().zip(of_buckets).enumerate();
        let flights = flights.map(|(place, (bucket, description))| {
            let members = bucket.tensors();
            members.iter().for_each(|&tensor| places[tensor].0 = Some(place));
            let reserved = self.group.reserve(*description, bucket.uses_slots());
            Flight {
                left: members.len(),
                bad: None,
                watched: Watched::new(members, tensors, &span, begun),
                state: State::Ready(bucket, reserved),
            }
        });
        let buckets = flights.collect();
        let shares = Ok(Shares::all(self.group.world_size()));
        let confirming = Confirming::reserve(&self.group, &self.parts);
        self.running = Some(Running { begun, span, head, shares, buckets, tensors: places, confirming });
        Ok(Step { exchange: self })
    }

    /// Takes up a step that was [left](Step::leave).
    pub fn resume(&mut self) -> Option<Step<'_>> {
        if self.running.is_some() { Some(Step { exchange: self }) } else { None }
    }

    /// Whether a step was [left](Step::leave) and has not ended.
    #[must_use]
    pub fn is_in_step(&self) -> bool {
        self.running.is_some()
    }

    /// Ends a step that was dropped. Its gradients stay in the residuals, unless they were delivered.
    pub(super) fn settle(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.group.abort();
        if self.group.check_process().is_err() {
            // In a forked child the calls are those of the parent.
            std::mem::forget(running);
            return;
        }
        let begun = running.begun;
        let (flights, head, confirming) = running.end();
        let outcome = outcome(&flights, head, own_rank(&self.group));
        let shares = *outcome.as_ref().unwrap_or(&Shares::all(self.group.world_size()));
        if outcome.is_ok() && confirming.has_started() {
            // Others may have passed the barrier.
            self.put_back(begun, flights, |_| ());
            self.parts.undecided = Some(shares);
            return;
        }
        // Without this rank's part in the barrier nobody has delivered the step.
        if outcome.is_err() || self.parts.keeps_going {
            self.put_back(begun, flights, |bucket| bucket.finish(Ending::Failed, &mut [], shares));
            return;
        }
        // Others may have delivered the step: what it took must not be delivered again.
        let mut unseen: Vec<Vec<f32>> =
            self.parts.tensors.iter().map(|tensor| vec![0.0; tensor.count]).collect();
        let mut unseen = all_of(&mut unseen);
        self.put_back(begun, flights, |bucket| bucket.finish(Ending::Done, &mut unseen, shares));
        self.parts.deliver(&mut unseen);
    }

    /// Fails if the exchange is in a step, or has one that is not decided.
    pub(super) fn check_settled(&self) -> Result<()> {
        self.check_whole()?;
        if self.parts.undecided.is_some() {
            return Err(Error::Order {
                what: "an exchange whose last step others may have delivered",
                remedy: "shrink its group, and call go_on on all ranks that are left",
            });
        }
        Ok(())
    }

    /// Fails if the exchange's buckets are in a step, or were lost with one.
    pub(super) fn check_whole(&self) -> Result<()> {
        let Parts { buckets, count, .. } = &self.parts;
        let (what, remedy) = if self.running.is_some() {
            let remedy = "resume the step, and finish or drop it, before anything else";
            ("an exchange in the middle of a step", remedy)
        } else if buckets.len() != *count {
            ("an exchange that has lost tensors in a panic", "build it anew, and load its last state")
        } else {
            return Ok(());
        };
        Err(Error::Order { what, remedy })
    }

    /// Takes back the buckets of a step that has `begun`, after `finish`.
    fn put_back(
        &mut self,
        begun: Instant,
        flights: Vec<Flight>,
        mut finish: impl FnMut(&mut Bucket),
    ) -> StepReport {
        let mut report = StepReport { begun: Some(begun), ..StepReport::default() };
        for mut flight in flights {
            let (State::Ready(mut bucket, _) | State::Back(mut bucket, _)) = flight.state else { continue };
            let apply = || in_standard_float_mode(|| finish(&mut bucket));
            flight.watched.during(Phase::Apply, None, apply);
            self.parts.buckets.push(bucket);
            report.buckets.push(flight.watched.end());
        }
        report.buckets.iter().for_each(|bucket| tell(bucket, &self.parts.tensors));
        report
    }
}

impl Step<'_> {
    /// Hands in the gradient of a tensor, by its number in the builder's order. It is copied into what the
    /// exchange keeps of the tensor, and the bucket's last one starts its collective. Does not wait.
    ///
    /// # Errors
    /// [`Error::Shape`] for a number or a length that is not a tensor's; [`Error::Order`] for one that is
    /// ready already. Nothing has changed then.
    pub fn ready<E: GradientElement>(&mut self, tensor: usize, gradient: &[E]) -> Result<()> {
        self.ready_as(tensor, E::read(gradient))
    }

    fn ready_as(&mut self, tensor: usize, gradient: Gradient<'_>) -> Result<()> {
        let GradientExchange { group, parts, running } = &mut *self.exchange;
        group.check_process()?;
        let shape = |what, found, expected| Err(Error::Shape { what, found, expected });
        let Some(known) = parts.tensors.get(tensor) else {
            return shape(
                format!("the list up to tensor {tensor}"),
                tensor.saturating_add(1),
                parts.tensors.len(),
            );
        };
        if gradient.len() != known.count {
            return shape(format!("the gradient of {:?}", known.name), gradient.len(), known.count);
        }
        running.as_mut().map_or(Ok(()), |running| running.ready(group, tensor, gradient))
    }

    /// Waits until all buckets have arrived, and replaces the gradients by their averages; see
    /// [`average`](GradientExchange::average). Gradients must hold what was handed in: a step that is left
    /// out takes it out of the residuals. Tensors that are not ready yet are so now.
    ///
    /// # Errors
    /// As for [`average`](GradientExchange::average): the outcome is the same for all buckets. With
    /// [`Error::Shape`] the step ends as if it were dropped.
    pub fn finish<E: GradientElement, G: AsMut<[E]>>(mut self, gradients: &mut [G]) -> Result<StepReport> {
        let mut slices = all_of(gradients);
        self.all_ready(&slices)?;
        self.commit(&mut slices)
    }

    /// Like [`finish`](Self::finish), without blocking. If the future is dropped, the step ends as if it were
    /// dropped.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    pub async fn finish_async<E: GradientElement, G: AsMut<[E]>>(
        mut self,
        gradients: &mut [G],
    ) -> Result<StepReport> {
        let mut slices = all_of(gradients);
        self.all_ready(&slices)?;
        if let Some(running) = &mut self.exchange.running {
            running.end_async().await;
            if running.has_results(own_rank(&self.exchange.group)) {
                running.confirming.start();
                running.confirming.end().await;
            }
        }
        self.commit(&mut slices)
    }

    /// Lets go of the exchange in the middle of the step, which goes on. Until it is
    /// [resumed](GradientExchange::resume) and ended, the exchange is good for nothing else.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Checks the gradients, and hands in those that are not ready.
    fn all_ready(&mut self, gradients: &[GradientMut<'_>]) -> Result<()> {
        self.exchange.check_shapes(gradients)?;
        for (tensor, gradient) in gradients.iter().enumerate() {
            let running = self.exchange.running.as_ref();
            if running.is_some_and(|running| !running.tensors[tensor].1) {
                self.ready_as(tensor, gradient.read())?;
            }
        }
        Ok(())
    }

    /// Waits for all buckets: one decision for all of them, of which all ranks have the same outcomes.
    fn commit(&mut self, gradients: &mut [GradientMut<'_>]) -> Result<StepReport> {
        let Some(running) = self.exchange.running.take() else { return Ok(StepReport::default()) };
        // Ends with this function.
        let (begun, _span) = (running.begun, running.span.clone());
        let (flights, head, mut confirming) = running.end();
        let outcome = outcome(&flights, head, own_rank(&self.exchange.group));
        let ending = Ending::of(&outcome);
        let all = Shares::all(self.exchange.group.world_size());
        let shares = *outcome.as_ref().unwrap_or(&all);
        if !matches!(ending, Ending::Failed) {
            confirming.start();
        }
        if let (Ending::Done, Err(error)) = (ending, confirming.wait()) {
            self.exchange.put_back(begun, flights, |_| ());
            self.exchange.parts.undecided = Some(shares);
            return Err(named(error, &self.exchange.parts.tensors));
        }
        let report =
            self.exchange.put_back(begun, flights, |bucket| bucket.finish(ending, gradients, shares));
        match outcome {
            Ok(_) => {
                self.exchange.parts.deliver(gradients);
                Ok(report)
            }
            Err(error) => Err(named(error, &self.exchange.parts.tensors)),
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.exchange.running.is_none() {
            return;
        }
        if std::thread::panicking() {
            // Waiting could panic again. The exchange stays in the middle of the step.
            self.exchange.group.abort();
        } else {
            self.exchange.settle();
        }
    }
}

/// This rank, in the world.
fn own_rank(group: &Group) -> Rank {
    group.members()[group.rank() as usize]
}
