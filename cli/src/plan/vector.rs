//! `brevity plan --elements`: whether to sum a vector as it is or compressed.

use std::fmt::Write;

use brevity::collectives::sparse::Wire;
use brevity::collectives::{Ground, Planned, Summand, compare, recommend};
use brevity::compress::Density;
use brevity::compress::quantise::Values;
use brevity_bench::size::Size;
use serde::Serialize;

/// What is shown if no compression is named.
const DENSITY: f64 = 0.001;
const RANK: usize = 4;
const VALUES: Values = Values::EightBit;

/// A vector to sum, and how it may be compressed.
#[derive(Clone, Debug, clap::Args)]
pub struct VectorArguments {
    /// Elements of a vector of f32 on each rank, to be summed as it is or compressed
    #[arg(long, value_name = "N")]
    pub elements: Option<Size>,
    /// The share of entries that sparse collectives keep [default: 0.001 if no compression is named]
    #[arg(long, value_name = "SHARE", requires = "elements")]
    pub density: Option<f64>,
    /// The rank of low-rank factors; the vector is a nearly square matrix [default: 4, likewise]
    #[arg(long, value_name = "R", requires = "elements")]
    pub rank: Option<usize>,
    /// The format of values, of a quantised vector and of packed entries; without it entries are pairs of an
    /// index and an f32, or packed [default: of a quantised vector eight-bit, likewise]
    #[arg(long, value_name = "FORMAT", requires = "elements")]
    pub values: Option<Values>,
}

impl VectorArguments {
    /// What is to be summed, if that was asked for.
    ///
    /// # Errors
    /// For a density that is none.
    pub fn summand(&self) -> brevity_bench::Result<Option<Summand>> {
        let Self { elements, mut density, mut rank, mut values } = *self;
        let Some(Size(elements)) = elements else { return Ok(None) };
        let wire = values.map(Wire::Coded);
        if (density, rank, values) == (None, None, None) {
            (density, rank, values) = (Some(DENSITY), Some(RANK), Some(VALUES));
        }
        if rank == Some(0) {
            return Err(brevity_bench::Error::Arguments("--rank 0: expected at least 1".into()));
        }
        let entries = |share: f64| match Density::new(share) {
            Ok(density) => Ok(density.entries(elements)),
            Err(_) => {
                let what = format!("--density {share}: expected above 0 and at most 1");
                Err(brevity_bench::Error::Arguments(what))
            }
        };
        let entries = density.map(entries).transpose()?;
        Ok(Some(Summand { elements, entries, wire, rank, values }))
    }
}

/// What is printed.
#[derive(Debug, Serialize)]
pub struct Compared {
    /// As in `BREVITY_MACHINE`.
    machine: String,
    ranks: u32,
    hosts: u32,
    elements: usize,
    /// `dense`, or the fastest compressed way to sum.
    choice: String,
    /// Why.
    reason: String,
    rows: Vec<Row>,
}

/// A way to sum, and what it is estimated to take.
#[derive(Debug, Serialize)]
struct Row {
    collective: String,
    algorithm: &'static str,
    /// How entries are written; empty where there are none.
    wire: String,
    rounds: u32,
    bytes_per_rank: f64,
    /// In all.
    seconds: f64,
    /// Of these, what the collective takes.
    collective_seconds: f64,
    /// Of these, what a rank does before and after.
    own_seconds: f64,
    /// Whether every rank gets a sum of gradients.
    is_sum: bool,
}

impl Compared {
    /// Compares all ways to sum.
    pub fn new(summand: &Summand, ground: &Ground) -> Self {
        let ways = compare(summand, ground);
        let (choice, reason) = recommend(&ways);
        let row = |way: &Planned| Row {
            collective: way.collective(),
            algorithm: way.algorithm.name(),
            wire: way.wire.map(|wire| wire.to_string()).unwrap_or_default(),
            rounds: way.estimate.rounds,
            bytes_per_rank: way.estimate.bytes,
            seconds: way.seconds(),
            collective_seconds: way.estimate.seconds,
            own_seconds: way.own_seconds,
            is_sum: way.is_sum,
        };
        Self {
            machine: ground.machine.to_string(),
            ranks: ground.world_size,
            hosts: ground.topology.hosts,
            elements: summand.elements,
            choice,
            reason,
            rows: ways.iter().map(row).collect(),
        }
    }

