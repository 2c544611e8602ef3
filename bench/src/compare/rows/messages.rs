//! Messages between two ranks, compared with the least that the wire allows.

use super::{Like, Stage, Tell, bare_sockets, ours_tcp, ours_ucx, ours_ucx_here, subject};
use crate::Result;
use crate::compare::bar::Bar;
use crate::compare::pairs::{Alike, Contestant, OfJob, PerftestOver, compare};
use crate::floor::Patience;
use crate::job::Job;
use crate::order::{Order, What};
use crate::peers::Wire;

/// Sizes of a stream, in bytes.
pub(super) const STREAMED: std::ops::RangeInclusive<usize> = 64 << 10..=16 << 20;

pub(super) fn ucx(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    let Some(perftest) = stage.perftest.as_ref().filter(|_| stage.ucx) else { return Ok(()) };
    type Start = fn() -> Result<Job>;
    let ours: [(Wire, Start); 3] = [
        (Wire::Shm, || ours_ucx_here(2, Like::Perftest)),
        (Wire::Shm, || ours_ucx(Wire::Shm, 2, Like::Perftest)),
        (Wire::Tcp, || ours_ucx(Wire::Tcp, 2, Like::Perftest)),
    ];
    for (wire, start) in ours {
        let mut ours = Alike::start(|| Ok(OfJob::mean(start()?)))?;
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(PerftestOver(perftest.clone(), wire))];
        for &bytes in stage.sizes.iter().filter(|bytes| what == What::Latency || STREAMED.contains(bytes)) {
            let bar = match (what, wire, bytes) {
                (What::Bandwidth, ..) => Bar::Ratio(1.0 / 0.95),
                (_, Wire::Shm, ..=4096) => Bar::Extra(40.0),
                (_, Wire::Tcp, ..=4096) => Bar::Ratio(1.05),
                _ => Bar::Ratio(1.08),
            };
            let subject = subject(what, wire, bytes);
            for comparison in compare(&subject, what, &mut ours, &mut theirs, stage.effort)? {
                tell(comparison.judged(bar))?;
            }
        }
    }
    Ok(())
}

pub(super) fn tcp(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    let mut ours = Alike::start(|| Ok(OfJob::median(ours_tcp(2, Like::Loops)?)))?;
    let bare = Alike::start(|| Ok(OfJob::median(bare_sockets(2, Patience::Poll)?)))?;
    let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(bare)];
    for &bytes in stage.sizes.iter().filter(|bytes| what == What::Latency || STREAMED.contains(bytes)) {
        let bar = Bar::Ratio(if what == What::Latency { 1.10 } else { 1.0 / 0.95 });
        for comparison in
            compare(&subject(what, Wire::Tcp, bytes), what, &mut ours, &mut theirs, stage.effort)?
        {
            tell(comparison.judged(bar))?;
        }
    }
    Ok(())
}

/// 16 bytes and two payloads of 400 KiB.
const PARTS_BYTES: usize = 16 + 2 * (400 << 10);

pub(super) fn parts(stage: &Stage, tell: Tell<'_>) -> Result<()> {
    let job = |which| match which {
        0 => ours_ucx(Wire::Shm, 2, Like::Loops),
        1 => ours_tcp(2, Like::Loops),
        _ => ours_ucx(Wire::Tcp, 2, Like::Loops),
    };
    for (which, wire, bar) in [(0, Wire::Shm, 1.10), (1, Wire::Tcp, 1.15), (2, Wire::Tcp, 1.4)] {
        if which != 1 && !stage.ucx {
            continue;
        }
        let parts = || Ok(OfJob { instead: Some(What::Parts), ..OfJob::median(job(which)?) });
        let mut ours = Alike::start(parts)?;
        let contiguous = Contiguous(Alike::start(|| Ok(OfJob::median(job(which)?)))?);
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(contiguous)];
        let subject = subject(What::Parts, wire, PARTS_BYTES);
        for comparison in compare(&subject, What::Latency, &mut ours, &mut theirs, stage.effort)? {
            tell(comparison.judged(Bar::Ratio(bar)))?;
        }
    }
    Ok(())
}

/// The same transport with one contiguous message.
struct Contiguous(Alike);

impl Contestant for Contiguous {
    fn name(&self) -> &'static str {
        "one contiguous message"
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        self.0.measure(order)
    }

    fn advance(&mut self) {
        self.0.advance();
    }
}
