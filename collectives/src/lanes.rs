//! Long vectors in segments, of which a few are on their way at once.
//!
//! While one segment is reduced, the next one is sent and received. An algorithm is written for one segment
//! and knows nothing of the others; each runs in a *lane* of tags of its own ([`Call::lane`]).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::call::{Call, LANES};
use crate::error::Result;

/// The segments that are on their way at once, one less than lanes: the tags of a lane are free when its last
/// segment has ended on this rank.
pub(crate) const IN_FLIGHT: usize = LANES as usize - 1;

/// A segment on its way, or its result where it has ended before those in front of it.
enum Lane<O, R> {
    Running(Pin<Box<R>>),
    Ended(O),
}

/// The segments of a vector that are on their way, in their order: at most [`IN_FLIGHT`].
pub(crate) struct Lanes<O, R> {
    lanes: VecDeque<Lane<O, R>>,
    next: u32,
}

impl<O, R: Future<Output = Result<O>>> Lanes<O, R> {
    pub(crate) fn new() -> Self {
        Self { lanes: VecDeque::with_capacity(IN_FLIGHT), next: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Whether one must [end](Self::end) before another starts.
    pub(crate) fn are_full(&self) -> bool {
        self.lanes.len() >= IN_FLIGHT
    }

    /// Starts the next segment, in a lane of the call.
    pub(crate) fn start<'a, 'env>(&mut self, call: &Call<'a, 'env>, run: impl FnOnce(Call<'a, 'env>) -> R) {
        debug_assert!(!self.are_full(), "its lane may be in use");
        self.lanes.push_back(Lane::Running(Box::pin(run(call.lane(self.next)))));
        self.next = (self.next + 1) % LANES;
    }

    /// Polls all of them.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<()> {
        for lane in &mut self.lanes {
            if let Lane::Running(segment) = lane
                && let Poll::Ready(ended) = segment.as_mut().poll(context)
            {
                *lane = Lane::Ended(ended?);
            }
        }
        Ok(())
    }

    /// The result of the first one, if it has ended.
    fn take(&mut self) -> Option<O> {
        match self.lanes.pop_front()? {
            Lane::Ended(result) => Some(result),
            running @ Lane::Running(_) => {
                self.lanes.push_front(running);
                None
            }
        }
    }

    /// Waits for the first one. There is one.
    ///
    /// # Errors
    /// The first one of any segment.
    pub(crate) async fn end(&mut self) -> Result<O> {
        poll_fn(|context| {
            self.poll(context)?;
            self.take().map_or(Poll::Pending, |result| Poll::Ready(Ok(result)))
        })
        .await
    }

    /// Runs something else, while they go on.
    ///
    /// # Errors
    /// Its own, or the first one of a segment.
    pub(crate) async fn beside<T>(&mut self, other: impl Future<Output = Result<T>>) -> Result<T> {
        let mut other = pin!(other);
        poll_fn(|context| {
            self.poll(context)?;
            other.as_mut().poll(context)
        })
        .await
    }
}

/// Runs an algorithm on each segment, and returns the results in their order. All ranks have as many.
///
/// # Errors
/// The first one of a segment; those that are on their way are canceled.
pub(crate) async fn in_lanes<'a, 'env, S, O, F, R>(
    call: &Call<'a, 'env>,
    segments: Vec<S>,
    run: F,
) -> Result<Vec<O>>
where
    F: Fn(Call<'a, 'env>, S) -> R,
    R: Future<Output = Result<O>>,
{
    let mut done = Vec::with_capacity(segments.len());
    let mut segments = segments.into_iter();
    let mut lanes = Lanes::new();
    poll_fn(|context| -> Poll<Result<()>> {
        loop {
            while !lanes.are_full()
                && let Some(segment) = segments.next()
            {
                lanes.start(call, |lane| run(lane, segment));
            }
            lanes.poll(context)?;
            let before = done.len();
            while let Some(result) = lanes.take() {
                done.push(result);
            }
            if lanes.is_empty() && segments.len() == 0 {
                return Poll::Ready(Ok(()));
            }
            if done.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await?;
    Ok(done)
}
