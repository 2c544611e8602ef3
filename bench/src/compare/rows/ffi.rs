//! Calls through the C interface compared with the same calls in Rust: messages, and sums in place.

use brevity::transport::bootstrap::Choice;

use super::{NOT_SHARED, SHARED, Stage, Tell, subject};
use crate::Result;
use crate::compare::bar::Bar;
use crate::compare::pairs::{Alike, Contestant, OfJob, compare};
use crate::job::Job;
use crate::order::What;
use crate::peers::Wire;

/// What a call may cost beyond one in Rust, in nanoseconds.
const CALL_NS: f64 = 50.0;

/// Up to this size a call's cost is more than the error of measuring.
const SHORT: usize = 4096;

pub(super) fn measure(stage: &Stage, what: What, tell: Tell<'_>) -> Result<()> {
    for (wire, shared) in [(Wire::Shm, SHARED), (Wire::Tcp, NOT_SHARED)] {
        let in_c = || Job::launched(&stage.ffi, "c", 2, Choice::Tcp, &[], &[shared]);
        let in_rust = || Job::ours("rust", 2, Choice::Tcp, &["--messages"], &[shared]);
        let mut ours = Alike::start(|| Ok(OfJob::median(in_c()?)))?;
        let mut theirs: Vec<Box<dyn Contestant>> =
            vec![Box::new(Alike::start(|| Ok(OfJob::median(in_rust()?)))?)];
        for &bytes in &stage.sizes {
            let bar = if bytes <= SHORT { Bar::Extra(CALL_NS) } else { Bar::NotSlower };
            let subject = subject(what, wire, bytes);
            for comparison in compare(&subject, what, &mut ours, &mut theirs, stage.effort)? {
                tell(comparison.judged(bar))?;
            }
        }
    }
    Ok(())
}
