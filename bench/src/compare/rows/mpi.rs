//! Rows compared with MPI: latency on the same wire, and collectives inside one host.

use super::messages::STREAMED;
use super::{ALL_REDUCE, BROADCAST, Like, Stage, Tell, ours_host, ours_tcp, ours_ucx_here, subject};
use crate::Result;
use crate::compare::bar::Bar;
use crate::compare::pairs::{Alike, Contestant, OfJob, compare, judge_best};
use crate::floor::MemoryCopy;
use crate::job::Job;
use crate::order::What;
use crate::peers::{Mpi, Wire};

/// Latency over the best of the MPIs found.
pub(super) fn latency(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    messages(stage, What::Latency, tell)
}

/// Bandwidth over the best of the MPIs found. With shared memory also over a copy in memory, without a bar.
pub(super) fn bandwidth(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    messages(stage, What::Bandwidth, tell)
}

fn messages(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    for wire in [Wire::Shm, Wire::Tcp] {
        let mut theirs = start(stage, wire, |_| true);
        let ours: &[fn() -> Result<Job>] = match wire {
            Wire::Shm if stage.ucx => &[|| ours_ucx_here(2, Like::Calls), || ours_host(2, Like::Calls)],
            Wire::Shm => &[|| ours_host(2, Like::Calls)],
            Wire::Tcp => &[|| ours_tcp(2, Like::Calls)],
        };
        for job in ours {
            let mut ours = Alike::start(|| Ok(OfJob::median(job()?)))?;
            for &bytes in stage.sizes.iter().filter(|bytes| what == What::Latency || STREAMED.contains(bytes))
            {
                let subject = subject(what, wire, bytes);
                let found = compare(&subject, what, &mut ours, &mut theirs, stage.effort)?;
                judge_best(found, Some(Bar::NotSlower), tell)?;
                if (what, wire) == (What::Bandwidth, Wire::Shm) {
                    let mut floor: Vec<Box<dyn Contestant>> = vec![Box::new(MemoryCopy)];
                    compare(&subject, what, &mut ours, &mut floor, stage.effort)?
                        .into_iter()
                        .try_for_each(&mut *tell)?;
                }
            }
        }
    }
    Ok(())
}

/// A collective of two ranks of one host over the better Open MPI.
pub(super) fn collective(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    let mut theirs = start(stage, Wire::Shm, Mpi::is_open);
    let mut ours = Alike::start(|| Ok(OfJob::median(ours_host(2, Like::Calls)?)))?;
    for &bytes in
        stage.sizes.iter().chain(&[64 << 20]).filter(|&&bytes| what == ALL_REDUCE || bytes >= 1 << 20)
    {
        let subject = subject(what, Wire::Shm, bytes);
        let found = compare(&subject, what, &mut ours, &mut theirs, stage.effort)?;
        judge_best(found, bar(what, bytes), tell)?;
    }
    Ok(())
}

fn bar(what: What, bytes: usize) -> Option<Bar> {
    match (what, bytes) {
        (ALL_REDUCE, ..=64) => Some(Bar::Ratio(0.67)),
        (ALL_REDUCE, 1024..=65_536) => Some(Bar::Ratio(0.71)),
        (ALL_REDUCE, 0x10_0000..) => Some(Bar::Ratio(0.8)),
        (BROADCAST, 0x10_0000..) => Some(Bar::Ratio(0.77)),
        _ => None,
    }
}

/// Starts the MPIs over `wire`, in each of their settings. Failures are reported on standard error.
fn start(stage: &Stage, wire: Wire, wanted: impl Fn(&Mpi) -> bool) -> Vec<Box<dyn Contestant>> {
    let mut started: Vec<Box<dyn Contestant>> = Vec::new();
    for mpi in stage.mpis.iter().filter(|mpi| wanted(mpi)) {
        for setting in mpi.settings(wire) {
            match Alike::start(|| Ok(OfJob::median(mpi.start(&setting, 2)?))) {
                Ok(jobs) => started.push(Box::new(jobs)),
                Err(error) => eprintln!("left out: {error}"),
            }
        }
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_those_of_the_table() {
        let all_reduce = |bytes| bar(ALL_REDUCE, bytes);
        assert_eq!([8, 64].map(all_reduce), [Some(Bar::Ratio(0.67)); 2]);
        assert_eq!([1 << 10, 64 << 10].map(all_reduce), [Some(Bar::Ratio(0.71)); 2]);
        assert_eq!([1 << 20, 64 << 20].map(all_reduce), [Some(Bar::Ratio(0.8)); 2]);
        assert_eq!([128, 512, 128 << 10, 512 << 10].map(all_reduce), [None; 4]);
        assert_eq!([64 << 10, 1 << 20].map(|bytes| bar(BROADCAST, bytes)), [None, Some(Bar::Ratio(0.77))]);
    }
}
