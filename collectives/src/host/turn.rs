//! The turn of one collective at the slots: how it waits, and what ends it.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{CallTime, Port, next_turn};
use ucx_sys_wrap::shm::{Header, LockHandle, Slots, Step, Ticket};
use ucx_sys_wrap::{Failure, Rank, Signature, Tag};

use super::Host;
use crate::buffers::Buffers;
use crate::call::Shared;
use crate::calls::Numbered;
use crate::dense::{Collective, Place};
use crate::description::Description;
use crate::error::{CallSite, Error, Result};

/// The first checks of a call follow each other directly, because the others are mostly as far as this rank.
const EAGER_LOOKS: u32 = 30;

/// A wait is long after this many turns and this much time, as turns take long if ranks share processors, or
/// after a sleep. Then the rank waited for is watched.
const LONG_TURNS: u32 = 32;
const LONG_TIME: Duration = Duration::from_millis(5);

/// The turn of a collective at the slots, which it holds until it ends: the interface of algorithms to them,
/// with waits that end.
///
/// The same for a blocking collective, a started one, and one inside the body of a call. A turn that has
/// begun and ends with an error, or is dropped early, leaves the slots in an unknown state and closes the
/// group, unless it ends because this rank leaves the group.
pub struct SlotTurn<'a> {
    slots: &'a mut Slots,
    terms: &'a Terms<'a>,
    /// The number of the call's first step.
    first: u64,
    /// Whether the call was noted.
    is_noted: bool,
    is_whole: bool,
    /// The bytes that were written to the slots before, if the call counts its own.
    written_before: Option<u64>,
}

/// What a turn at the slots needs besides them.
pub(crate) struct Terms<'a> {
    pub(crate) host: &'a Host,
    pub(crate) port: &'a Port,
    pub(crate) time: &'a CallTime,
    pub(crate) site: &'a CallSite<'a>,
    pub(crate) shared: &'a Shared,
    /// The signature to publish: the collective's.
    pub(crate) signature: Signature,
    /// The signature of the enclosing call.
    pub(crate) outer: Signature,
    /// The call's number and digest, to be noted once others need not wait for that; `None` inside a body.
    pub(crate) made: Option<Numbered>,
    pub(crate) spins: u32,
}

/// A place in a queue for the slots.
pub(crate) trait SlotQueue {
    /// The slots, once it is this place's turn.
    fn slots(&mut self) -> Option<&mut Slots>;
}

impl<Q: LockHandle<Slots>> SlotQueue for Ticket<Slots, Q> {
    #[inline]
    fn slots(&mut self) -> Option<&mut Slots> {
        self.thing()
    }
}

/// How long a call has waited for another rank.
#[derive(Default)]
struct Wait {
    turns: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Counts a turn. Returns whether the wait is long.
    fn is_long(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        self.turns >= LONG_TURNS || self.since.get_or_insert_with(Instant::now).elapsed() >= LONG_TIME
    }
}

impl<'a> SlotTurn<'a> {
    /// Takes the slots if it is the turn of `place` and the group is open.
    #[inline]
    pub(crate) fn begin_at_once(place: &'a mut impl SlotQueue, terms: &'a Terms<'a>) -> Option<Self> {
        let slots = place.slots().filter(|_| !terms.host.status.is_closed())?;
        Some(Self { slots, terms, first: 0, is_noted: false, is_whole: false, written_before: None })
    }

    /// Waits for the turn of `place` and takes the slots.
    ///
    /// # Errors
    /// When the group is closed or the deadline passes before.
    #[inline]
    pub(crate) async fn begin(place: &'a mut impl SlotQueue, terms: &'a Terms<'a>) -> Result<Self> {
        terms.note();
        poll_fn(|context| match terms.end(terms.port.rank(), 0) {
            Some(error) => Poll::Ready(Err(error)),
            None if place.slots().is_some() => Poll::Ready(Ok(())),
            None => next_turn(context),
        })
        .await?;
        let slots =
            place.slots().unwrap_or_else(|| unreachable!("the slots were there and nobody else takes them"));
        let written_before = Some(slots.written().load(Ordering::Relaxed));
        Ok(Self { slots, terms, first: 0, is_noted: true, is_whole: false, written_before })
    }

    /// Runs a collective.
    ///
    /// # Errors
    /// When a rank is lost, aborts, makes a different call, or does not call in time; the output is
    /// unspecified.
    pub(crate) async fn run<C: Collective>(
        &mut self,
        collective: &C,
        memory: &mut Buffers<'_>,
    ) -> Result<()> {
        match collective.at_once(self, memory) {
            ControlFlow::Break(result) => result,
            ControlFlow::Continue(rest) => collective.run_on_host(self, memory, rest).await,
        }
    }

