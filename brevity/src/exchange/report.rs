//! Where the time of a step went.

use std::time::Duration;

/// What a [step](crate::exchange::Step) took on this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// Its buckets, in the order of their calls.
    pub buckets: Vec<BucketReport>,
}

/// What one bucket of a step took on this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketReport {
    /// The numbers of its tensors, in the builder's order.
    pub tensors: Vec<usize>,
    /// Adding its gradients to the residuals, and selecting or projecting.
    pub select: Duration,
    /// From the start of its collective to the end, which includes waiting for slower ranks.
    pub communicate: Duration,
    /// How much of that [`finish`](crate::exchange::Step::finish) waited for.
    pub wait: Duration,
    /// Writing the averages, and what comes back to the residuals.
    pub apply: Duration,
}

impl StepReport {
    /// The sum of a time over all buckets.
    #[must_use]
    pub fn total(&self, of: impl Fn(&BucketReport) -> Duration) -> Duration {
        self.buckets.iter().map(of).sum()
    }
}
