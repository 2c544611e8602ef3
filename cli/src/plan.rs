//! `brevity plan`: which algorithm each dense collective takes, and what all of them are estimated to take;
//! or whether to sum a vector as it is or compressed.

mod vector;

use std::fmt::Write;
use std::path::PathBuf;

use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Reduce, ReduceScatter, Scatter,
};
use brevity::collectives::{Algorithm, Estimate, Ground, Link, Machine, Topology, Work, estimates};
use brevity_bench::output::{Outputs, is_standard_output, print};
use brevity_bench::record::to_json;
use brevity_bench::size::SizeRange;
use serde::Serialize;

/// Shows the algorithms that dense collectives take by messages, the fastest first, with the microseconds
/// that each is estimated to take.
///
/// With --elements: all ways to sum a vector of f32 over all ranks, as it is and compressed, and which of
/// them is the fastest, with all that a rank does itself.
///
/// Without other settings, each rank is on a host of its own, and speeds are those that groups assume when
/// they can't measure them.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArguments {
    /// One collective, as all-reduce [default: all]
    #[arg(conflicts_with = "elements")]
    pub name: Option<String>,
    /// Ranks
    #[arg(short = 'n', long, value_name = "N", aliases = ["np", "world-size"], default_value = "8",
        value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    pub ranks: u32,
    /// Bytes of the vector, or of each rank's block: MIN:MAX, doubling
    #[arg(long, value_name = "BYTES", default_value = "8:64M", conflicts_with = "elements")]
    pub size: SizeRange,
    /// Hosts, each with as many ranks, one behind the other [default: one for each rank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub hosts: Option<u32>,
    /// Speeds, as in BREVITY_MACHINE
    #[arg(long, value_name = "SPEEDS")]
    pub machine: Option<Machine>,
    /// Seconds that a message takes between hosts
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub alpha: Option<f64>,
    /// Seconds that a byte takes between hosts
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "bandwidth")]
    pub beta: Option<f64>,
    /// The same as bits a second, as 10e9
    #[arg(long, value_name = "BITS", value_parser = bits_per_second)]
    pub bandwidth: Option<f64>,
    /// Let sums of floating-point numbers have any order
    #[arg(long)]
    pub any_order: bool,
    /// Elements of 16 bits, whose sums are in 32
    #[arg(long, conflicts_with = "elements")]
    pub half: bool,
    #[command(flatten)]
    pub vector: vector::VectorArguments,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Plan {
    /// As in `BREVITY_MACHINE`.
    machine: String,
    ranks: u32,
    hosts: u32,
    /// Whether sums by hosts have the fixed order.
    is_aligned: bool,
    rows: Vec<Row>,
}

/// The algorithms of a collective for vectors of a length.
#[derive(Debug, Serialize)]
struct Row {
    collective: String,
    bytes: usize,
    /// The algorithm that is taken: the fastest.
    choice: &'static str,
    algorithms: Vec<Choice>,
}

/// An algorithm, and what it is estimated to take.
#[derive(Debug, Serialize)]
struct Choice {
    algorithm: &'static str,
    microseconds: f64,
    /// The same in seconds.
    seconds: f64,
    rounds: u32,
    bytes_per_rank: f64,
}

/// Prints the table, and writes the figures.
///
/// # Errors
/// For an unknown collective or placement, a file that can't be written, or if standard output was closed.
pub fn plan(arguments: &PlanArguments) -> brevity_bench::Result<()> {
    let ground = ground(arguments)?;
    if let Some(summand) = arguments.vector.summand()? {
        let compared = vector::Compared::new(&summand, &ground);
        return tell(arguments, &compared.table(), &compared);
    }
    let Ground { machine, topology, world_size, .. } = ground;
    let plan = Plan {
        machine: machine.to_string(),
        ranks: world_size,
        hosts: topology.hosts,
        is_aligned: topology.is_aligned,
        rows: rows(arguments, &ground)?,
    };
    tell(arguments, &table(&plan), &plan)
}

fn tell(arguments: &PlanArguments, table: &str, figures: &impl Serialize) -> brevity_bench::Result<()> {
    let json = arguments.json.as_deref();
    let outputs = Outputs::open(json, None)?;
    if !json.is_some_and(is_standard_output) {
        print(table)?;
    }
    outputs.json.map_or(Ok(()), |file| file.write(&to_json(figures)?))
}

fn ground(arguments: &PlanArguments) -> brevity_bench::Result<Ground> {
    let PlanArguments { ranks, machine, alpha, beta, any_order, .. } = *arguments;
    let placed = placed(ranks, arguments.hosts)?;
    let mut machine = machine.unwrap_or_default();
    let between = machine.between;
    // Where only the latency is known, a further message takes the usual part of it.
    let overhead = alpha.map_or(between.overhead, |alpha| alpha / 8.0);
    let beta = beta.or(arguments.bandwidth.map(|bits| 8.0 / bits));
    machine.between =
        Link { alpha: alpha.unwrap_or(between.alpha), overhead, beta: beta.unwrap_or(between.beta) };
    let topology = Topology::of(&placed);
    Ok(Ground { topology, has_slots: topology.hosts == 1, any_order, ..Ground::new(machine, ranks) })
}

