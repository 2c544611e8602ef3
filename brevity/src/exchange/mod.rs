//! Averages the gradients of a model's tensors over all ranks, each tensor by its policy.
//!
//! A step has three parts. First, every gradient is added to its tensor's residual and checked. Then the
//! collectives run, one for each bucket of tensors; they leave everything that a failed step needs untouched.
//! Last, the step is committed. If a collective failed, the gradients stay in the residuals instead; if a
//! rank had a value that is not finite, they are taken out of the residuals again.

mod auto;
mod averaging;
mod bucket;
mod builder;
mod course;
mod dense;
mod encoding;
mod flight;
mod gathered;
mod going;
mod gradient;
mod hierarchical;
mod kept;
mod low_rank;
mod participants;
mod parts;
mod pending;
mod post_momentum;
mod report;
mod room;
mod saved;
mod select;
mod sharing;
mod sparse;
mod spectral;
mod step;
mod taking;
mod unbiased;
mod vectors;
mod vote;

use std::time::Duration;

use brevity_collectives::sparse::Wire;
use brevity_collectives::{Error as Collective, Group};
use brevity_compress::Density;

pub use auto::Choice;
pub use averaging::{Averaged, Averaging};
pub use builder::ExchangeBuilder;
pub use gradient::GradientElement;
pub use report::{BucketReport, Phase, PhaseReport, StepReport};
pub use step::Step;

use crate::error::{Error, Result};
use crate::policy::DENSITIES;
use bucket::Bucket;
use flight::Running;
use gradient::{GradientMut, all_of};
use parts::{Parts, all_at_once, note_plan};
use post_momentum::PostMomentum;

/// Averages gradients over all ranks, in place. A residual keeps what is not sent.
///
/// All ranks build it with the same tensors in the same order and call it in step. The results have the same
/// bits on every rank.
///
/// ```
/// use brevity::{GradientExchange, Group, Policy};
///
/// let group = Group::solo();
/// let mut exchange = GradientExchange::builder(&group)
///     .tensor("weight", [8, 4], Policy::gtopk(0.25))
///     .tensor("bias", [4], Policy::dense())
///     .build()?;
/// let mut gradients = [vec![1.0f32; 32], vec![2.0; 4]];
/// exchange.average(&mut gradients)?;
/// assert_eq!(gradients[0].iter().sum::<f32>(), 8.0);
/// assert_eq!(exchange.residual("weight").unwrap().iter().sum::<f32>(), 24.0);
/// # Ok::<(), brevity::Error>(())
/// ```
pub struct GradientExchange {
    group: Group,
    parts: Parts,
    /// A step that has begun.
    running: Option<Running>,
}

/// A tensor as given to the builder.
struct Tensor {
    name: String,
    count: usize,
    /// The momentum after aggregation.
    momentum: Option<PostMomentum>,
    /// How it travels, if that was chosen.
    choice: Option<Choice>,
    /// Whether it does not travel: no bucket has it.
    is_excluded: bool,
}

impl Tensor {
    /// Whether its way was chosen, and what is kept of it has the form of every choice: low rank has factors.
    fn fits_every_choice(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| !choice.policy.is_low_rank())
    }
}

/// The outcome of a step.
#[derive(Clone, Copy)]
enum Ending {
    /// The results are complete.
    Done,
    /// A collective failed: the gradients stay in the residuals.
    Failed,
    /// A value was not finite. All ranks know it and leave the step out.
    Poisoned,
}

impl GradientExchange {
    /// Starts a list of tensors.
    #[must_use]
    pub fn builder(group: &Group) -> ExchangeBuilder {
        ExchangeBuilder::new(group)
    }

    /// Replaces the gradients by their average over all ranks, as far as it was sent; the rest stays in the
    /// residuals. An average is the sum, divided once by the number of ranks; tensors with a [momentum after
    /// aggregation](crate::Policy::post_momentum) get its sum with their momentum. Those that are
    /// [excluded](crate::Policy::excluded) stay as they are. `gradients` has one slice
    /// for each tensor, in the builder's order, of any [type](GradientElement). Blocks until done.
    ///
    /// # Errors
    /// [`Error::Shape`]: nothing was sent. [`Error::NonFinite`] and [`Error::Overflow`]: every rank gets the
    /// same error and the step is left out. [`Error::Collective`]: the gradients are unchanged and are also
    /// in the residuals; do not hand them in again. A tensor by [signum](crate::Policy::signum) has no
    /// residual: it forgets the step.
    pub fn average<E: GradientElement, G: AsMut<[E]>>(&mut self, gradients: &mut [G]) -> Result<()> {
        let mut slices = all_of(gradients);
        self.check(&slices)?;
        self.parts.average(&self.group, true, &mut slices)
    }

