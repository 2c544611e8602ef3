//! The figures, the table made from them, and the bars.

use serde::Serialize;

use crate::compare::{Bar, Comparison};
use crate::record::Circumstances;
use crate::statistics::median;

/// Workers of the row that has a bar.
const BAR_WORKERS: u32 = 2;
/// Pushes per second that a shard must take from those workers.
const BAR_PUSHES: f64 = 250.0;
/// How much longer a step may take than that of an exchange.
const BAR_STEP: f64 = 1.3;

/// What one shard takes from some workers.
#[derive(Clone, Debug, Serialize)]
pub struct Pushes {
    /// The workers.
    pub workers: u32,
    /// Pushes of all workers per second, as the median over the repetitions.
    pub pushes_per_second: f64,
    /// Bytes of a push, with its trailer.
    pub bytes_per_push: f64,
    /// Bytes of an answer, with its trailer.
    pub bytes_per_answer: f64,
    /// Pushes per second of each repetition.
    pub repetitions: Vec<f64>,
    /// The fewest pushes per second that meet the bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
    /// Whether they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

impl Pushes {
    /// Summarises repetitions, each of pushes per second, bytes of a push and of an answer.
    #[must_use]
    pub fn new(workers: u32, repetitions: &[[f64; 3]], has_bar: bool) -> Self {
        let of = |column: usize| repetitions.iter().map(|figures| figures[column]).collect::<Vec<_>>();
        let pushes_per_second = median(&of(0));
        let bar = (has_bar && workers == BAR_WORKERS).then_some(BAR_PUSHES);
        Self {
            workers,
            pushes_per_second,
            bytes_per_push: median(&of(1)),
            bytes_per_answer: median(&of(2)),
            repetitions: of(0),
            bar,
            met: bar.map(|least| pushes_per_second >= least),
        }
    }

    /// The head of the table.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:<9} {:>9} {:>9} {:>9} {:>9} {:>9}  bar",
            "# workers", "pushes/s", "lowest", "highest", "B/push", "B/answer"
        )
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let lowest = self.repetitions.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = self.repetitions.iter().copied().fold(0.0, f64::max);
        let verdict = self.bar.map_or_else(String::new, |bar| verdict(&format!("at least {bar}"), self.met));
        format!(
            "{:<9} {:>9.1} {lowest:>9.1} {highest:>9.1} {:>9.0} {:>9.0}  {verdict}",
            self.workers, self.pushes_per_second, self.bytes_per_push, self.bytes_per_answer
        )
    }
}

/// A step of a worker next to one of an exchange, on one model.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Elements of the model.
    pub elements: usize,
    /// The ratio of the median times.
    pub ratio_of_medians: f64,
    /// The turns. The bar applies to both ratios.
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Step {
    /// Compares both ratios to the bar.
    #[must_use]
    pub fn new(elements: usize, comparison: Comparison) -> Self {
        let ratio_of_medians = comparison.ours_us / comparison.theirs_us;
        let mut comparison = comparison.judged(Bar::Ratio(BAR_STEP));
        comparison.met = comparison.met.map(|met| met && ratio_of_medians <= BAR_STEP);
        Self { elements, ratio_of_medians, comparison }
    }

    /// The head of the table.
    #[must_use]
    pub fn head() -> String {
        format!(
            "{:<10} {:>11} {:>10} {:>9} {:>12} {:>15}  bar",
            "# elements", "server(ms)", "gtopk(ms)", "ratio", "median-ratio", "interval"
        )
    }

    /// A line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let Comparison { ours_us, theirs_us, ratio, ratio_low, ratio_high, bar, met, .. } = &self.comparison;
        let verdict = bar.map_or_else(String::new, |bar| verdict(&bar.to_string(), *met));
        format!(
            "{:<10} {:>11.3} {:>10.3} {:>9.3} {ratio:>12.3} {:>15}  {verdict}",
            self.elements,
            ours_us / 1e3,
            theirs_us / 1e3,
            self.ratio_of_medians,
            format!("{ratio_low:.3}..{ratio_high:.3}"),
        )
    }
}

fn verdict(bar: &str, met: Option<bool>) -> String {
    format!("{bar}: {}", if met == Some(true) { "met" } else { "NOT MET" })
}

/// All figures, as JSON has them.
#[derive(Serialize)]
pub struct Figures<'a> {
    /// Where, when and how.
    #[serde(flatten)]
    pub circumstances: &'a Circumstances,
    /// The share of entries that is sent.
    pub density: f64,
    /// Elements of the shard.
    pub elements: usize,
    /// Seconds of a repetition.
    pub seconds: f64,
    /// What one shard takes.
    pub pushes: Vec<Pushes>,
    /// Steps of workers that all serve.
    pub steps: Vec<Step>,
}

impl Figures<'_> {
    /// Whether each bar was met.
    pub fn met(&self) -> impl Iterator<Item = bool> {
        let pushes = self.pushes.iter().filter_map(|row| row.met);
        pushes.chain(self.steps.iter().filter_map(|row| row.comparison.met))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Subject, Turn};

    #[test]
    fn only_two_workers_have_a_bar() {
        let row =
            |workers, rate: f64| Pushes::new(workers, &[[rate, 1.0, 1.0], [900.0, 1.0, 1.0], [1.0; 3]], true);
        assert_eq!(
            (row(2, 250.0).met, row(2, 249.0).met, row(1, 249.0).met),
            (Some(true), Some(false), None)
        );
        assert_eq!(Pushes::new(2, &[[1.0; 3]], false).met, None);
        assert!(row(2, 249.0).line().ends_with("at least 250: NOT MET"));
    }

    #[test]
    fn a_step_meets_its_bar_by_both_ratios() {
        let met = |pairs: &[(f64, f64)]| {
            let subject = Subject { what: "step".into(), wire: "tcp", world_size: 2, bytes: 8 };
            let turns = pairs.iter().map(Turn::of).collect();
            Step::new(8, Comparison::new(subject, "a", "b", turns, 0).unwrap()).comparison.met.unwrap()
        };
        assert!(met(&[(1.3, 1.0); 3]) && !met(&[(1.31, 1.0); 3]));
        // The median ratio is 1.2, the ratio of the medians 1.5.
        assert!(!met(&[(3.0, 1.0), (1.2, 1.0), (9.6, 8.0), (3.0, 2.5), (3.0, 2.0)]));
    }
}
