//! All-to-all over slots: every rank writes a block for each other, and reads one of each. With `P` ranks and
//! blocks of `n` bytes, a rank writes and reads n (P - 1) bytes.

use super::exchange::Exchange;
use super::memory::{Blocks, Memory};
use super::turn::SlotTurn;
use crate::error::Result;

/// Sends block `i` of the `input` to rank `i`; `output` gets the block of each rank, in the order of ranks.
/// All blocks have the same length. Without an `input`, `output` holds it, and each block is replaced.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
///
/// # Panics
/// When `input` and `output` differ in length.
pub async fn all_to_all(turn: &mut SlotTurn<'_>, input: Option<&[u8]>, output: &mut [u8]) -> Result<()> {
    let blocks = Blocks::Equal(output.len() / turn.world_size() as usize);
    exchange_blocks(turn, input, blocks, output, blocks).await
}

/// Like [`all_to_all`], of blocks of differing lengths: those to send end at `input_ends`, those to receive
/// at `output_ends`, which are the same in place.
///
/// # Errors
/// As for [`all_to_all`]; [`Error::Payload`](crate::Error::Payload) when a rank sends another length than
/// this one expects.
///
/// # Panics
/// When a vector does not end with its last block, this rank's block for itself has two lengths, or the
/// `ends` differ in place.
pub async fn all_to_all_v(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    input_ends: &[usize],
    output: &mut [u8],
    output_ends: &[usize],
) -> Result<()> {
    assert!(input.is_some() || input_ends == output_ends, "blocks are exchanged in place");
    exchange_blocks(turn, input, Blocks::Ends(input_ends), output, Blocks::Ends(output_ends)).await
}

async fn exchange_blocks(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    writes: Blocks<'_>,
    output: &mut [u8],
    reads: Blocks<'_>,
) -> Result<()> {
    let (own, places) = (turn.slots().own_place(), turn.world_size() as usize);
    assert_eq!(output.len(), reads.total(places), "bytes to receive");
    if let Some(input) = input {
        assert_eq!(input.len(), writes.total(places), "bytes to send");
        // Copy: this rank's block for itself.
        output[reads.range(own)].copy_from_slice(&input[writes.range(own)]);
    }
    let exchange = Exchange {
        writes: |place| Some(writes.range(place)),
        reads: |place| Some(reads.range(place)),
        rooms: places,
        length: writes.equal(),
    };
    exchange.run(turn, Memory { input, output }).await
}
