//! One collective over slots on one rank: how it waits, and what can end it.

use std::future::poll_fn;
use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{CallTime, Port, next_turn};
use ucx_sys_wrap::shm::{Header, Hold, Records, Slots, Step, Ticket};
use ucx_sys_wrap::{Failure, Rank, Signature, Tag};

use crate::call::Shared;
use crate::description::Description;
use crate::engine::Course;
use crate::error::{Error, Place, Result};

/// The first looks of a call are one after the other: mostly the others are as far as this rank.
const EAGER_LOOKS: u32 = 30;

/// Turns after which a wait is long, and time, since turns take long where ranks share processors, or sleep:
/// then the rank waited for is watched.
const LONG_TURNS: u32 = 32;
const LONG_TIME: Duration = Duration::from_millis(5);

/// What every algorithm over slots works with: the slots, for as long as the call has them, and waits that
/// end.
///
/// A call that ends with an error, or not at all, leaves the slots in a state that no other rank knows, and
/// closes the group, unless it ends because the group goes.
pub struct HostCall<'a> {
    slots: &'a mut Slots,
    around: &'a Surroundings<'a>,
    place: &'a Place,
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
    /// Counts a turn; says whether the wait is long by now.
    fn is_long(&mut self) -> bool {
        self.turns = self.turns.saturating_add(1);
        self.turns >= LONG_TURNS || self.since.get_or_insert_with(Instant::now).elapsed() >= LONG_TIME
    }
}

/// What a call over slots needs besides them.
pub(crate) struct Surroundings<'a> {
    pub(crate) port: &'a Port,
    pub(crate) time: &'a CallTime,
    pub(crate) records: &'a Records,
    /// Counts the waits.
    pub(crate) course: &'a Course,
    /// What is published: the collective's signature.
    pub(crate) signature: Signature,
    /// The signature of the call that this is a part of.
    pub(crate) outer: Signature,
    pub(crate) shared: &'a Shared,
    pub(crate) spins: u32,
}

impl<'a> HostCall<'a> {
    /// Has the slots if it is the ticket's turn, and the group is open.
    #[inline]
    pub(crate) fn begin_at_once<Q: Hold<Slots>>(
        ticket: &'a mut Ticket<Slots, Q>,
        around: &'a Surroundings<'a>,
        place: &'a Place,
    ) -> Option<Self> {
        let slots = ticket.thing().filter(|_| !around.course.is_closed.load(Ordering::Relaxed))?;
        Some(Self { slots, around, place, first: 0, is_whole: false })
    }

    /// Waits for the ticket's turn, and has the slots from then on.
    ///
    /// # Errors
    /// When the group is closed or the deadline passes before.
    #[inline]
    pub(crate) async fn begin<Q: Hold<Slots>>(
        ticket: &'a mut Ticket<Slots, Q>,
        around: &'a Surroundings<'a>,
        place: &'a Place,
    ) -> Result<Self> {
        poll_fn(|context| match around.end(place, around.port.rank(), 0) {
            Some(error) => Poll::Ready(Err(error)),
            None if ticket.thing().is_some() => Poll::Ready(Ok(())),
            None => next_turn(context),
        })
        .await?;
        let slots =
            ticket.thing().unwrap_or_else(|| unreachable!("the slots were there and nobody else takes them"));
        Ok(Self { slots, around, place, first: 0, is_whole: false })
    }

    /// The slots.
    pub fn slots(&mut self) -> &mut Slots {
        self.slots
    }

    /// Takes the call's steps, all at once; returns the first of them.
    #[inline]
    pub fn take_steps(&mut self, count: usize) -> Step {
        let first = self.slots.take_steps(count as u64);
        self.first = first.number();
        first
    }

