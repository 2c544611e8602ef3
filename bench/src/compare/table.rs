//! The figures as a table, and the verdict.

use super::pairs::Comparison;
use crate::size::Size;

/// The head of the table.
#[must_use]
pub fn head() -> String {
    format!(
        "{:<12} {:<5} {:>6} {:<10} {:<26} {:>11} {:>11} {:>7} {:>15} {:>9}  {}",
        "# what",
        "wire",
        "size",
        "ours",
        "theirs",
        "ours(us)",
        "theirs(us)",
        "ratio",
        "interval",
        "extra(ns)",
        "bar"
    )
}

/// A line of the table.
#[must_use]
pub fn line(row: &Comparison) -> String {
    let verdict = match (row.bar, row.met) {
        (Some(bar), Some(true)) => format!("{bar}: met"),
        (Some(bar), Some(false)) => format!("{bar}: NOT MET"),
        _ => String::new(),
    };
    let mut line = format!(
        "{:<12} {:<5} {:>6} {:<10} {:<26} {:>11.3} {:>11.3} {:>7.3} {:>15} {:>9.0}  {verdict}",
        row.subject.what,
        row.subject.wire,
        Size(row.subject.bytes).to_string(),
        row.ours,
        row.peer,
        row.ours_us,
        row.theirs_us,
        row.ratio,
        format!("{:.3}..{:.3}", row.ratio_low, row.ratio_high),
        row.extra_ns,
    );
    if let Some(kernels) = row.kernels_us {
        line.push_str(&format!("  [kernels of ours: {kernels:.3} us]"));
    }
    let changed = row.turns.iter().filter(|turn| turn.changed).count();
    if row.repeated > 0 || changed > 0 {
        line.push_str(&format!(
            "  [regime changed: {} turns taken again, {changed} of two regimes]",
            row.repeated
        ));
    }
    line
}

/// How many rows meet their bars, and which do not.
#[must_use]
pub fn verdict(found: &[Comparison]) -> String {
    let judged = found.iter().filter(|row| row.met.is_some()).count();
    let missed: Vec<&Comparison> = found.iter().filter(|row| row.met == Some(false)).collect();
    let mut text = format!("# {} of {judged} bars met", judged - missed.len());
    missed.iter().for_each(|row| text.push_str(&format!("\n{}", line(row))));
    text
}
