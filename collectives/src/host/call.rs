//! One collective over slots on one rank: how it waits, and what ends it.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{CallTime, Port, next_turn};
use ucx_sys_wrap::shm::{Header, LockHandle, Records, Slots, Step, Ticket};
use ucx_sys_wrap::{Failure, Rank, Signature, Tag};

use crate::call::Shared;
use crate::description::Description;
use crate::engine::Course;
use crate::error::{CallSite, Error, Result};

/// The first checks of a call follow each other directly, because the others are mostly as far as this rank.
const EAGER_LOOKS: u32 = 30;

/// A wait is long after this many turns and this much time, as turns take long if ranks share processors, or
/// after a sleep. Then the rank waited for is watched.
const LONG_TURNS: u32 = 32;
const LONG_TIME: Duration = Duration::from_millis(5);

/// The interface of algorithms to the slots, which the call holds until it ends, with waits that end.
///
/// A call that ends with an error, or is dropped early, leaves the slots in an unknown state and closes the
/// group, unless it ends because this rank leaves the group.
pub struct HostCall<'a> {
    slots: &'a mut Slots,
    around: &'a Surroundings<'a>,
    site: &'a CallSite,
    /// The number of the call's first step.
    first: u64,
    is_whole: bool,
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

/// The context of a call over slots.
pub(crate) struct Surroundings<'a> {
    pub(crate) port: &'a Port,
    pub(crate) time: &'a CallTime,
    pub(crate) records: &'a Records,
    /// Counts the progress of waits.
    pub(crate) course: &'a Course,
    /// The signature to publish: the collective's.
    pub(crate) signature: Signature,
    /// The signature of the enclosing call.
    pub(crate) outer: Signature,
    pub(crate) shared: &'a Shared,
    pub(crate) spins: u32,
}

impl<'a> HostCall<'a> {
    /// Takes the slots if it is the ticket's turn and the group is open.
    #[inline]
    pub(crate) fn begin_at_once<Q: LockHandle<Slots>>(
        ticket: &'a mut Ticket<Slots, Q>,
        around: &'a Surroundings<'a>,
        site: &'a CallSite,
    ) -> Option<Self> {
        let slots = ticket.thing().filter(|_| !around.course.is_closed.load(Ordering::Relaxed))?;
        Some(Self { slots, around, site, first: 0, is_whole: false })
    }

    /// Waits for the ticket's turn and takes the slots.
    ///
    /// # Errors
    /// When the group is closed or the deadline passes before.
    #[inline]
    pub(crate) async fn begin<Q: LockHandle<Slots>>(
        ticket: &'a mut Ticket<Slots, Q>,
        around: &'a Surroundings<'a>,
        site: &'a CallSite,
    ) -> Result<Self> {
        poll_fn(|context| match around.end(site, around.port.rank(), 0) {
            Some(error) => Poll::Ready(Err(error)),
            None if ticket.thing().is_some() => Poll::Ready(Ok(())),
            None => next_turn(context),
        })
        .await?;
        let slots =
            ticket.thing().unwrap_or_else(|| unreachable!("the slots were there and nobody else takes them"));
        Ok(Self { slots, around, site, first: 0, is_whole: false })
    }

    /// The slots.
    pub fn slots(&mut self) -> &mut Slots {
        self.slots
    }

    /// Takes all steps of the call; returns the first.
    #[inline]
    pub fn take_steps(&mut self, count: usize) -> Step {
        let first = self.slots.take_steps(count as u64);
        self.first = first.number();
        first
    }

