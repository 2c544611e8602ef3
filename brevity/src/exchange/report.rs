//! Where the time of a step went, and what it has sent.

use std::time::{Duration, Instant};

use brevity_collectives::{Call, Traffic};
use tracing::field::Empty;
use tracing::{Level, Span, debug_span};

use super::Tensor;

/// What a [step](crate::exchange::Step) took on this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepReport {
    /// When it began.
    pub begun: Option<Instant>,
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
    /// Bytes of the messages that this rank has sent, without headers.
    pub bytes_sent: u64,
    /// Bytes of the messages that it has received, without headers.
    pub bytes_received: u64,
    /// Bytes that it has written to memory that the ranks of its host share, for others to read.
    pub bytes_shared: u64,
    /// What it did when. The sums of these are the times above.
    pub phases: Vec<PhaseReport>,
}

/// A part of the work on a bucket, from begin to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseReport {
    /// What was done.
    pub phase: Phase,
    /// The tensor, of a phase that is of one alone.
    pub tensor: Option<usize>,
    /// When it began, from the [begin](StepReport::begun) of the step on.
    pub start: Duration,
    /// How long it took.
    pub took: Duration,
}

/// What is done with a bucket; see [`BucketReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A gradient is added and selected from.
    Select,
    /// The collective goes on, beside other work.
    Communicate,
    /// The end of the step waits for the collective.
    Wait,
    /// Averages and residuals are written.
    Apply,
}

impl Phase {
    /// Its name, in small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Communicate => "communicate",
            Self::Wait => "wait",
            Self::Apply => "apply",
        }
    }
}

impl StepReport {
    /// The sum of a time over all buckets.
    #[must_use]
    pub fn total(&self, of: impl Fn(&BucketReport) -> Duration) -> Duration {
        self.buckets.iter().map(of).sum()
    }
}

/// A collective that goes on.
pub(super) struct Left {
    begun: Instant,
    before: Traffic,
    /// Ends with this.
    _span: Span,
}

/// What a collective took and moved.
pub(super) struct Moved {
    begun: Instant,
    took: Duration,
    traffic: Traffic,
}

impl Left {
    /// With the span of its bucket; see [`Watched::span_of`].
    pub(super) fn now(call: &Call<'_, '_>, span: Span) -> Self {
        Self { begun: Instant::now(), before: call.traffic(), _span: span }
    }

    pub(super) fn arrives(self, call: &Call<'_, '_>) -> Moved {
        Moved { begun: self.begun, took: self.begun.elapsed(), traffic: call.traffic().since(self.before) }
    }
}

/// A bucket's report while the step goes on, with its span for `tracing`.
pub(super) struct Watched {
    report: BucketReport,
    /// When the step began.
    begun: Instant,
    span: Span,
}

impl Watched {
    /// A bucket of these tensors, in a step that has `begun`.
    pub(super) fn new(members: Vec<usize>, tensors: &[Tensor], step: &Span, begun: Instant) -> Self {
        let span = debug_span!(
            parent: step,
            "bucket",
            tensors = Empty,
            bytes_sent = Empty,
            bytes_received = Empty,
            bytes_shared = Empty
        );
        if !span.is_disabled() {
            span.record("tensors", names(&members, tensors));
        }
        let phases = Vec::with_capacity(members.len() + 3);
        let report = BucketReport { tensors: members, phases, ..BucketReport::default() };
        Self { report, begun, span }
    }

    /// Runs a phase on this thread, watched or not.
    pub(super) fn during_if<R>(
        watched: Option<&mut Self>,
        phase: Phase,
        tensor: Option<usize>,
        work: impl FnOnce() -> R,
    ) -> R {
        match watched {
            Some(watched) => watched.during(phase, tensor, work),
            None => work(),
        }
    }

    /// Runs a phase on this thread.
    pub(super) fn during<R>(&mut self, phase: Phase, tensor: Option<usize>, work: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let done = self.span_of(phase, tensor).in_scope(work);
        self.note(phase, tensor, begun, begun.elapsed());
        done
    }

    /// Adds a wait that has begun then and ends now.
    pub(super) fn waited(&mut self, begun: Instant) {
        self.note(Phase::Wait, None, begun, begun.elapsed());
    }

    /// The span of a phase.
    pub(super) fn span_of(&self, phase: Phase, tensor: Option<usize>) -> Span {
        let tensor = tensor.map(|tensor| tensor as u64);
        match phase {
            Phase::Select => debug_span!(parent: &self.span, "select", tensor),
            Phase::Communicate => debug_span!(parent: &self.span, "communicate"),
            Phase::Wait => debug_span!(parent: &self.span, "wait"),
            Phase::Apply => debug_span!(parent: &self.span, "apply"),
        }
    }

    /// The collective starts.
    pub(super) fn leaves(&self, call: &Call<'_, '_>) -> Left {
        Left::now(call, self.span_of(Phase::Communicate, None))
    }

    /// The collective has ended.
    pub(super) fn arrives(&mut self, moved: &Moved) {
        let Traffic { bytes_sent, bytes_received, bytes_shared } = moved.traffic;
        let report = &mut self.report;
        report.bytes_sent += bytes_sent;
        report.bytes_received += bytes_received;
        report.bytes_shared += bytes_shared;
        self.note(Phase::Communicate, None, moved.begun, moved.took);
    }

