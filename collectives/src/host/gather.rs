//! Gather over slots: every rank writes its block, which the root reads. The root reads n (P - 1) bytes of
//! `P` ranks with blocks of `n` bytes.

use super::exchange::Exchange;
use super::memory::{Blocks, Memory};
use super::turn::SlotTurn;
use crate::error::Result;

/// Gathers the `input` of all ranks in `output` of the rank `root`, in the order of ranks. If the root has no
/// `input`, its block is in its place already. `output` of other ranks is not written.
///
/// Blocks are equal on all ranks, or end where the root's `blocks` say; then those of others have no meaning.
///
/// Other ranks may return before the root has their blocks.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
/// [`Error::Payload`](crate::Error::Payload) when the root expects another length of a rank.
///
/// # Panics
/// When the root's `output` is not as long as all blocks, or another rank has no `input`.
pub async fn gather(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    blocks: Blocks<'_>,
    root: u32,
) -> Result<()> {
    let (own, root) = (turn.slots().own_place(), root as usize);
    let is_root = own == root;
    if is_root {
        assert_eq!(output.len(), blocks.total(turn.world_size() as usize), "bytes of the gathered vector");
        if let Some(input) = input {
            // Copy: the root's own block.
            output[blocks.range(own)].copy_from_slice(input);
        }
    }
    let bytes = input.map(<[u8]>::len).filter(|_| !is_root);
    let exchange = Exchange {
        writes: |place| bytes.filter(|_| place == root).map(|bytes| 0..bytes),
        reads: |place| is_root.then(|| blocks.range(place)).filter(|_| place != own),
        rooms: 1,
        length: blocks.equal(),
    };
    assert!(is_root || bytes.is_some(), "a rank has nothing to send");
    exchange.run(turn, Memory { input, output }).await
}
