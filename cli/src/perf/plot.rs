//! A drawing of the figures: time by size, or by density if there is only one size.

use plotters::prelude::*;

use super::error::Result;
use super::report::{Report, Row};

const PIXELS: (u32, u32) = (800, 500);

/// A line of the drawing: its name, its colour and which figure of a row it shows.
type Figure = (&'static str, RGBColor, fn(&Row) -> f64);

const FIGURES: [Figure; 3] = [
    ("average", RGBColor(31, 119, 180), |row| row.avg_us),
    ("median", RGBColor(44, 160, 44), |row| row.p50_us),
    ("p99", RGBColor(214, 39, 40), |row| row.p99_us),
];

/// Draws the rows of a report, both axes logarithmic.
pub fn svg(report: &Report<Row>) -> Result<String> {
    let mut drawing = String::new();
    let drawn = draw(report, &mut drawing);
    drawn.map_err(|error| brevity_bench::Error::contestant("the drawing", error.to_string()))?;
    Ok(drawing)
}

fn draw(report: &Report<Row>, into: &mut String) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let rows = &report.rows;
    let by_density =
        rows.len() > 1 && rows.iter().all(|row| row.bytes == rows[0].bytes && row.density.is_some());
    let x = |row: &Row| row.density.filter(|_| by_density).unwrap_or(row.bytes.max(1) as f64);
    let times = rows.iter().flat_map(|row| FIGURES.map(|(_, _, figure)| figure(row)));
    let (x_bounds, y_bounds) = (bounds(rows.iter().map(x)), bounds(times));

    let area = SVGBackend::with_string(into, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("brevity {}: {} ranks, {}", report.name, report.world_size, report.transport);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(15)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d((x_bounds.0..x_bounds.1).log_scale(), (y_bounds.0..y_bounds.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(if by_density { "density" } else { "bytes" })
        .y_desc("microseconds")
        .draw()?;
    for (name, colour, figure) in FIGURES {
        let points = || rows.iter().map(|row| (x(row), figure(row).max(y_bounds.0)));
        chart
            .draw_series(LineSeries::new(points(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw()?;
    area.present()
}

/// A positive interval around all values, wide enough for a logarithmic axis.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive = values.filter(|value| *value > 0.0);
    let (low, high) =
        positive.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if low > high { (0.1, 10.0) } else { (low / 1.3, high * 1.3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_all_values() {
        let (low, high) = bounds([4.0, 0.0, 1024.0].into_iter());
        assert!(low > 0.0 && low < 4.0 && high > 1024.0);
        assert_eq!(bounds(std::iter::empty()), (0.1, 10.0));
    }
}
