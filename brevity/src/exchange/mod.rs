//! Averages the gradients of a model's tensors over all ranks, each tensor by its policy.
//!
//! A step has three parts. First, every gradient is added to its tensor's residual and checked. Then the
//! collectives run; they leave everything that a failed step needs untouched. Last, the step is committed. If
//! a collective failed, the gradients stay in the residuals instead; if a rank had a value that is not
//! finite, they are taken out of the residuals again.

mod averaging;
mod builder;
mod dense;
mod lane;
mod low_rank;
mod quantised;
mod room;
mod saved;
mod sparse;
mod vote;

use std::time::Duration;

use brevity_collectives::{Call, Description, Error as Collective, Group, Operation};
use brevity_compress::{Density, in_standard_float_mode};

pub use averaging::{Averaged, Averaging};
pub use builder::ExchangeBuilder;

use crate::error::{Error, Result};
use crate::policy::DENSITIES;
use lane::{Lane, add_finite};

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
}

/// The exchange without its group.
struct Parts {
    tensors: Vec<Tensor>,
    lanes: Vec<Lane>,
    /// Its number among the objects of the group.
    number: u32,
    /// What all ranks must have built alike.
    description: Description,
}

/// A tensor as given to the builder.
struct Tensor {
    name: String,
    count: usize,
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
    /// residuals. An average is the sum, divided once by the number of ranks. `gradients` has one slice for
    /// each tensor, in the builder's order. Blocks until done.
    ///
    /// # Errors
    /// [`Error::Shape`]: nothing was sent. [`Error::NonFinite`] and [`Error::Overflow`]: every rank gets the
    /// same error and the step is left out. [`Error::Collective`]: the gradients are unchanged and are also
    /// in the residuals; do not hand them in again. A tensor by [signum](crate::Policy::signum) has no
    /// residual: it forgets the step.
    pub fn average<G: AsMut<[f32]>>(&mut self, gradients: &mut [G]) -> Result<()> {
        let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
        self.check(&slices)?;
        self.parts.average(&self.group, &mut slices)
    }

    /// Like [`average`](Self::average), with another timeout than that of the group.
    ///
    /// # Errors
    /// As for [`average`](Self::average).
    pub fn average_within<G: AsMut<[f32]>>(&mut self, gradients: &mut [G], timeout: Duration) -> Result<()> {
        let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
        self.check(&slices)?;
        self.parts.average(&self.group.with_timeout(timeout), &mut slices)
    }

    /// Starts an [`average`](Self::average) without blocking. The call owns the exchange and the gradients
    /// until [`Averaging::wait`] returns them. If the [`Averaging`] is dropped, the call goes on as long as
    /// the group is used, because its peers need it; the exchange is then lost.
    ///
    /// Every error of [`average`](Self::average) comes out of [`Averaging::wait`], together with the
    /// exchange. This includes gradients of wrong lengths, of which nothing is sent.
    pub fn start<G>(self, gradients: Vec<G>) -> Averaging<G>
    where
        G: AsMut<[f32]> + Send + 'static,
    {
        let group = self.group.clone();
        self.start_on(&group, gradients)
    }

    /// Like [`start`](Self::start), with another timeout than that of the group.
    pub fn start_within<G>(self, gradients: Vec<G>, timeout: Duration) -> Averaging<G>
    where
        G: AsMut<[f32]> + Send + 'static,
    {
        let group = self.group.with_timeout(timeout);
        self.start_on(&group, gradients)
    }

    /// Starts an average with the timeout of this handle of the group.
    fn start_on<G>(self, timed: &Group, mut gradients: Vec<G>) -> Averaging<G>
    where
        G: AsMut<[f32]> + Send + 'static,
    {
        let slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
        let checked = self.check(&slices);
        let Self { group, parts } = self;
        if let Err(error) = checked {
            return Averaging { handle: group.ended(((parts, gradients), Err(error))), group };
        }
        note_plan(&group, &parts.description, &parts.tensors, &parts.lanes);
        let handle =
            timed.start_in_order(parts.description, (parts, gradients), move |call, (parts, gradients)| {
                Box::pin(async move {
                    let mut slices: Vec<&mut [f32]> = gradients.iter_mut().map(AsMut::as_mut).collect();
                    step(call, &parts.tensors, &mut parts.lanes, &mut slices).await
                })
            });
        Averaging { handle, group }
    }

    /// Moves the exchange to another group, with all residuals. After a rank is lost, the survivors make a
    /// new group and hand their exchanges over. Low-rank tensors start from the builder's seed again, because
    /// survivors may be a step apart. Every rank of the new group must call this or have just built its
    /// exchange.
    pub fn rejoin(&mut self, group: &Group) {
        self.group = group.clone();
        self.parts.number = group.number_object();
        for lane in &mut self.parts.lanes {
            if let Lane::LowRank(lane) = lane {
                lane.restart();
            }
        }
        self.parts.describe_anew();
    }

