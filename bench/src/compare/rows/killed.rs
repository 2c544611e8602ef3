//! A rank is killed: the time until the calls of all other ranks have ended.

use super::{Like, Stage, Tell, ours_host, ours_tcp, ours_ucx, ours_ucx_here};
use crate::compare::bar::Bar;
use crate::compare::pairs::{Comparison, Subject, Turn};
use crate::job::Job;
use crate::order::{Order, What};
use crate::peers::Wire;
use crate::{Error, Result};

const RANKS: u32 = 4;

/// The limit between ranks that share a host's memory, and between ranks that do not.
const ON_ONE_HOST_US: f64 = 0.1e6;
const OVER_TCP_US: f64 = 1e6;

/// Measures each wire of Brevity, with a new job for each turn. The bar takes the place of the peer; the
/// slowest turn counts.
pub(super) fn measure(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    type Start = fn() -> Result<Job>;
    let mut ours: Vec<(Wire, f64, Start)> = vec![
        (Wire::Shm, ON_ONE_HOST_US, || ours_host(RANKS, Like::Calls)),
        (Wire::Tcp, OVER_TCP_US, || ours_tcp(RANKS, Like::Calls)),
    ];
    if stage.ucx {
        ours.push((Wire::Shm, ON_ONE_HOST_US, || ours_ucx_here(RANKS, Like::Calls)));
        ours.push((Wire::Shm, ON_ONE_HOST_US, || ours_ucx(Wire::Shm, RANKS, Like::Calls)));
        ours.push((Wire::Tcp, OVER_TCP_US, || ours_ucx(Wire::Tcp, RANKS, Like::Calls)));
    }
    for (wire, allowed_us, start) in ours {
        let (mut turns, mut name) = (Vec::new(), String::new());
        for _ in 0..stage.effort.pairs {
            let mut job = start()?;
            job.name().clone_into(&mut name);
            turns.push(one_death(&mut job)?);
        }
        let slowest = turns.iter().copied().fold(0.0, f64::max);
        let turn = |ours_us| Turn {
            ours_us,
            theirs_us: allowed_us,
            probe_before_ns: 0.0,
            probe_after_ns: 0.0,
            changed: false,
        };
        let subject = Subject { what: "killed".into(), wire: wire.name(), world_size: RANKS, bytes: 0 };
        let comparison = Comparison::new(subject, &name, "allowed", turns.into_iter().map(turn).collect(), 0);
        if let Some(comparison) = comparison {
            let met = slowest <= allowed_us;
            tell(Comparison { met: Some(met), ..comparison.judged(Bar::Ratio(1.0)) })?;
        }
    }
    Ok(())
}

/// Microseconds from the death of the last rank until the last call of a survivor has ended.
fn one_death(job: &mut Job) -> Result<f64> {
    let victim = RANKS - 1;
    let order = Order::new(What::Hang, victim as usize, 1, 0);
    let (killed_at, answers) = job.lose(victim as usize, &order)?;
    let ends = answers.iter().filter_map(|answer| answer.mean_us);
    let last = ends.fold(f64::NEG_INFINITY, f64::max);
    if last < killed_at {
        return Err(Error::contestant(job.name(), "a call ended before the rank was killed"));
    }
    Ok(last - killed_at)
}