    /// The table.
    pub fn table(&self) -> String {
        let Self { machine, ranks, hosts, elements, choice, reason, rows } = self;
        let mut text = format!(
            "# machine {machine}\n# {elements} elements, {ranks} ranks on {hosts} hosts\n# {:<30}{:<14}{:<20}\
             {:>6}{:>14}{:>15}{:>12}{:>12}\n",
            "collective", "algorithm", "entries", "rounds", "bytes/rank", "collective us", "own us", "us"
        );
        for row in rows {
            let [seconds, inside, own] =
                [row.seconds, row.collective_seconds, row.own_seconds].map(|seconds| seconds * 1e6);
            let _ = writeln!(
                text,
                "{:<32}{:<14}{:<20}{:>6}{:>14.0}{inside:>15.1}{own:>12.1}{seconds:>12.1}{}",
                row.collective,
                row.algorithm,
                row.wire,
                row.rounds,
                row.bytes_per_rank,
                if row.is_sum { "" } else { "  (no alternative)" }
            );
        }
        let _ = writeln!(text, "\n{choice}: {reason}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::arguments;

    fn compared(line: &str) -> brevity_bench::Result<Compared> {
        let arguments = arguments(line);
        let summand = arguments.vector.summand()?.unwrap();
        Ok(Compared::new(&summand, &crate::plan::ground(&arguments)?))
    }

    #[test]
    fn compression_is_chosen_where_it_pays() {
        let line = "--world-size 16 --elements 25000000 --density 0.001 --alpha 436e-6 --bandwidth 1e9";
        let slow = compared(line).unwrap();
        assert_eq!(slow.choice, "ok-topk all-reduce by direct (packed f32)", "{slow:?}");
        assert!(slow.rows.iter().all(|row| row.seconds >= slow.rows[0].seconds));
        assert!(slow.table().ends_with(&format!("\n{}: {}\n", slow.choice, slow.reason)));
        let fast = compared(&line.replace("436e-6", "2e-6").replace("1e9", "400e9")).unwrap();
        assert_eq!(fast.choice, "dense");
        assert!(fast.reason.contains("does not pay") && fast.reason.contains("all-reduce by"), "{fast:?}");
    }

    #[test]
    fn rows_are_those_that_were_asked_for() {
        let names = |line: &str| {
            let rows = compared(&format!("--elements 1M {line}")).unwrap().rows;
            let mut names: Vec<_> = rows.into_iter().map(|row| row.collective).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        assert_eq!(names("").len(), 15, "dense, seven of entries, quantised, a vote, five others");
        let of_hosts = names("--world-size 16 --hosts 4 --density 0.01");
        assert!(of_hosts.contains(&"hierarchical all-reduce".to_owned()), "{of_hosts:?}");
        let of_rank = ["all-gather (atomo)", "all-gather (best-low-rank)", "all-reduce"];
        assert_eq!(names("--rank 2")[..3], of_rank);
        assert_eq!(names("--rank 2")[3..], ["all-reduce (unbiased-low-rank)", "low-rank all-reduce"]);
        let of_values = ["all-gather (sign-norm)", "all-reduce", "quantised all-reduce", "vote"];
        assert_eq!(names("--values bf16"), of_values);
        let entries = ["ok-topk all-reduce", "random-k all-reduce", "sparse all-gather"];
        let of_density = names("--density 0.01");
        assert_eq!(of_density[..2], ["all-reduce", "block-sparse all-reduce"]);
        assert_eq!(of_density[3..6], entries);
        let bytes =
            |line: &str| compared(line).unwrap().rows.iter().map(|row| row.bytes_per_rank).sum::<f64>();
        let line = "--elements 1M --density 0.01";
        assert!(bytes(&format!("{line} --values one-bit-mean")) < bytes(line));
        let wires = |line: &str| {
            let rows = compared(line).unwrap().rows.into_iter();
            let of_gtopk = rows.filter(|row| row.collective == "gtop-k all-reduce").map(|row| row.wire);
            of_gtopk.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(wires(line), ["packed f32", "pairs"]);
        assert_eq!(wires(&format!("{line} --values bf16")), ["packed bf16"]);
        for (line, told) in [("--density 2", "at most 1"), ("--rank 0", "at least 1")] {
            let error = compared(&format!("--elements 1M {line}")).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let none = arguments("").vector.summand().unwrap();
        assert!(none.is_none());
    }
}
