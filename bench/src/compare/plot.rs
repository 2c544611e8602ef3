//! The ratios as a drawing: a panel for each subject, a line for each peer, its name beside the panel.

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;
use serde::Deserialize;

use crate::size::Size;

const COLUMNS: usize = 2;
const FIELD: (u32, u32) = (760, 320);

/// The width beside each panel for the names of its lines.
const NAMES: u32 = 170;

const LINE_HEIGHT: i32 = 20;

/// Letters of the head that fit into one line.
const LETTERS: usize = 180;

/// The most labels beside one axis.
const LABELS: f64 = 8.0;

const COLOURS: [RGBColor; 7] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
];

/// Ratios that are labelled on the axis if there is room, in order of priority.
const RATIOS: [f64; 29] = [
    1.0, 2.0, 0.5, 5.0, 0.2, 10.0, 0.1, 1.5, 0.7, 3.0, 0.3, 1.2, 0.8, 1.1, 0.9, 0.6, 0.4, 1.3, 1.4, 1.7, 2.5,
    4.0, 7.0, 1.05, 0.95, 1.02, 0.98, 0.25, 0.15,
];

/// The drawn part of a figure; the JSON has all of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Point {
    /// What is measured.
    pub what: String,
    /// The wire.
    pub wire: String,
    /// Ranks.
    pub world_size: u32,
    /// Bytes of a message or vector.
    pub bytes: usize,
    /// The name of Brevity's side.
    pub ours: String,
    /// The name of the peer.
    pub peer: String,
    /// Ours / theirs.
    pub ratio: f64,
    /// The lower end of its interval.
    pub ratio_low: f64,
    /// The upper end of its interval.
    pub ratio_high: f64,
}

/// The title of a panel, and its points in rising sizes.
type Field<'a> = (String, Vec<&'a Point>);

/// Draws the ratios that were measured at several sizes, below a `head`. Those at one size are only in the
/// table.
///
/// # Errors
/// A text, if something can't be drawn.
pub fn svg(head: &[&str], points: &[Point]) -> Result<String, String> {
    let fields = fields(points);
    let rows = fields.len().div_ceil(COLUMNS).max(1) as u32;
    let head: Vec<String> = head.iter().flat_map(|text| wrapped(text)).collect();
    let mut drawing = String::new();
    {
        let above = head.len() as u32 * LINE_HEIGHT as u32 + 20;
        let size = (FIELD.0 * COLUMNS as u32, above + FIELD.1 * rows);
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        draw(&area, (&head, above), &fields, rows as usize).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(drawing)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(area: &Area<'_>, (head, above): (&[String], u32), fields: &[Field<'_>], rows: usize) -> Drawn {
    area.fill(&WHITE)?;
    let (top, body) = area.split_vertically(above);
    for (line, y) in head.iter().zip((10..).step_by(LINE_HEIGHT as usize)) {
        top.draw(&Text::new(line.as_str(), (15, y), ("sans-serif", 14)))?;
    }
    for (field, place) in fields.iter().zip(body.split_evenly((rows, COLUMNS))) {
        let (chart, names) = place.split_horizontally(FIELD.0 - NAMES);
        draw_field(&chart, field)?;
        draw_names(&names, &peers(&field.1))?;
    }
    Ok(())
}

fn draw_field(area: &Area<'_>, (name, points): &Field<'_>) -> Drawn {
    let sizes = || points.iter().map(|point| point.bytes as f64);
    let (smallest, largest) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let low = points.iter().map(|point| point.ratio).fold(1.0, f64::min) / 1.2;
    let high = points.iter().map(|point| point.ratio).fold(1.0, f64::max) * 1.2;
    let across = (smallest / 1.3..largest * 1.3).log_scale().with_key_points(powers(smallest, largest));
    let upwards = (low..high).log_scale().with_key_points(ratios(low, high));
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(38)
        .y_label_area_size(52)
        .build_cartesian_2d(across, upwards)?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc("ours / theirs")
        .x_label_formatter(&|bytes| Size(*bytes as usize).to_string())
        .y_label_formatter(&f64::to_string)
        .label_style(("sans-serif", 12))
        .bold_line_style(BLACK.mix(0.12))
        .light_line_style(TRANSPARENT)
        .draw()?;
    chart
        .draw_series(LineSeries::new([(smallest / 1.3, 1.0), (largest * 1.3, 1.0)], BLACK.stroke_width(1)))?;
    for (peer, colour) in peers(points).into_iter().zip(COLOURS.into_iter().cycle()) {
        let of_peer = || points.iter().filter(|point| point.peer == peer);
        let line = of_peer().map(|point| (point.bytes as f64, point.ratio));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(2))?;
        chart.draw_series(of_peer().map(|point| {
            let (x, low, high) = (point.bytes as f64, point.ratio_low.max(low), point.ratio_high.min(high));
            PathElement::new([(x, low), (x, high)], colour.stroke_width(1))
        }))?;
    }
    Ok(())
}

