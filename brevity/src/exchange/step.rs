//! A step whose gradients become ready one after the other.

use std::time::{Duration, Instant};

use brevity_collectives::engine::Handle;
use brevity_collectives::{Call, Error as Collective, Group, Reserved};
use brevity_compress::in_standard_float_mode;
use ucx_sys_wrap::Rank;

use super::bucket::Bucket;
use super::going::Confirming;
use super::participants::Shares;
use super::parts::{Parts, all_buckets, note_plan};
use super::report::{BucketReport, StepReport};
use super::{Ending, GradientExchange, named, post_momentum};
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

/// What a step has of the exchange while it runs.
pub(super) struct Running {
    /// Counts the ranks that have gradients, if that matters; without buckets, a barrier.
    head: Option<Handle<((), Result<Shares, Collective>)>>,
    /// Its result, if it has ended.
    shares: Result<Shares, Collective>,
    buckets: Vec<Flight>,
    /// The bucket of each tensor, and whether its gradient is there.
    tensors: Vec<(usize, bool)>,
    confirming: Confirming,
}

/// A bucket in a step.
struct Flight {
    state: State,
    /// The tensors that are not ready.
    left: usize,
    /// The first tensor with a value that is not finite.
    bad: Option<usize>,
    report: BucketReport,
}

/// A bucket whose collective has ended, how long that took, and its outcome.
type Ended = (Bucket, (Duration, Result<(), Collective>));

enum State {
    /// Before its collective.
    Ready(Bucket, Reserved),
    /// Its collective has started.
    Away(Handle<Ended>),
    /// It has ended.
    Back(Bucket, Result<(), Collective>),
    /// Between two others.
    Moving,
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
        let Parts { tensors, buckets, of_buckets, of_head, over_participants, .. } = &mut self.parts;
        let mut places = vec![(0, false); tensors.len()];
        // Ranks that differ find out in the first call.
        if let Some(first) = of_buckets.first() {
            note_plan(&self.group, first, tensors, buckets);
        }
        let counts = over_participants.then_some(has_gradient);
        let head = (counts.is_some() || buckets.is_empty()).then(|| {
            note_plan(&self.group, of_head, tensors, buckets);
            self.group.start_in_order(*of_head, (), move |call, ()| {
                Box::pin(all_buckets(call, &mut [], false, counts))
            })
        });
        let flights = std::mem::take(buckets).into_iter().zip(of_buckets).enumerate();
        let flights = flights.map(|(place, (bucket, description))| {
            let members = bucket.tensors();
            members.iter().for_each(|&tensor| places[tensor].0 = place);
            let reserved = self.group.reserve(*description, bucket.uses_slots());
            Flight {
                left: members.len(),
                bad: None,
                report: BucketReport { tensors: members, ..BucketReport::default() },
                state: State::Ready(bucket, reserved),
            }
        });
        let flights: Vec<Flight> = flights.collect();
        let confirming = Confirming::reserve(&self.group, &self.parts);
        self.running = Some(Running {
            head,
            shares: Ok(Shares::all(self.group.world_size())),
            buckets: flights,
            tensors: places,
            confirming,
        });
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
        let keeps_going = self.parts.keeps_going;
        let (flights, head, _confirming) = running.end();
        let outcome = outcome(&flights, head, own_rank(&self.group));
        let shares = Shares::all(self.group.world_size());
        // Without this rank's part in the barrier nobody has delivered the step.
        if outcome.is_err() || keeps_going {
            self.put_back(flights, |bucket| bucket.finish(Ending::Failed, &mut [], shares));
            return;
        }
        // Others may have delivered the step: what it took must not be delivered again.
        let mut unseen: Vec<Vec<f32>> =
            self.parts.tensors.iter().map(|tensor| vec![0.0; tensor.count]).collect();
        let mut unseen: Vec<&mut [f32]> = unseen.iter_mut().map(Vec::as_mut_slice).collect();
        self.put_back(flights, |bucket| bucket.finish(Ending::Done, &mut unseen, shares));
        post_momentum::apply(&mut self.parts.tensors, &mut unseen);
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

