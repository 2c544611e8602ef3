//! What a server is built from.

use std::borrow::Cow;
use std::future::Future;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use brevity_collectives::dense::barrier;
use brevity_collectives::{Group, Peers};
use brevity_compress::Density;
use brevity_compress::codec::Choice;
use brevity_compress::quantise::Quantiser;

use super::answers::LARGEST;
use super::desk::Desk;
use super::layout::{Layout, Roles, Tensor};
use super::loading::{load_shard, load_worker};
use super::method::{Kind, Method, Rule, Servers, Threshold, Values, check_density};
use super::plan::Plan;
use super::saved::Saved;
use super::shard::Shard;
use super::worker::Worker;
use super::{Charge, ParameterServer};
use crate::error::{Error, Result};
use crate::policy::elements;

/// Collects tensors and settings; see [`ParameterServer::builder`]. All ranks make the same calls.
#[derive(Clone)]
pub struct ServerBuilder {
    group: Group,
    tensors: Vec<(String, Vec<usize>)>,
    method: Method,
    servers: Servers,
    rule: Rule,
    threshold: Threshold,
    values: Values,
    codec: Choice,
    secondary: Option<f64>,
    staleness: Option<u64>,
    patience: Option<Duration>,
    keeps_pushes: bool,
    timeout: Option<Duration>,
    charge: Charge,
    saved: Vec<Saved>,
}

impl ServerBuilder {
    pub(super) fn new(group: &Group) -> Self {
        Self {
            group: group.clone(),
            tensors: Vec::new(),
            method: Method::asgd(),
            servers: Servers::default(),
            rule: Rule::default(),
            threshold: Threshold::default(),
            values: Values::default(),
            codec: Choice::default(),
            secondary: None,
            staleness: None,
            patience: None,
            keeps_pushes: false,
            timeout: None,
            charge: Charge::default(),
            saved: Vec::new(),
        }
    }

