//! A kernel beside its floor, what it must keep to, and how both are timed.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use super::Group;
use crate::statistics::median;
use crate::{Error, Result};

/// What a kernel must keep to, by its smallest and by its median time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// At most so many times what the floor takes.
    Times(f64),
    /// At most so many nanoseconds for each entry of the sparse vectors that go in.
    Nanoseconds(f64),
    /// At most so many nanoseconds more than the floor for each entry, where the floor is a part of the
    /// kernel.
    NanosecondsOver(f64),
    /// At most so many times the bytes that the entropy of the indices asks for.
    Entropy(f64),
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(most) => write!(f, "{most:.2}x"),
            Self::Nanoseconds(most) => write!(f, "{most} ns"),
            Self::NanosecondsOver(most) => write!(f, "{most} ns over floor"),
            Self::Entropy(most) => write!(f, "{most}x entropy"),
        }
    }
}

/// A kernel, before it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// Where it belongs.
    pub group: Group,
    /// The kernel, with the data it runs on.
    pub kernel: String,
    /// Elements of the dense vectors.
    pub elements: usize,
    /// The share of entries that is kept, where some are dropped.
    pub density: Option<f64>,
    /// Bytes that must at least be read and written.
    pub bytes: usize,
    /// Entries of the sparse vectors that go in, where a time for each says something.
    pub entries: Option<usize>,
    /// Bytes of the indices over their entropy bound.
    pub over_entropy: Option<f64>,
    /// Bytes that are sent for an entry, where that depends on the data.
    pub bytes_an_entry: Option<f64>,
    /// What it is held to.
    pub floor: &'static str,
    /// What it must keep to.
    pub bars: Vec<Bar>,
}

impl Subject {
    /// A kernel on dense vectors without a bar, which reads and writes at least so many bytes for each
    /// element.
    pub fn new(
        group: Group,
        kernel: impl Into<String>,
        elements: usize,
        bytes_each: usize,
        floor: &'static str,
    ) -> Self {
        Self {
            group,
            kernel: kernel.into(),
            elements,
            density: None,
            bytes: bytes_each * elements,
            entries: None,
            over_entropy: None,
            bytes_an_entry: None,
            floor,
            bars: Vec::new(),
        }
    }

    /// The same with a bar on the ratio, if there is one.
    #[must_use]
    pub fn at_most(mut self, times: impl Into<Option<f64>>) -> Self {
        self.bars.extend(times.into().map(Bar::Times));
        self
    }
}

/// A kernel beside its floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Where it belongs.
    pub group: Group,
    /// The kernel, with the data it runs on.
    pub kernel: String,
    /// Elements of the dense vectors.
    pub elements: usize,
    /// The share of entries that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub density: Option<f64>,
    /// Smallest time in milliseconds.
    pub ms: f64,
    /// Median time in milliseconds.
    pub median_ms: f64,
    /// Bytes that must at least be read and written, by the smallest time.
    pub gigabytes_per_s: f64,
    /// Smallest time by the entries that go in, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_an_entry: Option<f64>,
    /// Median time by the entries that go in, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns_an_entry: Option<f64>,
    /// Smallest time less the floor's smallest, by the entries that go in, in nanoseconds: of codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_over_floor: Option<f64>,
    /// Median time less the floor's median, by the entries that go in, in nanoseconds: of codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns_over_floor: Option<f64>,
    /// Bytes of the indices over their entropy bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_entropy: Option<f64>,
    /// Bytes that are sent for an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_an_entry: Option<f64>,
    /// What it is held to.
    pub floor: &'static str,
    /// The floor's smallest time in milliseconds.
    pub floor_ms: f64,
    /// The floor's median time in milliseconds.
    pub floor_median_ms: f64,
    /// Smallest time by smallest time.
    pub ratio: f64,
    /// Median by median.
    pub median_ratio: f64,
    /// What it must keep to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<String>,
    /// How much of that it takes, the worst of all figures: at most 1 where it keeps to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_bar: Option<f64>,
    /// Whether it keeps to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

/// What a turn of a kernel or a floor gives: nothing, or an error.
pub trait Outcome {
    /// Ends the measurement where it is an error, which names the kernel.
    ///
    /// # Errors
    /// [`Error::Contestant`].
    fn of(self, kernel: &str) -> Result<()>;
}

impl Outcome for () {
    fn of(self, _: &str) -> Result<()> {
        Ok(())
    }
}

impl<E: fmt::Display> Outcome for Result<(), E> {
    fn of(self, kernel: &str) -> Result<()> {
        self.map_err(|error| Error::contestant(kernel, error.to_string()))
    }
}