    /// The number of ranks in the group, which are those of the host.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.slots.places() as u32
    }

    /// The description of this call.
    #[must_use]
    pub fn description(&self) -> Description {
        self.site.description
    }

    /// The signature that this call publishes with its steps.
    #[must_use]
    pub fn header(&self) -> Header {
        Header { signature: self.around.signature, mark: self.around.shared.mark() }
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

    /// Checks a few times whether the rank at `place` has published `step` of the same call.
    ///
    /// # Errors
    /// When the step belongs to a different call.
    #[inline(always)]
    pub(crate) fn is_soon_published(&mut self, place: usize, step: Step, bytes: usize) -> Result<bool> {
        for look in 0..=self.around.spins {
            self.slots.ask_for_inline(place, step, bytes);
            match self.slots.published(place, step) {
                Ok(Some(header)) => return self.accept(place, header).map(|()| true),
                // A pause takes as long as the transfer between two processors.
                Ok(None) if look > EAGER_LOOKS => spin_loop(),
                Ok(None) => {}
                Err(error) => return Err(self.around.shared.error(self.site, error)),
            }
        }
        Ok(false)
    }

    #[inline]
    fn accept(&self, place: usize, header: Header) -> Result<()> {
        if header.signature != self.around.signature {
            return Err(self.mismatch(place, self.around.signature, header.signature));
        }
        self.around.shared.hear(header.mark);
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
        self.slots.wake();
        self.slots.prepare_next();
        self.is_whole = true;
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
            Ok(None) => {}
            Err(error) => return Err(self.around.shared.error(self.site, error)),
        }
        self.around.course.moves.fetch_add(1, Ordering::Relaxed);
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
        for turn in 0..=self.around.spins {
            match look(self.slots) {
                Ok(None) => spin_loop(),
                Ok(found) => return Ok(found),
                Err(error) => return Err(self.around.shared.error(self.site, error)),
            }
            if turn == self.around.spins / 2 {
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
        let Surroundings { port, time, records, outer, shared, .. } = *self.around;
        let rank = self.slots.rank_at(place);
        // The engine closes the group for a call whose deadline has passed.
        self.is_whole |= time.has_expired();
        if let Some(error) = self.around.end(self.site, rank, (step.number() - self.first) as u32) {
            return Err(error);
        }
        if !wait.is_long() {
            return Ok(None);
        }
        if let Some(found) = records.call(place, self.site.sequence).filter(|found| *found != outer) {
            return Err(self.mismatch(place, outer, found));
        }
        if !port.watch(rank) {
            return Ok(None);
        }
        // It may have published the step before it left.
        let found = look(self.slots).map_err(|error| shared.error(self.site, error))?;
        if found.is_none() {
            port.lose(rank);
            return Err(Error::PeerLost { rank });
        }
        Ok(found)
    }

    #[cold]
    fn mismatch(&self, place: usize, expected: Signature, found: Signature) -> Error {
        self.around.shared.set_broken();
        let [expected, found] = [expected, found].map(Description::decode);
        Error::Mismatch { rank: self.slots.rank_at(place), expected, found }
    }
}

impl Surroundings<'_> {
    /// The error that ends a call in `round` that waits for `rank`, if any.
    pub(super) fn end(&self, site: &CallSite, rank: Rank, round: u32) -> Option<Error> {
        let error = match self.port.failure() {
            // This call waits as well, and names its own rank.
            Some(Failure::TimedOut(_)) if self.time.is_waiting() => self.timeout(site, rank, round),
            Some(failure) => failure.into(),
            None if self.time.has_expired() => self.timeout(site, rank, round),
            None => return None,
        };
        self.course.is_closed.store(true, Ordering::Relaxed);
        Some(Error::at(site, error))
    }

    fn timeout(&self, site: &CallSite, rank: Rank, round: u32) -> ucx_sys_wrap::Error {
        let waited = self.time.waited(self.port.now());
        ucx_sys_wrap::Error::Timeout { rank, tag: Tag::new(rank, 0, site.sequence, round), waited }
    }
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        // A rank that leaves with the group has not aborted; the others find it lost.
        if !self.is_whole && !self.around.course.has_ended.load(Ordering::Relaxed) {
            self.around.port.abort();
            self.around.course.is_closed.store(true, Ordering::Relaxed);
        }
    }
}
