//! A step while it runs: its buckets, before, in and after their collectives.

use std::time::Instant;

use brevity_collectives::engine::Handle;
use brevity_collectives::{Call, Error as Collective, Group, Reserved};
use brevity_compress::feedback::Gradient;
use brevity_compress::in_standard_float_mode;
use tracing::Span;
use ucx_sys_wrap::Rank;

use super::Ending;
use super::bucket::Bucket;
use super::going::Confirming;
use super::participants::Shares;
use super::report::{Left, Moved, Phase, Watched};
use crate::error::{Error, Result};

/// What a step has of the exchange while it runs.
pub(super) struct Running {
    pub(super) begun: Instant,
    pub(super) span: Span,
    /// Counts the ranks that have gradients, if that matters; without buckets, a barrier.
    pub(super) head: Option<Handle<((), Result<Shares, Collective>)>>,
    /// Its result, if it has ended.
    pub(super) shares: Result<Shares, Collective>,
    pub(super) buckets: Vec<Flight>,
    /// The bucket of each tensor, if it has one, and whether its gradient is there.
    pub(super) tensors: Vec<(Option<usize>, bool)>,
    pub(super) confirming: Confirming,
}

/// A bucket in a step.
pub(super) struct Flight {
    pub(super) state: State,
    /// The tensors that are not ready.
    pub(super) left: usize,
    /// The first tensor with a value that is not finite.
    pub(super) bad: Option<usize>,
    pub(super) watched: Watched,
}

/// A bucket whose collective has ended, what that took, and its outcome.
pub(super) type Ended = (Bucket, (Moved, Result<(), Collective>));

pub(super) enum State {
    /// Before its collective.
    Ready(Bucket, Reserved),
    /// Its collective has started.
    Away(Handle<Ended>),
    /// It has ended.
    Back(Bucket, Result<(), Collective>),
    /// Between two others.
    Moving,
}

impl State {
    fn error(&self) -> Option<&Collective> {
        if let Self::Back(_, Err(error)) = self { Some(error) } else { None }
    }
}

impl Running {
    pub(super) fn ready(&mut self, group: &Group, tensor: usize, gradient: Gradient<'_>) -> Result<()> {
        let (place, is_ready) = &mut self.tensors[tensor];
        if *is_ready {
            return Err(Error::Order {
                what: "a tensor that is ready twice in a step",
                remedy: "hand in each gradient once",
            });
        }
        *is_ready = true;
        let Some(place) = *place else { return Ok(()) };
        let flight = &mut self.buckets[place];
        if let State::Ready(bucket, _) = &mut flight.state {
            let add = || in_standard_float_mode(|| bucket.accumulate(tensor, gradient));
            if !flight.watched.during(Phase::Select, Some(tensor), add) {
                flight.bad = Some(flight.bad.map_or(tensor, |bad| bad.min(tensor)));
            }
        }
        flight.left -= 1;
        if flight.left == 0 {
            flight.start();
        }
        group.progress();
        Ok(())
    }

    /// Waits for the buckets that are away. One that has not started ends here: its call is dropped.
    pub(super) fn end(self) -> (Vec<Flight>, Result<Shares, Collective>, Confirming) {
        let shares = self.head.map_or(self.shares, |head| head.wait().1);
        let mut flights = self.buckets;
        for flight in &mut flights {
            match std::mem::replace(&mut flight.state, State::Moving) {
                State::Away(handle) => {
                    let ended = flight.watched.during(Phase::Wait, None, || handle.wait());
                    flight.back(ended);
                }
                other => flight.state = other,
            }
        }
        (flights, shares, self.confirming)
    }

    /// Whether all buckets have arrived, and a barrier may tell the others.
    pub(super) fn has_results(&self, own: Rank) -> bool {
        let outcome = outcome(&self.buckets, self.shares.clone(), own);
        !matches!(Ending::of(&outcome), Ending::Failed)
    }

    /// Waits likewise, without blocking.
    pub(super) async fn end_async(&mut self) {
        if let Some(head) = &mut self.head {
            self.shares = head.await.1;
            self.head = None;
        }
        for flight in &mut self.buckets {
            if let State::Away(handle) = &mut flight.state {
                let (begun, span) = (Instant::now(), flight.watched.span_of(Phase::Wait, None));
                let ended = handle.await;
                drop(span);
                flight.watched.waited(begun);
                flight.back(ended);
            }
        }
    }
}

impl Flight {
    /// Starts the collective.
    fn start(&mut self) {
        let (bad, span) = (self.bad, self.watched.span_of(Phase::Communicate, None));
        self.state = match std::mem::replace(&mut self.state, State::Moving) {
            State::Ready(bucket, reserved) => State::Away(reserved.start(bucket, move |call, bucket| {
                Box::pin(async move {
                    let left = Left::now(call, span);
                    let result = exchange(call, bucket, bad).await;
                    (left.arrives(call), result)
                })
            })),
            other => other,
        };
    }

    /// Takes the bucket back.
    fn back(&mut self, (bucket, (moved, result)): Ended) {
        self.watched.arrives(&moved);
        self.state = State::Back(bucket, result);
    }
}

/// The collective of a bucket, which is poisoned if one of its tensors has a value that is not finite.
async fn exchange(call: &Call<'_, '_>, bucket: &mut Bucket, bad: Option<usize>) -> Result<(), Collective> {
    if let Some(tensor) = bad {
        call.set_poison(tensor as u32);
    }
    bucket.exchange(call, bad.is_some()).await
}

/// The outcome of a step. `NonFinite`, then `Overflow`, come before other errors; of several, the lowest rank
/// and tensor, as in a single call.
pub(super) fn outcome(
    flights: &[Flight],
    head: Result<Shares, Collective>,
    own: Rank,
) -> Result<Shares, Collective> {
    let errors = || flights.iter().filter_map(|flight| flight.state.error());
    let all_ended = flights.iter().all(|flight| matches!(flight.state, State::Back(..)));
    let not_finite = errors().filter_map(|error| match error {
        Collective::NonFinite { rank, tensor } => Some((*rank, *tensor)),
        _ => None,
    });
    let overflow = errors().filter_map(|error| match error {
        Collective::Overflow { tensor } => Some(*tensor),
        _ => None,
    });
    if let Some((rank, tensor)) = not_finite.min() {
        return Err(Collective::NonFinite { rank, tensor });
    }
    if let Some(tensor) = overflow.min() {
        return Err(Collective::Overflow { tensor });
    }
    match errors().next() {
        Some(error) => Err(error.clone()),
        None if all_ended => head,
        // The step was dropped, or one of its tensors has panicked.
        None => Err(Collective::Aborted { rank: own }),
    }
}
