//! A worker's requests to all shards, and their replies.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use brevity_collectives::Peers;
use brevity_compress::momentum::{Clip, squared_norm};
use ucx_sys_wrap::sim::Stopwatch;

use super::Step;
use super::desk::{Desk, Sending};
use super::line::{Came, Line, Look, Outcome, rest};
use super::plan::Plan;
use super::seat::{Seat, refused};
use super::trailer::{Kind, Trailer};
use super::watch::set_alarm;
use crate::error::{Error, Result};

/// No parameters, for replies of which only the outcome matters.
pub(super) const UNUSED: Option<&mut [Vec<f32>]> = None;

/// Replies come while they are polled for, and a task that never waits lets no other one run. After so many,
/// it does.
const AT_ONCE: u32 = 16;

/// The worker of this rank.
pub(super) struct Worker {
    pub(super) seats: Vec<Seat>,
    lines: Vec<Line>,
    clip: Option<Clip>,
    /// Whether its parameters are the model but for what it is owed. Not while it fetches: answers that come
    /// then are dropped.
    pub(super) has_fetched: bool,
    /// The awaited waits that have ended at once, in a row.
    at_once: u32,
}

/// What a wait has brought.
#[derive(Default)]
struct Taken {
    step: Step,
    failures: Vec<Error>,
}

/// What a worker's requests need.
pub(super) struct Around<'a> {
    pub(super) plan: &'a Plan,
    pub(super) peers: &'a Arc<Peers>,
    pub(super) desk: Option<&'a Desk>,
    pub(super) timeout: Duration,
}

impl Around<'_> {
    /// What a wait has brought, or which of several failures to report: if servers are lost, one that has
    /// died, because others may have ended for that, also if it failed nobody yet; else the first.
    fn result(&self, Taken { step, mut failures }: Taken) -> Result<Step> {
        let is_lost = |error: &Error| matches!(error, Error::ServerLost { .. });
        let Some(lost) = failures.iter().position(is_lost) else {
            return if failures.is_empty() { Ok(step) } else { Err(failures.swap_remove(0)) };
        };
        let mut servers = (0u32..).zip(&self.plan.roles.servers);
        let died = servers.find(|(_, server)| self.peers.has_died(**server));
        Err(died.map_or_else(
            || failures.swap_remove(lost),
            |(shard, server)| Error::ServerLost { rank: self.peers.member(*server).0, shard },
        ))
    }
}

impl Worker {
    pub(super) fn new(plan: &Plan, rank: u32) -> Result<Self> {
        let seats =
            (0..plan.roles.servers.len()).map(|shard| Seat::new(plan, shard)).collect::<Result<_>>()?;
        let lines = plan.roles.servers.iter().map(|&server| Line::new(server, server == rank)).collect();
        let clip = plan.method.clipping().map(|limit| Clip::new(limit, plan.roles.workers.len()));
        let clip = clip.transpose().map_err(refused)?;
        Ok(Self { seats, lines, clip, has_fetched: false, at_once: 0 })
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.lines.iter().any(|line| line.pending.is_some())
    }

    /// Asks all shards for the model. Nothing else is waited for.
    pub(super) fn begin_to_fetch(&mut self, around: &Around<'_>) {
        for (line, seat) in self.lines.iter_mut().zip(&self.seats) {
            let room = around.plan.longest_model(seat.shard);
            line.ask(around, Kind::Fetch, seat.request(Kind::Fetch), room);
        }
    }

    /// Asks all shards for what this worker is owed. Nothing else is waited for.
    pub(super) fn begin_to_pull(&mut self, around: &Around<'_>) {
        for (line, seat) in self.lines.iter_mut().zip(&self.seats) {
            let room = around.plan.longest_answer(seat.shard);
            line.ask(around, Kind::Pull, seat.request(Kind::Pull), room);
        }
    }

    /// Pushes gradients to all shards.
    pub(super) fn push<T: AsRef<[f32]>>(
        &mut self,
        around: &Around<'_>,
        gradients: &[T],
        rate: f32,
    ) -> Result<()> {
        let (plan, factors) = (around.plan, self.factors(gradients));
        let mut messages = Vec::with_capacity(self.seats.len());
        for number in 0..self.seats.len() {
            match self.seats[number].push(plan, (gradients, &factors), rate) {
                Ok(message) => messages.push(message),
                Err((tensor, error)) => {
                    self.seats[..number].iter_mut().for_each(|seat| seat.undo(plan, gradients));
                    return Err(not_finite(plan, tensor, error, around.peers));
                }
            }
        }
        for ((line, seat), message) in self.lines.iter_mut().zip(&self.seats).zip(messages) {
            line.ask(around, Kind::Push, message, plan.longest_answer(seat.shard));
        }
        Ok(())
    }

