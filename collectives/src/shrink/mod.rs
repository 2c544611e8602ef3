//! Going on without the ranks that are lost.
//!
//! The members that are left of a closed group agree on who goes on and on the number of a new context
//! ([`agreement`]), by messages in the context that no loss closes. In the new context they make a group as
//! [`Group::duplicate`] does, whose end confirms that all have come. If one is lost meanwhile, they agree
//! again, on the new context.
//!
//! A member that leaves the agreement with its decision may meet members that have not heard it, because the
//! candidate died: then the new context is closed too, if the candidate is its member, and in the next
//! agreement the first one tells what was decided in the one before.

mod agreement;
mod decision;
mod message;
mod serving;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::OnLoss;
use ucx_sys_wrap::{Failure, Rank};

use crate::context::{Agreed, Context, Ranks};
use crate::description::mix;
use crate::difference::CONTROL;
use crate::engine::{Handle, Status};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::messages::Mail;
use crate::world::World;
use agreement::{Agreement, Outcome, Promises};
use message::{GivenUp, MOST_OFFERS, Message, Offer};

pub(crate) use agreement::Quorum;
pub(crate) use message::{GroupId, Value};

/// The agreements and the messages about other groups that a rank remembers. A number has another epoch with
/// each group.
const REMEMBERED: usize = 64;
const STRAYED: usize = 1024;

/// How often members look for a context number that is free on all of them.
const ATTEMPTS: u64 = 20;

/// How often members agree on the same ones again that a call does not confirm.
const SAME_MEMBERS: u32 = 3;

/// What a rank remembers of agreements, beyond calls.
#[derive(Default)]
pub(crate) struct Agreements(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    promises: VecDeque<(GroupId, Promises)>,
    decided: VecDeque<(GroupId, Value)>,
    /// Messages about groups on which this rank does not agree now: of another thread, or of later.
    strayed: VecDeque<(Rank, Vec<u8>)>,
}

impl Agreements {
    fn promises(&self, group: GroupId) -> Promises {
        let kept = self.0.lock();
        kept.promises.iter().find(|(id, _)| *id == group).map(|(_, kept)| kept.clone()).unwrap_or_default()
    }

    fn decided(&self, group: GroupId) -> Option<Value> {
        self.0.lock().decided.iter().find(|(id, _)| *id == group).map(|(_, value)| value.clone())
    }

    fn keep(&self, group: GroupId, agreement: &Agreement) {
        let mut kept = self.0.lock();
        let before = kept.promises.iter().position(|(id, _)| *id == group);
        let before = before.and_then(|place| kept.promises.remove(place));
        let before = before.map(|(_, promises)| promises).unwrap_or_default();
        kept.promises.push_front((group, before.merge(agreement.promises().clone())));
        kept.promises.truncate(REMEMBERED);
        if let Some(Outcome::Decided(value)) = agreement.outcome() {
            kept.decided.retain(|(id, _)| *id != group);
            kept.decided.push_front((group, value.clone()));
            kept.decided.truncate(REMEMBERED);
        }
    }

    fn stray(&self, from: Rank, bytes: Vec<u8>) {
        let mut kept = self.0.lock();
        kept.strayed.push_back((from, bytes));
        if kept.strayed.len() > STRAYED {
            kept.strayed.pop_front();
        }
    }

    /// Takes the messages about a group that were received by others.
    fn strayed(&self, group: GroupId) -> Vec<(Rank, Vec<u8>)> {
        let mut kept = self.0.lock();
        let about = |bytes: &[u8]| GroupId::of_message(bytes) == Some(group);
        let (found, others) = kept.strayed.drain(..).partition(|(_, bytes)| about(bytes));
        kept.strayed = others;
        Vec::from(found)
    }
}

/// The context numbers that this rank holds until there is a decision.
struct Held {
    world: Arc<World>,
    offers: Vec<Offer>,
}

impl Held {
    /// The free numbers from one on that the group and the attempt tell: members hold the same ones, and
    /// those of other groups others.
    fn take(world: &Arc<World>, group: GroupId, attempt: u64) -> Self {
        let free = world.contexts.offer(&[]).free;
        let id = u64::from(group.number) << 32 | u64::from(group.epoch);
        let (count, start) = (free.len() as u64 * 64, mix(mix(group.members ^ id) ^ attempt));
        let numbers = (0..count).map(|step| ((start % count + step) % count) as u16);
        let is_free = |number: &u16| free[usize::from(*number) / 64] >> (number % 64) & 1 == 1;
        let claim = |number| world.contexts.claim(number).map(|epoch| (number, epoch));
        let offers = numbers.filter(is_free).filter_map(claim).take(MOST_OFFERS).collect();
        Self { world: Arc::clone(world), offers }
    }

