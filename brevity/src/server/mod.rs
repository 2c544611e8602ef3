//! Asynchronous training against a sharded parameter server.

mod acceptor;
mod answers;
mod builder;
mod charge;
mod desk;
mod lane;
mod layout;
mod letterbox;
#[cfg(test)]
mod limit_tests;
mod line;
mod list;
mod loading;
mod method;
#[cfg(test)]
mod paper_tests;
mod plan;
mod saved;
#[cfg(test)]
mod saved_tests;
mod seat;
mod serve;
#[cfg(test)]
mod server_tests;
mod shard;
#[cfg(test)]
mod shard_tests;
mod trailer;
mod watch;
mod worker;
mod works;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use brevity_collectives::{Group, Peers};

pub use builder::ServerBuilder;
pub use charge::Charge;
pub use method::{Method, Rule, Servers, Threshold, Values};
pub use shard::Served;

/// The ends of messages, for programs that make their own.
#[doc(hidden)]
pub mod messages {
    pub use super::desk::{REPLIES, REQUESTS};
    pub use super::trailer::{Kind, TRAILER_BYTES, Trailer};
}

use crate::error::{Error, Result};
use desk::Desk;
use plan::Plan;
use worker::{Around, UNUSED, Worker};

/// A sharded parameter server, and this rank's part in it: a worker, a shard, or both.
///
/// Workers train at their own pace. A step [pushes](Self::push) what the [method](Method) makes of the
/// gradients to all shards; each applies it to its part of the model at once ([`Rule`]) and answers with what
/// has changed since the worker's last answer, of which the largest entries are sent and the rest is owed.
/// Nothing is lost: what a worker does not send stays in its residuals, what a shard does not send stays in
/// what it owes.
///
/// ```
/// use brevity::server::{Method, ParameterServer};
/// use brevity::Group;
///
/// let group = Group::solo();
/// let mut parameters = [vec![0.0f32; 4]];
/// let mut server = ParameterServer::builder(&group)
///     .tensor("weight", [4])
///     .method(Method::gradient_dropping(0.25))
///     .build(&parameters)?;
/// server.fetch(&mut parameters)?;
/// let step = server.step(&[vec![1.0f32, -4.0, 2.0, 0.0]], 0.5, &mut parameters)?;
/// assert_eq!(parameters[0], [0.0, 2.0, 0.0, 0.0]);
/// assert_eq!((step.clock, step.lag), (1, 0));
/// server.leave()?;
/// # Ok::<(), brevity::Error>(())
/// ```
///
/// **Who may fail.** With [dedicated servers](Servers::Dedicated) a worker holds up nobody: it may come late,
/// [leave](Self::leave), die, or hang. Where every rank serves, all ranks build the server together, and the
/// death of a rank is the death of its shard: [`Error::ServerLost`] on all workers.
///
/// **Once.** A shard applies each push once. When it is lost, its last pushes stay aside with their numbers.
/// A server that is built anew from [saved states](Self::save) says which it has applied: later ones are put
/// back into the residuals. Without that a push is applied at most once.
pub struct ParameterServer {
    worker: Option<Worker>,
    /// Dropped before the peers.
    desk: Option<Desk>,
    plan: Arc<Plan>,
    peers: Arc<Peers>,
    group: Group,
    /// The timeout of waits, instead of the group's.
    timeout: Option<Duration>,
    /// What was applied of each worker when the shard was saved, if that is not confirmed.
    unconfirmed: Option<Vec<u64>>,
}

/// What a step of a worker has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The pushes of all workers that a shard had applied when it answered; of the shard with the most.
    pub clock: u64,
    /// The staleness: the pushes of other workers that a shard has applied between this worker's last answer
    /// and this push; of the shard with the most. 0 without a push.
    pub lag: u64,
    /// The bytes of this step's messages, both ways.
    pub bytes: u64,
    /// How long this rank's thread has decoded the answers and added them to the parameters: processor time,
    /// which [`Group::compute`] charges on a simulated network.
    pub computing: Duration,
}

impl ParameterServer {
    /// Starts a list of tensors.
    #[must_use]
    pub fn builder(group: &Group) -> ServerBuilder {
        ServerBuilder::new(group)
    }

    /// Replaces the parameters by the model, as it is at each shard. Every worker begins with this, also one
    /// that comes late. After a failure it begins anew: what it was owed is in the model. Answers that were
    /// not pulled are waited for first; what they hold is in the model, too, and in no parameters: after an
    /// error, and if the call is given up, this worker has to fetch before it pushes or pulls again.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Order`] on a rank that does not work. [`Error::ServerLost`],
    /// [`Error::ServerSilent`] after the group's timeout, [`Error::Refused`], also of an earlier request:
    /// fetch again; it says so if the servers were built otherwise than this worker. The parameters may hold
    /// the model of some shards then.
    pub fn fetch<T: AsMut<[f32]>>(&mut self, parameters: &mut [T]) -> Result<()> {
        self.check(parameters)?;
        let (worker, around) = self.worker()?;
        worker.has_fetched = false;
        worker.wait(&around, UNUSED)?;
        worker.begin_to_fetch(&around);
        worker.wait(&around, Some(parameters))?;
        worker.has_fetched = true;
        Ok(())
    }

