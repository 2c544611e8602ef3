//! More ranks than processors: eight ranks in four pairs, each pair with its own ping-pong at the same time.

use std::process::Command;

use super::{Stage, Tell, bare_sockets, ours_host, ours_tcp, ours_ucx_here};
use crate::Result;
use crate::compare::bar::Bar;
use crate::compare::pairs::{Comparison, Contestant, Effort, OfJob, Subject, Turn, compare};
use crate::floor::Patience;
use crate::job::Job;
use crate::order::What;
use crate::peers::{Wire, folder};

const RANKS: u32 = 8;
const BYTES: usize = 8;

/// A slice must be long enough for every pair to have had many turns on a processor.
const SLICE_FACTOR: f64 = 5.0;

pub(super) fn measure(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    let effort = Effort { slice_us: stage.effort.slice_us * SLICE_FACTOR, ..stage.effort };
    let mut ours: Vec<(Wire, Job)> = Vec::new();
    if stage.ucx {
        ours.push((Wire::Shm, ours_ucx_here(RANKS, false)?));
    }
    ours.push((Wire::Shm, ours_host(RANKS, false)?));
    ours.push((Wire::Tcp, ours_tcp(RANKS, false)?));
    for (wire, job) in ours {
        let mut theirs: Vec<Box<dyn Contestant>> = Vec::new();
        match wire {
            Wire::Shm => theirs.extend(flags().inspect_err(|error| eprintln!("left out: {error}")).ok()),
            Wire::Tcp => theirs.push(Box::new(OfJob::mean(bare_sockets(RANKS, Patience::Yield)?))),
        }
        let mut ours = OfJob::mean(job);
        let subject = Subject { what: "4 pairs".into(), wire: wire.name(), world_size: RANKS, bytes: BYTES };
        for comparison in compare(&subject, What::Latency, &mut ours, &mut theirs, effort)? {
            tell(comparison.judged(Bar::Ratio(1.3)))?;
        }
        let name = ours.name().to_owned();
        if let Some(spread) = spread(&subject, &name, &ours.spreads, effort.pairs) {
            tell(spread.judged(Bar::Ratio(2.0)))?;
        }
    }
    Ok(())
}

/// The bare flags that `bench/peers/install.sh` has built.
fn flags() -> Result<Box<dyn Contestant>> {
    let job = Job::theirs("bare flags, yielding", RANKS, |socket| {
        let mut command = Command::new(folder().join("floor/flag_pairs"));
        command.arg(socket).arg(RANKS.to_string());
        Ok(vec![command])
    })?;
    Ok(Box::new(OfJob::mean(job)))
}

/// The slowest pair over the fastest in the last slices, as a comparison of the two.
fn spread(subject: &Subject, ours: &str, spreads: &[(f64, f64)], slices: usize) -> Option<Comparison> {
    let last = &spreads[spreads.len().saturating_sub(slices)..];
    let turn = |&(fastest, slowest): &(f64, f64)| Turn {
        ours_us: slowest,
        theirs_us: fastest,
        probe_before_ns: 0.0,
        probe_after_ns: 0.0,
        changed: false,
    };
    let subject = Subject { what: "slowest pair".into(), ..subject.clone() };
    Comparison::new(subject, ours, "its fastest pair", last.iter().map(turn).collect(), 0)
}
