//! A worker's requests to all shards, and their replies.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use brevity_collectives::{Error as Collective, Message, Peers};

use super::Step;
use super::desk::{Desk, REPLIES, REQUESTS, Sending};
use super::plan::Plan;
use super::seat::Seat;
use super::trailer::{Kind, Trailer};
use crate::Handle;
use crate::error::{Error, Result};

/// How often a blocking wait looks whether the server is still there.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A reply on its way.
type Receiving = Handle<(Vec<u8>, brevity_collectives::Result<Message>)>;

/// A reply, and the bytes of its request.
type Came = (Vec<u8>, usize);

/// No parameters, for replies of which only the outcome matters.
pub(super) const UNUSED: Option<&mut [Vec<f32>]> = None;

/// The worker of this rank.
pub(super) struct Worker {
    pub(super) seats: Vec<Seat>,
    lines: Vec<Line>,
    /// Whether it has the model.
    pub(super) has_fetched: bool,
}

/// The way to one shard and back.
struct Line {
    /// The server, as a rank of the group.
    rank: u32,
    is_own: bool,
    pending: Option<Pending>,
}

/// A request whose reply has not been taken.
struct Pending {
    kind: Kind,
    room: usize,
    sent: usize,
    /// `None` for this rank's own shard.
    _sending: Option<Sending>,
    /// `None` after a timeout, until somebody waits again.
    reply: Option<Receiving>,
    /// What this rank's own shard costs on a simulated network, and is not charged yet.
    cost: Duration,
}

impl Pending {
    /// The receive of the reply, which a timeout may have ended before.
    fn receive(&mut self, around: &Around<'_>, rank: u32) -> Receiving {
        let start = || around.peers.start_recv(vec![0u8; self.room], rank, REPLIES, around.timeout);
        self.reply.take().unwrap_or_else(start)
    }
}

/// How a wait for a reply ends.
enum Outcome {
    Came(Vec<u8>),
    /// It may still come.
    Silent,
    Lost,
    Failed(Collective),
}

impl Outcome {
    /// Of this rank's own shard, which has panicked if nothing comes.
    fn of_own(reply: Option<Vec<u8>>) -> Self {
        reply.map_or(Self::Lost, Self::Came)
    }

    fn of_receive((mut bytes, received): (Vec<u8>, brevity_collectives::Result<Message>)) -> Self {
        match received {
            Ok(message) => {
                bytes.truncate(message.bytes);
                Self::Came(bytes)
            }
            Err(Collective::MessageTimeout { .. }) => Self::Silent,
            Err(Collective::PeerLost { .. } | Collective::Aborted { .. }) => Self::Lost,
            Err(error) => Self::Failed(error),
        }
    }
}

/// What a worker's requests need.
pub(super) struct Around<'a> {
    pub(super) plan: &'a Plan,
    pub(super) peers: &'a Arc<Peers>,
    pub(super) desk: Option<&'a Desk>,
    pub(super) timeout: Duration,
}

impl Around<'_> {
    /// Which of several failures to report: a server that has died, because others may have ended for that,
    /// also if it failed nobody yet; else the first.
    fn first_cause(&self, failures: Vec<Error>) -> Option<Error> {
        let first = failures.into_iter().next()?;
        let mut servers = (0u32..).zip(&self.plan.roles.servers);
        let died = servers.find(|(_, server)| self.peers.has_died(**server));
        Some(match (first, died) {
            (Error::ServerLost { .. }, Some((shard, server))) => {
                Error::ServerLost { rank: self.peers.member(*server).0, shard }
            }
            (first, _) => first,
        })
    }
}

impl Worker {
    pub(super) fn new(plan: &Plan, rank: u32) -> Result<Self> {
        let seats =
            (0..plan.roles.servers.len()).map(|shard| Seat::new(plan, shard)).collect::<Result<_>>()?;
        let servers = plan.roles.servers.iter();
        let lines = servers.map(|&server| Line { rank: server, is_own: server == rank, pending: None });
        Ok(Self { seats, lines: lines.collect(), has_fetched: false })
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.lines.iter().any(|line| line.pending.is_some())
    }

