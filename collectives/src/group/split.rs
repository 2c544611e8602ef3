//! New groups of the ranks of a group.
//!
//! The ranks agree on the number of the new context in one call on the group that is split:
//!
//! 1. Each gives its colour and key, the numbers that are free on it, and its free sets of slots. The members
//!    of a colour, sorted by key and rank, choose the first number that is free on all of them, and a set of
//!    slots on each host. Different colours may choose the same number: no rank is in both.
//! 2. Each claims what was chosen, and tells whether it could: another split, on other groups, may have
//!    claimed it meanwhile. If one could not, all ranks of the group begin again. Splits of different groups
//!    search from different numbers on, so that two of them do not meet for ever.
//! 3. Each waits for a barrier. A rank whose barrier fails closes the new context, which others may have:
//!    they would wait for it there. A rank that fails before has kept all others from the end of the barrier.
//!
//! The epoch of the new context is one more than the number had before on any member, so that late messages
//! of an earlier context are recognised.

use std::future::Future;
use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, OnLoss};
use ucx_sys_wrap::shm::{MAX_GENERATIONS, SLOT_SETS, SlotSet};
use ucx_sys_wrap::{Failure, Rank};

use super::Group;
use crate::call::Call;
use crate::context::{Agreed, Context};
use crate::dense::{self, AllGather, Lengths};
use crate::description::{Description, Operation, mix};
use crate::error::{Error, Result};
use crate::host::places;
use crate::world::{Offer, WORDS, World};

/// The words of an offer: colour, key, free numbers, generations of free sets.
const OFFER_WORDS: usize = 2 + WORDS + SLOT_SETS;

/// The colour of a rank that gets no group.
const NO_COLOUR: u64 = u64::MAX;

/// How often ranks search for a number that is free on all of them.
const ATTEMPTS: u64 = 200;

/// After so many attempts they do without slots, of which there are few.
const ATTEMPTS_WITH_SLOTS: u64 = 50;

/// The ranks of a group by their hosts; see [`Group::hosts`].
pub struct Hosts {
    /// The ranks that share this rank's memory, in the order of the group.
    pub local: Group,
    /// The first rank of each host, on those ranks; `None` on others.
    pub leaders: Option<Group>,
}

