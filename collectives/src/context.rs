//! Contexts: the ranks of a group, the numbers of its calls, and what it shares with nobody else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{OnLoss, Pool, Port};
use ucx_sys_wrap::shm::SlotSet;
use ucx_sys_wrap::{Owner, Rank};

use crate::calls::seed;
use crate::difference::{CONTROL, Difference};
use crate::engine::{Engine, Status};
use crate::group::{Group, Settings};
use crate::host::Host;
use crate::messages::{Messages, Tried};
use crate::plan::{Machine, Plan, Terms};
use crate::world::{Numbers, World};

/// A group's context, as its handles see it.
pub(crate) struct Context {
    /// Dropped before the world.
    pub(crate) ranks: Arc<Ranks>,
    pub(crate) world: Arc<World>,
    pub(crate) status: Arc<Status>,
    pub(crate) settings: Settings,
    /// The timeout of calls, in nanoseconds.
    timeout: AtomicU64,
    /// Objects that were made for this context so far.
    objects: AtomicU32,
    pub(crate) tried: Tried,
    /// The context in which this one was made after a loss: the members agree on that one.
    pub(crate) born_of: OnceLock<Arc<Ranks>>,
    /// The context that the members have agreed on after this one, until there is a group in it: who shrinks
    /// this one again goes on from there.
    pub(crate) successor: Mutex<Option<Group>>,
    /// The ranks of the world that others have gone on without, up to this context: some may still be there.
    pub(crate) excluded: Arc<[Rank]>,
}

/// The ranks of a context: what its calls need.
///
/// Dropped with its last group and its last call: then its number, and its slots, are free for another. It
/// does not keep the engine, which keeps the calls; nor the world, even for a moment: only groups leave it.
pub(crate) struct Ranks {
    owner: Owner,
    engine: Weak<Engine>,
    numbers: Arc<Numbers>,
    /// The number of the context, the group of its tags.
    pub(crate) number: u16,
    /// The epoch of messages: the low bits of the whole one.
    pub(crate) epoch: u8,
    /// How many contexts have had the number, this one too.
    pub(crate) whole_epoch: u32,
    /// The members' ranks in the world, by their rank in the context.
    pub(crate) members: Arc<[Rank]>,
    /// This rank in the context.
    pub(crate) own: u32,
    /// The memory that this rank shares with the members on its host, if there are others.
    pub(crate) host: Option<Arc<Host>>,
    /// How the calls of ranks differ, once that has closed the context.
    pub(crate) difference: Difference,
    pub(crate) messages: Messages,
    /// How algorithms are chosen: set before the first call.
    plan: OnceLock<Plan>,
    /// Memory that calls receive into, of all contexts of the job.
    pub(crate) scratch: Pool,
}

/// What the members of a new context have agreed on.
pub(crate) struct Agreed {
    pub(crate) number: u16,
    pub(crate) epoch: u32,
    pub(crate) members: Arc<[Rank]>,
    pub(crate) slots: Option<SlotSet>,
    /// See [`Context::excluded`].
    pub(crate) excluded: Arc<[Rank]>,
}

impl Context {
    /// Opens a context that all members have agreed on; `on_loss` tells what the loss of a member means. The
    /// world holds its number and its slots. A [plan](Self::plan) is made before its first call.
    pub(crate) fn open(world: &Arc<World>, agreed: Agreed, on_loss: OnLoss, settings: Settings) -> Self {
        let Agreed { number, epoch: whole_epoch, members, slots, excluded } = agreed;
        // The epoch of messages has 8 bits: so many contexts of a number never have some at the same time.
        let epoch = whole_epoch as u8;
        let port = world.engine.port();
        // Context 0 is open since the port was made.
        if number != 0 {
            port.open_context(number, epoch, Arc::clone(&members), on_loss);
        }
        let own = members.iter().position(|member| *member == port.rank());
        let own = own.unwrap_or_else(|| unreachable!("a rank opens the contexts that it is a member of"));
        let status =
            if number == 0 { Arc::clone(world.engine.world()) } else { Arc::new(Status::new(number, port)) };
        let host = slots.and_then(|set| Host::new(world, &world.here(&members), set, &status));
        let (own, host) = (own as u32, host.map(Arc::new));
        Self {
            world: Arc::clone(world),
            ranks: Arc::new(Ranks {
                owner: world.owner,
                engine: Arc::downgrade(&world.engine),
                numbers: Arc::clone(&world.contexts),
                number,
                epoch,
                whole_epoch,
                members,
                own,
                host,
                difference: Difference::default(),
                messages: Messages::default(),
                plan: OnceLock::new(),
                scratch: world.scratch.clone(),
            }),
            status,
            timeout: AtomicU64::new(nanoseconds(settings.timeout)),
            settings,
            objects: AtomicU32::new(0),
            tried: Tried::default(),
            born_of: OnceLock::new(),
            successor: Mutex::new(None),
            excluded,
        }
    }

