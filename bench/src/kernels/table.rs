//! The figures as a table, and the verdict.

use super::Row;

/// The head of the table.
#[must_use]
pub fn head() -> String {
    format!(
        "{:<46} {:>9} {:>7} {:>9} {:>7} {:>9} {:>9} {:>7} {:>7} {:>11} {:>7} {:>12}  {}",
        "# kernel",
        "n",
        "density",
        "ms",
        "GB/s",
        "ns/entry",
        "- floor's",
        "entropy",
        "B/entry",
        "floor",
        "ratio",
        "median-ratio",
        "bar"
    )
}

/// A line of the table.
#[must_use]
pub fn line(row: &Row) -> String {
    let verdict = match (&row.bar, row.met) {
        (Some(bar), Some(true)) => format!("{bar}: met"),
        (Some(bar), Some(false)) => format!("{bar}: NOT MET"),
        _ => String::new(),
    };
    let or_nothing =
        |figure: Option<f64>, digits: usize| figure.map_or_else(String::new, |f| format!("{f:.digits$}"));
    let line = format!(
        "{:<46} {:>9} {:>7} {:>9.3} {:>7.2} {:>9} {:>9} {:>7} {:>7} {:>11} {:>7.3} {:>12.3}  {verdict}",
        row.kernel,
        row.elements,
        row.density.map_or_else(String::new, |density| density.to_string()),
        row.ms,
        row.gigabytes_per_s,
        or_nothing(row.ns_an_entry, 3),
        or_nothing(row.ns_over_floor, 3),
        or_nothing(row.over_entropy, 3),
        or_nothing(row.bytes_an_entry, 4),
        row.floor,
        row.ratio,
        row.median_ratio,
    );
    line.trim_end().to_owned()
}

/// How many rows meet their bars, and which do not.
#[must_use]
pub fn verdict(rows: &[Row]) -> String {
    let judged = rows.iter().filter(|row| row.met.is_some()).count();
    let missed: Vec<&Row> = rows.iter().filter(|row| row.met == Some(false)).collect();
    let mut text = format!("# {} of {judged} bars met", judged - missed.len());
    missed.iter().for_each(|row| text.push_str(&format!("\n{}", line(row))));
    text
}
