//! The ratios as a drawing: a field for each thing compared, a line for each peer.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::pairs::Comparison;
use super::record::Circumstances;

const COLUMNS: usize = 2;
const FIELD: (u32, u32) = (620, 300);
const HEAD: u32 = 60;

const COLOURS: [RGBColor; 7] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
];

/// What a field shows, and its comparisons in rising sizes.
type Field<'a> = (String, Vec<&'a Comparison>);

/// Draws the ratios that were measured at several sizes; those at one size are in the table only.
///
/// # Errors
/// In words, when something can't be drawn.
pub fn svg(circumstances: &Circumstances, pairs: &[Comparison]) -> Result<String, String> {
    let fields = fields(pairs);
    let rows = fields.len().div_ceil(COLUMNS).max(1) as u32;
    let mut drawing = String::new();
    {
        let size = (FIELD.0 * COLUMNS as u32, HEAD + FIELD.1 * rows);
        let area = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        draw(&area, circumstances, &fields, rows as usize).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(drawing)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(area: &Area<'_>, circumstances: &Circumstances, fields: &[Field<'_>], rows: usize) -> Drawn {
    area.fill(&WHITE)?;
    let (head, body) = area.split_vertically(HEAD);
    let Circumstances { command, date, commit, machine, .. } = circumstances;
    let title = ("sans-serif", 15).into_font();
    head.draw(&Text::new(format!("{command}: time of ours / theirs, medians and intervals"), (15, 10), title.clone()))?;
    head.draw(&Text::new(format!("{date}, {commit}, {machine}"), (15, 34), title))?;
    for (field, place) in fields.iter().zip(body.split_evenly((rows, COLUMNS))) {
        draw_field(&place, field)?;
    }
    Ok(())
}

fn draw_field(area: &Area<'_>, (name, pairs): &Field<'_>) -> Drawn {
    let sizes = || pairs.iter().map(|pair| pair.subject.bytes as f64);
    let (smallest, largest) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let low = pairs.iter().map(|pair| pair.ratio).fold(1.0, f64::min) / 1.2;
    let high = pairs.iter().map(|pair| pair.ratio).fold(1.0, f64::max) * 1.2;
    let mut chart = ChartBuilder::on(area)
        .caption(name, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(35)
        .y_label_area_size(50)
        .build_cartesian_2d((smallest / 1.3..largest * 1.3).log_scale(), (low..high).log_scale())?;
    chart.configure_mesh().x_desc("bytes").y_desc("ours / theirs").light_line_style(TRANSPARENT).draw()?;
    chart.draw_series(LineSeries::new([(smallest / 1.3, 1.0), (largest * 1.3, 1.0)], BLACK.stroke_width(1)))?;
    let mut peers: Vec<&str> = Vec::new();
    pairs.iter().for_each(|pair| {
        if !peers.contains(&&*pair.peer) {
            peers.push(&pair.peer)
        }
    });
    for (peer, colour) in peers.into_iter().zip(COLOURS.into_iter().cycle()) {
        let points: Vec<&&Comparison> = pairs.iter().filter(|pair| pair.peer == peer).collect();
        let line = points.iter().map(|pair| (pair.subject.bytes as f64, pair.ratio));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
            .label(peer)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 15, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|pair| {
            let (x, low, high) = (pair.subject.bytes as f64, pair.ratio_low.max(low), pair.ratio_high.min(high));
            PathElement::new([(x, low), (x, high)], colour.stroke_width(1))
        }))?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).background_style(WHITE.mix(0.7)).draw()
}

/// Comparisons of one thing at several sizes.
fn fields(pairs: &[Comparison]) -> Vec<Field<'_>> {
    let mut fields: Vec<Field<'_>> = Vec::new();
    for pair in pairs {
        let name = format!("{}, {}: {}", pair.subject.what, pair.subject.wire, pair.ours);
        // The same thing is measured against different peers in different rows.
        let same = |field: &&mut Field<'_>| field.0 == name;
        match fields.iter_mut().find(same) {
            Some(field) => field.1.push(pair),
            None => fields.push((name, vec![pair])),
        }
    }
    fields.retain(|(_, pairs)| pairs.iter().any(|pair| pair.subject.bytes != pairs[0].subject.bytes));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::pairs::{Subject, Turn};

    #[test]
    fn every_peer_and_no_single_size_is_drawn() {
        let comparison = |what: &str, peer: &str, bytes| {
            let subject = Subject { what: what.into(), wire: "tcp", world_size: 2, bytes };
            let turn = Turn { ours_us: 1.0, theirs_us: 2.0, probe_before_ns: 5.0, probe_after_ns: 5.0, changed: false };
            Comparison::new(subject, "ours", peer, vec![turn; 5], 0).unwrap()
        };
        let pairs = [
            comparison("latency", "first peer", 8),
            comparison("latency", "second peer", 8),
            comparison("latency", "first peer", 64),
            comparison("4 pairs", "lonely peer", 8),
        ];
        let drawing = svg(&Circumstances::now(Vec::new()), &pairs).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        assert!(drawing.contains("first peer") && drawing.contains("second peer") && !drawing.contains("lonely peer"));
        assert!(svg(&Circumstances::now(Vec::new()), &[]).unwrap().contains("</svg>"));
    }
}