    /// Makes the plan by which algorithms are chosen, for this machine. Ranks compare its digest in their
    /// first call. Once.
    pub(crate) fn plan(&self, machine: Option<Machine>) {
        let hosts: Vec<u32> = self.ranks.members.iter().map(|member| self.world.host(*member)).collect();
        let has_slots = self.ranks.only_host().is_some();
        let plan = Plan::new(&hosts, has_slots, &Terms { machine, ..Terms::of(&self.settings) });
        self.status.calls.begin(seed(self.ranks.number, self.ranks.epoch, plan.digest()));
        let is_first = self.ranks.plan.set(plan).is_ok();
        debug_assert!(is_first, "a plan is made once");
    }

    pub(crate) fn port(&self) -> &Arc<Port> {
        self.world.engine.port()
    }

    /// The ranks by which the members agree on who goes on when this context is closed.
    pub(crate) fn agreeing(&self) -> &Arc<Ranks> {
        self.born_of.get().unwrap_or(&self.ranks)
    }

    #[inline]
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.timeout.store(nanoseconds(timeout), Ordering::Relaxed);
    }

    /// The number of the next object that is made for this context.
    pub(crate) fn number_object(&self) -> u32 {
        self.objects.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether calls that need a peer can succeed. Otherwise they must send nothing: a rank that does not
    /// know yet why the context is closed would take it for a different call.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        !self.status.is_closed()
    }
}

impl Ranks {
    /// All ranks, in the context of messages about other contexts, which is open as long as the world is.
    pub(crate) fn control(world: &World) -> Self {
        Self::beside(world, Rank::all(world.port().world_size()).collect(), world.port().rank().0)
    }

    /// Some ranks that tell each other something in that context, of which this one has number `own`.
    pub(crate) fn beside(world: &World, members: Arc<[Rank]>, own: u32) -> Self {
        Self {
            owner: world.owner,
            engine: Arc::downgrade(&world.engine),
            numbers: Arc::clone(&world.contexts),
            number: CONTROL,
            epoch: 0,
            whole_epoch: 0,
            members,
            own,
            host: None,
            difference: Difference::default(),
            messages: Messages::default(),
            plan: OnceLock::new(),
            scratch: world.scratch.clone(),
        }
    }

    /// How algorithms are chosen.
    #[inline]
    pub(crate) fn plan(&self) -> &Plan {
        self.plan.get().unwrap_or_else(|| unreachable!("no call is made before there is a plan"))
    }

    /// The shared memory of the members, if all are on one host.
    #[inline]
    pub(crate) fn only_host(&self) -> Option<&Arc<Host>> {
        self.host.as_ref().filter(|host| host.places() == self.size())
    }

    /// The number of members.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The rank in the context of a member.
    pub(crate) fn place(&self, member: Rank) -> Option<u32> {
        let is_there = |place: u32| self.members.get(place as usize) == Some(&member);
        // In the context of all ranks a rank has the same number.
        Some(member.0)
            .filter(|place| is_there(*place))
            .or_else(|| (0..self.size()).find(|place| is_there(*place)))
    }

    /// The rank in the world of a rank of the context; one that no world has for a rank outside.
    #[inline]
    pub(crate) fn member(&self, rank: u32) -> Rank {
        self.members.get(rank as usize).copied().unwrap_or(Rank(u32::MAX))
    }
}

impl Drop for Ranks {
    /// In a forked child, all state belongs to the parent.
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return std::mem::forget(self.host.take());
        }
        let Some(engine) = self.engine.upgrade() else { return };
        match self.number {
            CONTROL => return,
            0 => engine.port().discard_unasked(0),
            number => engine.port().forget_context(number),
        }
        self.numbers.release(self.number, self.host.take());
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
