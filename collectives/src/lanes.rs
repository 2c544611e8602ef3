//! Long vectors in segments, of which a few are on their way at once.
//!
//! While one segment is reduced, the next one is sent and received. A collective is written for one segment
//! and knows nothing of the others; each runs in a *lane* of tags of its own ([`Call::lane`]).

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ucx_sys_wrap::buffer::Chunk;

use crate::call::{Call, LANES};
use crate::error::Result;

/// The segments that are on their way at once, one less than lanes: the tags of a lane are free when its last
/// segment has ended on this rank.
const IN_FLIGHT: usize = LANES as usize - 1;

/// A segment on its way, or where it has ended before those in front of it.
enum Lane<'env, T, R> {
    Running(Pin<Box<R>>),
    Ended(Chunk<'env, T>),
}

/// Runs a collective on each segment of `data`, of `length` elements, and returns all of it. All ranks have
/// the same segments.
///
/// # Errors
/// The first one of a segment; those that are on their way are canceled.
pub(crate) async fn in_lanes<'a, 'env, T, F, R>(
    call: &Call<'a, 'env>,
    data: Chunk<'env, T>,
    length: usize,
    run: F,
) -> Result<Chunk<'env, T>>
where
    T: Send,
    F: Fn(Call<'a, 'env>, Chunk<'env, T>) -> R,
    R: Future<Output = Result<Chunk<'env, T>>>,
{
    let total = data.len();
    let lengths = (0..total).step_by(length).map(|start| length.min(total - start));
    let mut segments = data.split_into(lengths).into_iter();
    let mut lanes: VecDeque<Lane<'env, T, R>> = VecDeque::new();
    let mut done = Vec::with_capacity(segments.len());
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
                        Ok(segment) => *lane = Lane::Ended(segment),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
            }
            let before = done.len();
            while let Some(Lane::Ended(_)) = lanes.front() {
                if let Some(Lane::Ended(segment)) = lanes.pop_front() {
                    done.push(segment);
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
    Ok(Chunk::join_all(done))
}