    /// Keeps the number that was decided. Gives whether this rank has it, for a context that did not begin
    /// yet.
    fn keep(mut self, value: &Value) -> bool {
        if !self.offers.iter().any(|(number, _)| *number == value.number) {
            // Decided on in an earlier call.
            let claimed = self.world.contexts.claim(value.number);
            self.offers.extend(claimed.map(|epoch| (value.number, epoch)));
        }
        let is_new = |(number, epoch): &Offer| *number == value.number && *epoch <= value.epoch;
        let Some(place) = self.offers.iter().position(is_new) else { return false };
        self.offers.swap_remove(place);
        self.world.contexts.begin(value.number, value.epoch);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.offers.iter().for_each(|(number, _)| self.world.contexts.unclaim(*number));
    }
}

/// # Going on after a loss
impl Group {
    /// A group of the ranks that are left of this one, which is closed: by a death, a timeout, an abort, or
    /// calls that differ. All ranks that are left call this, each after its error; an open group is closed
    /// first. The ranks keep their order, and the settings are those of this group.
    ///
    /// A rank that does not answer within the [timeout](Self::timeout) is out, and gets [`Error::Excluded`]
    /// when it calls this. If the lowest ranks are silent, it takes up to two and a half timeouts (and a
    /// sixteenth for each of them). Ranks that are lost meanwhile are out too.
    ///
    /// Only a majority of the ranks goes on: more than half of them, or half with the lowest rank among
    /// them. So a network that is cut never leaves two groups that go on. Others get [`Error::NoMajority`];
    /// they may call this again, when ranks that were silent can be reached.
    ///
    /// Ranks may call this on several groups, in the same order if it is from one thread. Where it has
    /// succeeded on a group, call it on the new one from then on.
    ///
    /// Cost: six messages between the lowest rank that is left and each other, and a
    /// [`duplicate`](Self::duplicate).
    ///
    /// ```
    /// let group = brevity_collectives::Group::solo();
    /// group.abort();
    /// assert!(group.is_closed());
    /// let group = group.shrink()?;
    /// group.barrier()?;
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Excluded`], [`Error::NoMajority`], [`Error::HasShrunk`], [`Error::HasGrown`] of a group that
    /// has [grown](Self::grow), [`Error::TooManyGroups`], [`Error::Forked`]. [`Error::PeerLost`],
    /// [`Error::Aborted`] or [`Error::Timeout`] if members that have answered can't reach each other: end one
    /// of them, and call this again.
    pub fn shrink(&self) -> Result<Self> {
        self.shrink_by(Quorum::Majority)
    }

    /// Like [`shrink`](Self::shrink), for as few ranks as are left. If the network is cut, each side makes a
    /// group of its own.
    ///
    /// # Errors
    /// As for [`shrink`](Self::shrink), except for [`Error::NoMajority`] and [`Error::HasGrown`].
    pub fn shrink_any(&self) -> Result<Self> {
        self.shrink_by(Quorum::Any)
    }

    /// Starts [`shrink`](Self::shrink), for tasks of a runtime and for ranks of a simulation. Poll the result
    /// to its end.
    pub fn start_shrink(&self) -> impl Future<Output = Result<Self>> + use<> {
        self.start_shrink_by(Quorum::Majority)
    }

    /// Starts [`shrink_any`](Self::shrink_any), likewise.
    pub fn start_shrink_any(&self) -> impl Future<Output = Result<Self>> + use<> {
        self.start_shrink_by(Quorum::Any)
    }

    fn shrink_by(&self, quorum: Quorum) -> Result<Self> {
        self.check_may_shrink(quorum)?;
        let (mut closed, mut repeats) = (self.unconfirmed(), Repeats::default());
        loop {
            let mut attempts = 0..ATTEMPTS;
            repeats.begin(&closed);
            closed = loop {
                let attempt = attempts.next().ok_or(Error::TooManyGroups)?;
                match closed.opened_by(closed.start_agreement(quorum, attempt).wait()) {
                    Err(Error::TooManyGroups) => {}
                    opened => break opened?,
                }
            };
            self.agreed_on(&closed);
            let confirmed = closed.duplicate();
            if let Some(group) = self.confirmed_by(confirmed, &closed, &mut repeats)? {
                return Ok(group);
            }
        }
    }

    fn start_shrink_by(&self, quorum: Quorum) -> impl Future<Output = Result<Self>> + use<> {
        let first = self.clone();
        async move {
            first.check_may_shrink(quorum)?;
            let (mut closed, mut repeats) = (first.unconfirmed(), Repeats::default());
            loop {
                let mut attempts = 0..ATTEMPTS;
                repeats.begin(&closed);
                closed = loop {
                    let attempt = attempts.next().ok_or(Error::TooManyGroups)?;
                    let agreement = closed.start_agreement(quorum, attempt);
                    match closed.opened_by(agreement.await) {
                        Err(Error::TooManyGroups) => {}
                        opened => break opened?,
                    }
                };
                first.agreed_on(&closed);
                let confirmed = closed.start_duplicate().await;
                if let Some(group) = first.confirmed_by(confirmed, &closed, &mut repeats)? {
                    return Ok(group);
                }
            }
        }
    }

    /// A rank that has gone to another world is no part of a majority in this one.
    fn check_may_shrink(&self, quorum: Quorum) -> Result<()> {
        self.check_process()?;
        if quorum == Quorum::Majority && self.context.world.has_gone.load(Ordering::Relaxed) {
            return Err(Error::HasGrown);
        }
        Ok(())
    }

    /// Starts the agreement of this group's members.
    fn start_agreement(&self, quorum: Quorum, attempt: u64) -> Handle<((Held, Agreement), Result<()>)> {
        let (world, ranks) = (&self.context.world, Arc::clone(self.context.agreeing()));
        let port = world.port();
        if self.context.is_open() {
            // The others hear of it, and come.
            port.fail(self.context.ranks.number, Failure::Aborted(port.rank()));
        }
        let group = ranks.id();
        let held = Held::take(world, group, attempt);
        let (promises, offers) = (world.agreements.promises(group), held.offers.clone());
        let place = (ranks.own, ranks.size());
        let mut agreement = Agreement::new(place, (quorum, self.timeout()), offers, promises, port.now());
        if let Some(value) = world.agreements.decided(group) {
            agreement.receive(ranks.own, Message::Decided(value), port.now());
        }
        self.start_serving(ranks, held, agreement)
    }

    /// Starts to serve an agreement of these ranks of the world, whatever of its contexts is closed. `kept`
    /// stays until its end.
    fn start_serving<K: Send + 'static>(
        &self,
        ranks: Arc<Ranks>,
        kept: K,
        agreement: Agreement,
    ) -> Handle<((K, Agreement), Result<()>)> {
        let (world, group) = (&self.context.world, ranks.id());
        let port = world.port();
        let control = Arc::new(Ranks::control(world));
        let around = (Arc::new(Status::new(CONTROL, port)), Some(Arc::clone(&control) as _));
        // Nobody closes it, and the agreement has its own patience.
        let time = (std::time::Duration::MAX, Some(self.timeout()));
        let body_world = Arc::downgrade(world);
        let started = self.engine().spawn_in(around, time, (kept, agreement), move |comm, (_, agreement)| {
            Box::pin(async move {
                let mail = Mail { comm, ranks: &control };
                serving::serve(mail, (&ranks, group), agreement, &body_world).await
            })
        });
        started.of_receive()
    }

    /// The context that was decided on.
    fn opened_by(&self, ((held, agreement), served): ((Held, Agreement), Result<()>)) -> Result<Self> {
        served?;
        let ranks = self.context.agreeing();
        let value = match agreement.outcome() {
            Some(Outcome::Decided(value)) => value.clone(),
            Some(Outcome::GivenUp(GivenUp::NoNumber)) => return Err(Error::TooManyGroups),
            Some(Outcome::GivenUp(GivenUp::NoMajority(left))) => {
                return Err(Error::NoMajority { left: *left, of: ranks.size() });
            }
            None => return Err(Error::Canceled),
        };
        if !value.members.contains(&ranks.own) {
            return Err(Error::Excluded);
        }
        if !held.keep(&value) {
            return Err(Error::HasShrunk);
        }
        let members: Arc<[Rank]> = value.members.iter().map(|place| ranks.member(*place)).collect();
        let gone = ranks.members.iter().filter(|member| !members.contains(member));
        let excluded = self.context.excluded.iter().chain(gone).copied().collect();
        let Value { number, epoch, .. } = value;
        let agreed = Agreed { number, epoch, members, slots: None, excluded };
        let (world, settings) = (&self.context.world, self.context.settings);
        let machine = Some(*self.context.ranks.plan().machine());
        let next = Self::of(Context::open(world, agreed, OnLoss::Close, settings)).planned(machine);
        next.set_timeout(self.timeout());
        Ok(next)
    }

    /// The group on which the members agree: the last one that has come of this one and was not confirmed,
    /// because an earlier call has ended before.
    fn unconfirmed(&self) -> Self {
        self.context.successor.lock().clone().unwrap_or_else(|| self.clone())
    }

    /// Notes a group that has come of this one and is not confirmed yet.
    fn agreed_on(&self, next: &Self) {
        let before = self.context.successor.lock().replace(next.clone());
        drop(before);
    }

    /// The group in which all have come to the `next` one; `None` if a loss has closed that meanwhile, and
    /// another agreement may leave the lost ranks out.
    fn confirmed_by(
        &self,
        confirmed: Result<Self>,
        next: &Self,
        repeats: &mut Repeats,
    ) -> Result<Option<Self>> {
        match confirmed {
            Ok(group) => {
                let last = self.context.successor.lock().take();
                drop(last);
                Ok(Some(group.born_of(next)))
            }
            Err(error @ (Error::PeerLost { .. } | Error::Aborted { .. } | Error::Timeout { .. })) => {
                if repeats.count(next) {
                    Ok(None)
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error),
        }
    }

    /// This group, whose members agree on its context as on that of `next`: a member that was told of a loss
    /// before this group was confirmed is still there.
    fn born_of(self, next: &Self) -> Self {
        let is_first = self.context.born_of.set(Arc::clone(&next.context.ranks)).is_ok();
        debug_assert!(is_first, "a group is made once");
        self
    }
}

/// Agreements in a row on the same members that no call has confirmed: members that each answer the rank
/// that leads, but can't reach each other, would agree for ever.
#[derive(Default)]
struct Repeats {
    members: Arc<[Rank]>,
    count: u32,
}

impl Repeats {
    /// An agreement of this group's members begins.
    fn begin(&mut self, group: &Group) {
        self.members = Arc::clone(&group.context.ranks.members);
    }

    /// Counts that the group was not confirmed. Returns whether another agreement is worth it.
    fn count(&mut self, next: &Group) -> bool {
        let is_same = self.members[..] == next.context.ranks.members[..];
        self.count = if is_same { self.count + 1 } else { 0 };
        self.count < SAME_MEMBERS
    }
}

impl Ranks {
    /// What the members call the context in an agreement.
    fn id(&self) -> GroupId {
        let digest = self.members.iter().fold(0, |digest, member| mix(digest ^ u64::from(member.0)));
        GroupId { number: self.number, epoch: self.whole_epoch, members: digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(number: u16) -> GroupId {
        GroupId { number, epoch: 0, members: 0 }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let agreements = Agreements::default();
        let bytes =
            |group| message::Message::Decided(Value { number: 1, epoch: 1, members: vec![0] }).encode(group);
        (0..3 * STRAYED).for_each(|_| agreements.stray(Rank(1), bytes(id(3))));
        agreements.stray(Rank(1), bytes(id(4)));
        assert_eq!(agreements.strayed(id(4)).len(), 1);
        assert_eq!(agreements.strayed(id(3)).len(), STRAYED - 1);
        let agreement = |now| {
            let mut agreement = Agreement::new(
                (0, 1),
                (Quorum::Any, now),
                vec![(5, 1)],
                Promises::default(),
                std::time::Duration::ZERO,
            );
            agreement.look(std::time::Duration::ZERO);
            agreement
        };
        for number in 0..200 {
            agreements.keep(id(number), &agreement(std::time::Duration::ZERO));
        }
        let known = (0..200).filter(|number| agreements.decided(id(*number)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), (200 - REMEMBERED as u16..200).collect::<Vec<_>>());
    }
}