    /// Ranks in the group, which are those of the host.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.slots.places() as u32
    }

    /// What this rank says that it calls.
    #[must_use]
    pub fn description(&self) -> Description {
        self.place.description
    }

    /// What is published with this call's steps.
    #[must_use]
    pub fn header(&self) -> Header {
        Header { signature: self.around.signature, mark: self.around.shared.mark() }
    }

    /// Waits until the slot of `step` may be written: all ranks have finished the step that it held.
    ///
    /// # Errors
    /// When a rank is lost, aborts, calls something else or does not come in time.
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

    /// Waits until the rank at `place` has published `step`, as a part of the same call.
    ///
    /// # Errors
    /// As [`until_free`](Self::until_free).
    #[inline]
    pub async fn until_published(&mut self, place: usize, step: Step) -> Result<()> {
        let header = self.until(place, step, |slots| slots.published(place, step)).await?;
        self.accept(place, header)
    }

    /// Looks a few times whether the rank at `place` has published `step`, as a part of the same call.
    ///
    /// # Errors
    /// When it is a part of another call.
    #[inline(always)]
    pub(crate) fn is_soon_published(&mut self, place: usize, step: Step, bytes: usize) -> Result<bool> {
        for look in 0..=self.around.spins {
            self.slots.ask_for_inline(place, step, bytes);
            match self.slots.published(place, step) {
                Ok(Some(header)) => return self.accept(place, header).map(|()| true),
                // A pause is as long as the way from one processor to another.
                Ok(None) if look > EAGER_LOOKS => spin_loop(),
                Ok(None) => {}
                Err(error) => return Err(self.around.shared.error(self.place, error)),
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
    /// As [`until_free`](Self::until_free).
    #[inline]
    pub async fn until_second(&mut self, place: usize, step: Step) -> Result<()> {
        self.until(place, step, |slots| Ok(slots.has_second(place, step)?.then_some(()))).await
    }

    /// Says that the call has done all that the others need of it.
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
        // No future is made where nobody has to wait long.
        match look(self.slots) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => return Err(self.around.shared.error(self.place, error)),
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

    /// Looks a few times; wakes the sleepers meanwhile.
    #[inline]
    fn spin<R>(
        &mut self,
        look: &mut impl FnMut(&mut Slots) -> ucx_sys_wrap::Result<Option<R>>,
    ) -> Result<Option<R>> {
        for turn in 0..=self.around.spins {
            match look(self.slots) {
                Ok(None) => spin_loop(),
                Ok(found) => return Ok(found),
                Err(error) => return Err(self.around.shared.error(self.place, error)),
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
        // The engine closes the group for a call whose time is over, once the others had theirs.
        self.is_whole |= time.has_expired();
        if let Some(error) = self.around.end(self.place, rank, (step.number() - self.first) as u32) {
            return Err(error);
        }
        if !wait.is_long() {
            return Ok(None);
        }
        if let Some(found) = records.call(place, self.place.sequence).filter(|found| *found != outer) {
            return Err(self.mismatch(place, outer, found));
        }
        if !port.watch(rank) {
            return Ok(None);
        }
        // It may have published this before it left.
        let found = look(self.slots).map_err(|error| shared.error(self.place, error))?;
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
    /// What ends a call in `round` that waits for `rank`, if anything does.
    pub(super) fn end(&self, place: &Place, rank: Rank, round: u32) -> Option<Error> {
        let error = match self.port.failure() {
            // This call waits as well, and says for whom.
            Some(Failure::TimedOut(_)) if self.time.is_waiting() => self.timeout(place, rank, round),
            Some(failure) => failure.into(),
            None if self.time.has_expired() => self.timeout(place, rank, round),
            None => return None,
        };
        self.course.is_closed.store(true, Ordering::Relaxed);
        Some(Error::at(place, error))
    }

    fn timeout(&self, place: &Place, rank: Rank, round: u32) -> ucx_sys_wrap::Error {
        let waited = self.time.waited(self.port.now());
        ucx_sys_wrap::Error::Timeout { rank, tag: Tag::new(rank, 0, place.sequence, round), waited }
    }
}

impl Drop for HostCall<'_> {
    fn drop(&mut self) {
        // Who leaves with the group is lost to the others, and has not aborted.
        if !self.is_whole && !self.around.course.has_ended.load(Ordering::Relaxed) {
            self.around.port.abort();
            self.around.course.is_closed.store(true, Ordering::Relaxed);
        }
    }
}