    /// Like [`average`](Self::average), with another timeout than that of the group.
    ///
    /// # Errors
    /// As for [`average`](Self::average).
    pub fn average_within<E: GradientElement, G: AsMut<[E]>>(
        &mut self,
        gradients: &mut [G],
        timeout: Duration,
    ) -> Result<()> {
        let mut slices = all_of(gradients);
        self.check(&slices)?;
        self.parts.average(&self.group.with_timeout(timeout), true, &mut slices)
    }

    /// The same call as [`average`](Self::average) on a rank that has no gradient, for instance because its
    /// data has ended before that of others: as if all values were 0. What its residuals hold is sent as
    /// always, and it gets the same averages as the others, so that its model stays the same.
    ///
    /// Averages are over all ranks nevertheless, unless the exchange [averages over
    /// participants](ExchangeBuilder::average_over_participants).
    ///
    /// # Errors
    /// As for [`average`](Self::average). `averages` are zeros then, but for
    /// [excluded](crate::Policy::excluded) tensors, which stay as they are.
    pub fn step_empty<E: GradientElement, G: AsMut<[E]>>(&mut self, averages: &mut [G]) -> Result<()> {
        let timeout = self.group.timeout();
        self.step_empty_within(averages, timeout)
    }

    /// Like [`step_empty`](Self::step_empty), with another timeout than that of the group.
    ///
    /// # Errors
    /// As for [`step_empty`](Self::step_empty).
    pub fn step_empty_within<E: GradientElement, G: AsMut<[E]>>(
        &mut self,
        averages: &mut [G],
        timeout: Duration,
    ) -> Result<()> {
        let mut slices = all_of(averages);
        self.check(&slices)?;
        let averaged = slices.iter_mut().zip(&self.parts.tensors).filter(|(_, tensor)| !tensor.is_excluded);
        averaged.for_each(|(slice, _)| slice.clear());
        self.parts.average(&self.group.with_timeout(timeout), false, &mut slices)
    }

    /// Starts an [`average`](Self::average) without blocking. The call owns the exchange and the gradients
    /// until [`Averaging::wait`] returns them. If the [`Averaging`] is dropped, the call goes on as long as
    /// the group is used, because its peers need it; the exchange is then lost.
    ///
    /// Every error of [`average`](Self::average) comes out of [`Averaging::wait`], together with the
    /// exchange. This includes gradients of wrong lengths, of which nothing is sent.
    pub fn start<E, G>(self, gradients: Vec<G>) -> Averaging<G>
    where
        E: GradientElement,
        G: AsMut<[E]> + Send + 'static,
    {
        let group = self.group.clone();
        self.start_on(&group, gradients)
    }

    /// Like [`start`](Self::start), with another timeout than that of the group.
    pub fn start_within<E, G>(self, gradients: Vec<G>, timeout: Duration) -> Averaging<G>
    where
        E: GradientElement,
        G: AsMut<[E]> + Send + 'static,
    {
        let group = self.group.with_timeout(timeout);
        self.start_on(&group, gradients)
    }

    /// Starts an average with the timeout of this handle of the group.
    fn start_on<E, G>(self, timed: &Group, mut gradients: Vec<G>) -> Averaging<G>
    where
        E: GradientElement,
        G: AsMut<[E]> + Send + 'static,
    {
        let slices = all_of(&mut gradients);
        let checked = self.check(&slices);
        let Self { group, parts, running } = self;
        if let Err(error) = checked {
            return Averaging { handle: group.ended(((parts, gradients), Err(error))), group, running };
        }
        note_plan(&group, &parts.description, &parts.tensors, &parts.buckets);
        let handle =
            timed.start_in_order(parts.description, (parts, gradients), move |call, (parts, gradients)| {
                Box::pin(async move {
                    let mut slices = all_of(gradients);
                    all_at_once(call, parts, true, &mut slices).await
                })
            });
        Averaging { handle, group, running: None }
    }

