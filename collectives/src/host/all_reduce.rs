//! All-reduce over slots.
//!
//! With `P` ranks and `n` bytes:
//!
//! | bytes | what each rank does | bytes read from others per rank |
//! | --- | --- | --- |
//! | up to 512 | publishes its vector in the line of its flag, reduces all vectors | n (P - 1) |
//! | up to 64 KiB / (P - 1) | publishes its vector, reduces all vectors | n (P - 1) |
//! | more | reduces its slice of all ranks ([by slices](super::slices)), reads the others | 2 n (P - 1) / P |

use std::ops::ControlFlow;

use ucx_sys_wrap::shm::{INLINE_BYTES, Step};

use super::folding::Folding;
use super::memory::Memory;
use super::slices::by_slices;
use super::turn::SlotTurn;
use crate::data::Reducer;
use crate::error::Result;

/// Up to this many bytes in total, every rank reduces the whole vector.
const ALL_BY_ALL_BYTES: usize = 64 << 10;

/// The rest of an all-reduce or a barrier that was not finished at once.
#[derive(Clone, Copy)]
pub enum Rest {
    /// Everything.
    All,
    /// What follows this rank's publication, in this step.
    Published(Step),
}

/// Reduces the `input` vectors of all ranks, in the fixed order; every rank gets the result in `output`, with
/// the same bits, except for NaN payloads of sums. Without an `input`, `output` holds it. All vectors have
/// the same length, in whole elements.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time, or the reduction fails;
/// `output` is unspecified.
pub async fn all_reduce(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    input: Option<&[u8]>,
    output: &mut [u8],
) -> Result<()> {
    match at_once(turn, reducer, input, output) {
        ControlFlow::Break(result) => result,
        ControlFlow::Continue(rest) => all_reduce_rest(turn, reducer, input, output, rest).await,
    }
}

/// Tries an [`all_reduce`] in which every rank reduces the whole vector, without the overhead of waiting.
/// Returns what is left if the others do not come soon.
#[inline]
pub(crate) fn at_once(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    input: Option<&[u8]>,
    output: &mut [u8],
) -> ControlFlow<Result<()>, Rest> {
    let step = turn.slots().next_step();
    if !is_for_all(turn, output.len()) || turn.slots().in_the_way(step).is_some() {
        return ControlFlow::Continue(Rest::All);
    }
    let step = turn.take_steps(1);
    publish(turn, step, input.unwrap_or(output));
    for place in 0..turn.slots().places() {
        if place != turn.slots().own_place() {
            match turn.is_soon_published(place, step, output.len()) {
                Ok(true) => turn.slots().has_come_to(place, step),
                Ok(false) => return ControlFlow::Continue(Rest::Published(step)),
                Err(error) => return ControlFlow::Break(Err(error)),
            }
        }
    }
    let result = reduce_published(turn, reducer, step, Memory { input, output });
    if result.is_ok() {
        turn.finish();
    }
    ControlFlow::Break(result)
}

/// The rest that [`at_once`] has left of an [`all_reduce`].
pub(crate) async fn all_reduce_rest(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    input: Option<&[u8]>,
    output: &mut [u8],
    rest: Rest,
) -> Result<()> {
    if is_for_all(turn, output.len()) {
        let step = match rest {
            Rest::Published(step) => step,
            Rest::All => {
                let step = turn.take_steps(1);
                turn.until_free(step).await?;
                publish(turn, step, input.unwrap_or(output));
                step
            }
        };
        turn.until_all_published(step).await?;
        reduce_published(turn, reducer, step, Memory { input, output })?;
    } else {
        by_slices(turn, reducer, Memory { input, output }, None).await?;
    }
    turn.finish();
    Ok(())
}

/// Whether every rank reads the whole vector of all others.
#[inline]
pub(super) fn is_for_all(turn: &SlotTurn<'_>, bytes: usize) -> bool {
    bytes <= INLINE_BYTES || bytes * (turn.world_size() as usize - 1) <= ALL_BY_ALL_BYTES
}

/// Publishes a vector, in the line of this rank's flag if it is short.
#[inline]
pub(super) fn publish(turn: &mut SlotTurn<'_>, step: Step, data: &[u8]) {
    let header = turn.header();
    let slots = turn.slots();
    if data.len() <= INLINE_BYTES {
        slots.publish_inline(step, header, data);
    } else {
        slots.write(step, step.place_for(data.len()), data);
        slots.publish(step, header);
    }
}

/// Reduces the vectors of all ranks, which have been [published](publish), and finishes the step.
#[inline]
pub(super) fn reduce_published(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    step: Step,
    mut memory: Memory<'_>,
) -> Result<()> {
    let fold = Folding { reducer, ranks: turn.world_size() };
    let bytes = memory.output.len();
    let part = memory.part(0..bytes, 0..bytes);
    let slots = turn.slots();
    reducer.in_mode(|| {
        if bytes <= INLINE_BYTES {
            slots.reduce_inline((step, 0), part, &fold)
        } else {
            slots.reduce((step, step.place_for(bytes)), part, false, &fold)
        }
    })?;
    turn.slots().acknowledge(step);
    Ok(())
}