    /// Changes the density of a sparse tensor from the next step on (0 < density <= 1), for instance during
    /// warm-up (`brevity::compress::schedule`). All ranks call it before the same step; otherwise that step
    /// is a mismatch. Residuals stay as they are.
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
        let lane = self.parts.lanes.iter_mut().find_map(|lane| match lane {
            Lane::Sparse(lane) if lane.holds(position) => Some(lane),
            _ => None,
        });
        let lane = lane.ok_or_else(|| refused("a tensor whose policy is topk or gtopk"))?;
        let set = lane.set_density(checked, self.group.world_size());
        set.map_err(|bytes| Error::Memory { what: format!("tensor {tensor:?}"), bytes })?;
        self.parts.describe_anew();
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

    /// What of a tensor's gradients on this rank has not been sent yet; `None` for an unknown name. A dense
    /// tensor has a residual only after a failure, a signum tensor never: zeros.
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
        self.parts.lanes.iter().for_each(|lane| lane.residual_to(position, out));
        Ok(())
    }

    /// The position and the length of a tensor.
    fn position(&self, tensor: &str) -> Result<(usize, usize)> {
        let mut tensors = self.parts.tensors.iter().enumerate();
        let known = tensors.find(|(_, known)| known.name == tensor);
        let known = known.map(|(position, known)| (position, known.count));
        known.ok_or_else(|| Error::NoSuchTensor { tensor: tensor.to_owned() })
    }

    fn check(&self, gradients: &[&mut [f32]]) -> Result<()> {
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

impl Parts {
    fn new(tensors: Vec<Tensor>, lanes: Vec<Lane>, number: u32) -> Self {
        let description = describe(&tensors, &lanes, number);
        Self { tensors, lanes, number, description }
    }

    /// Averages gradients whose lengths were checked.
    fn average(&mut self, group: &Group, slices: &mut [&mut [f32]]) -> Result<()> {
        let Self { tensors, lanes, description, .. } = self;
        note_plan(group, description, tensors, lanes);
        group.run_in_order(*description, async |call| step(call, tensors, lanes, slices).await)
    }

    /// Must be called whenever a lane's own description, or the exchange's number, has changed.
    fn describe_anew(&mut self) {
        self.description = describe(&self.tensors, &self.lanes, self.number);
    }
}

/// Describes what must be the same on all ranks: the tensors in their order and what the lanes do, in
/// sequence, and which of the group's exchanges it is. Every message of a lane carries a digest of it, so
/// ranks that use different exchanges find out in the first step.
fn describe(tensors: &[Tensor], lanes: &[Lane], number: u32) -> Description {
    let mut plan = Vec::new();
    for text in texts(tensors, lanes) {
        plan.extend_from_slice(&(text.len() as u64).to_le_bytes());
        plan.extend_from_slice(text.as_bytes());
    }
    for lane in lanes {
        plan.extend_from_slice(&lane.describe().encode().0);
    }
    Description::of_plan(Operation::EXCHANGE, &plan).with_detail(u64::from(number))
}

/// Lets ranks whose tensors differ be told which.
fn note_plan(group: &Group, description: &Description, tensors: &[Tensor], lanes: &[Lane]) {
    group.note_plan(description, texts(tensors, lanes));
}

/// Each tensor in words: name, length, and how it travels, with all settings.
fn texts(tensors: &[Tensor], lanes: &[Lane]) -> impl Iterator<Item = String> {
    texts_by(tensors, lanes, Lane::travels)
}

/// Each tensor in words, with what `of` says of the lane that holds it.
fn texts_by(
    tensors: &[Tensor],
    lanes: &[Lane],
    of: fn(&Lane, usize) -> Option<String>,
) -> impl Iterator<Item = String> {
    tensors.iter().enumerate().map(move |(position, tensor)| {
        let words = lanes.iter().find_map(|lane| of(lane, position)).unwrap_or_default();
        format!("tensor {:?} of {} elements, {words}", tensor.name, tensor.count)
    })
}

/// One step on one rank.
async fn step(
    call: &Call<'_, '_>,
    tensors: &[Tensor],
    lanes: &mut [Lane],
    gradients: &mut [&mut [f32]],
) -> Result<()> {
    let accumulate = || lanes.iter_mut().filter_map(|lane| lane.accumulate(gradients)).min();
    let bad = in_standard_float_mode(accumulate);
    if let Some(tensor) = bad {
        call.set_poison(tensor);
    }
    let mut outcome = Ok(());
    for lane in lanes.iter_mut() {
        outcome = lane.exchange(call, bad.is_some()).await.and_then(|()| call.check_poison());
        // After a collective every rank knows of the value that is not finite, so all ranks stop here
        // together.
        if outcome.is_err() {
            break;
        }
    }
    let ending = Ending::of(&outcome);
    in_standard_float_mode(|| {
        lanes.iter_mut().for_each(|lane| lane.finish(ending, gradients, call.world_size()));
    });
    outcome.map_err(|error| named(error, tensors))
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
    fn of(outcome: &Result<(), Collective>) -> Self {
        match outcome {
            Ok(()) => Self::Done,
            Err(Collective::NonFinite { .. } | Collective::Overflow { .. }) => Self::Poisoned,
            Err(_) => Self::Failed,
        }
    }
}
