//! Groups of ranks: how they are made, and what they know.

mod compressed;
mod dense;
mod driving;
mod forms;
mod leave;
mod leaving;
mod messages;
mod on_host;
mod one_sided;
mod peers;
mod probe;
mod reserved;
mod run;
mod settings;
mod shared;
mod split;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ucx_sys_wrap::bootstrap::Opened;
use ucx_sys_wrap::buffer::{OnLoss, Port};
use ucx_sys_wrap::shm::{LocalGroup, SlotSet};
use ucx_sys_wrap::{Failure, Owner, Rank, Statistics, Transport};

use crate::context::{Agreed, Context};
use crate::description::Description;
use crate::difference::CONTROL;
use crate::engine::{Engine, EngineThread};
use crate::error::{Error, Result};
use crate::grow::Origin;
use crate::host::places;
use crate::plan::{Algorithm, Machine, SEGMENTS};
use crate::shrink::Agreements;
use crate::world::{Numbers, World};

pub(crate) use dense::wished;
pub use forms::{FORMS, Form};
pub use leaving::Leaving;
pub use peers::{Handler, Outbox, Peers};
pub use reserved::Reserved;
pub use run::CallFuture;
use run::Made;
pub use settings::{DEFAULT_TIMEOUT, Settings};
pub use split::Hosts;

/// Ranks that make collective calls together: all ranks of a job, or some of them ([`split`](Self::split)).
///
/// All ranks make the same calls in the same order, on each group. A group can be shared between threads and
/// cloned; clones are the same group. Calls on different groups are independent: they may run at the same
/// time, from several threads. In a forked child, calls on the groups of its parent are refused
/// ([`Error::Forked`]), and nothing else may be done with their handles and engines than dropping them. In a
/// signal handler a group may only be [aborted](Self::abort). Dropping the last handle ends the group's
/// thread and waits for that, unless the drop is inside the body of a call. In a runtime,
/// [leave](Self::leave) instead.
///
/// After [`Error::PeerLost`], [`Error::Aborted`], [`Error::Timeout`], [`Error::Mismatch`],
/// [`Error::Differs`], [`Error::Payload`], or an [`Error::Transport`] that is due to lack of memory or a
/// peer's invalid message, the group is closed on all its ranks: calls that need a peer fail. Other groups go
/// on, unless they have the lost rank as a member. Errors name ranks by their number in the world
/// ([`members`](Self::members)).
#[derive(Clone)]
pub struct Group {
    pub(crate) context: Arc<Context>,
    /// The timeout of this handle's calls, instead of the group's.
    timeout: Option<Duration>,
    /// The algorithm of this handle's calls on dense vectors, instead of the cheapest.
    algorithm: Option<Algorithm>,
}

impl Group {
    /// The group of all ranks of `transport`.
    ///
    /// # Panics
    /// As [`opened`](Self::opened).
    #[must_use]
    pub fn new(transport: Box<dyn Transport>, settings: Settings) -> Self {
        Self::opened(Opened::in_process(transport, None), settings)
    }

    /// The group of all ranks of a joined job.
    ///
    /// # Panics
    /// When the system has no thread or descriptor left, as [`std::thread::spawn`] does; for a machine with
    /// numbers that are negative or not finite, or a segment of less than 64 bytes or more than 2^30.
    #[must_use]
    pub fn opened(opened: Opened, settings: Settings) -> Self {
        assert!(settings.machine.is_none_or(|machine| machine.is_valid()), "{:?}", settings.machine);
        assert!(SEGMENTS.contains(&settings.segment_bytes), "a segment of {} bytes", settings.segment_bytes);
        Self::try_opened(opened, None, settings)
            .unwrap_or_else(|error| panic!("{error}"))
            .planned(settings.machine)
    }