    /// Moves the exchange to another group, with all residuals. After a rank is lost, the survivors make a
    /// new group and hand their exchanges over. All low-rank tensors start from the builder's seed again,
    /// momenta after aggregation from 0, random places from the first step's, and Ok-Topk without thresholds,
    /// because survivors may be a step apart. Every rank of the new group must call this or have just built
    /// its exchange.
    ///
    /// Where the last step has ended with an error on some ranks and not on others, those with an error keep
    /// what others have delivered: [`go_on`](Self::go_on) is for that.
    pub fn rejoin(&mut self, group: &Group) {
        self.settle();
        self.parts.decide(false, &mut []);
        for bucket in &mut self.parts.buckets {
            match bucket {
                Bucket::LowRank(bucket) => bucket.restart(),
                Bucket::Unbiased(bucket) => bucket.restart(),
                Bucket::Sparse(_) | Bucket::Hierarchical(_) | Bucket::Gathered(_) => {}
                Bucket::Dense(_) | Bucket::Vote(_) => {}
            }
        }
        let momenta = self.parts.tensors.iter_mut().filter_map(|tensor| tensor.momentum.as_mut());
        momenta.for_each(PostMomentum::restart);
        self.parts.delivered = 0;
        self.move_to(group);
    }

    fn move_to(&mut self, group: &Group) {
        self.move_as(group, group.number_object());
    }

    /// Moves to a group that knows the exchange by this number.
    fn move_as(&mut self, group: &Group, number: u32) {
        self.group = group.clone();
        self.parts.number = number;
        for bucket in &mut self.parts.buckets {
            match bucket {
                Bucket::Sparse(bucket) => bucket.rejoin(group),
                Bucket::Hierarchical(bucket) => bucket.rejoin(group),
                Bucket::Gathered(bucket) => bucket.rejoin(group.rank()),
                Bucket::Dense(_) | Bucket::Vote(_) | Bucket::LowRank(_) | Bucket::Unbiased(_) => {}
            }
        }
        self.parts.describe_anew();
    }

    /// Changes the density of a sparse tensor from the next step on (0 < density <= 1). While a
    /// [schedule](ExchangeBuilder::schedule) has a larger one, that counts. All ranks call it before the same
    /// step; otherwise that step is a mismatch. Residuals stay as they are; thresholds begin anew.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`]; [`Error::Policy`] for a density out of range, and if the tensor is not
    /// sparse; [`Error::Memory`]. Nothing has changed then.
    pub fn set_density(&mut self, tensor: &str, density: f64) -> Result<()> {
        let refused = |expected| {
            let tensor = tensor.to_owned();
            Error::Policy { tensor, parameter: "density", found: density, expected }
        };
        let checked = Density::new(density).map_err(|_| refused(DENSITIES))?;
        let (position, _) = self.position(tensor)?;
        self.check_settled()?;
        let room = self.parts.buckets.iter().find_map(|bucket| bucket.check_room(position, checked));
        let room =
            room.ok_or_else(|| refused("a tensor whose policy is topk or gtopk, or another sparse one"))?;
        room.map_err(|bytes| Error::Memory { what: format!("tensor {tensor:?}"), bytes })?;
        self.parts.course.own[position] = Some(checked);
        self.parts.follow_course();
        Ok(())
    }

    /// The density of a sparse tensor, as its policy or [`set_density`](Self::set_density) has it, whatever a
    /// schedule says; `None` for other tensors, and for an unknown name.
    #[must_use]
    pub fn density(&self, tensor: &str) -> Option<f64> {
        let (position, _) = self.position(tensor).ok()?;
        self.parts.course.own[position].map(Density::share)
    }

    /// How entries of a tensor with the policy [`topk`](crate::Policy::topk), [`gtopk`](crate::Policy::gtopk)
    /// or [`oktopk`](crate::Policy::oktopk) are written in this group: as the policy says, or else as is
    /// [estimated](crate::Policy::pairs) to be the fastest. The same on all ranks. `None` for other tensors,
    /// and for an unknown name.
    #[must_use]
    pub fn wire(&self, tensor: &str) -> Option<Wire> {
        let (position, _) = self.position(tensor).ok()?;
        self.parts.wires[position]
    }

