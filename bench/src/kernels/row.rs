//! A kernel and its floor, the kernel's bars, and how both are timed.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use super::Group;
use crate::statistics::median;
use crate::{Error, Result};

/// A limit for a kernel's smallest and median time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// At most this many times the floor's time.
    Times(f64),
    /// At most this many nanoseconds for each entry of the input vectors.
    Nanoseconds(f64),
    /// At most this many nanoseconds more than the floor for each entry, if the floor is a part of the
    /// kernel.
    NanosecondsOver(f64),
    /// At most this many times the bytes of the indices' entropy.
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
    /// The group it belongs to.
    pub group: Group,
    /// The kernel, and the data it runs on.
    pub kernel: String,
    /// Elements of the dense vectors.
    pub elements: usize,
    /// The share of entries that is kept, if some are dropped.
    pub density: Option<f64>,
    /// Bytes that must be read and written at least.
    pub bytes: usize,
    /// Entries of the sparse input vectors, if a time for each is meaningful.
    pub entries: Option<usize>,
    /// Bytes of the indices over their entropy bound.
    pub over_entropy: Option<f64>,
    /// Bytes that are sent for an entry, if that depends on the data.
    pub bytes_an_entry: Option<f64>,
    /// The floor.
    pub floor: &'static str,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl Subject {
    /// A kernel on dense vectors without a bar that reads and writes at least the given bytes for each
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

    /// Adds a bar for the ratio, if there is one.
    #[must_use]
    pub fn at_most(mut self, times: impl Into<Option<f64>>) -> Self {
        self.bars.extend(times.into().map(Bar::Times));
        self
    }
}

/// A kernel and its floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The group it belongs to.
    pub group: Group,
    /// The kernel, and the data it runs on.
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
    /// Gigabytes per second of the bytes that must be read and written at least, by the smallest time.
    pub gigabytes_per_s: f64,
    /// Smallest time divided by the input entries, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_an_entry: Option<f64>,
    /// Median time divided by the input entries, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns_an_entry: Option<f64>,
    /// Smallest time minus the floor's smallest, divided by the input entries, in nanoseconds; for codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_over_floor: Option<f64>,
    /// Median time minus the floor's median, divided by the input entries, in nanoseconds; for codecs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_ns_over_floor: Option<f64>,
    /// Bytes of the indices over their entropy bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_entropy: Option<f64>,
    /// Bytes that are sent for an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_an_entry: Option<f64>,
    /// The floor.
    pub floor: &'static str,
    /// The floor's smallest time in milliseconds.
    pub floor_ms: f64,
    /// The floor's median time in milliseconds.
    pub floor_median_ms: f64,
    /// The ratio of the smallest times.
    pub ratio: f64,
    /// The ratio of the medians.
    pub median_ratio: f64,
    /// The bars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<String>,
    /// The share of the bar that it takes, the worst of all figures: at most 1 if it meets the bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_bar: Option<f64>,
    /// Whether it meets its bars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

/// The result of a turn of a kernel or a floor: nothing, or an error.
pub trait Outcome {
    /// Converts an error into one that names the kernel.
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

/// Runs a kernel and its floor in turns on one state, after a warm-up turn. `prepare` runs before each and is
/// not timed.
///
/// # Errors
/// [`Error::Contestant`] as soon as either fails.
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

/// Like [`measure`], for a floor and a kernel that return their own times in milliseconds.
///
/// # Errors
/// The first error of either.
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
        // Only for codecs is the floor a part of the kernel, so that the difference is a time.
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

    /// The share of a bar that it takes; more than all of it if the figure is missing.
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
        // A floor that is not a part of the kernel is not subtracted.
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
