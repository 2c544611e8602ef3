//! Barrier by hosts.

use super::{inside, places, slots};
use crate::call::Call;
use crate::dense::barrier as among_all;
use crate::error::Result;
use crate::host::{self, SlotTurn};

/// Waits for all ranks.
pub(in crate::dense) async fn barrier(call: &Call<'_, '_>) -> Result<()> {
    if let Some((mut place, terms)) = slots(call, 0) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        let step = host::meet(&mut turn).await?;
        if turn.place().rank == 0 {
            between(call).await?;
        }
        host::leave(&mut turn, step);
        turn.finish();
        return Ok(());
    }
    let inside = inside(call);
    if inside.rank() == 0 {
        let others = || 1..inside.world_size();
        let receives: Vec<_> = others().map(|rank| inside.recv(rank, 0, ())).collect();
        for receive in receives {
            receive.await?;
        }
        between(call).await?;
        let sends: Vec<_> = others().map(|rank| inside.send(rank, 0, ())).collect();
        for send in sends {
            send.await?;
        }
    } else {
        inside.send(0, 0, ()).await?;
        inside.recv(0, 0, ()).await?;
    }
    Ok(())
}

/// Among the first ranks of the hosts.
async fn between(call: &Call<'_, '_>) -> Result<()> {
    among_all(&call.among(places(call).across(0))).await
}