    /// Adds a tensor: its name and its dimensions.
    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>, shape: impl AsRef<[usize]>) -> Self {
        self.tensors.push((name.into(), shape.as_ref().to_vec()));
        self
    }

    /// How gradients travel; [`Method::asgd`] if it is not set.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    /// Which ranks serve; all, if it is not set.
    #[must_use]
    pub fn servers(self, servers: Servers) -> Self {
        Self { servers, ..self }
    }

    /// What shards do with gradients; [`Rule::Sgd`] if it is not set.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// Which entries are compared with each other, in pushes and answers.
    #[must_use]
    pub fn threshold(self, threshold: Threshold) -> Self {
        Self { threshold, ..self }
    }

    /// How values are written, in pushes and answers. The magnitudes of formats of 1 and 2 bits are those of
    /// a whole message, whatever the [threshold](Self::threshold): tensors of unlike scales want more bits,
    /// or a server each. Not for [`Method::asgd`], which keeps no residual.
    #[must_use]
    pub fn values(self, values: Values) -> Self {
        Self { values, ..self }
    }

    /// How indices are written.
    #[must_use]
    pub fn codec(self, codec: Choice) -> Self {
        Self { codec, ..self }
    }

    /// The share of entries in an answer (0 < density <= 1); that of pushes if it is not set. With 1 all that
    /// a worker is owed is sent.
    #[must_use]
    pub fn secondary_density(self, density: f64) -> Self {
        Self { secondary: Some(density), ..self }
    }

    /// Bounds staleness: a worker's answer waits until it is at most so many steps ahead of the slowest
    /// worker. One that has not been heard of for the [patience](Self::patience) is not waited for. The
    /// steps of a worker count from its first fetch, where it is level with the slowest of the others.
    #[must_use]
    pub fn staleness(self, steps: u64) -> Self {
        Self { staleness: Some(steps), ..self }
    }

    /// For how long nothing may be heard of a worker before those that are bound by
    /// [staleness](Self::staleness) go on without it, until it is heard of again. A quarter of the group's
    /// timeout if it is not set, so that they do not time out first. Longer than any worker computes between
    /// two calls: otherwise the bound is none.
    #[must_use]
    pub fn patience(self, longest: Duration) -> Self {
        Self { patience: Some(longest), ..self }
    }

    /// Lets workers keep their pushes until these are in a saved state of the shard that is
    /// [confirmed](ParameterServer::confirm_saved), and not only until they are applied. Then nothing is lost
    /// when a shard starts again from that state: save and confirm now and then, since the pushes in between
    /// are kept in memory.
    #[must_use]
    pub fn keep_pushes(self) -> Self {
        Self { keeps_pushes: true, ..self }
    }

    /// Begins from a state that a rank has [saved](ParameterServer::save), for a server of the same tensors,
    /// method and kind of rule; call it after all settings, once for each saved state. The rest may be
    /// otherwise: give every rank all states then.
    ///
    /// - **Shards** take their elements, and AdaGrad's squares, out of all the states that hold them, of the
    ///   one with the highest clock where several do; elements that none holds come from the parameters. So
    ///   with the same number of servers each needs its own state only.
    /// - **Workers** add up the residuals of those whose number is their own modulo the number of workers.
    /// - **Pushes that a worker has kept**, and that are in no saved state of the shard, go back to its
    ///   residuals. With the same numbers of workers and servers each worker needs its own state only, and
    ///   asks the shards with its first fetch which they have applied; one without a state has applied none.
    ///   With other numbers the worker needs the states of the shards as well; pushes for a shard whose state
    ///   it has not got are dropped, since they may have been applied.
    ///
    /// Parameters in place of a missing state should be those with which the server began: newer ones may
    /// hold some of the pushes that go back. Of each worker give one state, not older than the shards'.
    ///
    /// # Errors
    /// [`Error::State`] for a state that is damaged or of something else; those of
    /// [`build`](Self::build) for the settings.
    pub fn resume(mut self, from: &mut impl Read) -> Result<Self> {
        let saved = Saved::read(&self.plan()?, from)?;
        self.saved.push(saved);
        Ok(self)
    }

    /// How long [`build`](Self::build) waits for other ranks, where it does; the group's timeout unless this
    /// is called.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// On a simulated network: what the work of a shard costs in virtual time.
    #[must_use]
    pub fn charge(self, charge: Charge) -> Self {
        Self { charge, ..self }
    }

    /// Makes the server, and begins to serve where this rank does. All ranks of the group call this, with
    /// parameters of the same shapes; those of the servers are where the model begins. Workers
    /// [fetch](ParameterServer::fetch) it.
    ///
    /// With [dedicated servers](Servers::Dedicated) in a group of all ranks of a job it waits for nobody:
    /// servers serve those that are there, and what a worker asks before a server is there waits for it. A
    /// worker that has built another server is refused when it fetches. Of such servers a rank may have the
    /// last eight. Where every rank serves, and in a group that was made of another one, it waits until all
    /// ranks have called it, and ranks that build different servers get an error here.
    ///
    /// # Errors
    /// [`Error::Server`] for a setting out of range; [`Error::Policy`]-like errors of names and shapes
    /// ([`Error::DuplicateName`], [`Error::TooLarge`]); [`Error::Shape`] for parameters of other lengths;
    /// [`Error::Memory`]; [`Error::GradientNotFinite`]: nothing was sent. [`Error::Collective`], also for
    /// ranks that build different servers, and if this rank has too many servers.
    pub fn build<T: AsRef<[f32]>>(self, parameters: &[T]) -> Result<ParameterServer> {
        let ready = self.prepare(parameters)?;
        if let Some(peers) = ready.peers_at_once()? {
            return ready.open(peers);
        }
        let description = ready.plan.describe();
        ready.group.note_plan(&description, ready.plan.lines());
        let waiting = ready.waiting();
        waiting.run(description, async |call| barrier(call).await)?;
        let peers = waiting.peers()?;
        ready.open(peers)
    }

    /// The same, awaited: in a runtime, and on a simulated network. Poll the result to its end.
    pub fn build_async<T: AsRef<[f32]>>(
        self,
        parameters: &[T],
    ) -> impl Future<Output = Result<ParameterServer>> + use<T> {
        let ready = self.prepare(parameters);
        async move {
            let ready = ready?;
            if let Some(peers) = ready.peers_at_once()? {
                return ready.open(peers);
            }
            let description = ready.plan.describe();
            ready.group.note_plan(&description, ready.plan.lines());
            let waiting = ready.waiting();
            let agreed = waiting.start(description, (), |call, ()| Box::pin(barrier(call)));
            agreed.await.1?;
            let peers = waiting.start_peers().await?;
            ready.open(peers)
        }
    }

    /// Checks everything, and gets the memory.
    fn prepare<T: AsRef<[f32]>>(self, parameters: &[T]) -> Result<Ready> {
        self.group.check_process()?;
        let plan = Arc::new(self.plan()?);
        // Settings may have changed since the states were read.
        self.saved.iter().try_for_each(|saved| saved.head.check(&plan))?;
        let layout = &plan.layout;
        let shape = |what: String, found, expected| {
            if found == expected { Ok(()) } else { Err(Error::Shape { what, found, expected }) }
        };
        shape("the list of parameters".into(), parameters.len(), layout.tensors.len())?;
        for (tensor, values) in layout.tensors.iter().zip(parameters) {
            let values = values.as_ref();
            shape(format!("tensor {:?} of the parameters", tensor.name), values.len(), tensor.len)?;
            if !values.iter().all(|value| value.is_finite()) {
                let rank = self.group.members()[self.group.rank() as usize].0;
                return Err(Error::GradientNotFinite { rank, tensor: tensor.name.clone() });
            }
            if let Some(place) = values.iter().position(|value| value.abs() > LARGEST) {
                let found = format!("{:e} at element {place} of tensor {:?}", values[place], tensor.name);
                let expected = "at most a quarter of the largest f32 in magnitude, so that sums are finite";
                return Err(Error::Server { parameter: "initial value", found, expected });
            }
        }
        let rank = self.group.rank();
        let shard = plan.roles.shard(rank).map(|number| -> Result<Shard> {
            let mut model = plan.zeros(layout.shards[number].len)?;
            layout.shards[number].gather(parameters, &mut model);
            let mut shard = Shard::new(&plan, number, model)?;
            load_shard(&mut shard, &self.saved);
            Ok(shard)
        });
        let worker = plan.roles.worker(rank).map(|number| -> Result<Worker> {
            let mut worker = Worker::new(&plan, rank)?;
            load_worker(&plan, &mut worker, number, &self.saved)?;
            Ok(worker)
        });
        let (shard, worker) = (shard.transpose()?, worker.transpose()?);
        Ok(Ready { group: self.group, timeout: self.timeout, shard, worker, plan })
    }

    pub(super) fn plan(&self) -> Result<Plan> {
        let world_size = self.group.world_size();
        let roles = Roles::new(world_size, self.servers).ok_or_else(|| {
            let found = format!("{:?} of {world_size} ranks", self.servers);
            refused("choice of servers", found, "at least one, and one worker")
        })?;
        let layout = Layout::new(self.checked_tensors()?, roles.servers.len(), self.threshold);
        if layout.shards.iter().any(|shard| shard.len as u64 > 1 << 32) {
            let found = layout.total.div_ceil(roles.servers.len()).to_string();
            return Err(refused("number of elements of a shard", found, "at most 2^32: use more servers"));
        }
        self.check_rule()?;
        Ok(Plan {
            layout,
            roles,
            method: self.method,
            rule: self.rule,
            values: self.values,
            codec: self.codec,
            secondary: self.checked_secondary()?,
            staleness: self.staleness,
            keeps_pushes: self.keeps_pushes,
            patience: self.patience.unwrap_or_else(|| self.group.timeout() / 4),
            charge: self.charge,
        })
    }

    fn checked_tensors(&self) -> Result<Vec<Tensor>> {
        let mut tensors: Vec<Tensor> = Vec::new();
        for (name, shape) in &self.tensors {
            if tensors.iter().any(|known| known.name == *name) {
                return Err(Error::DuplicateName { tensor: name.clone() });
            }
            tensors.push(Tensor { name: name.clone(), shape: shape.clone(), len: elements(name, shape)? });
        }
        Ok(tensors)
    }

    /// The share of entries in an answer; `None` for the whole shard.
    fn checked_secondary(&self) -> Result<Option<Density>> {
        let density = self.method.density().map(|density| check_density("density", density)).transpose()?;
        match (self.secondary, density) {
            (Some(given), Some(_)) => check_density("secondary density", given).map(Some),
            (Some(given), None) => {
                let expected = "none: asgd sends the whole model";
                Err(refused("secondary density", given.to_string(), expected))
            }
            (None, density) => Ok(density),
        }
    }

    /// Whether rule and values go with the method.
    fn check_rule(&self) -> Result<()> {
        if self.method.is_dense() && !self.values.is_exact() {
            let found = format!("{:?}", self.values);
            return Err(refused("format of values", found, "F32: asgd keeps no residual"));
        }
        check_contracts(&*self.values.quantiser())?;
        match (self.rule, self.method.0) {
            (Rule::AdaGrad { .. }, Kind::Dgs { .. }) => {
                Err(refused("rule", "AdaGrad".into(), "Sgd: a push of dgs contains the rate"))
            }
            (Rule::AdaGrad { epsilon }, _) if !(epsilon > 0.0 && epsilon.is_finite()) => {
                Err(refused("epsilon", epsilon.to_string(), "a finite number above 0"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether what a quantiser takes from the values of a selection may stay in a residual: whatever their
/// number.
fn check_contracts(quantiser: &dyn Quantiser) -> Result<()> {
    if quantiser.contracts(usize::MAX, false) {
        return Ok(());
    }
    let found = format!("{:?}", quantiser.format());
    Err(refused("format of values", found, "one with less error: what rounding takes away would add up"))
}

fn refused(parameter: &'static str, found: String, expected: &'static str) -> Error {
    Error::Server { parameter, found, expected }
}

/// What is checked and has its memory.
struct Ready {
    group: Group,
    timeout: Option<Duration>,
    plan: Arc<Plan>,
    shard: Option<Shard>,
    worker: Option<Worker>,
}

impl Ready {
    /// The group, with the timeout of building.
    fn waiting(&self) -> Cow<'_, Group> {
        match self.timeout {
            Some(timeout) => Cow::Owned(self.group.with_timeout(timeout)),
            None => Cow::Borrowed(&self.group),
        }
    }

    /// The other ranks, without waiting for any, where a worker may hold up nobody.
    fn peers_at_once(&self) -> Result<Option<Peers>> {
        if self.plan.roles.is_dedicated() { Ok(self.group.peers_at_once()?) } else { Ok(None) }
    }

    fn open(self, peers: Peers) -> Result<ParameterServer> {
        let peers = Arc::new(peers);
        let desk = self.shard.map(|shard| Desk::open(shard, &peers)).transpose()?;
        Ok(ParameterServer {
            worker: self.worker,
            desk,
            plan: self.plan,
            peers,
            group: self.group,
            timeout: None,
            unconfirmed: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::{Norm, Qsgd, Ternary};

    use super::*;

    #[test]
    fn values_whose_errors_would_add_up_are_refused() {
        for values in Values::ALL {
            assert!(check_contracts(&*values.quantiser()).is_ok(), "{values:?}");
        }
        assert!(check_contracts(&Qsgd::new(12, 512, Norm::Euclidean, 1)).is_ok());
        for quantiser in [&Qsgd::new(7, 512, Norm::Euclidean, 1) as &dyn Quantiser, &Ternary::new(1)] {
            let text = check_contracts(quantiser).unwrap_err().to_string();
            assert!(text.contains("less error"), "{text}");
        }
    }
}
