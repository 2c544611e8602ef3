//! Barrier over slots: one empty step, which every rank awaits of all others. With several hosts, the first
//! rank of each awaits it, and publishes a second part when all hosts have come.

use std::ops::ControlFlow;

use ucx_sys_wrap::shm::Step;

use super::all_reduce::Rest;
use super::turn::SlotTurn;
use crate::error::Result;

/// Waits until all ranks have called this.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time.
pub async fn barrier(turn: &mut SlotTurn<'_>) -> Result<()> {
    match barrier_at_once(turn) {
        ControlFlow::Break(result) => result,
        ControlFlow::Continue(rest) => barrier_rest(turn, rest).await,
    }
}

/// Tries a [`barrier`] without the overhead of waiting. Returns what is left if the others do not come soon.
#[inline]
pub(crate) fn barrier_at_once(turn: &mut SlotTurn<'_>) -> ControlFlow<Result<()>, Rest> {
    let step = turn.slots().next_step();
    if turn.slots().in_the_way(step).is_some() {
        return ControlFlow::Continue(Rest::All);
    }
    let step = turn.take_steps(1);
    publish(turn, step);
    for place in 0..turn.slots().places() {
        if place != turn.slots().own_place() {
            match turn.is_soon_published(place, step, 0) {
                Ok(true) => turn.slots().has_come_to(place, step),
                Ok(false) => return ControlFlow::Continue(Rest::Published(step)),
                Err(error) => return ControlFlow::Break(Err(error)),
            }
        }
    }
    end(turn, step);
    ControlFlow::Break(Ok(()))
}

/// The rest that [`barrier_at_once`] has left of a [`barrier`].
pub(crate) async fn barrier_rest(turn: &mut SlotTurn<'_>, rest: Rest) -> Result<()> {
    let step = match rest {
        Rest::Published(step) => step,
        Rest::All => come(turn).await?,
    };
    turn.until_all_published(step).await?;
    end(turn, step);
    Ok(())
}

fn end(turn: &mut SlotTurn<'_>, step: Step) {
    turn.slots().acknowledge(step);
    turn.finish();
}

fn publish(turn: &mut SlotTurn<'_>, step: Step) {
    let header = turn.header();
    turn.slots().publish_inline(step, header, &[]);
}

/// Says that this rank has come; returns the step. A part of a turn.
async fn come(turn: &mut SlotTurn<'_>) -> Result<Step> {
    let step = turn.take_steps(1);
    turn.until_free(step).await?;
    publish(turn, step);
    Ok(step)
}

/// Waits until the ranks of this host have come, at the first of them, which then tells the others that all
/// hosts have ([`leave`]); at these, until it does. A part of a turn.
pub(crate) async fn meet(turn: &mut SlotTurn<'_>) -> Result<Step> {
    let step = come(turn).await?;
    if turn.slots().own_place() == FIRST {
        turn.until_all_published(step).await?;
    } else {
        turn.until_published(FIRST, step).await?;
        turn.until_second(FIRST, step).await?;
    }
    Ok(step)
}

/// Ends the barrier of several hosts on this one. A part of a turn.
pub(crate) fn leave(turn: &mut SlotTurn<'_>, step: Step) {
    if turn.slots().own_place() == FIRST {
        turn.slots().publish_second(step);
    }
    turn.slots().acknowledge(step);
}

/// The place of the rank that goes between hosts.
const FIRST: usize = 0;