/// Runs a kernel and its floor in turns on one state, after a turn that does not count. `prepare` comes
/// before each and is not timed.
///
/// # Errors
/// [`Error::Contestant`] as soon as one of both fails.
pub fn measure<S, F: Outcome, K: Outcome>(
    subject: Subject,
    iterations: usize,
    state: &mut S,
    prepare: impl FnMut(&mut S),
    mut floor: impl FnMut(&mut S) -> F,
    mut kernel: impl FnMut(&mut S) -> K,
) -> Result<Row> {
    let (of_floor, of_kernel) = (format!("the floor of {}", subject.kernel), subject.kernel.clone());
    let floor = |state: &mut S| timed(&of_floor, || floor(state));
    let kernel = |state: &mut S| timed(&of_kernel, || kernel(state));
    measure_told(subject, iterations, state, prepare, floor, kernel)
}

/// Milliseconds of a turn.
fn timed<O: Outcome>(name: &str, turn: impl FnOnce() -> O) -> Result<f64> {
    let start = Instant::now();
    let outcome = turn();
    let time = start.elapsed();
    outcome.of(name)?;
    Ok(time.as_secs_f64() * 1e3)
}

/// As [`measure`], where floor and kernel say themselves how many milliseconds they took.
///
/// # Errors
/// The first of theirs.
pub fn measure_told<S>(
    subject: Subject,
    iterations: usize,
    state: &mut S,
    mut prepare: impl FnMut(&mut S),
    mut floor: impl FnMut(&mut S) -> Result<f64>,
    mut kernel: impl FnMut(&mut S) -> Result<f64>,
) -> Result<Row> {
    let (mut floors, mut kernels) = (Vec::new(), Vec::new());
    for turn in 0..=iterations {
        prepare(state);
        let floor_ms = floor(state)?;
        prepare(state);
        let ms = kernel(state)?;
        if turn > 0 {
            floors.push(floor_ms);
            kernels.push(ms);
        }
    }
    Ok(Row::new(subject, &floors, &kernels))
}

impl Row {
    fn new(subject: Subject, floors: &[f64], kernels: &[f64]) -> Self {
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let (ms, floor_ms) = (least(kernels), least(floors));
        let (median_ms, floor_median_ms) = (median(kernels), median(floors));
        let each = |ms: f64| subject.entries.map(|entries| ms * 1e6 / entries.max(1) as f64);
        // Only with codecs the floor is a part of the kernel, so that the rest is a time.
        let over = |ms: f64| each(ms).filter(|_| subject.group == Group::Codec);
        let bars: Vec<String> = subject.bars.iter().map(Bar::to_string).collect();
        let mut row = Self {
            ms,
            median_ms,
            gigabytes_per_s: subject.bytes as f64 / (ms * 1e6),
            ns_an_entry: each(ms),
            median_ns_an_entry: each(median_ms),
            ns_over_floor: over(ms - floor_ms),
            median_ns_over_floor: over(median_ms - floor_median_ms),
            over_entropy: subject.over_entropy,
            bytes_an_entry: subject.bytes_an_entry,
            floor: subject.floor,
            floor_ms,
            floor_median_ms,
            ratio: ms / floor_ms,
            median_ratio: median_ms / floor_median_ms,
            bar: (!bars.is_empty()).then(|| bars.join(", ")),
            share_of_bar: None,
            met: None,
            group: subject.group,
            kernel: subject.kernel,
            elements: subject.elements,
            density: subject.density,
        };
        row.share_of_bar = subject.bars.iter().map(|&bar| row.share(bar)).reduce(f64::max);
        row.met = row.share_of_bar.map(|share| share <= 1.0);
        row
    }