    /// How many steps the exchange has made: those that were done on all ranks. Steps that were left out or
    /// have failed do not count. It is saved and loaded.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.parts.course.steps
    }

    /// Sets how many steps the exchange has made, and so its place in its
    /// [schedule](ExchangeBuilder::schedule). After a failure, ranks may be a step apart: those that
    /// [rejoin](Self::rejoin) while the density changes or dense steps end, and those that are new, set the
    /// same number before their next step. Otherwise the first step with other densities is a mismatch.
    ///
    /// # Errors
    /// [`Error::Order`] in the middle of a step.
    pub fn set_steps(&mut self, steps: u64) -> Result<()> {
        self.check_settled()?;
        self.parts.course.steps = steps;
        self.parts.follow_course();
        Ok(())
    }

    /// The exchange's group.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Which of its group's objects the exchange is: the same on all ranks, for messages of another exchange
    /// are a mismatch.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.parts.number
    }

    /// The tensors' names and element counts, in the builder's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, usize)> {
        self.parts.tensors.iter().map(|tensor| (&*tensor.name, tensor.count))
    }

    /// What of a tensor's gradients on this rank has not been sent yet; `None` for an unknown name, in the
    /// middle of a step, and before [`go_on`](Self::go_on). A dense tensor, and an unbiased one, has a
    /// residual only after a failure, a signum or an excluded tensor never: zeros.
    #[must_use]
    pub fn residual(&self, tensor: &str) -> Option<Vec<f32>> {
        let mut residual = vec![0.0; self.position(tensor).ok()?.1];
        self.residual_to(tensor, &mut residual).ok()?;
        Some(residual)
    }

    /// Like [`residual`](Self::residual), into `out`. Needs no other memory.
    ///
    /// # Errors
    /// [`Error::NoSuchTensor`]; [`Error::Shape`] if `out` has not the tensor's length.
    pub fn residual_to(&self, tensor: &str, out: &mut [f32]) -> Result<()> {
        let (position, expected) = self.position(tensor)?;
        let found = out.len();
        if found != expected {
            return Err(Error::Shape { what: format!("the residual of {tensor:?}"), found, expected });
        }
        self.check_settled()?;
        if self.parts.tensors[position].is_excluded {
            out.fill(0.0);
        }
        self.parts.buckets.iter().for_each(|bucket| bucket.residual_to(position, out));
        Ok(())
    }

    /// The position and the length of a tensor.
    fn position(&self, tensor: &str) -> Result<(usize, usize)> {
        let mut tensors = self.parts.tensors.iter().enumerate();
        let known = tensors.find(|(_, known)| known.name == tensor);
        let known = known.map(|(position, known)| (position, known.count));
        known.ok_or_else(|| Error::NoSuchTensor { tensor: tensor.to_owned() })
    }

    fn check(&self, gradients: &[GradientMut<'_>]) -> Result<()> {
        self.check_settled()?;
        self.check_shapes(gradients)
    }

    fn check_shapes(&self, gradients: &[GradientMut<'_>]) -> Result<()> {
        let shape = |what: String, found, expected| {
            if found == expected { Ok(()) } else { Err(Error::Shape { what, found, expected }) }
        };
        self.group.check_process()?;
        shape("the list of gradients".into(), gradients.len(), self.parts.tensors.len())?;
        for (tensor, gradient) in self.parts.tensors.iter().zip(gradients) {
            shape(format!("the gradient of {:?}", tensor.name), gradient.len(), tensor.count)?;
        }
        Ok(())
    }
}

/// Converts to the facade's error, which has the tensor's name.
fn named(error: Collective, tensors: &[Tensor]) -> Error {
    let name = |tensor: u32| {
        tensors.get(tensor as usize).map_or_else(|| tensor.to_string(), |known| known.name.clone())
    };
    match error {
        Collective::NonFinite { rank, tensor } => Error::NonFinite { rank: rank.0, tensor: name(tensor) },
        Collective::Overflow { tensor } => Error::Overflow { tensor: name(tensor) },
        error => Error::Collective(error),
    }
}

impl Ending {
    fn of<T>(outcome: &Result<T, Collective>) -> Self {
        match outcome {
            Ok(_) => Self::Done,
            Err(Collective::NonFinite { .. } | Collective::Overflow { .. }) => Self::Poisoned,
            Err(_) => Self::Failed,
        }
    }
}
