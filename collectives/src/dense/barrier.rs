//! Barrier: nobody leaves before everybody has come.
//!
//! Dissemination: in round `j` a rank tells rank `rank + 2^j` and hears from `rank - 2^j`; `ceil(log2 P)`
//! rounds of empty messages. Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.

use crate::call::Call;
use crate::error::Result;
use crate::pattern::doubling_rounds;

/// Waits for all ranks.
///
/// # Errors
/// What the transport reports.
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
