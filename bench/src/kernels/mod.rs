//! What `brevity perf compress` measures: kernels of compression, each in turns with a floor on the same memory.
//!
//! A floor is the least that memory lets a kernel pay, such as `r += g` over the same vectors. Kernel and floor run in one
//! process, interleaved, each on memory that was prepared alike; smallest time by smallest time is the ratio, median by
//! median the other one, and a bar holds for both.

mod low_rank;
mod quantise;
mod selection;
mod table;

use std::time::Instant;

use serde::Serialize;

pub use table::{head, line, verdict};

use crate::Result;
use crate::statistics::median;

/// What is measured of all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Elements of the dense vectors.
    pub elements: usize,
    /// Turns of each kernel and its floor.
    pub iterations: usize,
}

/// A kernel, before it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// The kernel, with the data it runs on.
    pub kernel: String,
    /// Elements of the dense vectors.
    pub elements: usize,
    /// The share of entries that is kept, where some are dropped.
    pub density: Option<f64>,
    /// Bytes that must at least be read and written.
    pub bytes: usize,
    /// What it is held to.
    pub floor: &'static str,
    /// The most times the floor that it may take.
    pub bar: Option<f64>,
}

/// A kernel beside its floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
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
    /// The most that both ratios may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
    /// Whether they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

/// Measures all kernels, and hands each row out as soon as it is there.
///
/// # Errors
/// [`Error::Contestant`](crate::Error::Contestant) for a kernel with a wrong result.
pub fn measure_all(extent: Extent, mut told: impl FnMut(Row)) -> Result<()> {
    selection::measure(extent, &mut told)?;
    quantise::measure(extent, &mut told)?;
    low_rank::measure(extent, &mut told)
}

/// Runs a kernel and its floor in turns on one state, after a turn that does not count. `prepare` comes before each and is not
/// timed.
pub fn measure<S>(
    subject: Subject,
    iterations: usize,
    state: &mut S,
    mut prepare: impl FnMut(&mut S),
    mut floor: impl FnMut(&mut S),
    mut kernel: impl FnMut(&mut S),
) -> Row {
    let mut timed = |state: &mut S, run: &mut dyn FnMut(&mut S)| {
        prepare(state);
        let start = Instant::now();
        run(state);
        start.elapsed().as_secs_f64() * 1e3
    };
    let turns = (0..=iterations).map(|_| (timed(state, &mut floor), timed(state, &mut kernel)));
    let (floors, kernels): (Vec<f64>, Vec<f64>) = turns.skip(1).unzip();
    Row::new(subject, &floors, &kernels)
}

impl Row {
    fn new(subject: Subject, floors: &[f64], kernels: &[f64]) -> Self {
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let (ms, floor_ms) = (least(kernels), least(floors));
        let (median_ms, floor_median_ms) = (median(kernels), median(floors));
        let (ratio, median_ratio) = (ms / floor_ms, median_ms / floor_median_ms);
        Self {
            ms,
            median_ms,
            gigabytes_per_s: subject.bytes as f64 / (ms * 1e6),
            floor: subject.floor,
            floor_ms,
            floor_median_ms,
            ratio,
            median_ratio,
            met: subject.bar.map(|bar| ratio.max(median_ratio) <= bar),
            bar: subject.bar,
            kernel: subject.kernel,
            elements: subject.elements,
            density: subject.density,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(bar: f64) -> Subject {
        let kernel = "kernel".to_owned();
        Subject { kernel, elements: 10, density: None, bytes: 4_000_000, floor: "acc", bar: Some(bar) }
    }

    #[test]
    fn both_ratios_keep_to_the_bar() {
        let row = Row::new(subject(1.5), &[2.0, 4.0, 6.0], &[3.0, 5.0, 9.0]);
        assert_eq!((row.ms, row.floor_ms, row.ratio), (3.0, 2.0, 1.5));
        assert_eq!((row.median_ms, row.floor_median_ms, row.median_ratio), (5.0, 4.0, 1.25));
        assert_eq!((row.met, row.gigabytes_per_s), (Some(true), 4.0 / 3.0));
        assert_eq!(Row::new(subject(1.4), &[2.0, 4.0, 6.0], &[3.0, 5.0, 9.0]).met, Some(false));
        assert_eq!(Row::new(subject(1.5), &[2.0, 4.0, 6.0], &[2.0, 7.0, 9.0]).met, Some(false));
    }

    #[test]
    fn turns_alternate_and_each_is_prepared() {
        let mut told = String::new();
        let row = measure(subject(1.0), 2, &mut told, |s| s.push('p'), |s| s.push('f'), |s| s.push('k'));
        assert_eq!(told, "pfpk".repeat(3));
        assert_eq!(row.elements, 10);
    }

    #[test]
    fn all_kernels_are_right_on_few_elements() {
        let mut rows = Vec::new();
        measure_all(Extent { elements: 20_000, iterations: 1 }, |row| rows.push(row)).unwrap();
        assert!(rows.len() > 10);
        assert!(rows.iter().all(|row| row.ms > 0.0 && row.floor_ms > 0.0 && line(row).contains(&row.kernel)));
    }
}
