//! How much of its bar each kernel takes, as a drawing with a line for each kernel that has a bar.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Row;

const WIDTH: u32 = 1100;

/// Where the lines begin; the kernels' names are to the left.
const LEFT: i32 = 420;

/// The length of a line for a kernel that takes all of its bar.
const BAR: f64 = 440.0;

/// The largest share of a bar that is drawn to scale.
const MOST: f64 = 1.4;

const LINE_HEIGHT: i32 = 20;

const MET: RGBColor = RGBColor(44, 160, 44);
const MISSED: RGBColor = RGBColor(214, 39, 40);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Draws the rows that have a bar, below a `head`.
///
/// # Errors
/// A text, if something can't be drawn.
pub fn svg(head: &[&str], rows: &[Row]) -> Result<String, String> {
    let held: Vec<(&Row, f64)> =
        rows.iter().filter_map(|row| row.share_of_bar.map(|share| (row, share))).collect();
    let mut drawing = String::new();
    {
        let lines = head.len() as u32 + held.len() as u32 + 2;
        let area =
            SVGBackend::with_string(&mut drawing, (WIDTH, lines * LINE_HEIGHT as u32)).into_drawing_area();
        draw(&area, head, &held).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(drawing)
}

fn draw(area: &Area<'_>, head: &[&str], held: &[(&Row, f64)]) -> Drawn {
    area.fill(&WHITE)?;
    for (text, y) in head.iter().zip((8..).step_by(LINE_HEIGHT as usize)) {
        area.draw(&Text::new(*text, (10, y), ("sans-serif", 14)))?;
    }
    let first = (head.len() as i32 + 1) * LINE_HEIGHT;
    for ((row, share), y) in held.iter().zip((first..).step_by(LINE_HEIGHT as usize)) {
        draw_row(area, row, *share, y)?;
    }
    let bar = LEFT + BAR as i32;
    let last = first + held.len() as i32 * LINE_HEIGHT;
    area.draw(&PathElement::new([(bar, first - 4), (bar, last)], BLACK.stroke_width(1)))
}

fn draw_row(area: &Area<'_>, row: &Row, share: f64, y: i32) -> Drawn {
    let density = row.density.map_or_else(String::new, |density| format!(", density {density}"));
    area.draw(&Text::new(format!("{}{density}", row.kernel), (10, y), ("sans-serif", 12)))?;
    let colour = if row.met == Some(true) { MET } else { MISSED };
    // A kernel without a figure takes the full length.
    let end = LEFT + (BAR * share.min(MOST)) as i32;
    area.draw(&Rectangle::new([(LEFT, y + 1), (end, y + 13)], colour.mix(0.7).filled()))?;
    let bar = row.bar.as_deref().unwrap_or_default();
    area.draw(&Text::new(
        format!("{share:.2} of {bar}"),
        (LEFT + (BAR * MOST) as i32 + 10, y),
        ("sans-serif", 12),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Group, Subject, measure_told};

    fn row(name: &str, bar: Option<f64>) -> Row {
        let subject = Subject::new(Group::Dense, name, 10, 12, "acc").at_most(bar);
        measure_told(subject, 1, &mut (), |()| (), |()| Ok(2.0), |()| Ok(3.0)).unwrap()
    }

    #[test]
    fn rows_with_a_bar_are_drawn() {
        let rows = [row("kept kernel", Some(3.0)), row("missed kernel", Some(1.0)), row("free kernel", None)];
        let drawing = svg(&["head of it"], &rows).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        for text in ["head of it", "kept kernel", "0.50 of 3.00x", "missed kernel", "1.50 of 1.00x"] {
            assert!(drawing.lines().any(|line| line.trim() == text), "{text}: {drawing}");
        }
        assert!(!drawing.contains("free kernel"));
        assert!(svg(&[], &[]).unwrap().contains("</svg>"));
    }
}
