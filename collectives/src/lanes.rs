//! Long vectors in segments, of which a few are on their way at once.
//!
//! While one segment is reduced, the next one is sent and received. An algorithm is written for one segment
//! and knows nothing of the others; each runs in a *lane* of tags of its own ([`Call::lane`]).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

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
    let mut lanes: VecDeque<Lane<O, R>> = VecDeque::new();
    let mut next = 0;
    poll_fn(|context| {
        loop {
            while lanes.len() < IN_FLIGHT
                && let Some(segment) = segments.next()
            {
                lanes.push_back(Lane::Running(Box::pin(run(call.lane(next), segment))));
                next = (next + 1) % LANES;
            }
            for lane in &mut lanes {
                if let Lane::Running(segment) = lane
                    && let Poll::Ready(ended) = segment.as_mut().poll(context)
                {
                    match ended {
                        Ok(result) => *lane = Lane::Ended(result),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
            let before = done.len();
            while let Some(Lane::Ended(_)) = lanes.front() {
                if let Some(Lane::Ended(result)) = lanes.pop_front() {
                    done.push(result);
                }
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
