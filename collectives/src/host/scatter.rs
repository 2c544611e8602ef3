//! Scatter over slots: the root writes a block for each rank, which that rank reads. The root writes n (P -
//! 1) bytes for `P` ranks with blocks of `n` bytes.

use super::exchange::Exchange;
use super::memory::{Blocks, Memory};
use super::turn::SlotTurn;
use crate::error::Result;

/// Sends each rank its block of the `input` of the rank `root`. `input` of other ranks is not used. An empty
/// `output` of the root means that its block stays in `input`.
///
/// Blocks are equal on all ranks, or end where the root's `blocks` say; then those of others have no meaning.
///
/// The root may return before the others have their blocks.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
/// [`Error::Payload`](crate::Error::Payload) when a rank expects another length.
///
/// # Panics
/// When the root's `input` is not as long as all blocks, or its `output` not as its own.
pub async fn scatter(
    turn: &mut SlotTurn<'_>,
    input: &[u8],
    output: &mut [u8],
    blocks: Blocks<'_>,
    root: u32,
) -> Result<()> {
    let (own, root) = (turn.slots().own_place(), root as usize);
    let is_root = own == root;
    if is_root {
        assert_eq!(input.len(), blocks.total(turn.world_size() as usize), "bytes of the scattered vector");
        if !output.is_empty() {
            // Copy: the root's own block.
            output.copy_from_slice(&input[blocks.range(own)]);
        }
    }
    let bytes = output.len();
    let exchange = Exchange {
        writes: |place| is_root.then(|| blocks.range(place)).filter(|_| place != own),
        reads: |place| (!is_root && place == root).then_some(0..bytes),
        rooms: turn.world_size() as usize,
        length: blocks.equal(),
    };
    exchange.run(turn, Memory { input: Some(input), output }).await
}
