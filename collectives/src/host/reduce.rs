//! Reduce over slots: the result goes to one rank.
//!
//! With `P` ranks and `n` bytes:
//!
//! | bytes | what is done | bytes read from others |
//! | --- | --- | --- |
//! | up to 512, or 64 KiB / (P - 1) | all publish their vectors, the root reduces them | root: n (P - 1) |
//! | more | [by slices](super::slices), whose results the root reads | n (P - 1) / P, root: twice that |

use super::all_reduce::{is_for_all, publish, reduce_published};
use super::memory::Memory;
use super::slices::by_slices;
use super::turn::SlotTurn;
use crate::data::Reducer;
use crate::error::Result;

/// Reduces the `input` vectors of all ranks, in the fixed order; the rank `root` gets the result in `output`.
/// Without an `input`, `output` holds it. All vectors have the same length, in whole elements; on other ranks
/// `output` is unchanged, and may be empty if there is an `input`.
///
/// Other ranks may return before the root has the result.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time, or the reduction fails; the
/// root's `output` is unspecified.
pub async fn reduce(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    input: Option<&[u8]>,
    output: &mut [u8],
    root: u32,
) -> Result<()> {
    reduce_part(turn, reducer, (input, output), root).await?;
    turn.finish();
    Ok(())
}

/// Likewise, as a part of a turn.
pub(crate) async fn reduce_part(
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    (input, output): (Option<&[u8]>, &mut [u8]),
    root: u32,
) -> Result<()> {
    let root = root as usize;
    let is_root = turn.slots().own_place() == root;
    let memory = if is_root {
        Memory { input, output }
    } else {
        Memory { input: Some(input.unwrap_or(output)), output: &mut [] }
    };
    if !is_for_all(turn, memory.input().len()) {
        by_slices(turn, reducer, memory, Some(root)).await?;
    } else if is_root {
        let step = turn.take_steps(1);
        turn.until_all_published(step).await?;
        reduce_published(turn, reducer, step, memory)?;
    } else {
        let step = turn.take_steps(1);
        turn.until_free(step).await?;
        publish(turn, step, memory.input());
        turn.slots().acknowledge(step);
    }
    Ok(())
}