    /// Asks all shards for the model. Nothing else is waited for.
    pub(super) fn begin_to_fetch(&mut self, around: &Around<'_>) {
        self.has_fetched = false;
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
        let plan = around.plan;
        let mut messages = Vec::with_capacity(self.seats.len());
        for number in 0..self.seats.len() {
            match self.seats[number].push(plan, gradients, rate) {
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

    /// Waits for the replies of all shards, and adds what they hold to the parameters, if there are any. Each
    /// reply is taken as soon as it is there; after an error the others can still be waited for.
    pub(super) fn wait<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        mut parameters: Option<&mut [T]>,
    ) -> Result<Step> {
        let deadline = Instant::now().checked_add(around.timeout);
        let (mut step, mut failures) = (Step::default(), Vec::new());
        for number in 0..self.lines.len() {
            let came = self.lines[number].wait(around, number, deadline);
            let taken = self.take(around, number, came, parameters.as_deref_mut(), &mut step);
            failures.extend(taken.err());
        }
        around.first_cause(failures).map_or(Ok(step), Err)
    }

    /// The same, awaited.
    pub(super) async fn wait_async<T: AsMut<[f32]>>(
        &mut self,
        around: &Around<'_>,
        mut parameters: Option<&mut [T]>,
    ) -> Result<Step> {
        let (mut step, mut failures) = (Step::default(), Vec::new());
        for number in 0..self.lines.len() {
            if let Some(pending) = &mut self.lines[number].pending {
                around.peers.compute(std::mem::take(&mut pending.cost)).await;
            }
            let came = poll_fn(|context| self.lines[number].poll(around, number, context)).await;
            let taken = self.take(around, number, came, parameters.as_deref_mut(), &mut step);
            failures.extend(taken.err());
        }
        around.first_cause(failures).map_or(Ok(step), Err)
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
        match seat.take(plan, (payload, &trailer), parameters) {
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
        let applied = self.wait(around, UNUSED).map(drop);
        for farewell in finish.into_iter().chain(self.tell_all(around, Kind::Leave)) {
            // A server that is gone needs none.
            drop(farewell.wait());
        }
        applied
    }

    /// The same, awaited.
    pub(super) async fn leave_async(&mut self, around: &Around<'_>) -> Result<()> {
        let finish = self.finish(around);
        let applied = self.wait_async(around, UNUSED).await.map(drop);
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

impl Line {
    fn ask(&mut self, around: &Around<'_>, kind: Kind, message: Vec<u8>, room: usize) {
        let sent = message.len();
        let mut pending = Pending { kind, room, sent, _sending: None, reply: None, cost: Duration::ZERO };
        match around.desk.filter(|_| self.is_own) {
            Some(desk) => pending.cost = desk.ask(message),
            None => {
                // The receive first: the reply then goes to its place.
                pending.reply = Some(pending.receive(around, self.rank));
                pending._sending = Some(around.peers.start_send(message, self.rank, REQUESTS));
            }
        }
        self.pending = Some(pending);
    }

    /// Sends a message without a reply. `None` where it needs no way.
    fn tell(&self, around: &Around<'_>, message: Vec<u8>) -> Option<Sending> {
        match around.desk.filter(|_| self.is_own) {
            Some(desk) => {
                desk.ask(message);
                None
            }
            None => Some(around.peers.start_send_within(message, self.rank, REQUESTS, around.timeout)),
        }
    }

    /// The reply and the bytes of its request, once it is there; `None` if nothing was asked.
    fn wait(&mut self, around: &Around<'_>, shard: usize, deadline: Option<Instant>) -> Result<Option<Came>> {
        let left = || deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let outcome = if let Some(desk) = around.desk.filter(|_| self.is_own) {
            match desk.letterbox().wait(left()) {
                Poll::Ready(reply) => Outcome::of_own(reply),
                Poll::Pending => Outcome::Silent,
            }
        } else {
            let reply = pending.receive(around, self.rank);
            loop {
                if around.peers.wait_until(LOOK_EVERY.min(left()), || reply.has_ended()) {
                    break Outcome::of_receive(reply.wait());
                }
                if around.peers.has_gone(self.rank) && !reply.has_ended() {
                    break Outcome::Lost;
                }
                if left().is_zero() {
                    pending.reply = Some(reply);
                    break Outcome::Silent;
                }
            }
        };
        self.end(around, shard, outcome)
    }

    fn poll(
        &mut self,
        around: &Around<'_>,
        shard: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Came>>> {
        let Some(pending) = &mut self.pending else { return Poll::Ready(Ok(None)) };
        let outcome = if let Some(desk) = around.desk.filter(|_| self.is_own) {
            Outcome::of_own(ready!(desk.letterbox().poll(context)))
        } else {
            let mut reply = pending.receive(around, self.rank);
            match Pin::new(&mut reply).poll(context) {
                Poll::Ready(ended) => Outcome::of_receive(ended),
                // One that has closed its side ends no receive, but its notice wakes whoever waits.
                Poll::Pending if around.peers.has_gone(self.rank) && !reply.has_ended() => Outcome::Lost,
                Poll::Pending => {
                    pending.reply = Some(reply);
                    return Poll::Pending;
                }
            }
        };
        Poll::Ready(self.end(around, shard, outcome))
    }

    /// Ends a wait. The request stays pending if its reply may still come.
    fn end(&mut self, around: &Around<'_>, shard: usize, outcome: Outcome) -> Result<Option<Came>> {
        match outcome {
            Outcome::Came(bytes) => Ok(self.pending.take().map(|pending| (bytes, pending.sent))),
            Outcome::Silent => Err(self.silent(around, shard)),
            Outcome::Lost => {
                self.pending = None;
                Err(self.lost(around, shard))
            }
            Outcome::Failed(error) => {
                self.pending = None;
                Err(error.into())
            }
        }
    }

    fn silent(&self, around: &Around<'_>, shard: usize) -> Error {
        let rank = around.peers.member(self.rank).0;
        Error::ServerSilent { rank, shard: shard as u32, after: around.timeout }
    }

    fn lost(&self, around: &Around<'_>, shard: usize) -> Error {
        Error::ServerLost { rank: around.peers.member(self.rank).0, shard: shard as u32 }
    }
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
