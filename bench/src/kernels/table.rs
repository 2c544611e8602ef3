//! The figures as a table and as a verdict.

use super::Row;

/// The head of the table.
#[must_use]
pub fn head() -> String {
    format!(
        "{:<44} {:>11} {:>8} {:>9} {:>7} {:>12} {:>7} {:>12}  {}",
        "# kernel", "n", "density", "ms", "GB/s", "floor", "ratio", "median-ratio", "bar"
    )
}

/// A line of it.
#[must_use]
pub fn line(row: &Row) -> String {
    let verdict = match (row.bar, row.met) {
        (Some(bar), Some(true)) => format!("{bar:.2}x: met"),
        (Some(bar), Some(false)) => format!("{bar:.2}x: NOT MET"),
        _ => String::new(),
    };
    let density = row.density.map_or_else(String::new, |density| density.to_string());
    let line = format!(
        "{:<44} {:>11} {:>8} {:>9.3} {:>7.2} {:>12} {:>7.3} {:>12.3}  {verdict}",
        row.kernel, row.elements, density, row.ms, row.gigabytes_per_s, row.floor, row.ratio, row.median_ratio,
    );
    line.trim_end().to_owned()
}

/// How many rows keep to their bars, and those that do not.
#[must_use]
pub fn verdict(rows: &[Row]) -> String {
    let judged = rows.iter().filter(|row| row.met.is_some()).count();
    let missed: Vec<&Row> = rows.iter().filter(|row| row.met == Some(false)).collect();
    let mut text = format!("# {} of {judged} bars met", judged - missed.len());
    missed.iter().for_each(|row| text.push_str(&format!("\n{}", line(row))));
    text
}
