//! Six panels: training loss and test accuracy, over steps, over bytes and over time.

use crate::Error;
use crate::course::Point;
use crate::trainer::Run;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::error::Error as StdError;
use std::ops::Range;

const SIZE: (u32, u32) = (1700, 900);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x8c, 0x6d, 0x1f),
];

/// The labels of the horizontal axes.
const STEPS: &str = "steps";
const BYTES: &str = "bytes per rank";
const SECONDS: &str = "seconds";

/// The smallest loss or number of bytes that a logarithmic axis shows.
const SMALLEST_LOSS: f64 = 1e-6;

/// Draws the curves of `runs` as SVG; text stays text and uses the viewer's font.
///
/// # Errors
/// [`Error::Output`] if the drawing library fails.
pub fn svg(runs: &[Run]) -> Result<String, Error> {
    let mut drawing = String::new();
    draw_panels(runs, &mut drawing)
        .map_err(|error| brevity_bench::Error::contestant("the drawing", error.to_string()))?;
    Ok(drawing)
}

fn draw_panels(runs: &[Run], drawing: &mut String) -> Result<(), Box<dyn StdError>> {
    let root = SVGBackend::with_string(drawing, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((2, 3));
    let steps = |point: &Point| point.step as f64;
    let bytes = |point: &Point| point.bytes_per_rank.max(1.0);
    let seconds = |point: &Point| point.seconds;
    let loss = |point: &Point| point.loss.max(SMALLEST_LOSS);
    let accuracy = |point: &Point| 100.0 * point.test_accuracy;
    let linear = |value: &dyn Fn(&Point) -> f64| 0.0..range(runs, value).end.max(f64::MIN_POSITIVE);
    let byte_range = || wide(range(runs, bytes)).log_scale();
    let loss_range = || wide(range(runs, loss)).log_scale();
    let accuracies = accuracy_range(range(runs, accuracy));
    let losses = |x| ["training loss", x, "loss"];
    let (row, below) = panels.split_at(3);
    panel(&row[0], runs, losses(STEPS), (linear(&steps), loss_range()), (steps, loss))?;
    panel(&row[1], runs, losses(BYTES), (byte_range(), loss_range()), (bytes, loss))?;
    panel(&row[2], runs, losses(SECONDS), (linear(&seconds), loss_range()), (seconds, loss))?;
    let accurate = |x| ["test accuracy", x, "%"];
    panel(&below[0], runs, accurate(STEPS), (linear(&steps), accuracies.clone()), (steps, accuracy))?;
    panel(&below[1], runs, accurate(BYTES), (byte_range(), accuracies.clone()), (bytes, accuracy))?;
    panel(&below[2], runs, accurate(SECONDS), (linear(&seconds), accuracies), (seconds, accuracy))?;
    root.present()?;
    Ok(())
}

/// One chart with one line for each run; `labels` are its title and those of its axes.
fn panel<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    runs: &[Run],
    [title, x_label, y_label]: [&str; 3],
    (x_range, y_range): (X, Y),
    (x, y): (impl Fn(&Point) -> f64, impl Fn(&Point) -> f64),
) -> Result<(), Box<dyn StdError>>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    // Losses fall away from the upper corner, accuracies rise away from the lower one.
    let corner =
        if y_label == "loss" { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerRight };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{title} over {x_label}"), ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x_range, y_range)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_labels(6)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (run, colour) in runs.iter().zip(COLOURS.iter().cycle()) {
        let points = || run.curve.iter().map(|point| (x(point), y(point)));
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)).point_size(2))?
            .label(run.method.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(corner)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// The smallest and the largest value of all points; 1 to 1 without points.
fn range(runs: &[Run], value: impl Fn(&Point) -> f64) -> Range<f64> {
    let values = || runs.iter().flat_map(|run| &run.curve).map(&value);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if low.is_finite() { low..high.max(low) } else { 1.0..1.0 }
}

/// The range with a margin, for a logarithmic axis.
fn wide(range: Range<f64>) -> Range<f64> {
    range.start / 1.3..range.end * 1.3
}

/// Accuracy ends at 100 %, and starts low enough to show every point.
fn accuracy_range(range: Range<f64>) -> Range<f64> {
    let low = range.start.min(99.0);
    (low - (100.0 - low) * 0.1).max(0.0)..100.0
}

/// A number as a label: at most three digits and a unit prefix.
fn short(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = match scaled {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 1.0 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(method: &str, bytes: f64) -> Run {
        let point = |step: usize| Point {
            step,
            seconds: step as f64 / 2.0,
            bytes_per_rank: bytes * step as f64,
            loss: 1.0 / step as f64,
            test_accuracy: 1.0 - 0.2 / step as f64,
        };
        Run {
            method: method.into(),
            ranks: 4,
            test_accuracy: 0.98,
            bytes_per_rank_step: bytes,
            steps: 10,
            seconds: 1.0,
            communication_seconds: 0.5,
            staleness: None,
            lost_ranks: Vec::new(),
            curve: (1..=10).map(point).collect(),
        }
    }

    fn drawn(runs: &[Run]) -> String {
        svg(runs).unwrap()
    }

    #[test]
    fn the_figure_has_six_labelled_panels_and_a_line_a_run() {
        let text = drawn(&[run("dense", 4e6), run("gtopk", 3e4)]);
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        let count = |what: &str| text.lines().filter(|line| line.trim() == what).count();
        for x in ["steps", "bytes per rank", "seconds"] {
            assert_eq!(count(&format!("training loss over {x}")), 1);
            assert_eq!(count(&format!("test accuracy over {x}")), 1);
        }
        assert_eq!((count("dense"), count("gtopk")), (6, 6));
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn a_single_rank_that_sends_nothing_can_be_drawn() {
        let mut alone = run("dense", 0.0);
        alone.curve.truncate(1);
        assert!(!drawn(&[alone]).contains("NaN"));
    }

    #[test]
    fn labels_are_short() {
        let labels: Vec<String> =
            [0.0, 0.05, 0.25, 1.0, 2.5, 97.5, 120.0, 1400.0, 3e6, 2.5e9].map(short).to_vec();
        let expected = ["0", "0.05", "0.25", "1", "2.5", "97.5", "120", "1.4k", "3M", "2.5G"];
        assert_eq!(labels, expected);
    }
}
