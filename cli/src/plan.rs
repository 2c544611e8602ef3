//! `brevity plan`: which algorithm each dense collective takes, and what all of them are estimated to take.

use std::fmt::Write;

use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Broadcast, Collective, Gather, Reduce, ReduceScatter, Scatter,
};
use brevity::collectives::{Algorithm, Cost, Ground, Work, estimates};
use brevity_bench::output::print;
use brevity_bench::record::to_json;
use brevity_bench::size::SizeRange;
use serde::Serialize;

/// Shows the algorithms that dense collectives take between ranks of several hosts, the cheapest first, with
/// the microseconds that each is estimated to take.
///
/// Without other settings, latency and bandwidth are those that groups assume.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArguments {
    /// One collective, as all-reduce [default: all]
    pub name: Option<String>,
    /// Ranks
    #[arg(short = 'n', long, value_name = "N", alias = "np", default_value = "8",
        value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub ranks: u32,
    /// Bytes of the vector, or of each rank's block: MIN:MAX, doubling
    #[arg(long, value_name = "BYTES", default_value = "8:64M")]
    pub size: SizeRange,
    /// Seconds that a message takes
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub alpha: Option<f64>,
    /// Seconds that a byte takes
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub beta: Option<f64>,
    /// Let sums of floating-point numbers have any order
    #[arg(long)]
    pub any_order: bool,
    /// Elements of 16 bits, whose sums are in 32
    #[arg(long)]
    pub half: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The algorithms of a collective for vectors of a length.
#[derive(Debug, Serialize)]
struct Row {
    collective: String,
    bytes: usize,
    algorithms: Vec<Estimate>,
}

#[derive(Debug, Serialize)]
struct Estimate {
    algorithm: &'static str,
    microseconds: f64,
}

/// Prints the table.
///
/// # Errors
/// For an unknown collective, or if standard output was closed.
pub fn plan(arguments: &PlanArguments) -> brevity_bench::Result<()> {
    let rows = rows(arguments)?;
    print(&if arguments.json { to_json(&rows)? } else { table(&rows) })
}

/// Which algorithms collectives have for vectors of a length, also those that sum in another order.
pub fn algorithms(ranks: u32, bytes: usize) -> Vec<(String, Vec<Algorithm>)> {
    let ground = Ground { cost: Cost::default(), world_size: ranks, any_order: true };
    let mut all = Vec::new();
    for_all(&ground, &[Work { bytes, wide_bytes: bytes, ..Work::default() }], |name, _, estimates| {
        all.push((name, estimates.into_iter().map(|(algorithm, _)| algorithm).collect()));
    });
    all
}

/// Calls `take` with the name, the bytes and the estimates of every collective that has algorithms.
fn for_all(ground: &Ground, works: &[Work], mut take: impl FnMut(String, usize, Vec<(Algorithm, f64)>)) {
    macro_rules! take {
        ($($collective:ty),*) => {
            $(for work in works {
                let estimates = estimates::<$collective>(work, ground);
                take(<$collective>::OPERATION.to_string(), work.bytes, estimates);
            })*
        };
    }
    take!(Broadcast, Reduce, AllReduce, ReduceScatter, AllGather, Gather, Scatter, AllToAll);
}

fn rows(arguments: &PlanArguments) -> brevity_bench::Result<Vec<Row>> {
    let usual = Cost::default();
    let cost =
        Cost { alpha: arguments.alpha.unwrap_or(usual.alpha), beta: arguments.beta.unwrap_or(usual.beta) };
    let ground = Ground { cost, world_size: arguments.ranks, any_order: arguments.any_order };
    let mut rows = Vec::new();
    let work = |bytes| {
        let wide_bytes = if arguments.half { 2 * bytes } else { bytes };
        Work { bytes, wide_bytes, is_exact: false, is_uneven: false }
    };
    let works: Vec<Work> = arguments.size.sizes().map(work).collect();
    for_all(&ground, &works, |collective, bytes, estimates| {
        let estimate = |(algorithm, seconds): (Algorithm, f64)| Estimate {
            algorithm: algorithm.name(),
            microseconds: seconds * 1e6,
        };
        rows.push(Row { collective, bytes, algorithms: estimates.into_iter().map(estimate).collect() });
    });
    let Some(name) = &arguments.name else { return Ok(rows) };
    let mut names: Vec<String> = rows.iter().map(|row| row.collective.clone()).collect();
    names.dedup();
    rows.retain(|row| row.collective == *name);
    if rows.is_empty() {
        let what = format!("{name:?} is no collective with algorithms: expected one of {}", names.join(", "));
        return Err(brevity_bench::Error::Arguments(what));
    }
    Ok(rows)
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut last = "";
    for row in rows {
        if row.collective != last {
            let _ = writeln!(text, "{}# {}", if last.is_empty() { "" } else { "\n" }, row.collective);
            last = &row.collective;
        }
        let _ = write!(text, "{:>10}", row.bytes);
        for Estimate { algorithm, microseconds } in &row.algorithms {
            let _ = write!(text, "  {algorithm} {microseconds:.1}");
        }
        text.push('\n');
    }
    text
}

/// A time on the command line.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err(format!("{text:?} is no time: expected seconds from 0 on, as 20e-6")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: PlanArguments,
    }

    fn rows_of(line: &str) -> brevity_bench::Result<Vec<Row>> {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        rows(&Command::try_parse_from(words).unwrap().arguments)
    }

    #[test]
    fn the_cheapest_comes_first() {
        let all = rows_of("--size 8:1K --ranks 5").unwrap();
        assert_eq!(all.len(), 8 * 8, "collectives and sizes");
        for row in &all {
            assert!(row.algorithms.is_sorted_by(|a, b| a.microseconds <= b.microseconds), "{row:?}");
        }
        let names = |line: &str| -> Vec<&str> {
            let rows = rows_of(line).unwrap();
            rows[0].algorithms.iter().map(|estimate| estimate.algorithm).collect()
        };
        assert_eq!(names("all-reduce --size 8:8")[0], "doubling");
        assert_eq!(names("all-reduce --size 64M:64M --ranks 5")[0], "direct");
        assert!(!names("all-reduce --size 64M:64M").contains(&"ring"));
        assert!(names("all-reduce --size 64M:64M --any-order").contains(&"ring"));
        assert!(!names("all-reduce --size 8:8 --half").contains(&"halving"));
        let text = table(&all);
        assert!(text.starts_with("# broadcast\n         8  "), "{text}");
        let refused = rows_of("allreduce").unwrap_err().to_string();
        assert!(refused.contains("all-reduce"), "{refused}");
    }
}