    /// The same, awaited.
    ///
    /// # Errors
    /// As for [`fetch`](Self::fetch).
    pub async fn fetch_async<T: AsMut<[f32]>>(&mut self, parameters: &mut [T]) -> Result<()> {
        self.check(parameters)?;
        let (worker, around) = self.worker()?;
        worker.has_fetched = false;
        worker.wait_async(&around, UNUSED).await?;
        worker.begin_to_fetch(&around);
        worker.wait_async(&around, Some(parameters)).await?;
        worker.has_fetched = true;
        Ok(())
    }

    /// Pushes gradients, and adds the answers to the parameters: [`push`](Self::push) and then
    /// [`pull`](Self::pull). `rate` is the learning rate.
    ///
    /// # Errors
    /// Of both.
    pub fn step<G, T>(&mut self, gradients: &[G], rate: f32, parameters: &mut [T]) -> Result<Step>
    where
        G: AsRef<[f32]>,
        T: AsMut<[f32]>,
    {
        self.check(parameters)?;
        self.push(gradients, rate)?;
        self.pull(parameters)
    }

    /// The same, awaited.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub async fn step_async<G, T>(&mut self, gradients: &[G], rate: f32, parameters: &mut [T]) -> Result<Step>
    where
        G: AsRef<[f32]>,
        T: AsMut<[f32]>,
    {
        self.check(parameters)?;
        self.push(gradients, rate)?;
        self.pull_async(parameters).await
    }

    /// Sends what the method makes of the gradients to all shards. Does not wait: compute on, and
    /// [`pull`](Self::pull) the answers before the next push. The gradients are those of a loss that falls;
    /// what is not sent stays in the residuals.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::Order`] before a fetch, and while answers have not been pulled. For
    /// [`Error::GradientNotFinite`] nothing was sent, and the gradients are in no residual; those of tensors
    /// before it are, if a sum has overflowed with momentum.
    pub fn push<G: AsRef<[f32]>>(&mut self, gradients: &[G], rate: f32) -> Result<()> {
        self.check_lengths("gradients", gradients.iter().map(|gradient| gradient.as_ref().len()))?;
        let (worker, _) = self.worker()?;
        if !worker.has_fetched {
            return Err(Error::Order { what: "a push before a fetch", remedy: "fetch the model first" });
        }
        if worker.is_waiting() {
            let remedy = "pull the answers to the last one first";
            return Err(Error::Order { what: "a push after a push", remedy });
        }
        self.check_gradients(gradients, rate)?;
        let (worker, around) = self.worker()?;
        worker.push(&around, gradients, rate)
    }

    /// Waits for the answers to the last push, and adds them to the parameters. Without a push it asks all
    /// shards for what this worker is owed.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Order`] before a fetch. [`Error::ServerLost`]; [`Error::ServerSilent`]
    /// after the group's timeout: the answer can still be pulled. [`Error::Refused`]: the push is back in
    /// the residuals. The answers of other shards have been added.
    pub fn pull<T: AsMut<[f32]>>(&mut self, parameters: &mut [T]) -> Result<Step> {
        self.check(parameters)?;
        let (worker, around) = self.ask_for_answers()?;
        worker.wait(&around, Some(parameters))
    }

    /// The same, awaited.
    ///
    /// # Errors
    /// As for [`pull`](Self::pull).
    pub async fn pull_async<T: AsMut<[f32]>>(&mut self, parameters: &mut [T]) -> Result<Step> {
        self.check(parameters)?;
        let (worker, around) = self.ask_for_answers()?;
        worker.wait_async(&around, Some(parameters)).await
    }

    /// Changes the timeout of this rank's waits, also of those for workers, which is the group's otherwise.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// Changes the density of pushes from the next one on (0 < density <= 1), for instance during warm-up. No
    /// effect with [`Method::asgd`]. Workers may have different ones.
    ///
    /// # Errors
    /// [`Error::Server`] for a density out of range; [`Error::Order`] on a rank that does not work.
    pub fn set_density(&mut self, density: f64) -> Result<()> {
        let checked = method::check_density("density", density)?;
        let plan = Arc::clone(&self.plan);
        let (worker, _) = self.worker()?;
        for seat in &mut worker.seats {
            let ranges = plan.layout.shards[seat.shard].lanes.iter();
            seat.lanes
                .iter_mut()
                .zip(ranges)
                .for_each(|(lane, range)| lane.set_k(checked.entries(range.len())));
        }
        Ok(())
    }