    /// Notes the call, once.
    #[inline]
    fn note(&mut self) {
        if !std::mem::replace(&mut self.is_noted, true) {
            self.terms.note();
        }
    }

    /// The slots.
    #[inline]
    pub fn slots(&mut self) -> &mut Slots {
        self.slots
    }

    /// Takes the next steps of the call; returns the first of them.
    #[inline]
    pub fn take_steps(&mut self, count: usize) -> Step {
        let first = self.slots.take_steps(count as u64);
        if self.first == 0 {
            self.first = first.number();
        }
        first
    }

    /// The number of ranks that share the slots.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.terms.host.places
    }

    /// This rank among those that share the slots, and their number.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { rank: self.slots.own_place() as u32, world_size: self.world_size() }
    }

    /// The description of this call.
    #[must_use]
    pub fn description(&self) -> Description {
        self.terms.site.description
    }

    /// The signature that this call publishes with its steps.
    #[must_use]
    pub fn header(&self) -> Header {
        Header { signature: self.terms.signature, mark: self.terms.shared.marked().mark() }
    }

    /// Waits until the slot of `step` may be written: all ranks have finished the step that it held.
    ///
    /// # Errors
    /// When a rank is lost, aborts, makes a different call, or does not call in time.
    #[inline]
    pub async fn until_free(&mut self, step: Step) -> Result<()> {
        while let Some(place) = self.slots.in_the_way(step) {
            self.until(place, step, |slots| {
                Ok(slots.in_the_way(step).is_none_or(|other| other != place).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until the rank at `place` has published `step` of the same call.
    ///
    /// # Errors
    /// As for [`until_free`](Self::until_free).
    #[inline]
    pub async fn until_published(&mut self, place: usize, step: Step) -> Result<()> {
        let header = self.until(place, step, |slots| slots.published(place, step)).await?;
        self.accept(place, header)
    }

    /// Waits until all other ranks have published `step` of the same call.
    ///
    /// # Errors
    /// As for [`until_free`](Self::until_free).
    #[inline]
    pub async fn until_all_published(&mut self, step: Step) -> Result<()> {
        for place in 0..self.slots.places() {
            if place != self.slots.own_place() {
                self.until_published(place, step).await?;
            }
        }
        Ok(())
    }

    /// Checks a few times whether the rank at `place` has published `step` of the same call.
    ///
    /// # Errors
    /// When the step belongs to a different call.
    #[inline(always)]
    pub(crate) fn is_soon_published(&mut self, place: usize, step: Step, bytes: usize) -> Result<bool> {
        for look in 0..=self.terms.spins {
            self.slots.ask_for_inline(place, step, bytes);
            match self.slots.published(place, step) {
                Ok(Some(header)) => return self.accept(place, header).map(|()| true),
                // A pause takes as long as the transfer between two processors.
                Ok(None) if look > EAGER_LOOKS => spin_loop(),
                Ok(None) => self.note(),
                Err(error) => return Err(self.terms.shared.error(self.terms.site, error)),
            }
        }
        Ok(false)
    }

    #[inline]
    fn accept(&self, place: usize, header: Header) -> Result<()> {
        if header.signature != self.terms.signature {
            return Err(self.mismatch(place, self.terms.signature, header.signature));
        }
        self.terms.shared.marked().hear(header.mark);
        Ok(())
    }

    /// Waits until the rank at `place` has published the second part of `step`.
    ///
    /// # Errors
    /// As for [`until_free`](Self::until_free).
    #[inline]
    pub async fn until_second(&mut self, place: usize, step: Step) -> Result<()> {
        self.until(place, step, |slots| Ok(slots.has_second(place, step)?.then_some(()))).await
    }

    /// Marks that the call has done all that the others need of it.
    #[inline]
    pub fn finish(&mut self) {
        self.note();
        self.slots.wake();
        self.slots.prepare_next();
        self.is_whole = true;
    }

    /// The error of the rank at `place`, which has violated the call's protocol.
    pub(super) fn refuse(&self, place: usize, what: String) -> Error {
        self.terms.shared.refuse(self.slots.rank_at(place), what)
    }

    #[inline]
    async fn until<R>(
        &mut self,
        place: usize,
        step: Step,
        mut look: impl FnMut(&mut Slots) -> ucx_sys_wrap::Result<Option<R>>,
    ) -> Result<R> {
        // A short wait makes no future.
        match look(self.slots) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => self.note(),
            Err(error) => return Err(self.terms.shared.error(self.terms.site, error)),
        }
        self.terms.host.course.moves.fetch_add(1, Ordering::Relaxed);
        let mut wait = Wait::default();
        poll_fn(|context| {
            let found = self.spin(&mut look).transpose();
            let found = found.or_else(|| self.look_around(place, step, &mut wait, &mut look).transpose());
            found.map_or_else(|| next_turn(context), Poll::Ready)
        })
        .await
    }

    /// Checks a few times, and wakes sleeping ranks in between.
    #[inline]
    fn spin<R>(
        &mut self,
        look: &mut impl FnMut(&mut Slots) -> ucx_sys_wrap::Result<Option<R>>,
    ) -> Result<Option<R>> {
        for turn in 0..=self.terms.spins {
            match look(self.slots) {
                Ok(None) => spin_loop(),
                Ok(found) => return Ok(found),
                Err(error) => return Err(self.terms.shared.error(self.terms.site, error)),
            }
            if turn == self.terms.spins / 2 {
                self.slots.wake();
            }
        }
        Ok(None)
    }

    /// Finds out why the rank at `place` does not come.
    #[cold]
    fn look_around<R>(
        &mut self,
        place: usize,
        step: Step,
        wait: &mut Wait,
        look: &mut impl FnMut(&mut Slots) -> ucx_sys_wrap::Result<Option<R>>,
    ) -> Result<Option<R>> {
        let rank = self.slots.rank_at(place);
        let Terms { host, port, time, site, shared, outer, .. } = *self.terms;
        // The engine closes the group for a call whose deadline has passed.
        self.is_whole |= time.has_expired();
        let round = (step.number() - self.first) as u32;
        if let Some(error) = self.terms.end(rank, round) {
            return Err(error);
        }
        if !wait.is_long() {
            return Ok(None);
        }
        let other = host.records.call(place, site.sequence).filter(|found| *found != outer);
        if let Some(found) = other {
            return Err(self.mismatch(place, outer, found));
        }
        if !port.watch(rank) {
            return Ok(None);
        }
        // It may have published the step before it left.
        let found = look(self.slots).map_err(|error| shared.error(site, error))?;
        if found.is_none() {
            port.lose(rank);
            // It may have told why before it left.
            return Err(self.terms.end(rank, round).unwrap_or(Error::PeerLost { rank }));
        }
        Ok(found)
    }

    #[cold]
    fn mismatch(&self, place: usize, expected: Signature, found: Signature) -> Error {
        self.terms.shared.set_differs();
        let [expected, found] = [expected, found].map(Description::decode);
        Error::Mismatch {
            rank: self.slots.rank_at(place),
            expected,
            found,
            difference: self.terms.site.difference.clone(),
        }
    }
}

impl Terms<'_> {
    #[inline]
    fn note(&self) {
        if let Some(made) = self.made {
            self.host.status.calls.note(made, &self.site.description, 0);
        }
    }

    /// The error that ends the turn in `round`, in which it waits for `rank`, if any.
    fn end(&self, rank: Rank, round: u32) -> Option<Error> {
        let error = match self.port.failure(self.host.status.number) {
            // This call waits as well, and names its own rank.
            Some(Failure::TimedOut(_)) if self.time.is_waiting() => self.timeout(rank, round),
            Some(failure) => failure.into(),
            None if self.time.has_expired() => self.timeout(rank, round),
            None => return None,
        };
        self.host.status.close();
        Some(self.shared.error(self.site, error))
    }

    fn timeout(&self, rank: Rank, round: u32) -> ucx_sys_wrap::Error {
        let waited = self.time.waited(self.port.now());
        let tag = Tag::new(rank, self.host.status.number, self.site.sequence, round);
        ucx_sys_wrap::Error::Timeout { rank, tag, waited }
    }
}

impl Drop for SlotTurn<'_> {
    fn drop(&mut self) {
        let Terms { host, port, time, shared, .. } = *self.terms;
        if let Some(before) = self.written_before {
            let written = self.slots.written().load(Ordering::Relaxed);
            shared.counters().count_shared(written.wrapping_sub(before));
        }
        // The deadline may have passed while a message was awaited: the engine closes the group then.
        let is_late = time.has_expired();
        // A rank that leaves with the group has not aborted; the others find it lost.
        if !self.is_whole && !is_late && !host.course.has_ended.load(Ordering::Relaxed) {
            let own = port.rank();
            port.fail(host.status.number, shared.broken(own).unwrap_or(Failure::Aborted(own)));
            host.status.close();
        }
    }
}
