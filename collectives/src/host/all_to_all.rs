//! All-to-all over slots: every rank writes a block for each other, and reads one of each. With `P` ranks and
//! blocks of `n` bytes, a rank writes and reads n (P - 1) bytes.

use super::exchange::Exchange;
use super::memory::{Blocks, Memory};
use super::turn::SlotTurn;
use crate::error::Result;

/// Sends block `i` of the `input` to rank `i`; `output` gets the block of each rank, in the order of ranks.
/// Without an `input`, `output` holds it, and each block is replaced.
///
/// Blocks to send and to receive are equal, or end where this rank's lists say, which are the same in place.
///
/// # Errors
/// When a rank is lost, aborts, makes a different call, or does not call in time; `output` is unspecified.
/// [`Error::Payload`](crate::Error::Payload) when a rank sends another length than this one expects.
///
/// # Panics
/// When a vector does not end with its last block, or this rank's block for itself has two lengths.
pub async fn all_to_all(
    turn: &mut SlotTurn<'_>,
    input: Option<&[u8]>,
    output: &mut [u8],
    (writes, reads): (Blocks<'_>, Blocks<'_>),
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

/// Exchanges equal blocks of `data` in place, as a part of a turn.
pub(crate) async fn all_to_all_part(turn: &mut SlotTurn<'_>, data: &mut [u8]) -> Result<()> {
    let places = turn.world_size() as usize;
    let blocks = Blocks::Equal(data.len() / places);
    let range = |place| Some(blocks.range(place));
    let exchange = Exchange { writes: range, reads: range, rooms: places, length: blocks.equal() };
    exchange.run_part(turn, Memory { input: None, output: data }).await
}