    /// How much of a bar it takes; all of it and more where it has no such figure.
    fn share(&self, bar: Bar) -> f64 {
        let worse = |least: Option<f64>, median: Option<f64>| {
            least.zip(median).map(|(least, median)| least.max(median))
        };
        let (found, most) = match bar {
            Bar::Times(most) => (Some(self.ratio.max(self.median_ratio)), most),
            Bar::Nanoseconds(most) => (worse(self.ns_an_entry, self.median_ns_an_entry), most),
            Bar::NanosecondsOver(most) => (worse(self.ns_over_floor, self.median_ns_over_floor), most),
            Bar::Entropy(most) => (self.over_entropy, most),
        };
        found.map_or(f64::INFINITY, |found| found / most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(bars: &[Bar]) -> Subject {
        let subject = Subject::new(Group::Codec, "kernel", 10, 400_000, "acc");
        Subject { entries: Some(1_000_000), over_entropy: Some(1.25), bars: bars.to_vec(), ..subject }
    }

    fn met(bar: Bar, kernels: [f64; 3]) -> bool {
        Row::new(subject(&[bar]), &[2.0, 4.0, 6.0], &kernels).met.unwrap()
    }

    #[test]
    fn both_ratios_keep_to_the_bar() {
        let row = Row::new(subject(&[Bar::Times(1.5)]), &[2.0, 4.0, 6.0], &[3.0, 5.0, 9.0]);
        assert_eq!((row.ms, row.floor_ms, row.ratio), (3.0, 2.0, 1.5));
        assert_eq!((row.median_ms, row.floor_median_ms, row.median_ratio), (5.0, 4.0, 1.25));
        assert_eq!((row.met, row.share_of_bar, row.gigabytes_per_s), (Some(true), Some(1.0), 4.0 / 3.0));
        assert!(!met(Bar::Times(1.4), [3.0, 5.0, 9.0]));
        assert!(!met(Bar::Times(1.5), [2.0, 7.0, 9.0]));
    }

    #[test]
    fn both_times_an_entry_keep_to_the_bar() {
        assert!(met(Bar::Nanoseconds(5.0), [3.0, 5.0, 9.0]));
        assert!(!met(Bar::Nanoseconds(4.9), [3.0, 5.0, 9.0]));
        assert!(!met(Bar::Nanoseconds(2.9), [3.0, 3.0, 3.0]));
        // 1 ms more than the floor, smallest and median.
        assert!(
            met(Bar::NanosecondsOver(1.0), [3.0, 5.0, 9.0])
                && !met(Bar::NanosecondsOver(0.9), [2.0, 5.0, 9.0])
        );
        // A floor that is no part of the kernel is not taken off its time.
        let apart = Row::new(Subject { group: Group::Sparse, ..subject(&[]) }, &[2.0], &[3.0]);
        assert_eq!((apart.ns_an_entry, apart.ns_over_floor), (Some(3.0), None));
        let row = Row::new(Subject { entries: None, ..subject(&[Bar::Nanoseconds(1e9)]) }, &[1.0], &[1.0]);
        assert_eq!((row.met, row.ns_an_entry), (Some(false), None));
    }

    #[test]
    fn all_bars_are_kept_or_none() {
        let row = |bars: &[Bar]| Row::new(subject(bars), &[4.0], &[2.0]);
        let kept = row(&[Bar::Times(0.5), Bar::Nanoseconds(2.0), Bar::Entropy(1.25)]);
        assert_eq!((kept.bar.as_deref(), kept.met), (Some("0.50x, 2 ns, 1.25x entropy"), Some(true)));
        assert_eq!(row(&[Bar::Times(0.5), Bar::Nanoseconds(1.0)]).met, Some(false));
        assert_eq!(row(&[Bar::Entropy(1.0), Bar::Times(0.5)]).share_of_bar, Some(1.25));
        assert_eq!((row(&[]).met, row(&[]).bar), (None, None));
    }

    #[test]
    fn turns_alternate_and_each_is_prepared() {
        let mut told = String::new();
        let row =
            measure(subject(&[]), 2, &mut told, |s| s.push('p'), |s| s.push('f'), |s| s.push('k')).unwrap();
        assert_eq!(told, "pfpk".repeat(3));
        assert_eq!(row.elements, 10);
    }

    #[test]
    fn a_kernel_that_fails_in_any_turn_ends_the_measurement_in_one_line_that_names_it() {
        for fails_in in 0..=2 {
            let mut turn = 0;
            let kernel = |(): &mut ()| {
                turn += 1;
                if turn > fails_in { Err("a value is wrong") } else { Ok(()) }
            };
            let error = measure(subject(&[]), 2, &mut (), |()| (), |()| (), kernel).expect_err("a failure");
            assert_eq!((error.to_string().as_str(), error.status()), ("kernel: a value is wrong", 1));
        }
    }

    #[test]
    fn the_first_turn_does_not_count() {
        let (mut floors, mut kernels) = (vec![2.0, 2.0, 9.0], vec![4.0, 4.0, 1.0]);
        let (floor, kernel) =
            (|(): &mut ()| Ok(floors.pop().unwrap()), |(): &mut ()| Ok(kernels.pop().unwrap()));
        let row = measure_told(subject(&[]), 2, &mut (), |()| (), floor, kernel).unwrap();
        assert_eq!((row.ratio, row.median_ms, row.floor_median_ms), (2.0, 4.0, 2.0));
    }
}