    /// What this worker has not pushed of a tensor's gradients: the residual, `w` of SAMomentum, `v` of
    /// momentum correction. `None` for an unknown name, and on a rank that does not work.
    #[must_use]
    pub fn residual(&self, tensor: &str) -> Option<Vec<f32>> {
        let number = self.plan.layout.tensors.iter().position(|known| known.name == tensor)?;
        let mut residual = vec![0.0; self.plan.layout.tensors[number].len];
        for seat in &self.worker.as_ref()?.seats {
            let layout = &self.plan.layout.shards[seat.shard];
            let mut flat = vec![0.0; layout.len];
            for (lane, range) in seat.lanes.iter().zip(&layout.lanes) {
                // A dense lane that keeps nothing has no vector.
                if let Some(kept) = lane.vectors().first().filter(|kept| !kept.is_empty()) {
                    flat[range.clone()].copy_from_slice(kept);
                }
            }
            for piece in layout.pieces.iter().filter(|piece| piece.tensor == number) {
                residual[piece.range.clone()].copy_from_slice(&flat[piece.at.clone()]);
            }
        }
        Some(residual)
    }

    /// This rank's shard: where it begins among all elements of all tensors, and its elements. `None` where
    /// this rank does not serve.
    #[must_use]
    pub fn model(&self) -> Option<(usize, Vec<f32>)> {
        let model = self.desk.as_ref()?.look(|shard| shard.model.clone())?;
        Some((self.elements()?.start, model))
    }

    /// The elements of this rank's shard, among all elements of all tensors. `None` where this rank does not
    /// serve.
    #[must_use]
    pub fn elements(&self) -> Option<Range<usize>> {
        let shard = &self.plan.layout.shards[self.plan.roles.shard(self.group.rank())?];
        Some(shard.first..shard.first + shard.len)
    }

    /// The ranks as workers and servers know them, for tests that send them what no worker sends.
    #[doc(hidden)]
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether this rank is a worker.
    #[must_use]
    pub fn is_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// The number of this rank's shard, if it serves.
    #[must_use]
    pub fn shard(&self) -> Option<u32> {
        self.plan.roles.shard(self.group.rank()).map(|shard| shard as u32)
    }

    /// The group that it was built for.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    fn worker(&mut self) -> Result<(&mut Worker, Around<'_>)> {
        let Self { worker, desk, plan, peers, group, timeout, .. } = self;
        let remedy = "only workers push and pull";
        let worker = worker.as_mut().ok_or(Error::Order { what: "a call on a dedicated server", remedy })?;
        Ok((
            worker,
            Around { plan, peers, desk: desk.as_ref(), timeout: timeout.unwrap_or_else(|| group.timeout()) },
        ))
    }

    fn ask_for_answers(&mut self) -> Result<(&mut Worker, Around<'_>)> {
        let (worker, around) = self.worker()?;
        if !worker.has_fetched {
            return Err(Error::Order { what: "a pull before a fetch", remedy: "fetch the model first" });
        }
        if !worker.is_waiting() {
            worker.begin_to_pull(&around);
        }
        Ok((worker, around))
    }

    fn check<T: AsMut<[f32]>>(&self, parameters: &mut [T]) -> Result<()> {
        self.group.check_process()?;
        self.check_lengths("parameters", parameters.iter_mut().map(|values| values.as_mut().len()))
    }

    fn check_lengths(&self, all: &str, lens: impl ExactSizeIterator<Item = usize>) -> Result<()> {
        let tensors = &self.plan.layout.tensors;
        let shape = |what: String, found, expected| {
            if found == expected { Ok(()) } else { Err(Error::Shape { what, found, expected }) }
        };
        shape(format!("the list of {all}"), lens.len(), tensors.len())?;
        for (tensor, len) in tensors.iter().zip(lens) {
            shape(format!("tensor {:?} of the {all}", tensor.name), len, tensor.len)?;
        }
        Ok(())
    }

    /// Checked before anything is changed: taking a gradient out again rounds, and can't be done with
    /// momentum.
    fn check_gradients<G: AsRef<[f32]>>(&self, gradients: &[G], rate: f32) -> Result<()> {
        if !rate.is_finite() {
            let expected = "a finite number";
            return Err(Error::Server { parameter: "learning rate", found: rate.to_string(), expected });
        }
        for (tensor, gradient) in self.plan.layout.tensors.iter().zip(gradients) {
            if !gradient.as_ref().iter().all(|value| value.is_finite()) {
                let rank = self.peers.member(self.peers.rank()).0;
                return Err(Error::GradientNotFinite { rank, tensor: tensor.name.clone() });
            }
        }
        Ok(())
    }
}
