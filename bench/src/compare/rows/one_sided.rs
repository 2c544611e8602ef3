//! Puts and gets compared with `ucx_perftest`, without a bar, because the definitions of a put differ. A put
//! of Brevity ends when its arrival has been acknowledged; `ucp_put_lat` is half a round trip of two puts,
//! each of which its target sees in memory.

use super::{Like, Stage, Tell, ours_host, ours_tcp, ours_ucx, subject};
use crate::Result;
use crate::compare::pairs::{Contestant, OfJob, PerftestOver, compare};
use crate::job::Job;
use crate::order::What;
use crate::peers::Wire;

pub(super) fn measure(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    let Some(perftest) = &stage.perftest else { return Ok(()) };
    type Start = fn() -> Result<Job>;
    let ours: [(bool, Wire, Start); 4] = [
        (true, Wire::Shm, || ours_ucx(Wire::Shm, 2, Like::Perftest)),
        (true, Wire::Tcp, || ours_ucx(Wire::Tcp, 2, Like::Perftest)),
        (false, Wire::Shm, || ours_host(2, Like::Perftest)),
        (false, Wire::Tcp, || ours_tcp(2, Like::Perftest)),
    ];
    for (_, wire, start) in ours.into_iter().filter(|(needs_ucx, ..)| stage.ucx || !needs_ucx) {
        let mut ours = OfJob::mean(start()?);
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(PerftestOver(perftest.clone(), wire))];
        for what in [What::Put, What::Get] {
            for &bytes in stage.sizes.iter().filter(|bytes| is_measured(**bytes)) {
                for comparison in
                    compare(&subject(what, wire, bytes), what, &mut ours, &mut theirs, stage.effort)?
                {
                    tell(comparison)?;
                }
            }
        }
    }
    Ok(())
}

/// 8 and 64 bytes, 4 and 64 KiB, 1 and 16 MiB: few sizes, because the row has no bar.
fn is_measured(bytes: usize) -> bool {
    [8, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20].contains(&bytes)
}
