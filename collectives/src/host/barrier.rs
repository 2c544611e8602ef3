//! Barrier over slots: one empty step, which every rank awaits of all others.

use super::turn::SlotTurn;
use crate::error::Result;

/// Waits until all ranks have called this.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time.
pub async fn barrier(turn: &mut SlotTurn<'_>) -> Result<()> {
    let step = turn.take_steps(1);
    let header = turn.header();
    turn.until_free(step).await?;
    turn.slots().publish_inline(step, header, &[]);
    turn.until_all_published(step).await?;
    turn.slots().acknowledge(step);
    turn.finish();
    Ok(())
}
