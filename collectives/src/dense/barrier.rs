//! Barrier: no rank leaves before all ranks have entered.
//!
//! Dissemination: in round `j` a rank sends an empty message to rank `rank + 2^j` and receives one from
//! `rank - 2^j`, in `ceil(log2 P)` rounds. Hensgen, Finkel and Manber, "Two algorithms for barrier
//! synchronization", 1988.

use crate::call::Call;
use crate::error::Result;
use crate::pattern::doubling_rounds;

/// Waits for all ranks.
///
/// # Errors
/// Errors of the transport.
pub async fn barrier(call: &Call<'_, '_>) -> Result<()> {
    call.check_open()?;
    let (rank, world_size) = (call.rank(), call.world_size());
    for round in 0..doubling_rounds(world_size) {
        let distance = 1 << round;
        let telling = call.send((rank + distance) % world_size, round, ());
        call.recv((rank + world_size - distance) % world_size, round, ()).await?;
        telling.await?;
    }
    Ok(())
}