    /// Like [`opened`](Self::opened), but a [plan](Self::planned) is yet to be made. Its job began with this
    /// world, unless `origin` says otherwise.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub(crate) fn try_opened(opened: Opened, origin: Option<Origin>, settings: Settings) -> Result<Self> {
        let Opened { transport, local_group, is_crowded, is_encrypted, hosts, identity, .. } = opened;
        let origin = origin.or_else(|| identity.map(|identity| Origin::of(*identity)));
        let port = Port::new(transport);
        let engine = Engine::new(Arc::clone(&port), local_group.clone(), is_crowded);
        // A single rank has no peer to tell of an abort, and a simulated network allows no other thread.
        let is_needed = settings.progress_thread || (port.world_size() > 1 && !port.is_simulated());
        let thread = is_needed.then(|| EngineThread::start(&engine, settings.progress_thread)).transpose();
        let thread = thread.map_err(Error::Transport)?;
        let members: Arc<[Rank]> = Rank::all(port.world_size()).collect();
        port.open_context(CONTROL, 0, Arc::clone(&members), OnLoss::Continue);
        let contexts = Arc::new(Numbers::new());
        let owner = Owner::here();
        let (scratch, agreements) = (World::scratch(), Agreements::default());
        let world = Arc::new(World {
            thread,
            owner,
            engine,
            local_group,
            is_encrypted,
            hosts,
            contexts,
            scratch,
            agreements,
            origin,
            has_gone: AtomicBool::new(false),
        });
        let slots = places(&world, &world.here(&members)).map(|_| SlotSet::default());
        let agreed = Agreed { number: 0, epoch: 0, members, slots, excluded: Arc::default() };
        Ok(Self::of(Context::open(&world, agreed, OnLoss::Close, settings)))
    }

    /// This group with its plan for a machine.
    pub(crate) fn planned(self, machine: Option<Machine>) -> Self {
        self.context.plan(machine);
        self
    }

    pub(crate) fn of(context: Context) -> Self {
        Self { context: Arc::new(context), timeout: None, algorithm: None }
    }

    /// A group of this rank only.
    #[must_use]
    pub fn solo() -> Self {
        let alone = ucx_sys_wrap::local::world(1);
        let transport =
            alone.into_iter().next().unwrap_or_else(|| unreachable!("a world of one has one rank"));
        Self::new(Box::new(transport), Settings::default())
    }

    /// This rank in the group.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.context.ranks.own
    }

    /// The number of ranks in the group.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.context.ranks.size()
    }

    /// The members by their rank in the group: the number of each in the world, by which errors name it.
    #[must_use]
    pub fn members(&self) -> &[Rank] {
        &self.context.ranks.members
    }

    /// Whether both are handles of the same group.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
    }

    /// Fails in a forked child of the process that has made the group. All calls begin with this, except
    /// custom ones ([`run`](Self::run), [`start`](Self::start)).
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        if self.context.world.owner.has_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether the group is closed, as far as this rank knows: calls that need a peer would fail. Turns the
    /// transport once.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.failure().is_some()
    }

    /// Why the group is closed, as far as this rank knows: the loss or the abort of a rank, or that ranks
    /// make different calls. After a timeout it is the abort of the rank whose call has timed out. `None`
    /// while the group is open. Turns the transport once, and so finds what came up outside of a call.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        if let Err(error) = self.check_process() {
            return Some(error);
        }
        // Without an operation that waits for them, a transport checks only the peers that it is told to.
        for member in self.members().iter().filter(|member| **member != self.port().rank()) {
            // One that has left normally is no failure.
            let _has_left = self.port().watch(*member);
        }
        drop(self.port().arm());
        self.progress();
        if !self.context.status.look(self.port()) {
            return None;
        }
        let ranks = &self.context.ranks;
        // An abort that is not carried out yet is this rank's own.
        let cause = self.port().failure(ranks.number).unwrap_or(Failure::Aborted(self.port().rank()));
        Some(ranks.error(cause.into()))
    }

    /// Sets the timeout of later calls on this group. Ranks may have different ones: the first that passes
    /// closes the group.
    pub fn set_timeout(&self, timeout: Duration) {
        self.context.set_timeout(timeout);
    }

    /// The same group, with another timeout for the calls that are made through the result.
    ///
    /// ```
    /// use brevity_collectives::{Group, ReduceOp};
    /// use std::time::Duration;
    ///
    /// let group = Group::solo();
    /// group.with_timeout(Duration::from_secs(2)).barrier()?;
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self.clone() }
    }

    /// The same group, with this algorithm for the calls that are made through the result: on dense vectors,
    /// and top-k all-reduces. All ranks choose the same one. All but [`Slots`](Algorithm::Slots), and
    /// [`Hosts`](Algorithm::Hosts) inside the hosts, go by messages, also among ranks that share memory.
    /// `None` for the cheapest. A barrier heeds only what it has, and what has one algorithm heeds none.
    ///
    /// A call for which it does not fit is refused ([`Error::Algorithm`]).
    #[must_use]
    pub fn with_algorithm(&self, algorithm: Option<Algorithm>) -> Self {
        Self { algorithm, ..self.clone() }
    }

    /// The timeout of calls that are made through this handle.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.context.timeout())
    }

    /// The number of the next object that is made for this group, such as an exchange. Objects that ranks use
    /// together are made in the same order on all of them; a call's description contains the number, so that
    /// ranks that use different objects find out.
    #[must_use]
    pub fn number_object(&self) -> u32 {
        self.context.number_object()
    }

    /// Notes a [plan](Description::of_plan) in words, a line for each of its parts, so that ranks whose plans
    /// differ are told in which part.
    pub fn note_plan(&self, plan: &Description, lines: impl Iterator<Item = String>) {
        self.context.status.plans.note(plan.count, lines);
    }

    /// The transport's name, as "tcp".
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.port().name()
    }

    /// The counters of this rank, of all its groups; bytes over shared memory are those of this group.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let bytes_shared =
            self.context.ranks.host.as_ref().map_or(0, |host| host.written.load(Ordering::Relaxed));
        Statistics { bytes_shared, ..self.port().statistics() }
    }

    /// The memory that this rank shares with the others of its host, if it does.
    #[must_use]
    pub fn local_group(&self) -> Option<&Arc<LocalGroup>> {
        self.context.world.local_group.as_ref()
    }

    /// The settings of the group.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.context.settings
    }

    /// The progress engine of this group, for point-to-point messages. Their tags must have a group number
    /// that no group of collectives uses: 1008 to 1022.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.context.world.engine
    }

    /// Closes the group on all its ranks: pending and later calls of all ranks fail with [`Error::Aborted`]
    /// naming this rank. Other groups go on.
    ///
    /// Async-signal-safe: a signal handler may call it at any time, also during a call on this group. It
    /// takes no lock, allocates nothing and never panics.
    ///
    /// Peers are told by the call that is using the transport, at its next turn (within 10 ms if it sleeps),
    /// else by the group's thread. This waits for that at most 100 ms (2 ms while a thread is in the
    /// transport), so that a caller may exit afterwards. In a handler that has interrupted a call, peers may
    /// not have been told yet when this returns. If the process ends before that call goes on, they find this
    /// rank lost instead. In a simulation, peers are told at this rank's next turn or call, or when it drops
    /// the group. In a forked child this does nothing.
    pub fn abort(&self) {
        if self.check_process().is_err() {
            return;
        }
        self.engine().abort(&self.context.status);
    }

    fn port(&self) -> &Arc<Port> {
        self.context.port()
    }
}