    /// The factors that clip the gradients, one for each tensor; none without clipping. They are those of
    /// whole tensors, so they do not depend on the shards.
    fn factors<T: AsRef<[f32]>>(&self, gradients: &[T]) -> Vec<f32> {
        let Some(clip) = self.clip else { return Vec::new() };
        let factor = |gradient: &T| {
            // A gradient that is not finite is refused when it is added.
            squared_norm(gradient.as_ref()).map_or(1.0, |squares| clip.factor(squares))
        };
        gradients.iter().map(factor).collect()
    }

    /// Waits for the replies of all shards, and adds what they hold to the parameters, if there are any. Each
    /// reply is taken as soon as it is there. After an error, also of a server that is lost, which ends the
    /// wait at once, the others can still be waited for.
    pub(super) fn wait<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        mut parameters: Option<&mut [T]>,
    ) -> Result<Step> {
        let deadline = Instant::now().checked_add(around.timeout);
        let left = || deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let (mut taken, mut look) = (Taken::default(), Look { waker: None, finds_lost: false });
        while !self.take_ended(around, look, parameters.as_deref_mut(), &mut taken) {
            if left().is_zero() {
                taken.failures.extend(self.end_first(around, Outcome::Silent));
                break;
            }
            look.finds_lost = rest(&self.lines, around, left());
        }
        around.result(taken)
    }

    /// The same, awaited.
    pub(super) async fn wait_async<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        mut parameters: Option<&mut [T]>,
    ) -> Result<Step> {
        for pending in self.lines.iter_mut().filter_map(|line| line.pending.as_mut()) {
            around.peers.compute(std::mem::take(&mut pending.cost)).await;
        }
        if self.at_once >= AT_ONCE && !around.peers.is_simulated() {
            self.at_once = 0;
            let_others_run().await;
        }
        let (mut taken, mut polls) = (Taken::default(), 0_u32);
        let look = Look { waker: None, finds_lost: false };
        if !self.take_ended(around, look, parameters.as_deref_mut(), &mut taken) {
            let mut alarm = set_alarm(around.peers, around.timeout);
            let ended = poll_fn(|context| {
                polls += 1;
                let alarm = Pin::new(&mut alarm).poll(context);
                // Only now: its turns of the engine bring replies, and the notices of lost servers.
                let look = Look { waker: Some(context.waker()), finds_lost: true };
                if self.take_ended(around, look, parameters.as_deref_mut(), &mut taken) {
                    return Poll::Ready(None);
                }
                alarm.map(Some)
            });
            if let Some(ended) = ended.await {
                taken.failures.extend(self.end_first(around, Outcome::of_alarm(ended)));
            }
        }
        self.at_once = if polls > 1 { 0 } else { self.at_once + 1 };
        around.result(taken)
    }

    /// Takes the replies that are there. Returns whether the wait is over: none is left to come, or a server
    /// is lost, or refuses a fetch.
    fn take_ended<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        look: Look<'_>,
        mut parameters: Option<&mut [T]>,
        taken: &mut Taken,
    ) -> bool {
        let mut is_over = false;
        for number in 0..self.lines.len() {
            let Some(outcome) = self.lines[number].look(around, look) else { continue };
            is_over |= matches!(outcome, Outcome::Lost);
            let is_fetch = self.lines[number].asks(Kind::Fetch);
            let came = self.lines[number].end(around, number, outcome);
            let ended = self.take(around, number, came, parameters.as_deref_mut(), &mut taken.step);
            // Of a worker that has built another server the others may know nothing.
            is_over |= is_fetch && ended.is_err();
            taken.failures.extend(ended.err());
        }
        is_over || !self.is_waiting()
    }

    /// Ends the wait for the first reply that is not there. Returns its error.
    fn end_first(&mut self, around: &Around<'_>, outcome: Outcome) -> Option<Error> {
        let (number, line) = self.lines.iter_mut().enumerate().find(|(_, line)| line.pending.is_some())?;
        line.end(around, number, outcome).err()
    }

    /// Takes what has come for one shard.
    fn take<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        number: usize,
        came: Result<Option<Came>>,
        parameters: Option<&mut [T]>,
        step: &mut Step,
    ) -> Result<()> {
        let Some((bytes, sent)) = came? else { return Ok(()) };
        let (seat, plan) = (&mut self.seats[number], around.plan);
        let refused = |reason: String| Error::Refused {
            rank: around.peers.member(plan.roles.servers[number]).0,
            shard: number as u32,
            reason,
        };
        let (payload, trailer) = Trailer::split(&bytes).map_err(refused)?;
        let stopwatch = Stopwatch::start();
        let applied = seat.take(plan, (payload, &trailer), parameters);
        step.computing += stopwatch.elapsed();
        match applied {
            Ok(()) => {
                if trailer.kind == Kind::Model && !self.has_fetched {
                    // The shard may be a new one, or an old one that has started again.
                    seat.resume(plan, trailer.step).map_err(Error::State)?;
                }
                seat.settle(plan, &trailer);
                step.clock = step.clock.max(trailer.clock);
                step.lag = step.lag.max(trailer.lag);
                step.bytes += (sent + bytes.len()) as u64;
                Ok(())
            }
            Err(reason) => {
                if trailer.kind == Kind::Refused && trailer.shard as usize == number {
                    seat.resume(plan, trailer.step.min(seat.step)).map_err(Error::State)?;
                }
                Err(refused(reason))
            }
        }
    }

    /// Leaves all shards. The messages are sent when this returns, or given up after the timeout.
    ///
    /// # Errors
    /// Of a push that was not pulled: it may be lost.
    pub(super) fn leave(&mut self, around: &Around<'_>) -> Result<()> {
        let finish = self.finish(around);
        let mut applied = Ok(());
        // A lost server ends a wait; the others still answer.
        while self.is_waiting() {
            let ended = self.wait(around, UNUSED).map(drop);
            let is_silent = matches!(ended, Err(Error::ServerSilent { .. }));
            applied = applied.and(ended);
            if is_silent {
                break;
            }
        }
        for farewell in finish.into_iter().chain(self.tell_all(around, Kind::Leave)) {
            // A server that is gone needs none.
            drop(farewell.wait());
        }
        applied
    }

    /// The same, awaited.
    pub(super) async fn leave_async(&mut self, around: &Around<'_>) -> Result<()> {
        let finish = self.finish(around);
        let mut applied = Ok(());
        while self.is_waiting() {
            let ended = self.wait_async(around, UNUSED).await.map(drop);
            let is_silent = matches!(ended, Err(Error::ServerSilent { .. }));
            applied = applied.and(ended);
            if is_silent {
                break;
            }
        }
        for farewell in finish.into_iter().chain(self.tell_all(around, Kind::Leave)) {
            drop(farewell.await);
        }
        applied
    }

    /// Asks for the answers to pushes that shards hold back: they say that these are applied. No other reply
    /// is waited for. The leave comes after the answers, so that no shard ends while one is on its way.
    fn finish(&mut self, around: &Around<'_>) -> Vec<Sending> {
        for line in &mut self.lines {
            line.pending.take_if(|pending| pending.kind != Kind::Push);
        }
        if self.is_waiting() { self.tell_all(around, Kind::Finish) } else { Vec::new() }
    }

    fn tell_all(&self, around: &Around<'_>, kind: Kind) -> Vec<Sending> {
        let lines = self.lines.iter().zip(&self.seats);
        lines.filter_map(|(line, seat)| line.tell(around, seat.request(kind))).collect()
    }
}

/// Ends when its task is polled again.
async fn let_others_run() {
    let mut is_again = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_again, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The error of a gradient, or of a sum with one, that is not finite.
fn not_finite(plan: &Plan, tensor: usize, error: brevity_compress::Error, peers: &Peers) -> Error {
    match error {
        brevity_compress::Error::NonFinite { .. } => Error::GradientNotFinite {
            rank: peers.member(peers.rank()).0,
            tensor: plan.layout.tensors.get(tensor).map_or_else(String::new, |tensor| tensor.name.clone()),
        },
        error => Error::State(error),
    }
}