    /// Takes back the buckets of a step, after `finish`.
    fn put_back(&mut self, flights: Vec<Flight>, mut finish: impl FnMut(&mut Bucket)) -> StepReport {
        let mut report = StepReport::default();
        for mut flight in flights {
            let (State::Ready(mut bucket, _) | State::Back(mut bucket, _)) = flight.state else { continue };
            let begun = Instant::now();
            in_standard_float_mode(|| finish(&mut bucket));
            flight.report.apply = begun.elapsed();
            self.parts.buckets.push(bucket);
            report.buckets.push(flight.report);
        }
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
    pub fn ready(&mut self, tensor: usize, gradient: &[f32]) -> Result<()> {
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
    pub fn finish<G: AsMut<[f32]>>(mut self, gradients: &mut [G]) -> Result<StepReport> {
        let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
        self.all_ready(&slices)?;
        self.commit(&mut slices)
    }

    /// Like [`finish`](Self::finish), without blocking. If the future is dropped, the step ends as if it were
    /// dropped.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    pub async fn finish_async<G: AsMut<[f32]>>(mut self, gradients: &mut [G]) -> Result<StepReport> {
        let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
        self.all_ready(&slices)?;
        if let Some(running) = &mut self.exchange.running {
            if let Some(head) = &mut running.head {
                running.shares = head.await.1;
                running.head = None;
            }
            for flight in &mut running.buckets {
                if let State::Away(handle) = &mut flight.state {
                    let begun = Instant::now();
                    let ended = handle.await;
                    flight.back(ended, begun);
                }
            }
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
    fn all_ready(&mut self, gradients: &[&mut [f32]]) -> Result<()> {
        self.exchange.check_shapes(gradients)?;
        for (tensor, gradient) in gradients.iter().enumerate() {
            let running = self.exchange.running.as_ref();
            if running.is_some_and(|running| !running.tensors[tensor].1) {
                self.ready(tensor, gradient)?;
            }
        }
        Ok(())
    }

    /// Waits for all buckets: one decision for all of them, of which all ranks have the same outcomes.
    fn commit(&mut self, gradients: &mut [&mut [f32]]) -> Result<StepReport> {
        let Some(running) = self.exchange.running.take() else { return Ok(StepReport::default()) };
        let (flights, head, mut confirming) = running.end();
        let outcome = outcome(&flights, head, own_rank(&self.exchange.group));
        let ending = Ending::of(&outcome);
        let all = Shares::all(self.exchange.group.world_size());
        let shares = *outcome.as_ref().unwrap_or(&all);
        if !matches!(ending, Ending::Failed) {
            confirming.start();
        }
        if let (Ending::Done, Err(error)) = (ending, confirming.wait()) {
            self.exchange.put_back(flights, |_| ());
            self.exchange.parts.undecided = Some(shares);
            return Err(named(error, &self.exchange.parts.tensors));
        }
        self.exchange.parts.committed += u64::from(matches!(ending, Ending::Done));
        let report = self.exchange.put_back(flights, |bucket| bucket.finish(ending, gradients, shares));
        match outcome {
            Ok(_) => {
                post_momentum::apply(&mut self.exchange.parts.tensors, gradients);
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

/// The outcome of a step. `NonFinite`, then `Overflow`, come before other errors; of several, the lowest rank
/// and tensor, as in a single call.
fn outcome(flights: &[Flight], head: Result<Shares, Collective>, own: Rank) -> Result<Shares, Collective> {
    let errors = || flights.iter().filter_map(|flight| flight.state.error());
    let all_ended = flights.iter().all(|flight| matches!(flight.state, State::Back(..)));
    let not_finite = errors().filter_map(|error| match error {
        Collective::NonFinite { rank, tensor } => Some((*rank, *tensor)),
        _ => None,
    });
    let overflow = errors().filter_map(|error| match error {
        Collective::Overflow { tensor } => Some(*tensor),
        _ => None,
    });
    if let Some((rank, tensor)) = not_finite.min() {
        return Err(Collective::NonFinite { rank, tensor });
    }
    if let Some(tensor) = overflow.min() {
        return Err(Collective::Overflow { tensor });
    }
    match errors().next() {
        Some(error) => Err(error.clone()),
        None if all_ended => head,
        // The step was dropped, or one of its tensors has panicked.
        None => Err(Collective::Aborted { rank: own }),
    }
}

/// This rank, in the world.
fn own_rank(group: &Group) -> Rank {
    group.members()[group.rank() as usize]
}

impl State {
    fn error(&self) -> Option<&Collective> {
        if let Self::Back(_, Err(error)) = self { Some(error) } else { None }
    }
}

impl Running {
    fn ready(&mut self, group: &Group, tensor: usize, gradient: &[f32]) -> Result<()> {
        let (place, is_ready) = &mut self.tensors[tensor];
        if *is_ready {
            return Err(Error::Order {
                what: "a tensor that is ready twice in a step",
                remedy: "hand in each gradient once",
            });
        }
        *is_ready = true;
        let flight = &mut self.buckets[*place];
        let begun = Instant::now();
        if let State::Ready(bucket, _) = &mut flight.state
            && !in_standard_float_mode(|| bucket.accumulate(tensor, gradient))
        {
            flight.bad = Some(flight.bad.map_or(tensor, |bad| bad.min(tensor)));
        }
        flight.report.select += begun.elapsed();
        flight.left -= 1;
        if flight.left == 0 {
            flight.start();
        }
        group.progress();
        Ok(())
    }

    /// Waits for the buckets that are away. One that has not started ends here: its call is dropped.
    fn end(self) -> (Vec<Flight>, Result<Shares, Collective>, Confirming) {
        let shares = self.head.map_or(self.shares, |head| head.wait().1);
        let mut flights = self.buckets;
        for flight in &mut flights {
            let begun = Instant::now();
            match std::mem::replace(&mut flight.state, State::Moving) {
                State::Away(handle) => flight.back(handle.wait(), begun),
                other => flight.state = other,
            }
        }
        (flights, shares, self.confirming)
    }

    /// Whether all buckets have arrived, and a barrier may tell the others.
    fn has_results(&self, own: Rank) -> bool {
        let outcome = outcome(&self.buckets, self.shares.clone(), own);
        !matches!(Ending::of(&outcome), Ending::Failed)
    }
}

impl Flight {
    /// Starts the collective.
    fn start(&mut self) {
        let bad = self.bad;
        self.state = match std::mem::replace(&mut self.state, State::Moving) {
            State::Ready(bucket, reserved) => State::Away(reserved.start(bucket, move |call, bucket| {
                Box::pin(async move {
                    let begun = Instant::now();
                    let result = exchange(call, bucket, bad).await;
                    (begun.elapsed(), result)
                })
            })),
            other => other,
        };
    }

    /// Takes the bucket back.
    fn back(&mut self, ended: Ended, begun: Instant) {
        let (bucket, (communicate, result)) = ended;
        self.report.communicate = communicate;
        self.report.wait += begun.elapsed();
        self.state = State::Back(bucket, result);
    }
}

/// The collective of a bucket, which is poisoned if one of its tensors has a value that is not finite.
async fn exchange(call: &Call<'_, '_>, bucket: &mut Bucket, bad: Option<usize>) -> Result<(), Collective> {
    if let Some(tensor) = bad {
        call.set_poison(tensor as u32);
    }
    bucket.exchange(call, bad.is_some()).await
}
