//! Barrier over slots: one empty step, which every rank awaits of all others. With several hosts, the first
//! rank of each awaits it, and publishes a second part when all hosts have come.

use ucx_sys_wrap::shm::Step;

use super::turn::SlotTurn;
use crate::error::Result;

/// Waits until all ranks have called this.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time.
pub async fn barrier(turn: &mut SlotTurn<'_>) -> Result<()> {
    let step = come(turn).await?;
    turn.until_all_published(step).await?;
    turn.slots().acknowledge(step);
    turn.finish();
    Ok(())
}

/// Says that this rank has come; returns the step. A part of a turn.
async fn come(turn: &mut SlotTurn<'_>) -> Result<Step> {
    let step = turn.take_steps(1);
    let header = turn.header();
    turn.until_free(step).await?;
    turn.slots().publish_inline(step, header, &[]);
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