/// The host of each rank, where hosts have as many ranks each, one behind the other.
pub fn placed(ranks: u32, hosts: Option<u32>) -> brevity_bench::Result<Vec<u32>> {
    let hosts = hosts.unwrap_or(ranks);
    if !ranks.is_multiple_of(hosts) {
        let what = format!("--hosts {hosts}: {ranks} ranks are no multiple of that");
        return Err(brevity_bench::Error::Arguments(what));
    }
    Ok((0..ranks).map(|rank| rank / (ranks / hosts)).collect())
}

/// Which algorithms collectives have for vectors of a length, also those that sum in another order.
pub fn algorithms(placed: &[u32], bytes: usize) -> Vec<(String, Vec<Algorithm>)> {
    let ground = Ground::new(Machine::default(), placed.len() as u32);
    let ground = Ground { any_order: true, topology: Topology::of(placed), ..ground };
    let mut all = Vec::new();
    for_all(&ground, &[Work { bytes, wide_bytes: bytes, ..Work::default() }], |name, _, estimates| {
        all.push((name, estimates.into_iter().map(|(algorithm, _)| algorithm).collect()));
    });
    all
}

/// Calls `take` with the name, the bytes and the estimates of every collective that has algorithms.
fn for_all(ground: &Ground, works: &[Work], mut take: impl FnMut(String, usize, Vec<(Algorithm, Estimate)>)) {
    macro_rules! take {
        ($($collective:ty),*) => {
            $(for work in works {
                let estimates = estimates::<$collective>(work, ground);
                take(<$collective>::OPERATION.to_string(), work.bytes, estimates);
            })*
        };
    }
    take!(Broadcast, Reduce, AllReduce, ReduceScatter, AllGather, Gather, Scatter, AllToAll);
    // It has no bytes.
    take(Barrier::OPERATION.to_string(), 0, estimates::<Barrier>(&Work::default(), ground));
}

fn rows(arguments: &PlanArguments, ground: &Ground) -> brevity_bench::Result<Vec<Row>> {
    let mut rows = Vec::new();
    let work = |bytes| {
        let wide_bytes = if arguments.half { 2 * bytes } else { bytes };
        Work { bytes, wide_bytes, ..Work::default() }
    };
    let works: Vec<Work> = arguments.size.sizes().map(work).collect();
    for_all(ground, &works, |collective, bytes, estimates| {
        let algorithms = estimates.into_iter().map(|(algorithm, estimate)| Choice {
            algorithm: algorithm.name(),
            microseconds: estimate.seconds * 1e6,
            seconds: estimate.seconds,
            rounds: estimate.rounds,
            bytes_per_rank: estimate.bytes,
        });
        let algorithms: Vec<Choice> = algorithms.collect();
        let choice = algorithms.first().map_or("", |fastest| fastest.algorithm);
        rows.push(Row { collective, bytes, choice, algorithms });
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

fn table(plan: &Plan) -> String {
    let Plan { machine, ranks, hosts, is_aligned, .. } = plan;
    let order = if *is_aligned { "aligned" } else { "not aligned" };
    let mut text = format!("# machine {machine}\n# {ranks} ranks on {hosts} hosts, {order}\n");
    let mut last = "";
    for row in &plan.rows {
        if row.collective != last {
            let _ = writeln!(text, "\n# {}", row.collective);
            last = &row.collective;
        }
        let _ = write!(text, "{:>10}", row.bytes);
        for Choice { algorithm, microseconds, .. } in &row.algorithms {
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

/// A bandwidth on the command line.
fn bits_per_second(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(bits) if bits.is_finite() && bits >= 1.0 => Ok(bits),
        _ => Err(format!("{text:?} is no bandwidth: expected bits a second from 1 on, as 10e9")),
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

    pub(super) fn arguments(line: &str) -> PlanArguments {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        Command::try_parse_from(words).unwrap().arguments
    }

    fn rows_of(line: &str) -> brevity_bench::Result<Vec<Row>> {
        let arguments = arguments(line);
        rows(&arguments, &ground(&arguments)?)
    }

    #[test]
    fn the_cheapest_comes_first() {
        let all = rows_of("--size 8:1K --ranks 5").unwrap();
        assert_eq!(all.len(), 8 * 8 + 1, "collectives and sizes, and the barrier");
        for row in &all {
            assert!(row.algorithms.is_sorted_by(|a, b| a.microseconds <= b.microseconds), "{row:?}");
            assert_eq!(row.choice, row.algorithms[0].algorithm, "{row:?}");
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
        let (machine, rows) = (Machine::default().to_string(), all);
        let text = table(&Plan { machine, ranks: 5, hosts: 5, is_aligned: false, rows });
        assert!(text.contains("\n# 5 ranks on 5 hosts, not aligned\n\n# broadcast\n         8  "), "{text}");
        let line = "all-reduce --size 64M:64M --hosts 2 --machine inside:1,1,0.1;between:50,2,8";
        assert_eq!(names(line)[0], "hosts");
        assert_eq!(names(&line.replace("all-reduce", "barrier"))[0], "hosts");
        assert_eq!(names(&line.replace("all-reduce", "all-reduce --half"))[0], "hosts");
        assert_eq!(names(&line.replace("all-reduce", "reduce-scatter"))[0], "hosts");
        assert_eq!(names("barrier"), ["dissemination"]);
        assert!(rows_of("--hosts 3").unwrap_err().to_string().contains("no multiple"));
        let refused = rows_of("allreduce").unwrap_err().to_string();
        assert!(refused.contains("all-reduce"), "{refused}");
    }
}
