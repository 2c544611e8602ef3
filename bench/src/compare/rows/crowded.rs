//! More ranks than processors: eight ranks in four pairs on two processors, with a simultaneous ping-pong in
//! each pair.
//!
//! Which ranks share a processor matters more than what they do. So both sides are placed alike, in two ways,
//! and measured again with the system's own placement.

use std::process::Command;

use super::{Like, Stage, Tell, bare_sockets, ours_host, ours_tcp, ours_ucx_here};
use crate::Result;
use crate::compare::bar::Bar;
use crate::compare::pairs::{Comparison, Contestant, Effort, OfJob, Subject, Turn, compare};
use crate::floor::Patience;
use crate::job::Job;
use crate::order::What;
use crate::peers::{Wire, folder};
use crate::processor::{Placement, TwoProcessors};

const RANKS: u32 = 8;
const BYTES: usize = 8;

/// A slice must be long enough for every pair to have had many turns on a processor.
const SLICE_FACTOR: f64 = 5.0;

/// Turns with the system's placement for each turn with a fixed one, because the system's placement varies.
const FREE_FACTOR: usize = 3;

pub(super) fn measure(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    let Some(two) = TwoProcessors::hold() else {
        eprintln!("left out: {RANKS} ranks on two processors, of which this process has not as many");
        return Ok(());
    };
    for placement in Placement::ALL {
        let factor = if placement == Placement::Free { FREE_FACTOR } else { 1 };
        let pairs = stage.effort.pairs * factor;
        let effort = Effort { slice_us: stage.effort.slice_us * SLICE_FACTOR, pairs, ..stage.effort };
        let mut ours: Vec<(Wire, Job)> = Vec::new();
        if stage.ucx {
            ours.push((Wire::Shm, ours_ucx_here(RANKS, Like::Calls)?));
        }
        ours.push((Wire::Shm, ours_host(RANKS, Like::Calls)?));
        ours.push((Wire::Tcp, ours_tcp(RANKS, Like::Calls)?));
        for (wire, job) in ours {
            job.place(placement, &two)?;
            let theirs = floor(wire).and_then(|job| job.place(placement, &two).map(|()| job));
            let theirs = theirs.inspect_err(|error| eprintln!("left out: {error}"));
            let mut theirs: Vec<Box<dyn Contestant>> =
                theirs.into_iter().map(|job| Box::new(OfJob::mean(job)) as Box<dyn Contestant>).collect();
            compare_pairs((wire, placement), OfJob::mean(job), &mut theirs, effort, tell)?;
        }
    }
    Ok(())
}

fn compare_pairs(
    (wire, placement): (Wire, Placement),
    mut ours: OfJob,
    theirs: &mut Vec<Box<dyn Contestant>>,
    effort: Effort,
    tell: Tell<'_>,
) -> Result<()> {
    let what = match placement {
        Placement::Apart => "pairs apart",
        Placement::Together => "pairs on one",
        Placement::Free => "4 pairs",
    };
    let subject = Subject { what: what.into(), wire: wire.name(), world_size: RANKS, bytes: BYTES };
    for comparison in compare(&subject, What::Latency, &mut ours, theirs, effort)? {
        tell(comparison.judged(Bar::Ratio(1.3)))?;
    }
    let name = ours.name().to_owned();
    if let Some(spread) = spread(&subject, &name, &ours.spreads, effort.pairs) {
        tell(spread.judged(Bar::Ratio(2.0)))?;
    }
    Ok(())
}

fn floor(wire: Wire) -> Result<Job> {
    match wire {
        Wire::Shm => flags(),
        Wire::Tcp => bare_sockets(RANKS, Patience::Yield),
    }
}

/// The bare flags that `bench/peers/install.sh` has built.
fn flags() -> Result<Job> {
    Job::theirs("bare flags, yielding", RANKS, |socket| {
        let mut command = Command::new(folder().join("floor/flag_pairs"));
        command.arg(socket).arg(RANKS.to_string());
        Ok(vec![command])
    })
}

/// The ratio of the slowest to the fastest pair in the last slices, as a comparison of the two.
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