/// Writes the names of the lines where no line is.
fn draw_names(area: &Area<'_>, peers: &[&str]) -> Drawn {
    for ((peer, colour), y) in
        peers.iter().zip(COLOURS.into_iter().cycle()).zip((45..).step_by(LINE_HEIGHT as usize))
    {
        area.draw(&PathElement::new([(2, y), (20, y)], colour.stroke_width(2)))?;
        area.draw(&Text::new(*peer, (26, y - 6), ("sans-serif", 12)))?;
    }
    Ok(())
}

/// The peers, in the order of the points.
fn peers<'a>(points: &[&'a Point]) -> Vec<&'a str> {
    let mut peers: Vec<&str> = Vec::new();
    for point in points {
        if !peers.contains(&&*point.peer) {
            peers.push(&point.peer);
        }
    }
    peers
}

/// The powers of two to label between two sizes.
fn powers(smallest: f64, largest: f64) -> Vec<f64> {
    let (first, last) = (smallest.log2().ceil() as i32, largest.log2().floor() as i32);
    let every = (f64::from(last - first) / LABELS).ceil().max(1.0) as usize;
    (first..=last).step_by(every).map(|power| f64::from(power).exp2()).collect()
}

/// The ratios to label between two ratios: round ones that are not too close to each other.
fn ratios(low: f64, high: f64) -> Vec<f64> {
    let apart = (high / low).ln() / LABELS;
    let mut labels: Vec<f64> = Vec::new();
    for ratio in RATIOS.into_iter().filter(|ratio| (low..=high).contains(ratio)) {
        if labels.iter().all(|label| (label / ratio).ln().abs() >= apart) {
            labels.push(ratio);
        }
    }
    labels.sort_by(f64::total_cmp);
    labels
}

/// Splits text at blanks and commas into lines that fit the drawing.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', ',']) {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() <= LETTERS => line.push_str(word),
            _ => lines.push(format!("    {word}")),
        }
    }
    lines
}

/// The points of each subject at several sizes.
fn fields(points: &[Point]) -> Vec<Field<'_>> {
    let mut fields: Vec<Field<'_>> = Vec::new();
    for point in points {
        let ranks =
            if point.world_size == 2 { String::new() } else { format!(", {} ranks", point.world_size) };
        let name = format!("{}, {}{ranks}: {}", point.what, point.wire, point.ours);
        // Different rows measure the same subject with different peers.
        let same = |field: &&mut Field<'_>| field.0 == name;
        match fields.iter_mut().find(same) {
            Some(field) => field.1.push(point),
            None => fields.push((name, vec![point])),
        }
    }
    fields.retain(|(_, points)| points.iter().any(|point| point.bytes != points[0].bytes));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(what: &str, peer: &str, bytes: usize) -> Point {
        let [what, wire, ours, peer] = [what, "tcp", "ours", peer].map(str::to_owned);
        Point { what, wire, world_size: 2, bytes, ours, peer, ratio: 0.5, ratio_low: 0.4, ratio_high: 0.6 }
    }

    /// The horizontal position of `text` in a drawing.
    fn place_of(drawing: &str, text: &str) -> f64 {
        let element =
            drawing.split("<text ").find(|element| element.lines().any(|line| line.trim() == text)).unwrap();
        let x = element.split("x=\"").nth(1).unwrap();
        x.split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn every_peer_and_no_single_size_is_drawn() {
        let points = [
            point("latency", "first peer", 8),
            point("latency", "second peer", 8),
            point("latency", "first peer", 32_768),
            point("4 pairs", "lonely peer", 8),
        ];
        let drawing = svg(&["head"], &points).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        assert!(!drawing.contains("lonely peer"));
        for peer in ["first peer", "second peer"] {
            assert!(place_of(&drawing, peer) >= f64::from(FIELD.0 - NAMES), "{peer} lies over the lines");
        }
        for label in ["8", "32K", "1", "0.5"] {
            place_of(&drawing, label);
        }
        assert!(svg(&[], &[]).unwrap().contains("</svg>"));
    }

    #[test]
    fn labels_are_round_and_not_too_many() {
        assert_eq!(powers(8.0, 64.0), [8.0, 16.0, 32.0, 64.0]);
        assert_eq!(powers(8.0, (16 << 20) as f64).len(), 8);
        assert_eq!(ratios(0.8, 1.3), [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]);
        assert_eq!(ratios(0.1, 2.5), [0.1, 0.2, 0.3, 0.5, 1.0, 2.0]);
    }

    #[test]
    fn a_long_head_is_wrapped() {
        let text = "word, ".repeat(100);
        let lines = wrapped(&text);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() < LETTERS + 10));
        assert_eq!(lines.concat().split_whitespace().count(), 100);
    }
}
