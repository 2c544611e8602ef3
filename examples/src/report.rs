//! The output of `train` after all runs.

use crate::Error;
use crate::trainer::Run;
use serde::Serialize;
use std::fmt::Write;

/// The columns of [`table`].
const HEADINGS: [&str; 6] =
    ["method", "test accuracy", "bytes/rank/step", "compression", "communication", "total"];

/// One more, with a server.
const STALENESS: &str = "staleness";

/// The content of [`to_json`].
#[derive(Serialize)]
struct Report<'a> {
    runs: &'a [Run],
}

/// The runs as a table of text, one line for each run below a line of headings.
///
/// `parameter_count` is the number of elements of a gradient: if no run was dense, compression is relative to
/// a ring all-reduce of them, and with a server to a gradient and a model.
pub fn table(runs: &[Run], parameter_count: usize) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(|run| row(run, dense_bytes(runs, parameter_count, run)).to_vec()));
    if runs.iter().any(|run| run.staleness.is_some()) {
        let cells = runs.iter().map(|run| format!("{:.2}", run.staleness.unwrap_or(0.0)));
        let cells = std::iter::once(STALENESS.to_owned()).chain(cells);
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            // Writing to a string cannot fail.
            let _ = write!(line, "  {cell:>width$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for run in runs.iter().filter(|run| !run.lost_ranks.is_empty()) {
        let lost: Vec<String> = run.lost_ranks.iter().map(usize::to_string).collect();
        text.push_str(&format!(
            "{}: rank {} died; the figures are those of the others\n",
            run.method,
            lost.join(", ")
        ));
    }
    text
}

/// The runs as `{"runs":[..]}`, with every field of [`Run`].
///
/// # Errors
/// [`Error::Output`] for a figure that JSON can't represent.
pub fn to_json(runs: &[Run]) -> Result<String, Error> {
    Ok(brevity_bench::record::to_json(&Report { runs })?)
}

/// The bytes of a dense step: measured if a run was dense, otherwise `2 (P-1)/P` times the gradient, and with
/// a server twice.
fn dense_bytes(runs: &[Run], parameter_count: usize, run: &Run) -> f64 {
    let is_dense = |run: &&Run| run.method == "dense" || run.method == "asgd";
    let share = if run.staleness.is_some() { 1.0 } else { (run.ranks as f64 - 1.0) / run.ranks as f64 };
    let counted = 4.0 * parameter_count as f64 * 2.0 * share;
    runs.iter().find(is_dense).map_or(counted, |run| run.bytes_per_rank_step)
}

fn row(run: &Run, dense_bytes: f64) -> [String; 6] {
    let bytes = run.bytes_per_rank_step;
    let compression = if bytes > 0.0 { format!("{:.1}x", dense_bytes / bytes) } else { "-".to_owned() };
    [
        run.method.clone(),
        format!("{:.2} %", 100.0 * run.test_accuracy),
        format!("{bytes:.0}"),
        compression,
        format!("{:.1} s", run.communication_seconds),
        format!("{:.1} s", run.seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Point;

    fn run(method: &str, bytes_per_rank_step: f64) -> Run {
        let point = Point { step: 10, seconds: 1.0, bytes_per_rank: 1e4, loss: 0.5, test_accuracy: 0.975 };
        Run {
            method: method.into(),
            ranks: 4,
            test_accuracy: 0.975,
            bytes_per_rank_step,
            steps: 10,
            seconds: 12.34,
            communication_seconds: 2.0,
            staleness: None,
            lost_ranks: Vec::new(),
            curve: vec![point],
        }
    }

    #[test]
    fn the_table_has_one_aligned_line_a_run() {
        let text = table(&[run("dense", 4_000_000.0), run("gtopk", 40_000.0)], 0);
        let expected = "\
method   test accuracy  bytes/rank/step  compression  communication   total
dense          97.50 %          4000000         1.0x          2.0 s  12.3 s
gtopk          97.50 %            40000       100.0x          2.0 s  12.3 s
";
        assert_eq!(
            text,
            expected
                .replace("method   ", "method  ")
                .replace("dense    ", "dense   ")
                .replace("gtopk    ", "gtopk   ")
        );
    }

    #[test]
    fn compression_without_a_dense_run_is_against_a_ring() {
        // 1000 numbers over 4 ranks: 2 * 3/4 * 4000 bytes.
        assert!(table(&[run("gtopk", 60.0)], 1000).contains(" 100.0x "));
        assert!(table(&[run("dense", 0.0)], 1000).contains("  -  "));
    }

    #[test]
    fn with_a_server_there_is_a_column_more() {
        let run = Run { staleness: Some(3.25), ..run("dgs", 80.0) };
        let text = table(&[run], 1000);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("  staleness") && lines[1].ends_with("       3.25"), "{text}");
        // A gradient and a model, of 4000 bytes each.
        assert!(lines[1].contains(" 100.0x "), "{text}");
    }

    #[test]
    fn ranks_that_died_are_named() {
        let run = Run { lost_ranks: vec![1, 3], ..run("dgs", 80.0) };
        let text = to_json(std::slice::from_ref(&run)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["runs"][0]["lost_ranks"], serde_json::json!([1, 3]));
        let text = table(&[run], 1000);
        assert!(text.ends_with("\ndgs: rank 1, 3 died; the figures are those of the others\n"), "{text}");
    }

    #[test]
    fn the_json_file_has_the_agreed_fields() {
        let text = to_json(&[run("lowrank", 123.5)]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let found = &value["runs"][0];
        assert_eq!(found["method"], "lowrank");
        assert_eq!(found["ranks"], 4);
        assert_eq!(found["test_accuracy"], 0.975);
        assert_eq!(found["bytes_per_rank_step"], 123.5);
        assert_eq!(found["steps"], 10);
        assert_eq!(found["seconds"], 12.34);
        assert_eq!(found["communication_seconds"], 2.0);
        assert_eq!(found["curve"][0]["loss"], 0.5);
    }
}