impl Group {
    /// Splits the group: ranks of equal colour form a group, in the order of their keys, and of their ranks
    /// where keys are equal. A rank without colour gets none. The group itself stays as it is.
    ///
    /// All ranks of the group call this; colours and keys may differ. The new groups are independent of this
    /// one and of each other: calls on them may run at the same time. A lost rank closes those that it is a
    /// member of.
    ///
    /// Cost: two all-gathers of at most 216 bytes a rank, and a barrier.
    ///
    /// ```
    /// let group = brevity_collectives::Group::solo();
    /// let row = group.split(Some(group.rank() / 4), group.rank())?;
    /// assert!(row.is_some_and(|row| row.world_size() == 1));
    /// assert!(group.split(None, 0)?.is_none());
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::TooManyGroups`] on all ranks when no number is free on all
    /// members of a new group: a rank can be in 1,007 groups beside that of all ranks.
    pub fn split(&self, colour: Option<u32>, key: u32) -> Result<Option<Self>> {
        self.check_process()?;
        let colour = colour.map_or(NO_COLOUR, u64::from);
        let agreed =
            self.run(describe(OnLoss::Close), async |call| agree(call, &self.context, colour, key).await)?;
        self.part(agreed, OnLoss::Close)
    }

    /// Another group of the same ranks, for messages alone, that a loss does not close; of all ranks.
    pub(super) fn duplicate_for_messages(&self) -> Result<Self> {
        self.check_process()?;
        let (on_loss, key) = (OnLoss::Continue, self.rank());
        let agreed = self.run(describe(on_loss), async |call| agree(call, &self.context, 0, key).await)?;
        self.part(agreed, on_loss).map(duplicated)
    }

    /// Like [`duplicate_for_messages`](Self::duplicate_for_messages), for ranks of a simulation.
    pub(super) fn start_duplicate_for_messages(&self) -> impl Future<Output = Result<Self>> + use<> {
        let split = self.start_agree(0, self.rank(), OnLoss::Continue);
        async move { split.await.map(duplicated) }
    }

    /// Starts a [`split`](Self::split), for ranks of a simulation, which can't block. Poll the result to its
    /// end: meanwhile the call keeps the job of the group.
    #[doc(hidden)]
    pub fn start_split(
        &self,
        colour: Option<u32>,
        key: u32,
    ) -> impl Future<Output = Result<Option<Self>>> + use<> {
        self.start_agree(colour.map_or(NO_COLOUR, u64::from), key, OnLoss::Close)
    }

    fn start_agree(
        &self,
        colour: u64,
        key: u32,
        on_loss: OnLoss,
    ) -> impl Future<Output = Result<Option<Self>>> + use<> {
        let (parent, context) = (self.clone(), Arc::clone(&self.context));
        let call = self.start(describe(on_loss), (), move |call, ()| {
            Box::pin(async move { agree(call, &context, colour, key).await })
        });
        async move { parent.part(call.await.1?, on_loss) }
    }

    /// Opens what the ranks have agreed on. Others may use it although this rank's split has failed
    /// afterwards: then it is closed.
    fn part(
        &self,
        (agreed, confirmed): (Option<Agreed>, Result<()>),
        on_loss: OnLoss,
    ) -> Result<Option<Self>> {
        let Context { world, settings, .. } = &*self.context;
        let part = agreed.map(|agreed| {
            let machine = Some(*self.context.ranks.plan().machine());
            let agreed = Agreed { excluded: Arc::clone(&self.context.excluded), ..agreed };
            Self::of(Context::open(world, agreed, on_loss, *settings)).planned(machine)
        });
        if let (Some(part), Err(_)) = (&part, &confirmed) {
            part.close_like(self);
        }
        confirmed.map(|()| part)
    }

    /// Closes this group for the reason why `parent` is closed.
    fn close_like(&self, parent: &Self) {
        let cause = self.port().failure(parent.context.ranks.number);
        let cause = cause.unwrap_or(Failure::Aborted(self.port().rank()));
        self.port().fail(self.context.ranks.number, cause);
    }

    /// Starts [`duplicate`](Self::duplicate), as [`start_split`](Self::start_split) does.
    pub(crate) fn start_duplicate(&self) -> impl Future<Output = Result<Self>> + use<> {
        let split = self.start_split(Some(0), self.rank());
        async move { split.await.map(duplicated) }
    }

    /// Another group of the same ranks, for calls that are independent of those on this one.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn duplicate(&self) -> Result<Self> {
        self.split(Some(0), self.rank()).map(duplicated)
    }

    /// The groups for calls in two levels: the ranks of this host that share memory, and the first rank of
    /// each host. A rank that shares no memory with another one is taken for a host of its own.
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    pub fn hosts(&self) -> Result<Hosts> {
        let own = self.members()[self.rank() as usize];
        // The same on all ranks of the host, and on no other: the lowest rank there.
        let host = self.local_group().map_or(own, |local_group| local_group.ranks()[0]);
        let local = self.split(Some(host.0), self.rank())?;
        let local = local.unwrap_or_else(|| unreachable!("this rank has a colour"));
        let leaders = self.split((local.rank() == 0).then_some(0), self.rank());
        let leaders = leaders.inspect_err(|_| local.close_like(self))?;
        Ok(Hosts { local, leaders })
    }
}

/// The group of a rank that has given a colour.
fn duplicated(part: Option<Group>) -> Group {
    part.unwrap_or_else(|| unreachable!("this rank has a colour"))
}

/// A split for groups that go on after a loss is another call than one for groups that do not.
fn describe(on_loss: OnLoss) -> Description {
    Description::new(Operation::SPLIT, 0, usize::from(on_loss == OnLoss::Continue))
}

/// What a rank has told of itself.
struct Told {
    rank: u32,
    colour: u64,
    key: u64,
    free: [u64; WORDS],
    /// The generation of each set of slots, 0 for one that is taken.
    sets: [u64; SLOT_SETS],
}

/// What the members of a colour have chosen.
struct Choice {
    number: Option<u16>,
    members: Arc<[Rank]>,
    slots: Option<SlotSet>,
}

/// Agrees with the other ranks of the call; gives nothing to a rank without colour. Also returns whether all
/// ranks have come so far.
async fn agree(
    call: &Call<'_, '_>,
    context: &Context,
    colour: u64,
    key: u32,
) -> Result<(Option<Agreed>, Result<()>)> {
    let world = &context.world;
    for attempt in 0..ATTEMPTS {
        let lost = world.port().lost();
        let told = exchange_offers(call, [colour, u64::from(key)], &world.contexts.offer(&lost)).await?;
        // Splits of other groups at the same time, of which some ranks know, search elsewhere.
        let start = mix(u64::from(context.status.number) << 32 | attempt);
        let choice = Choice::of(context, colour, &told, start, attempt < ATTEMPTS_WITH_SLOTS);
        let claim = Claim::take(world, &choice, &lost);
        let answers = exchange_answers(call, &claim, colour == NO_COLOUR).await?;
        if answers.contains(&NO_NUMBER) {
            return Err(Error::TooManyGroups);
        }
        if answers.iter().all(|answer| *answer != CLASH) {
            let epochs = choice.members.iter().map(|member| epoch_of(context, &answers, *member));
            let agreed = claim.keep(epochs.max().unwrap_or(0), choice);
            return Ok((agreed, dense::barrier(call).await));
        }
    }
    Err(Error::TooManyGroups)
}

/// The answers of a rank in the second step, where an epoch stands otherwise.
const CLASH: u64 = u64::MAX;
const NO_NUMBER: u64 = u64::MAX - 1;

fn epoch_of(context: &Context, answers: &[u64], member: Rank) -> u32 {
    let rank = context.ranks.members.iter().position(|known| *known == member);
    rank.map_or(0, |rank| answers[rank] as u32)
}

async fn exchange_offers(call: &Call<'_, '_>, colour_and_key: [u64; 2], offer: &Offer) -> Result<Vec<Told>> {
    let mut words: Vec<u64> = colour_and_key.to_vec();
    words.extend(offer.free);
    words.extend(offer.sets.map(|generation| generation.unwrap_or(0)));
    let all = gather(call, words).await?;
    Ok((0u32..).zip(all.chunks_exact(OFFER_WORDS)).map(|(rank, words)| Told::decode(rank, words)).collect())
}

async fn exchange_answers(call: &Call<'_, '_>, claim: &Claim<'_>, is_idle: bool) -> Result<Vec<u64>> {
    let answer = match claim {
        Claim { lacks_number: true, .. } if !is_idle => NO_NUMBER,
        Claim { number: Some((_, epoch)), .. } => u64::from(*epoch),
        _ if is_idle => 0,
        _ => CLASH,
    };
    gather(call, vec![answer]).await
}

/// The words of all ranks, in rank order.
async fn gather(call: &Call<'_, '_>, own: Vec<u64>) -> Result<Vec<u64>> {
    let mut all = call.zeros::<u64>(own.len() * call.world_size() as usize)?;
    let start = own.len() * call.rank() as usize;
    all[start..start + own.len()].copy_from_slice(&own);
    call.run_in_place(&AllGather::new::<u64>(Lengths::Equal), Chunk::from(all)).await.map(Chunk::into_vec)
}

impl Told {
    fn decode(rank: u32, words: &[u64]) -> Self {
        let (free, sets) = words[2..].split_at(WORDS);
        Self {
            rank,
            colour: words[0],
            key: words[1],
            free: std::array::from_fn(|index| free[index]),
            sets: std::array::from_fn(|index| sets[index]),
        }
    }
}

impl Choice {
    /// What the members of `colour` choose; the same on all of them. The search for a number, and for slots
    /// if `uses_slots`, begins at `start`.
    fn of(context: &Context, colour: u64, told: &[Told], start: u64, uses_slots: bool) -> Self {
        let mut same: Vec<&Told> =
            told.iter().filter(|told| colour != NO_COLOUR && told.colour == colour).collect();
        same.sort_by_key(|told| (told.key, told.rank));
        let members: Arc<[Rank]> = same.iter().map(|told| context.ranks.member(told.rank)).collect();
        let is_free = |number: u64| {
            let (word, bit) = (number as usize / 64, number % 64);
            same.iter().all(|told| told.free[word] >> bit & 1 == 1)
        };
        let count = 64 * WORDS as u64;
        let number = (0..count).map(|step| (start % count + step) % count).find(|number| is_free(*number));
        // Each host has slots of its own.
        let here = context.world.here(&members);
        let is_here = |told: &&&Told| here.contains(&context.ranks.member(told.rank));
        let set = |step: usize| {
            let index = (start as usize / 64 + step) % SLOT_SETS;
            let generations = || same.iter().filter(is_here).map(|told| told.sets[index]);
            let is_valid = |generation| (1..MAX_GENERATIONS).contains(&generation);
            let generation = generations().max().filter(|_| generations().all(is_valid));
            generation.map(|generation| SlotSet { index, generation })
        };
        let slots = places(&context.world, &here).filter(|_| uses_slots);
        let slots = slots.and_then(|_| (0..SLOT_SETS).find_map(set));
        Self { number: number.map(|number| number as u16), members, slots }
    }
}

/// What this rank holds of a choice until all have answered; given back unless it is kept.
struct Claim<'a> {
    world: &'a World,
    /// Whether no number is free on all members.
    lacks_number: bool,
    number: Option<(u16, u32)>,
    slots: Option<SlotSet>,
}

impl<'a> Claim<'a> {
    fn take(world: &'a World, choice: &Choice, lost: &[Rank]) -> Self {
        let lacks_number = choice.number.is_none();
        let mut claim = Self { world, lacks_number, number: None, slots: None };
        let Some(number) = choice.number.filter(|_| !choice.members.is_empty()) else { return claim };
        if let Some(set) = choice.slots {
            if !world.contexts.claim_set(set, lost) {
                return claim;
            }
            claim.slots = Some(set);
        }
        claim.number = world.contexts.claim(number).map(|epoch| (number, epoch));
        claim
    }

    /// Keeps what was claimed, for a context of this `epoch`.
    fn keep(mut self, epoch: u32, choice: Choice) -> Option<Agreed> {
        let (number, _) = self.number.take()?;
        self.world.contexts.begin(number, epoch);
        let slots = self.slots.take();
        Some(Agreed { number, epoch, members: choice.members, slots, excluded: Arc::default() })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some((number, _)) = self.number {
            self.world.contexts.unclaim(number);
        }
        if let Some(set) = self.slots {
            self.world.contexts.unclaim_set(set);
        }
    }
}