    fn note(&mut self, phase: Phase, tensor: Option<usize>, begun: Instant, took: Duration) {
        let report = &mut self.report;
        *match phase {
            Phase::Select => &mut report.select,
            Phase::Communicate => &mut report.communicate,
            Phase::Wait => &mut report.wait,
            Phase::Apply => &mut report.apply,
        } += took;
        let start = begun.saturating_duration_since(self.begun);
        report.phases.push(PhaseReport { phase, tensor, start, took });
    }

    /// The whole report, which `tracing` is told.
    pub(super) fn end(self) -> BucketReport {
        let Self { report, span, .. } = self;
        if !span.is_disabled() {
            let BucketReport { bytes_sent, bytes_received, bytes_shared, .. } = report;
            span.record("bytes_sent", bytes_sent);
            span.record("bytes_received", bytes_received);
            span.record("bytes_shared", bytes_shared);
        }
        report
    }
}

/// Tells `tracing` of a bucket whose step has ended.
pub(super) fn tell(bucket: &BucketReport, tensors: &[Tensor]) {
    if !tracing::enabled!(Level::DEBUG) {
        return;
    }
    let BucketReport { bytes_sent, bytes_received, bytes_shared, .. } = *bucket;
    tracing::debug!(
        select = ?bucket.select,
        communicate = ?bucket.communicate,
        wait = ?bucket.wait,
        apply = ?bucket.apply,
        bytes_sent,
        bytes_received,
        bytes_shared,
        "a step's bucket of {}",
        names(&bucket.tensors, tensors)
    );
}

/// The names of tensors, as many as fit in a line.
fn names(members: &[usize], tensors: &[Tensor]) -> String {
    const MOST: usize = 3;
    let names: Vec<&str> = members.iter().take(MOST).map(|&tensor| &*tensors[tensor].name).collect();
    let rest = members.len().saturating_sub(MOST);
    let names = names.join(", ");
    if rest > 0 { format!("{names} and {rest} more") } else { names }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use brevity_collectives::Group;
    use parking_lot::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::{GradientExchange, Policy};

    /// A span's parent and name.
    type Named = (Option<u64>, &'static str);

    /// Keeps spans, the fields of spans and events, and how many handles of spans there are.
    #[derive(Clone, Default)]
    struct Hears {
        spans: Arc<Mutex<Vec<Named>>>,
        fields: Arc<Mutex<Vec<(String, String)>>>,
        open: Arc<AtomicU64>,
    }

    impl Subscriber for Hears {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("brevity::exchange")
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let mut spans = self.spans.lock();
            spans.push((span.parent().map(Id::into_u64), span.metadata().name()));
            self.open.fetch_add(1, Ordering::Relaxed);
            Id::from_u64(spans.len() as u64)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut Fields(&mut self.fields.lock()));
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut Fields(&mut self.fields.lock()));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}

        fn clone_span(&self, id: &Id) -> Id {
            self.open.fetch_add(1, Ordering::Relaxed);
            id.clone()
        }

        fn try_close(&self, _: Id) -> bool {
            self.open.fetch_sub(1, Ordering::Relaxed);
            true
        }
    }

    struct Fields<'a>(&'a mut Vec<(String, String)>);

    impl Visit for Fields<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0.push((field.name().to_owned(), format!("{value:?}")));
        }
    }

    /// The spans and the event of a step of two tensors in one bucket.
    #[test]
    fn tracing_hears_of_each_bucket() {
        for by_ready in [false, true] {
            let hears = Hears::default();
            tracing::subscriber::with_default(hears.clone(), || {
                let group = Group::solo();
                let builder = GradientExchange::builder(&group).tensor("weight", [4], Policy::topk(0.5));
                let mut exchange = builder.tensor("bias", [3], Policy::topk(0.5)).build().unwrap();
                let mut gradients = [vec![1.0f32; 4], vec![2.0; 3]];
                if by_ready {
                    exchange.begin().unwrap().finish(&mut gradients).unwrap();
                } else {
                    exchange.average(&mut gradients).unwrap();
                }
            });
            let spans = hears.spans.lock().clone();
            let named = |name| spans.iter().filter(|(_, found)| *found == name).collect::<Vec<_>>();
            assert_eq!((named("step").len(), named("bucket")), (1, vec![&(Some(1), "bucket")]), "{spans:?}");
            let waits = usize::from(by_ready);
            for (name, count) in [("select", 2), ("communicate", 1), ("wait", waits), ("apply", 1)] {
                assert_eq!(named(name), vec![&(Some(2), name); count], "{spans:?}");
            }
            assert_eq!(hears.open.load(Ordering::Relaxed), 0, "all spans have ended");
            let fields = hears.fields.lock();
            let of = |name: &str| fields.iter().find(|(found, _)| found == name).map(|(_, value)| &**value);
            assert_eq!(of("tensors"), Some("\"weight, bias\""), "{fields:?}");
            assert_eq!(of("message"), Some("a step's bucket of weight, bias"), "{fields:?}");
            assert_eq!(of("bytes_sent"), Some("0"), "{fields:?}");
        }
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let tensors: Vec<Tensor> = (0..9)
            .map(|number| format!("t{number}"))
            .map(|name| Tensor { name, count: 1, momentum: None, choice: None, is_excluded: false })
            .collect();
        assert_eq!(names(&[3, 1], &tensors), "t3, t1");
        assert_eq!(names(&[0, 1, 2, 5, 8], &tensors), "t0, t1, t2 and 2 more");
        assert_eq!(names(&[], &tensors), "");
    }
}
